"""One side frozen: its keys, the batches made of them, the objective, and runs in which the other side learns."""

from __future__ import annotations

import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Moment, run_command
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError, RunError
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.pairs import Pairs
from dualmoco.embeddings.store import open_store
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes
from dualmoco.search.exact import nearest_both_ways
from dualmoco.training import heldout
from dualmoco.training.batches import ShardSpec, order_pairs
from dualmoco.training.config import ContrastConfig, TrainConfig
from dualmoco.training.frozen import FrozenKeys, OneSidedLoader, OneSidedMoco, encode_keys, open_keys
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log
from runfolders import losses, state

PAIRS = [*generate_pairs(60, seed=7)[:40], *((generate_pairs(1, seed=7)[0][0], f"第{i}句。") for i in range(3))]


def frozen(plain: Path, *more: str, side: str = "src") -> list[str]:
    """Settings that freeze one side, a random BERT of dimension 16, beside one that learns."""
    other = "tgt" if side == "src" else "src"
    return [f"{side}.kind=pretrained", f"{side}.name={plain}", f"{side}.frozen=true", f"{other}.projection=16", *more]


@pytest.fixture
def started(recipe: Path, plain: Path) -> Path:
    """The folder of a run with a frozen side after its first step."""
    train(recipe, *frozen(plain, "schedule.steps=1"))
    return recipe.parent / "run"


@pytest.fixture
def made(recipe: Path, plain: Path, started: Path) -> tuple[TrainConfig, Pairs, FrozenKeys]:
    """Settings, pairs of which one sentence has several translations, and the keys of their English side."""
    config = load_config(recipe, frozen(plain, "contrast.queue_size=20", "contrast.temperature=0.1"))
    pairs = Pairs.from_texts(PAIRS)
    shutil.rmtree(started / "keys")
    encode_keys(config, pairs, started)
    return config, pairs, open_keys(config, pairs, started)


def loader(
    made: tuple[TrainConfig, Pairs, FrozenKeys], share: ShardSpec, *, batch_keys: bool = False
) -> OneSidedLoader:
    """Batches of 12 pairs whose sentences are their own tokens."""
    config, pairs, keys = made
    config = replace(config, contrast=replace(config.contrast, batch_keys=batch_keys))
    order = order_pairs(pairs, 12, seed=0, bucket=1, frozen="src")
    return OneSidedLoader(config, pairs, order, keys, lambda texts: {"bytes": as_bytes(texts)}, share)


def as_bytes(texts: list[str]) -> torch.Tensor:
    """UTF-8 of sentences, padded with 0."""
    rows = [list(text.encode()) for text in texts]
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def test_keys_are_the_frozen_encoders_vectors(made: tuple[TrainConfig, Pairs, FrozenKeys], started: Path) -> None:
    """Row by row those of the network itself, to half precision; a sentence that stands twice is encoded once."""
    _, pairs, keys = made
    expected = encode_by_itself(open_routes(started / "initial")["en"], [src for src, _ in PAIRS])
    vectors, ids = keys.take(np.arange(len(PAIRS)))
    assert np.abs(vectors.numpy() - expected).max() < 1e-3
    assert np.array_equal(ids.numpy(), np.stack([pairs.src_ids, pairs.tgt_ids], axis=1))
    store = open_store(started / "keys")
    assert store.count == len({src for src, _ in PAIRS}) < len(PAIRS) == len(keys)
    assert store.key.precision == VectorPrecision.fp16 and keys.vectors.parts[0].dtype == np.float16


def test_batches_hold_matching_sentences_keys_and_ids(made: tuple[TrainConfig, Pairs, FrozenKeys]) -> None:
    """Ranks and micro-batches share a step's rows out, all with the same negatives; no frozen sentence is read."""
    _, pairs, keys = made
    whole = loader(made, ShardSpec()).step(2)[0]
    parts = [part for rank in range(2) for part in loader(made, ShardSpec(rank, 2, 3)).step(2)]
    rows = loader(made, ShardSpec()).order.rows(2)
    assert torch.equal(whole.features.parts[0]["bytes"], as_bytes([PAIRS[row][1] for row in rows.tolist()]))
    for name in ("keys", "ids"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert all(torch.equal(part.negatives.vectors, whole.negatives.vectors) for part in parts)
    assert all(
        part.negatives is parts[0].negatives for part in parts[:3]
    )  # one copy for the micro-batches of a process
    assert torch.equal(whole.keys, keys.take(rows)[0])
    assert whole.ids.tolist() == [[int(pairs.tgt_ids[row]), int(pairs.src_ids[row])] for row in rows.tolist()]
    assert len(whole.negatives.vectors) == len(whole.negatives.ids) == 20


@pytest.mark.parametrize("batch_keys", [False, True])
def test_negatives_are_random_rows_by_seed_and_step(
    made: tuple[TrainConfig, Pairs, FrozenKeys], batch_keys: bool
) -> None:
    """Distinct rows, others in each step, the same in any order of steps; over many steps every row comes as often."""
    steps = loader(made, ShardSpec(), batch_keys=batch_keys)
    drawn = [steps.negative_rows(step, steps.order.rows(step)) for step in range(300)]
    again = loader(made, ShardSpec(), batch_keys=batch_keys)
    assert all(np.array_equal(again.negative_rows(step, again.order.rows(step)), drawn[step]) for step in (7, 3, 299))
    own = 12 if batch_keys else 0
    assert all(len(rows) == len(set(rows.tolist())) == 20 for rows in drawn)
    assert all(np.array_equal(rows[:own], np.sort(steps.order.rows(step)[:own])) for step, rows in enumerate(drawn))
    counts = np.bincount(np.concatenate([rows[own:] for rows in drawn]), minlength=len(PAIRS))
    expected = 300 * (20 - own) / len(PAIRS)
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)


def test_fewer_pairs_than_negatives_are_all_taken(made: tuple[TrainConfig, Pairs, FrozenKeys]) -> None:
    """A queue larger than the corpus is the corpus."""
    for batch_keys in (False, True):
        steps = loader(made, ShardSpec())
        steps.contrast = ContrastConfig(batch_keys=batch_keys)
        assert sorted(steps.negative_rows(0, steps.order.rows(0)).tolist()) == list(range(len(PAIRS)))


def test_a_pair_that_a_batch_holds_twice_is_one_negative(made: tuple[TrainConfig, Pairs, FrozenKeys]) -> None:
    """A curriculum may repeat pairs; the others are drawn from those that the batch does not have."""
    steps = loader(made, ShardSpec(), batch_keys=True)
    rows = steps.negative_rows(0, np.array([41, 3, 3, 7, 0]))
    assert rows[:4].tolist() == [0, 3, 7, 41] and len(set(rows.tolist())) == len(rows) == 20
    assert steps.negative_rows(0, np.arange(30)).tolist() == list(range(20))  # at most as many as the queue holds


def test_objective_agrees_with_a_loop(made: tuple[TrainConfig, Pairs, FrozenKeys], started: Path) -> None:
    """InfoNCE in Python numbers, without negatives that are the translation or belong to the query's own text."""
    config, pairs, keys = made
    config = replace(config, contrast=replace(config.contrast, queue_size=50))
    encoder = open_routes(started / "initial")["zh"]
    objective = OneSidedMoco(encoder, encoder, config).eval()
    order = order_pairs(pairs, 40, seed=0, bucket=1, frozen="src")
    batch = OneSidedLoader(config, pairs, order, keys, encoder.tokenize, ShardSpec()).step(0)[0]
    negatives = objective.begin_step([batch])[0]
    metrics = objective(batch, negatives)
    query = encoder(batch.features).tolist()
    found, hits, masked = [], [], 0
    for vector, key, (text, translation) in zip(query, batch.keys.tolist(), batch.ids.tolist(), strict=True):
        logits = []
        rows = zip(negatives.vectors.tolist(), negatives.ids.tolist(), strict=True)
        for row, (row_text, row_translation) in rows:
            if row_text in (text, translation) or row_translation == text:
                masked += 1
            else:
                logits.append(math.fsum(a * b for a, b in zip(vector, row, strict=True)) / 0.1)
        positive = math.fsum(a * b for a, b in zip(vector, key, strict=True)) / 0.1
        found.append(math.log(math.fsum(math.exp(logit - positive) for logit in [positive, *logits])))
        hits.append(all(positive > logit for logit in logits))
    assert masked > 43  # every pair is a negative of itself, and one sentence has several translations
    assert metrics["loss"].item() == pytest.approx(math.fsum(found) / 40, rel=1e-4)
    assert metrics["accuracy"].item() == pytest.approx(sum(hits) / 40)
    assert metrics["masked"].item() == pytest.approx(masked / (40 * 43))
    metrics["loss"].backward()
    assert any(weight.grad is not None and bool(weight.grad.any()) for weight in encoder.parameters())


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_a_frozen_side_stays_and_the_other_learns(
    recipe: Path, plain: Path, tmp_path: Path, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights are those it came with and in no checkpoint; one line says what was encoded; the log has metrics."""
    with caplog.at_level("INFO", logger="dualmoco"):
        train(recipe, *frozen(plain, "schedule.steps=8", side=side))
    run = tmp_path / "run"
    first, last = (open_routes(run / name) for name in ("initial", "model"))
    still = "en" if side == "src" else "zh"
    for lang in ("en", "zh"):
        pairs = zip(first[lang].state_dict().values(), last[lang].state_dict().values(), strict=True)
        assert all(torch.equal(before, after) for before, after in pairs) is (lang == still)
    names = [name for name in state(run) if name.startswith("model.")]
    assert names and all(name.startswith(("model.encoder.", "model.log_temperature")) for name in names)
    count = open_store(run / "keys").count
    said = [message for message in caplog.messages if "frozen" in message]
    assert said == [f"{still} is frozen: {count} keys in {run / 'keys'}, {count} of them encoded now"]
    line = [record for record in read_log(run / "log.jsonl") if "loss" in record][-1]
    assert all(line[name] >= 0 for name in ("accuracy", "spread", "masked", "pairs_per_second"))
    assert line["temperature"] == pytest.approx(0.05) and "drift" not in line and "queue_age" not in line


def test_micro_batches_equal_one_batch_when_frozen(recipe: Path, plain: Path, tmp_path: Path) -> None:
    """Gradient accumulation gives the losses of the whole batch."""
    settings = frozen(plain, "tgt.dropout=0", "contrast.batch_keys=true")
    train(recipe, f"out={tmp_path / 'one'}", *settings)
    train(recipe, f"out={tmp_path / 'four'}", *settings, "optimizer.accumulate=4")
    one, four = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("one", "four"))
    torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-5)


def test_held_out_sentences_of_a_frozen_side_are_encoded_once(
    recipe: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in the whole run, those of the other side at every evaluation."""
    usual, encoded = heldout.encode_heldout, []

    def counted(*given: object) -> object:
        encoded.append(given[0])
        return usual(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(heldout, "encode_heldout", counted)
    train(recipe, *frozen(plain))
    assert sorted(encoded.count(encoder) for encoder in set(encoded)) == [1, 3]


def test_nli_next_to_a_frozen_encoder(recipe: Path, plain: Path, tmp_path: Path) -> None:
    """The source encoder may learn NLI while the target encoder is frozen."""
    path = tmp_path / "nli.tsv"
    rows = [f"第{i}句。\t好。\t{('entailment', 'neutral', 'contradiction')[i % 3]}\n" for i in range(90)]
    path.write_text("".join(rows), encoding="utf-8")
    nli = [f"nli.train=[{path}]", "nli.heldout=30", "nli.batch_size=16"]
    train(recipe, *frozen(plain, *nli, "schedule.steps=2", side="tgt"))
    line = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record][-1]
    assert line["nli_loss"] > 0 and line["loss"] > 0.1 * line["nli_loss"]


def test_keys_are_encoded_once_and_again_only_where_damaged(
    recipe: Path, plain: Path, started: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Resuming encodes nothing; a damaged shard is made again."""
    count = open_store(started / "keys").count
    for encoded in (0, count):
        with caplog.at_level("INFO", logger="dualmoco"):
            train(recipe, *frozen(plain, "schedule.steps=1"), resume=True)
        assert f"en is frozen: {count} keys in {started / 'keys'}, {encoded} of them encoded now" in caplog.text
        whole = (started / "keys" / "00000.npy").read_bytes()
        (started / "keys" / "00000.npy").write_bytes(whole[:-2] + b"\x00\x01")


@pytest.mark.parametrize("changed", ["model_sha256", "text_sha256", "precision"])
def test_stale_or_foreign_keys_are_refused(recipe: Path, plain: Path, started: Path, changed: str) -> None:
    """Keys of another model, of other sentences or of another precision are told by their checksum."""
    manifest = started / "keys" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    content["key"][changed] = "int8" if changed == "precision" else 64 * "0"
    manifest.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=rf"^[^\n]*keys: contains vectors with {changed} [^\n]*; expected [^\n]*$"):
        train(recipe, *frozen(plain, "schedule.steps=1"), resume=True)


def test_keys_of_other_weights_are_refused(recipe: Path, plain: Path, started: Path) -> None:
    """Weights that changed under a run are found before a step is made."""
    weights = next(path for path in (started / "initial").rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\x80\x3f")
    with pytest.raises(DataError, match="keys: contains vectors with model_sha256"):
        train(recipe, *frozen(plain, "schedule.steps=1"), resume=True)


def test_a_run_killed_while_it_encodes_keys_is_resumed(recipe: Path, plain: Path, tmp_path: Path) -> None:
    """The folder holds the run from then on: resuming encodes what is missing and trains."""
    settings = frozen(plain, "schedule.steps=1")
    words = ["train", str(recipe), *settings, "--quiet"]
    moment = Moment(signal.SIGKILL, "dualmoco.embeddings.store", "Store.add", after=False)
    assert run_command(words, tmp_path / "killed", moment=moment).code == -signal.SIGKILL
    assert open_store(tmp_path / "run" / "keys").missing() == [0]
    with pytest.raises(RunError, match="already contains a run"):
        train(recipe, *settings)
    train(recipe, *settings, resume=True)
    assert [step for step, _ in losses(tmp_path / "run")] == [1]


def reversed_words(sentence: str) -> str:
    """A made-up language: English whose words are spelt backwards."""
    return " ".join(word[::-1] for word in sentence.lower().rstrip(".?!").split())


def test_a_third_language_joins_a_space(tmp_path: Path) -> None:
    """Trained with English alone, which is frozen, a language finds its translations in Chinese, which it never saw."""
    recipe = Path(__file__).parents[1] / "recipes" / "tiny.yaml"
    fast = ["optimizer.batch_size=128", "data.heldout=200", "schedule.evaluate_every=120", "schedule.steps=120"]
    first = ["data.train=[grammar:8000]", "src.width=64", "tgt.width=64", *fast]
    train(recipe, f"out={tmp_path / 'first'}", *first)
    corpus = tmp_path / "pairs.tsv"
    known = generate_pairs(6000, seed=3)
    corpus.write_text("".join(f"{src}\t{reversed_words(src)}\n" for src, _ in known), encoding="utf-8")
    english = ["src.kind=pretrained", f"src.name={tmp_path / 'first'}", "src.frozen=true"]
    third = ["tgt.lang=xx", "tgt.width=64", "tgt.max_piece_length=16", f"data.train=[{corpus}]", *fast]
    result = train(recipe, f"out={tmp_path / 'joined'}", *english, *third)
    assert result.before.score < 0.05

    new = [pair for pair in generate_pairs(7000, seed=5) if pair not in set(known)][:200]
    xx = open_model(tmp_path / "joined").encode([reversed_words(src) for src, _ in new], lang="xx")
    zh = open_model(tmp_path / "first").encode([tgt for _, tgt in new], lang="zh")
    found = [float((side.ids[:, 0] == np.arange(200)).mean()) for side in nearest_both_ways(xx, zh, 1)]
    assert min(found) > 0.5  # by chance 0.005
    before, after = (
        open_model(tmp_path / name).encode([src for src, _ in new], lang="en") for name in ("first", "joined")
    )
    assert np.array_equal(before, after)

"""Vectors of several dimensions: the loss over their prefixes, its record, and models that keep fewer components."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings.store import open_store
from dualmoco.models.export import export_model
from dualmoco.models.folder import read_trained_dimensions
from dualmoco.search.index_files import read_index_manifest
from dualmoco.training.config import ContrastConfig, OptimizerConfig, TrainConfig
from dualmoco.training.contrast import DualMomentumContrast, KeyBatch, info_nce
from dualmoco.training.frozen import Negatives, OneSidedBatch, OneSidedMoco
from dualmoco.training.infonce import _BlockwiseInfoNCE, blockwise_info_nce
from dualmoco.training.objectives import InBatch, objective_class, rank_translations
from dualmoco.training.run import train

PAIRS = generate_pairs(300, seed=5)
EN, ZH = ([pair[side] for pair in PAIRS] for side in range(2))
WIDTH, SHORT = 16, 4
RECIPE = """
src: {lang: en, kind: static, width: 16, vocab_size: 300, dropout: 0.0}
tgt: {lang: zh, kind: static, width: 16, vocab_size: 300, dropout: 0.0, max_piece_length: 4}
data: {train: ["grammar:600"], heldout: 50}
contrast: {queue_size: 100, temperature: 0.1, momentum: 0.9, batch_keys: true, dimensions: [8, 4]}
optimizer: {lr: 1e-2, warmup_steps: 2, batch_size: 32}
schedule: {steps: 30, evaluate_every: 30, checkpoint_every: 30, log_every: 10}
"""


def units(count: int, seed: int) -> Tensor:
    """Random unit vectors (count, 6) in double precision."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, 6, generator=generator, dtype=torch.float64), dim=1)


def colliding_ids(count: int, seed: int) -> Tensor:
    """Ids (count, 2) from a small range."""
    return torch.randint(0, 9, (count, 2), generator=torch.Generator().manual_seed(seed))


def mean_of_prefixes(
    query: Tensor, key: Tensor, queue: Tensor, temperature: Tensor, query_ids: Tensor, queue_ids: Tensor
) -> Tensor:
    """Equation 2 of unit vectors (N, 6), and of their first 4 and 1 components scaled to length 1: losses (N,)."""
    losses = [info_nce(query, key, queue, temperature, query_ids, queue_ids)]
    for d in (4, 1):
        short = normalize(query[:, :d], dim=1), normalize(key[:, :d], dim=1), normalize(queue[:, :d], dim=1)
        losses.append(info_nce(*short, temperature, query_ids, queue_ids))
    return torch.stack(losses).mean(dim=0)


@pytest.mark.parametrize("rows", [0, 1, 23])
def test_loss_is_the_mean_over_prefixes(rows: int) -> None:
    """Value and gradients are those of the plain formula, for queries and temperature, whatever the blocks are."""
    ids = colliding_ids(7, 1), colliding_ids(rows, 2)
    results = []
    for blockwise in (False, True):
        query, temperature = units(7, 3).requires_grad_(), torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        inputs = query, units(7, 4), units(rows, 5), temperature, *ids
        if blockwise:
            losses, correct, masked = blockwise_info_nce(*inputs, dimensions=[6, 4, 1], block_rows=5)
            whole = blockwise_info_nce(*inputs)
            assert torch.equal(correct, whole[1]) and torch.equal(masked, whole[2])
        else:
            losses = mean_of_prefixes(*inputs)
        (losses * torch.arange(1, 8)).sum().backward()
        results.append((losses.detach(), query.grad, temperature.grad))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_no_dimensions_change_no_bit() -> None:
    """Without the setting the loss and its gradient are those of the kernel alone, bit for bit."""
    ids, results = (colliding_ids(7, 1), colliding_ids(40, 2)), []
    for dimensions in (None, [], [6]):
        query = units(7, 3).float().requires_grad_()
        inputs = query, units(7, 4).float(), units(40, 5).float(), torch.tensor(0.07), *ids
        losses = (
            _BlockwiseInfoNCE.apply(*inputs, 2048)
            if dimensions is None
            else blockwise_info_nce(*inputs, dimensions=dimensions)
        )[0]
        losses.mean().backward()
        assert query.grad is not None
        results.append((losses.detach(), query.grad))
    for losses, gradient in results[1:]:
        assert torch.equal(losses, results[0][0]) and torch.equal(gradient, results[0][1])
    assert ContrastConfig().dimensions == []


class Table(torch.nn.Module):
    """An encoder that knows the vectors of its batch."""

    dimension = 6

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.vectors = torch.nn.Parameter(units(5, seed))

    def forward(self, features: object) -> Tensor:
        """All vectors (N, D)."""
        return normalize(self.vectors, dim=1)


def settings(**contrast: Any) -> TrainConfig:
    """Settings with dimensions 4 and 1 besides the full one."""
    return TrainConfig(contrast=ContrastConfig(temperature=0.2, dimensions=[4, 1], **contrast))


def test_dual_moco_contrasts_prefixes_of_queue_rows() -> None:
    """The queues hold whole vectors, whose prefixes are negatives of prefixes in both directions."""
    config = settings()
    model: Any = DualMomentumContrast(
        Table(0), Table(1), dimension=6, queue_size=9, temperature=0.2, dimensions=config.contrast.prefixes(6)
    )
    model.enqueue(KeyBatch(units(9, 2), units(9, 3), colliding_ids(9, 4)))
    keys = KeyBatch(units(5, 5), units(5, 6), colliding_ids(5, 7))
    found = model(None, None, keys)["loss"]
    found.backward()
    rows = [(queue.vectors.double(), queue.ids) for queue in (model.tgt_queue, model.src_queue)]
    assert rows[0][0].shape == (9, 6)
    x, y = (encoder(None).detach().requires_grad_() for encoder in (model.src_encoder, model.tgt_encoder))
    temperature = torch.tensor(0.2, dtype=torch.float64)
    expected = mean_of_prefixes(x, keys.tgt, rows[0][0], temperature, keys.ids, rows[0][1]).mean()
    expected = expected + mean_of_prefixes(y, keys.src, rows[1][0], temperature, keys.ids.flip(1), rows[1][1]).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert model.src_encoder.vectors.grad.abs().sum() > 0


def test_a_frozen_side_is_contrasted_by_prefixes() -> None:
    """Keys and negatives of the frozen encoder are shortened like the queries."""
    encoder: Any = Table(0)
    objective = OneSidedMoco(encoder, encoder, settings())
    features: Any = None
    negatives = Negatives(units(20, 3), colliding_ids(20, 4))
    batch = OneSidedBatch(features, units(5, 1), colliding_ids(5, 2), negatives)
    found = objective(batch, negatives)["loss"]
    rest = negatives.vectors, torch.tensor(0.2, dtype=torch.float64), batch.ids, negatives.ids
    assert found.item() == pytest.approx(mean_of_prefixes(encoder(None), batch.keys, *rest).mean().item(), rel=1e-6)


def test_in_batch_ranks_by_prefixes() -> None:
    """The loss is the mean of the losses of the prefixes; the margin and the accuracy are as before."""
    src, tgt = units(5, 0).float(), units(5, 1).float()
    ids = torch.arange(5), torch.arange(5) + 9
    prefixes = [(normalize(src[:, :d], dim=1), normalize(tgt[:, :d], dim=1)) for d in (6, 4, 1)]
    each = [rank_translations(*both, *ids, 0.2, 0.1) for both in prefixes]
    loss, accuracy = rank_translations(src, tgt, *ids, 0.2, 0.1, [6, 4, 1])
    assert loss.item() == pytest.approx(sum(part[0].item() for part in each) / 3, rel=1e-6)
    assert accuracy == each[0][1]
    encoder: Any = Table(0)
    assert InBatch(encoder, encoder, settings()).dimensions == [6, 4, 1]


def test_dimensions_are_checked_against_the_encoders() -> None:
    """The full dimension is implied or comes first; a larger one is refused."""
    assert ContrastConfig(dimensions=[6, 4]).prefixes(6) == ContrastConfig(dimensions=[4]).prefixes(6) == [6, 4]
    assert ContrastConfig().prefixes(6) == [6]
    with pytest.raises(
        ConfigError, match=r"^contrast.dimensions is \[8, 4\]; expected at most 6, the dimension of the encoders$"
    ):
        ContrastConfig(dimensions=[8, 4]).prefixes(6)


@pytest.mark.parametrize("objective", ["dual-moco", "in-batch"])
def test_prefixes_cost_their_share(objective: str) -> None:
    """Operations grow with the components; scores of several prefixes are kept only where the batch is compared."""
    plain, short = (
        TrainConfig(
            objective=objective, contrast=ContrastConfig(dimensions=d), optimizer=OptimizerConfig(batch_size=64)
        )
        for d in ([], [128, 64])
    )
    before, after = (objective_class(config).cost(config, 256) for config in (plain, short))
    assert after.operations == before.operations * (256 + 128 + 64) / 256
    assert (after.queue, after.scores) == (before.queue, before.scores * (3 if objective == "in-batch" else 1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model of dimension 16 that was also trained for 8 and 4; not to be changed."""
    folder = tmp_path_factory.mktemp("matryoshka")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    train(folder / "recipe.yaml", f"out={folder / 'run'}", progress=False)
    return folder / "run" / "model"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """English lines, Chinese lines, and both as a bitext."""
    folder = tmp_path_factory.mktemp("files")
    texts = "\n".join(EN), "\n".join(ZH), "\n".join(f"{src}\t{tgt}" for src, tgt in PAIRS)
    paths = folder / "en.txt", folder / "zh.txt", folder / "pairs.tsv"
    for path, text in zip(paths, texts, strict=True):
        path.write_text(f"{text}\n", encoding="utf-8")
    return paths


def shortened(vectors: Vectors, dimension: int = SHORT) -> Vectors:
    """The first components, scaled to length 1."""
    return np.asarray(vectors[:, :dimension] / np.linalg.norm(vectors[:, :dimension], axis=1, keepdims=True))


def test_a_model_records_its_dimensions(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In its folder and in exports of it; only another dimension is commented on."""
    assert json.loads((trained / "dualmoco.json").read_text(encoding="utf-8"))["dimensions"] == [16, 8, 4]
    export_model(str(trained), "en", "sentence-transformers", tmp_path / "export")
    assert read_trained_dimensions(tmp_path / "export") == [16, 8, 4]
    with caplog.at_level(logging.INFO, "dualmoco.models"):
        dualmoco.load(trained, dimension=8)
        dualmoco.load(trained, dimension=16)
        assert not caplog.messages
        dualmoco.load(trained, dimension=5)
        dualmoco.load("en-zh-static", dimension=64)
    first, second = caplog.messages
    assert "keeps 5 of 16 dimensions (trained for 16, 8, 4); accuracy may suffer" in first
    assert "keeps 64 of 384 dimensions (not known to be trained for fewer)" in second


@pytest.mark.parametrize("backend", ["static", "torch"])
def test_an_open_model_keeps_the_first_components(trained: Path, backend: str) -> None:
    """Its vectors are the prefixes of the whole ones at length 1, in every way to encode, also in a copy."""
    whole, short = dualmoco.load(trained, backend), dualmoco.load(trained, backend, dimension=SHORT)
    expected = shortened(whole.encode(EN, lang="en"))
    assert (whole.dimension, short.dimension) == (WIDTH, SHORT)
    for model in (short, pickle.loads(pickle.dumps(short))):
        np.testing.assert_allclose(model.encode(EN, lang="en"), expected, atol=1e-6)
    np.testing.assert_allclose(whole.encode(EN, lang="en", dimension=SHORT), expected, atol=1e-6)
    np.testing.assert_allclose(short.encode_each(EN[:3]), expected[:3], atol=1e-6)
    np.testing.assert_allclose(short.encode(EN, lang="en", dimension=2), shortened(expected, 2), atol=1e-6)
    raw = short.encode(EN, lang="en", normalize=False)
    assert np.array_equal(raw, whole.encode(EN, lang="en", normalize=False)[:, :SHORT])
    assert not short.encode(["", EN[0]], lang="en")[0].any()
    cosines = dualmoco.similarity(EN[:3], ZH[:2], model=trained, backend=backend, dimension=SHORT)
    np.testing.assert_allclose(cosines, expected[:3] @ shortened(whole.encode(ZH[:2], lang="zh")).T, atol=1e-6)


def test_sentence_transformers_truncates_alike(trained: Path) -> None:
    """Its `truncate_dim` on the saved folder returns the same vectors."""
    plain: Any = SentenceTransformer(str(trained), device="cpu", truncate_dim=8)
    for lang, texts in (("en", EN), ("zh", ZH)):
        expected = plain.encode(texts, task=lang, normalize_embeddings=True)
        np.testing.assert_allclose(dualmoco.load(trained, dimension=8).encode(texts, lang=lang), expected, atol=1e-5)


def test_each_dimension_has_a_checksum_of_its_own(trained: Path) -> None:
    """All components are the model itself."""
    models = [dualmoco.load(trained, dimension=dimension) for dimension in (None, WIDTH, 8, 4)]
    checksums = [model.identity.sha256 for model in models]
    assert checksums[0] == checksums[1] and len(set(checksums)) == 3
    assert [model.identity.dimension for model in models] == [None, None, 8, 4]


def test_dimensions_that_cannot_be_are_refused(trained: Path) -> None:
    """Larger ones, those of hybrids, and one that an open model does not have."""
    for dimension in (0, WIDTH + 1):
        with pytest.raises(
            ConfigError, match=rf"^dimension {dimension}; expected from 1 to {WIDTH}, the dimension of "
        ):
            dualmoco.load(trained, dimension=dimension)
    with pytest.raises(ConfigError, match=r"^en-zh: dimension 64 of a hybrid, .* one of the parts as the model$"):
        dualmoco.load("en-zh", dimension=64)
    opened = dualmoco.load(trained, dimension=8)
    with pytest.raises(ConfigError, match=r"^dimension 4 with .*, which is open with dimension 8; expected a model by"):
        dualmoco.similarity(EN[0], ZH[0], model=opened, dimension=4)
    assert dualmoco.similarity(EN[0], ZH[0], model=opened, dimension=8).shape == (1, 1)


def test_stores_of_another_dimension_are_refused(
    trained: Path, files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store holds vectors of one dimension, which its manifest says."""
    words = ["encode", str(files[0]), "--lang", "en", "--model", str(trained), "--out", str(tmp_path / "v"), "--json"]
    assert main([*words, "--dimension", str(SHORT)]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == SHORT
    store = open_store(tmp_path / "v")
    rows = store.vectors()[store.lines]
    np.testing.assert_allclose(rows, shortened(dualmoco.load(trained).encode(EN, lang="en")), atol=1e-6)
    with pytest.raises(DataError, match=r"contains vectors with model_sha256 \w+, dimension 4; expected \w+, 8: "):
        dualmoco.encode(files[0], tmp_path / "v", lang="en", model=trained, dimension=8)


def test_an_index_remembers_its_dimension(
    trained: Path, files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries and additions are shortened alike; a model with other vectors is refused."""
    folder = tmp_path / "index"
    words = ["search", "build", str(folder), f"zh={files[1]}", "--model", str(trained), "--dimension", str(SHORT)]
    assert main(words) == 0
    assert read_index_manifest(folder).dimension == SHORT
    hit = dualmoco.open_index(folder).search(EN[0], lang="en")[0][0]
    whole = dualmoco.load(trained)
    cosines = shortened(whole.encode(EN[:1], lang="en")) @ shortened(whole.encode(ZH, lang="zh")).T
    assert hit.score == pytest.approx(float(cosines.max()), abs=1e-5) and hit.text == ZH[int(cosines.argmax())]
    dualmoco.add_to_index(folder, sentences={"en": EN[:5]}, model=trained)
    assert len(dualmoco.open_index(folder, trained).search(ZH[0], lang="zh", within="en")[0]) > 0
    for given, expected in ((None, "dimension 16"), (8, "dimension 8")):
        with pytest.raises(
            ModelError, match=rf"vectors of {expected}, .*; expected the model opened with dimension=4$"
        ):
            dualmoco.open_index(folder, dualmoco.load(trained, dimension=given)).search(EN[0], lang="en")


def test_commands_shorten_what_they_compare(
    trained: Path, files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are cosines of the prefixes, and what is written says the dimension."""
    model, whole = ["--model", str(trained), "--dimension", str(SHORT)], dualmoco.load(trained)
    vectors = [shortened(whole.encode(side, lang=lang)) for side, lang in ((EN, "en"), (ZH, "zh"))]
    expected = np.einsum("nd,nd->n", *vectors)
    src, tgt, bitext = map(str, files)
    assert main(["score", bitext, "--out", str(tmp_path / "scored.tsv"), "--src", "en", "--tgt", "zh", *model]) == 0
    rows = (tmp_path / "scored.tsv").read_text(encoding="utf-8").splitlines()[1:]
    np.testing.assert_allclose([float(row.split("\t")[0]) for row in rows], expected, atol=2e-4)
    assert main(["mine", src, tgt, "--out", str(tmp_path / "mined.tsv"), "--src", "en", "--tgt", "zh", *model]) == 0
    assert main(["paraphrases", src, "--lang", "en", "--out", str(tmp_path / "same.tsv"), *model]) == 0
    for name in ("scored", "mined", "same"):
        assert json.loads((tmp_path / f"{name}.tsv.json").read_text(encoding="utf-8"))["dimension"] == SHORT
    capsys.readouterr()
    assert main(["similarity", EN[0], ZH[0], "--src", "en", "--tgt", "zh", "--json", *model]) == 0
    assert float(expected[0]) == pytest.approx(json.loads(capsys.readouterr().out)["score"], abs=1e-4)


def test_scores_are_signed_with_the_dimension(trained: Path, tmp_path: Path) -> None:
    """Signatures of two dimensions differ, in the checksum too; whole vectors have no such part."""
    folder = tmp_path / "eval" / "tatoeba"
    folder.mkdir(parents=True)
    for code, side in (("cmn", ZH), ("eng", EN)):
        (folder / f"tatoeba.cmn-eng.{code}").write_text("\n".join(side) + "\n", encoding="utf-8")
    parts = []
    for dimension in (None, 8, 4):
        found = dualmoco.evaluate(dualmoco.load(trained, dimension=dimension), "tatoeba", data=tmp_path, progress=False)
        parts.append(found.scores[0].settings)
    assert [part.get("dimension") for part in parts] == [None, "8", "4"]
    assert len({part["model"] for part in parts}) == 3


def test_thresholds_are_for_one_dimension(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those in the model's folder are for whole vectors; others go to a file of their own."""
    model, pairs = tmp_path / "model", list(zip(EN, ZH, strict=True)) + generate_pairs(900, seed=8)
    shutil.copytree(trained, model)
    dualmoco.calibrate(model, pairs, progress=False)
    assert dualmoco.score(pairs[:50], model=model, progress=False).model_calibration is not None
    assert not caplog.messages
    assert dualmoco.score(pairs[:50], model=model, dimension=4, progress=False).model_calibration is None
    assert "calibration.json: not used (it belongs to another model or dimension)" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("run dualmoco calibrate --dimension 4")
    with pytest.raises(ConfigError, match=r"^dimension 4 without out; expected a file for its thresholds"):
        dualmoco.calibrate(model, pairs, dimension=4)
    file = tmp_path / "four.json"
    made = dualmoco.calibrate(model, pairs, dimension=4, out=file, progress=False)
    found = dualmoco.score(pairs[:50], model=model, dimension=4, calibration=file, progress=False)
    assert found.model_calibration == made

"""Runs of more than two languages: one encoder, momentum encoder and queue per language, and one pair per step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualmoco.analysis.plan import plan
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.load import open_model
from dualmoco.search.exact import nearest_both_ways
from dualmoco.training.batches import LanguageLoader, PairBatch
from dualmoco.training.checkpoint import last_checkpoint
from dualmoco.training.checkpoint_model import export_encoders
from dualmoco.training.contrast import DualMomentumContrast
from dualmoco.training.objectives import DualMoco
from dualmoco.training.recipe import load_config
from dualmoco.training.run import build_trainer, load_splits, start_accelerator, train
from dualmoco.training.schedule import RunProgress

PAIRS = generate_pairs(2100, seed=5)
MADE_UP = ("xx", "yy")


def spelt(sentence: str, lang: str) -> str:
    """An English sentence in a made-up language."""
    words = sentence.lower().rstrip(".?!").split()
    return " ".join(word[::-1] if lang == "xx" else f"{word[1:]}{word[0]}y" for word in words)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of four languages whose pairs with English have no English sentence in common."""
    folder = tmp_path_factory.mktemp("several")
    parts = {"zh": PAIRS[:700], "xx": PAIRS[700:1400], "yy": PAIRS[1400:]}
    for lang, pairs in parts.items():
        texts = [(src, tgt if lang == "zh" else spelt(src, lang)) for src, tgt in pairs]
        (folder / f"{lang}.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in texts), encoding="utf-8")
    encoder = "kind: static, width: 24, vocab_size: 600, dropout: 0.0"
    more = [
        f"- {{encoder: {{lang: {lang}, {encoder}}}, data: {{train: ['{folder / lang}.tsv'], heldout: 50}}, share: 0.5}}"
        for lang in MADE_UP
    ]
    path = folder / "recipe.yaml"
    path.write_text(
        f"""
out: {folder / "run"}
src: {{lang: en, {encoder}}}
tgt: {{lang: zh, {encoder}, max_piece_length: 4}}
data: {{train: ["{folder / "zh.tsv"}"], heldout: 50}}
contrast: {{queue_size: 256, temperature: 0.07, momentum: 0.9, batch_keys: true}}
optimizer: {{lr: 2e-2, warmup_steps: 5, weight_decay: 0.0, batch_size: 32}}
schedule: {{steps: 160, evaluate_every: 80, checkpoint_every: 80, log_every: 40}}
languages:
"""
        + "\n".join(more),
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def trained(several: Path) -> Path:
    """The run folder of that recipe."""
    result = train(several)
    assert result.best is not None and result.best > result.before.score + 0.5
    return Path(result.out)


@pytest.mark.parametrize("langs", [("en", "zh"), ("en", "xx"), ("xx", "yy"), ("yy", "zh")], ids="-".join)
def test_all_languages_meet_in_one_space(trained: Path, langs: tuple[str, str]) -> None:
    """Unseen sentences find their translation among 100, also in languages that were never trained together."""
    model = open_model(trained / "model")
    assert model.languages == ["en", "zh", "xx", "yy"]
    seen = {src for src, _ in PAIRS}
    unseen = [pair for pair in generate_pairs(4000, seed=9) if pair[0] not in seen][:100]
    texts = {"en": [src for src, _ in unseen], "zh": [tgt for _, tgt in unseen]}
    texts |= {lang: [spelt(src, lang) for src, _ in unseen] for lang in MADE_UP}
    src, tgt = (model.encode(texts[lang], lang=lang) for lang in langs)
    near = nearest_both_ways(src, tgt, 1)
    assert np.mean([side.found_translations.mean() for side in near]) > 0.5


def test_each_language_has_its_queue_and_english_one_for_all(several: Path, tmp_path: Path) -> None:
    """Of eight steps, four are Chinese and two of each other language; the English queue gets the keys of all."""
    config = load_config(several, [f"out={tmp_path / 'run'}"])
    trainer = build_trainer(config, load_splits(config), start_accelerator(config))
    objective = trainer.objective
    assert isinstance(objective, DualMoco)
    contrasts = [objective.contrast, *objective.others]
    for step in range(8):
        trainer.step(trainer.batches(step), RunProgress(step=step))
    assert [int(contrast.tgt_queue.pushed) for contrast in contrasts] == [4 * 32, 2 * 32, 2 * 32]
    assert int(objective.contrast.src_queue.pushed) == 8 * 32
    for other in objective.others:
        assert isinstance(other, DualMomentumContrast)
        assert other.src_queue is objective.contrast.src_queue
        assert other.src_momentum_encoder is objective.contrast.src_momentum_encoder
        assert other.log_temperature is objective.contrast.log_temperature


def test_a_step_changes_only_its_two_languages(several: Path, tmp_path: Path) -> None:
    """The tables, momentum encoders and queues of the other languages stay as they are."""
    config = load_config(several, [f"out={tmp_path / 'run'}"])
    trainer = build_trainer(config, load_splits(config), start_accelerator(config))
    before = {name: value.clone() for name, value in trainer.objective.state_dict().items()}
    batches = trainer.batches(0)
    assert isinstance(batches[0], PairBatch) and batches[0].language == 0
    trainer.step(batches, RunProgress())
    changed = {
        name.split(".")[0] for name, value in trainer.objective.state_dict().items() if not value.equal(before[name])
    }
    assert changed == {"contrast", "others"}  # the others share the English parts
    own = {name for name, value in trainer.objective.state_dict().items() if not value.equal(before[name])}
    assert not [name for name in own if name.startswith("others") and ".tgt_" in name]


class _Steps:
    """Stands for the loader of a language: returns its own step."""

    batches_per_epoch = 10

    def step(self, step: int) -> int:
        return step


@pytest.mark.parametrize("shares", [[1.0], [1.0, 1.0, 1.0], [3.0, 0.5, 1.2]])
def test_languages_take_turns_by_their_shares(shares: list[float]) -> None:
    """At any step each language has had its share, give or take a step, whichever step is asked for first."""
    steps, count = 400, len(shares)
    loaders = [_Steps() for _ in shares]
    loader = LanguageLoader(loaders, shares)  # type: ignore[arg-type]
    late = LanguageLoader(loaders, shares)  # type: ignore[arg-type]
    late.step(steps - 1)
    own: list[object] = [loader.step(step) for step in range(steps)]
    assert own == [late.step(step) for step in range(steps)]
    taken = np.array([chosen for chosen, _ in loader._taken])
    for end in range(1, steps + 1):
        expected = end * np.array(shares) / sum(shares)
        assert np.abs(np.bincount(taken[:end], minlength=count) - expected).max() <= 1.5
    for language in range(count):
        assert [step for step, which in zip(own, taken, strict=True) if which == language] == list(
            range(int((taken == language).sum()))
        )


def test_a_checkpoint_exports_all_languages_and_a_plan_counts_them(
    trained: Path, several: Path, tmp_path: Path
) -> None:
    """Momentum encoders of all languages can be exported, and a third table needs memory."""
    checkpoint = last_checkpoint(trained)
    export_encoders(str(checkpoint), None, "sentence-transformers", tmp_path / "momentum", momentum=True)
    model = open_model(tmp_path / "momentum")
    assert model.languages == ["en", "zh", "xx", "yy"]
    assert not np.allclose(model.encode(["go"], lang="xx"), open_model(trained / "model").encode(["go"], lang="xx"))
    words = {"devices": "4xv100", "pairs": 10_000, "tokens": (8, 8)}
    whole, two = (plan(several, *more, **words) for more in ((), ("languages=[]",)))  # type: ignore[arg-type]
    tables = [chosen.devices[0].memory.weights for chosen in (whole, two)]
    assert tables[0] == 2 * tables[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lang: yy", "lang: zh", "languages is ['zh']; expected each language once"),
        ("share: 0.5", "share: 0", "languages[0].share is 0.0; expected above 0"),
        ("lang: xx, kind: static", "lang: xx, kind: shared", "expected pretrained, bert or static"),
        ("contrast:", "objective: in-batch\ncontrast:", "languages is ['xx', 'yy']; expected none with this objective"),
        ("lang: zh, kind: static", "lang: zh, kind: shared", "expected none when src or tgt is frozen or shared"),
        ("data: {train: ['", "data: {format: tsv, src_files: ['", "languages[0].data.tgt_files"),
        ("contrast:", "nli: {train: [nli.tsv]}\ncontrast:", "expected none with this objective"),
    ],
)
def test_settings_that_do_not_fit_are_refused(several: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    """A language in two tables, no data, and objectives or encoders for two languages only."""
    text = several.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "recipe.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "recipe.yaml")
    assert message in str(caught.value)


def test_languages_of_different_dimensions_are_refused(several: Path, tmp_path: Path) -> None:
    """They cannot share a queue."""
    text = several.read_text(encoding="utf-8").replace(
        "lang: xx, kind: static, width: 24", "lang: xx, kind: static, width: 12"
    )
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="xx vectors 12; expected the same"):
        train(tmp_path / "recipe.yaml", f"out={tmp_path / 'run'}")

"""The threshold that a model carries, and a fast model before a good one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.mining import prefilter
from dualmoco.mining.knn import MiningSettings
from dualmoco.mining.margins import Margin
from dualmoco.mining.threshold import distinct_pairs, read_calibration
from dualmoco.models.load import open_model
from dualmoco.training.run import train

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny.yaml"
PAIRS = generate_pairs(3000, seed=11)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model that knows the grammar's words, not calibrated; not to be changed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    fast = ["optimizer.batch_size=128", "data.heldout=200", "schedule.evaluate_every=100", "schedule.steps=100"]
    train(RECIPE, f"out={out}", "data.train=[grammar:6000]", *fast)
    return out / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(trained, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    """150 pairs whose lines are hidden in order among 300 others a side, of which no two are translations."""
    others = generate_pairs(9000, seed=23)[-600:]
    src, tgt = tmp_path / "en.txt", tmp_path / "zh.txt"
    src.write_text("".join(f"{a}\n" for a, _ in [*PAIRS[-150:], *others[:300]]), encoding="utf-8")
    tgt.write_text("".join(f"{b}\n" for _, b in [*PAIRS[-150:], *others[300:]]), encoding="utf-8")
    return src, tgt


def test_a_calibrated_model_brings_its_threshold(model: Path, texts: tuple[Path, Path]) -> None:
    """Mining takes it when none is given, says what it stands for, and finds most pairs and little else."""
    before = dualmoco.mine(*texts, model=model)
    assert before.threshold is None and before.model_calibration is None
    sha256 = open_model(model).identity.sha256
    made = dualmoco.calibrate(model, PAIRS[:2400])
    assert open_model(model).identity.sha256 == sha256
    assert made.pairs == len(distinct_pairs(PAIRS[:2400])) and made.floor < made.threshold
    assert 0 < made.passing < 1 and made.precision >= 0.9 and made.share == 0.03
    assert [level for level, _ in made.levels] == [0.5, 0.8, 0.9, 0.95, 0.98]
    assert sorted(made.levels) == list(made.levels) and made.threshold_for(0.9) == made.threshold
    small = [[*path.read_text(encoding="utf-8").splitlines()[:190]] for path in texts]
    few = dualmoco.mine(*small, model=model)
    assert few.threshold == made.threshold and few.model_calibration == made and few.calibration is None
    found = dualmoco.mine(*texts, model=model)
    assert found.model_calibration is None and found.calibration is not None and found.calibration.basis == "scores"
    assert made.describe().startswith(f"threshold {made.threshold:.4f} is the model's own: precision ")
    lines = {(pair.src_line, pair.tgt_line) for pair in found}
    right = len(lines & {(line, line) for line in range(1, 151)})
    assert right > 0.7 * 150 and right > 0.75 * len(lines)
    looser = dualmoco.mine(*small, model=model, min_precision=0.5)
    assert looser.threshold == made.threshold_for(0.5) < made.threshold and len(looser) > len(few)
    assert f"threshold {looser.threshold:.4f} is the model's own: precision 50.0 % if 3 %" in made.describe(
        looser.threshold
    )
    gold = dualmoco.mine(*texts, model=model, gold=[(line, line) for line in range(1, 151)])
    assert gold.calibration is not None and gold.model_calibration is None
    given = dualmoco.mine(*texts, model=model, threshold=-1.0)
    assert len(given) == len(before) > len(found) and given.model_calibration is None and given.calibration is None


def test_scoring_takes_the_threshold_too(model: Path) -> None:
    """A bitext is filtered by it."""
    pairs = [*PAIRS[-100:], *((src, PAIRS[row][1]) for row, (src, _) in enumerate(PAIRS[-200:-100]))]
    made = dualmoco.calibrate(model, PAIRS[:2400])
    found = dualmoco.score(pairs, model=model)
    assert found.threshold == made.cosine and found.model_calibration == made
    kept = {pair.src_line for pair in found}
    assert len([line for line in kept if line <= 100]) > 3 * len([line for line in kept if line > 100])


def test_calibration_is_for_its_languages_margin_and_model(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In either order; another margin has other scores; a model that changed since has none any more."""
    made = dualmoco.calibrate(model, PAIRS[:600])
    opened = open_model(model)
    assert read_calibration(opened, ("zh", "en"), MiningSettings()) == made
    assert read_calibration(opened, ("en", "de"), MiningSettings()) is None
    assert read_calibration(opened, ("en", "zh"), MiningSettings(margin=Margin.ratio)) is None
    assert read_calibration(opened, ("en", "zh"), MiningSettings(k=4)) is None
    assert caplog.messages == []
    content = json.loads((model / "calibration.json").read_text(encoding="utf-8"))
    for changed in (json.dumps(content | {"model_sha256": 64 * "0"}), "{}", "no JSON"):
        (model / "calibration.json").write_text(changed, encoding="utf-8")
        assert read_calibration(opened, ("en", "zh"), MiningSettings()) is None
    assert len(caplog.messages) == 3 and all("not used" in message for message in caplog.messages)


def test_a_prefilter_keeps_lines_and_pairs(
    model: Path, trained: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    """Fewer sentences reach the good model; nearly all pairs are found, with the line numbers of the whole texts."""
    dualmoco.calibrate(model, PAIRS[:2400])
    gold = [(line, line) for line in range(1, 151)]
    alone = dualmoco.mine(*texts, model=trained, gold=gold)
    both = dualmoco.mine(*texts, model=trained, prefilter=model, gold=gold, work=tmp_path / "work")
    assert alone.calibration is not None and both.calibration is not None
    assert both.calibration.known == alone.calibration.known
    assert both.calibration.threshold.f1 > alone.calibration.threshold.f1 - 0.05
    left = (tmp_path / "work" / "prefilter" / "plausible.0.txt").read_text(encoding="utf-8").split("\n")
    lines = texts[0].read_text(encoding="utf-8").split("\n")
    assert len(left) == len(lines) and all(line in ("", whole) for line, whole in zip(left, lines, strict=True))
    assert 100 < sum(map(bool, left)) < sum(map(bool, lines))
    right = {(pair.src_line, pair.tgt_line) for pair in both} & set(gold)
    assert len(right) > 100


def test_known_pairs_that_the_prefilter_drops_count_as_missed(model: Path, texts: tuple[Path, Path]) -> None:
    """A floor that drops nearly everything lowers recall, it does not hide in it."""
    dualmoco.calibrate(model, PAIRS[:2400])
    path = model / "calibration.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["calibrations"][0]["floor"] += 0.1
    path.write_text(json.dumps(content), encoding="utf-8")
    gold = [(line, line) for line in range(1, 151)]
    strict = dualmoco.mine(*texts, model=model, prefilter=model, gold=gold)
    whole = dualmoco.mine(*texts, model=model, gold=gold)
    assert strict.calibration is not None and whole.calibration is not None
    assert strict.calibration.known == whole.calibration.known
    assert strict.calibration.threshold.recall < whole.calibration.threshold.recall
    content["calibrations"][0]["floor"] = 2.0
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=r"^[^\n]*en.txt: the prefilter finds no sentence with a plausible partner"):
        dualmoco.mine(*texts, model=model, prefilter=model)


def test_the_commands(
    model: Path, texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`calibrate`, then `mine` and `score` that say whose threshold they take."""
    pairs = tmp_path / "held-out.tsv"
    pairs.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS[:900]), encoding="utf-8")
    assert main(["calibrate", str(model), "--pairs", str(pairs), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["calibrate", str(model), "--pairs", str(pairs), "--backend", "torch", "--quiet"]) == 0
    assert "as a prefilter it passes" in capsys.readouterr().out
    words = [*map(str, texts), "--model", str(model), "--prefilter", str(model), "--out", str(tmp_path / "pairs.tsv")]
    assert main(["mine", *words, "--quiet"]) == 0
    said = capsys.readouterr().out
    origin = json.loads((tmp_path / "pairs.tsv.json").read_text(encoding="utf-8"))["prefilter"]
    assert origin == {"model": str(model), "model_sha256": open_model(model).identity.sha256, "floor": made["floor"]}
    assert f"threshold {made['threshold']:.4f} is the model's own" in said and "held-out pairs" in said
    assert main(["score", str(pairs), "--model", str(model), "--out", str(tmp_path / "kept.tsv"), "--quiet"]) == 0
    assert "is the model's own threshold" in capsys.readouterr().out


def test_what_cannot_be_calibrated(model: Path, tmp_path: Path) -> None:
    """Too few pairs, pairs of which none is found, a model that is no folder: one line, and nothing is written."""
    with pytest.raises(DataError, match=r"^299 different pairs; expected at least 300 to calibrate on$"):
        dualmoco.calibrate(model, PAIRS[:299])
    with pytest.raises(
        DataError, match=r"^none of 300 held-out pairs was found; expected some: are the languages right"
    ):
        dualmoco.calibrate(model, [(f"qq{i}", f"{i}qq") for i in range(300)])
    words = tmp_path / "words.txt"
    words.write_text("cat 1 0\ndog 0 1\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"^words:[^\n]*: not a model folder; expected a folder"):
        dualmoco.calibrate(f"words:{words}", PAIRS[:300])
    assert not (model / "calibration.json").exists()


def test_a_prefilter_must_be_calibrated_for_the_languages(model: Path, texts: tuple[Path, Path]) -> None:
    """Before the good model encodes anything."""
    with pytest.raises(ModelError, match=r"^[^\n]*model: not calibrated for en and zh, margin distance and 3"):
        dualmoco.mine(*texts, model=model, prefilter=model)
    with pytest.raises(ModelError, match="has no language 'de'"):
        dualmoco.mine(*texts, model=model, prefilter=model, tgt_lang="de")


def test_a_large_prefilter_searches_inverted_lists(
    model: Path, texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some size on, where FAISS is; what is left is nearly the same."""
    dualmoco.calibrate(model, PAIRS[:2400])
    left = {}
    for name, size in (("exact", 10**9), ("lists", 10)):
        monkeypatch.setattr(prefilter, "APPROXIMATE_FROM", size)
        dualmoco.mine(*texts, model=model, prefilter=model, work=tmp_path / name)
        left[name] = (tmp_path / name / "prefilter" / "plausible.0.txt").read_text(encoding="utf-8").split("\n")
    assert list((tmp_path / "lists" / "prefilter").rglob("*probe*"))
    assert not list((tmp_path / "exact" / "prefilter").rglob("*probe*"))
    same = sum(bool(a) == bool(b) for a, b in zip(left["exact"], left["lists"], strict=True))
    assert same > 0.95 * len(left["exact"])
    monkeypatch.setattr(prefilter, "find_spec", lambda name: None)
    dualmoco.mine(*texts, model=model, prefilter=model, work=tmp_path / "without")
    assert not list((tmp_path / "without" / "prefilter").rglob("*probe*"))


def test_calibrating_what_comes_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thresholds are written beside, and used when they are named; nothing in the package changes."""
    monkeypatch.chdir(tmp_path)
    folder = open_model("en-zh-static").folder
    assert folder is not None
    before = (folder / "calibration.json").read_bytes()
    pairs = [(f"The number of the {src}", f"{tgt}，编号") for src, tgt in PAIRS[:400]]
    made = dualmoco.calibrate("en-zh-static", pairs, progress=False)
    assert (folder / "calibration.json").read_bytes() == before
    written = tmp_path / "en-zh-static.calibration.json"
    again = dualmoco.calibrate("en-zh-static", pairs, progress=False)  # replaces its own file
    assert again == made and json.loads(written.read_text(encoding="utf-8"))["calibrations"][0]["share"] == 0.03
    found = dualmoco.mine(
        ["It rains."], ["下雨了。"], model="en-zh-static", src_lang="en", tgt_lang="zh", calibration=written
    )
    assert found.threshold == made.threshold and found.model_calibration == made
    lines = ["only one column", *(f"{src}\t{tgt}" for src, tgt in pairs)]
    (tmp_path / "dirty.tsv").write_text("\n".join(["a\tb", *lines]), encoding="utf-8")
    with pytest.raises(DataError, match=r"dirty.tsv:2: 1 tab-separated column"):
        dualmoco.calibrate("en-zh-static", tmp_path / "dirty.tsv", out="dirty.json", progress=False)
    skipped = dualmoco.calibrate(
        "en-zh-static", tmp_path / "dirty.tsv", out="dirty.json", on_error="skip", progress=False
    )
    assert skipped.pairs == made.pairs + 1
    (tmp_path / "note.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"note.json: already exists"):
        dualmoco.calibrate("en-zh-static", pairs, out="note.json", progress=False)
    with pytest.raises(DataError, match=r"note.json: not a calibration of en-zh-static"):
        dualmoco.mine(["It rains."], ["下雨了。"], model="en-zh-static", src_lang="en", calibration="note.json")


def test_training_pairs_do_not_calibrate(tmp_path: Path) -> None:
    """A file that the run was trained on is refused; another file is taken."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS[:400]), encoding="utf-8")
    out = tmp_path / "run"
    train(
        RECIPE,
        f"out={out}",
        f"data.train=[{pairs}]",
        "data.heldout=50",
        "schedule.steps=4",
        "schedule.evaluate_every=4",
    )
    with pytest.raises(DataError, match=r"pairs.tsv: the model was trained on these pairs; expected held-out pairs"):
        dualmoco.calibrate(out, pairs)
    copy = tmp_path / "link.tsv"
    copy.symlink_to(pairs)
    with pytest.raises(DataError, match=r"link.tsv: the model was trained on these pairs"):
        dualmoco.calibrate(out / "model", copy)

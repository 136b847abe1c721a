"""The functions that `import dualmoco` offers, as a user calls them: files or sentences in, results out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.mining.io import read_mined

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
NOT_JOBS = {"__init__", "completion", "demo", "main", "options", "parser"}
PAIRS = generate_pairs(300, seed=9)
SRC, TGT = [src for src, _ in PAIRS[:200]], [tgt for _, tgt in PAIRS[100:]][::-1]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> dualmoco.Model:
    """The tiny model, opened by its run folder."""
    return dualmoco.load(tiny_model.parent)


def write_lines(path: Path, lines: list[str]) -> Path:
    """A text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_public_names_are_there_and_nothing_heavy_is_imported_before() -> None:
    """Every name of `__all__` can be imported; the import of the package brings neither torch nor numpy."""
    code = """
import sys
import dualmoco
assert not {"torch", "numpy", "transformers", "pyarrow", "tqdm"} & sys.modules.keys()
assert set(dualmoco.__all__) <= set(dir(dualmoco))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(callable(getattr(dualmoco, name)) for name in dualmoco.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = dualmoco.unknown


FUNCTIONS = [name for name in dualmoco.__all__ if inspect.isfunction(getattr(dualmoco, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_misspelled_keywords_are_refused_with_a_suggestion(name: str) -> None:
    """Every function checks its keywords before anything else, and suggests the one that was meant."""
    function = getattr(dualmoco, name)
    parameters = inspect.signature(function).parameters.values()
    needed = [None for given in parameters if given.kind == POSITIONAL and given.default is given.empty]
    names = [given.name for given in parameters if given.kind == given.KEYWORD_ONLY or given.default is None]
    misspelled = f"{(names or ['progress'])[-1]}x"
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{misspelled}'; (did you mean|expected one of)"):
        function(*needed, **{misspelled: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'treshold'; "):
        function(*needed, treshold=0.5)


def test_mining_sentences_equals_mining_files(model: dualmoco.Model, tmp_path: Path) -> None:
    """Lists give the pairs back; files of every format hold the same pairs."""
    found = list(dualmoco.mine(SRC, TGT, model=model, threshold=0.0))
    assert found and all(pair.src == SRC[pair.src_line - 1] and pair.tgt == TGT[pair.tgt_line - 1] for pair in found)
    assert [pair.score for pair in found] == sorted((pair.score for pair in found), reverse=True)
    files = write_lines(tmp_path / "en.txt", SRC), write_lines(tmp_path / "zh.txt", TGT)
    for name in ("pairs.tsv", "pairs.parquet", "pairs.tmx"):
        written = dualmoco.mine(*files, model=model, threshold=0.0, out=tmp_path / name)
        assert written.out == tmp_path / name and written.pairs is None
        assert len(written) == len(found) and list(written) == found
        assert not (tmp_path / f"{name}.work").exists()


def test_scoring_pairs_gives_their_margins(model: dualmoco.Model) -> None:
    """The cosine of each pair less the mean cosine of both sentences with their three nearest, worked out here."""
    scored = list(dualmoco.score(PAIRS[:40], model=model, margin="distance"))
    src, tgt = (model.encode([pair[side] for pair in PAIRS[:40]], lang=lang) for side, lang in enumerate(("en", "zh")))
    cosines = src.astype(np.float64) @ tgt.T.astype(np.float64)
    means = [np.sort(matrix, axis=1)[:, -3:].mean(axis=1) for matrix in (cosines, cosines.T)]
    expected = np.diag(cosines) - (means[0] + means[1]) / 2
    np.testing.assert_allclose([pair.score for pair in scored], expected, atol=2e-6)
    assert [(pair.src, pair.tgt) for pair in scored] == PAIRS[:40]


def test_paraphrases_are_found_within_a_text(model: dualmoco.Model) -> None:
    """A sentence and its copy with other punctuation are the best pair."""
    found = list(dualmoco.paraphrases([*SRC[:50], SRC[7] + "!"], model=model, margin="absolute"))
    assert (found[0].src_line, found[0].tgt_line) == (8, 51)


def test_an_index_is_built_opened_and_searched(model: dualmoco.Model, tmp_path: Path) -> None:
    """Files by language in, the nearest sentence of either language out: a sentence finds itself."""
    files: dict[str, Path | list[str | Path]]
    files = {"en": write_lines(tmp_path / "en.txt", SRC), "zh": [str(write_lines(tmp_path / "zh.txt", TGT))]}
    dualmoco.build_index(tmp_path / "index", files, model=model)
    (hits,) = dualmoco.open_index(tmp_path / "index").search(TGT[3], lang="zh", k=1)
    assert (hits[0].text, hits[0].lang, hits[0].line) == (TGT[3], "zh", 4)
    assert hits[0].score == pytest.approx(1.0, abs=1e-6)


def test_an_index_knows_how_its_model_pools(plain: Path, tmp_path: Path) -> None:
    """Vectors of another pooling are not mixed with those of the index: a model opened otherwise is refused."""
    by_cls = dualmoco.load(plain, pooling="cls")
    dualmoco.build_index(tmp_path / "index", {"en": write_lines(tmp_path / "en.txt", SRC[:20])}, model=by_cls)
    (hits,) = dualmoco.open_index(tmp_path / "index", by_cls).search(SRC[3], lang="en", k=1)
    assert hits[0].text == SRC[3] and hits[0].score == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ModelError, match="pooling mean; expected cls"):
        dualmoco.open_index(tmp_path / "index").search(SRC[3], lang="en")


def test_progress_bars_can_be_turned_off(
    model: dualmoco.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no delay every bar would show; with progress=False none does."""
    monkeypatch.setattr("dualmoco.core.progress.DELAY_SECONDS", 0.0)
    dualmoco.mine(SRC, TGT, model=model, progress=True)
    shown = capsys.readouterr().err
    assert "encoding given.src.txt (en)" in shown and "encoding given.tgt.txt (zh)" in shown
    dualmoco.mine(SRC, TGT, model=model, progress=False)
    model.encode(SRC, lang="en", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"margin": "euclid"}, ConfigError, "margin euclid; expected one of distance, ratio, absolute"),
        ({"memory": "0"}, ConfigError, "memory 0; expected a size above 0"),
        ({"memory": "much"}, ConfigError, "memory much; expected a size"),
        ({"neighbors": 0}, ConfigError, "neighbors 0; expected at least 1"),
        ({"engine": "spark"}, ConfigError, "engine spark; expected local or ray"),
        ({"out": "pairs.docx"}, ConfigError, "ends with .docx; expected one of"),
        ({"threshold": 0.1, "gold": [(1, 1)]}, ConfigError, "a threshold was given together with known pairs"),
        ({"src_lang": "fr"}, ModelError, "has no language 'fr'; expected one of en, zh"),
    ],
)
def test_bad_settings_are_one_line(
    model: dualmoco.Model, options: dict[str, object], error: type[Exception], message: str
) -> None:
    """What was given, what was expected."""
    with pytest.raises(error, match=message):
        dualmoco.mine(SRC, TGT, model=model, **options)  # type: ignore[arg-type]


def test_a_model_given_by_name_is_opened_after_the_settings_are_checked(tiny_model: Path) -> None:
    """A wrong setting is said before a missing model; the back-end is the named model's."""
    with pytest.raises(ConfigError, match="margin euclid"):
        dualmoco.mine(SRC, TGT, model="no/such/model", margin="euclid")
    with pytest.raises(ConfigError, match="back-end 'onyx'; expected one of auto, torch"):
        dualmoco.mine(SRC, TGT, model=tiny_model.parent, backend="onyx")
    by_table = dualmoco.mine(SRC, TGT, model=tiny_model.parent, backend="static", threshold=0.0)
    assert len(by_table) == len(dualmoco.mine(SRC, TGT, model=tiny_model.parent, backend="torch", threshold=0.0)) > 0


def test_a_sentence_of_two_lines_is_refused(model: dualmoco.Model) -> None:
    """Lines are what is counted, so a list may not hide some."""
    with pytest.raises(DataError, match="expected a string of one line"):
        dualmoco.mine(["one\ntwo"], TGT, model=model)


def test_scoring_keeps_the_lines_of_the_file(
    model: dualmoco.Model, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that cannot be read stops `score`, or is left out and counted; the others keep their own numbers."""
    lines = [f"{src}\t{tgt}" for src, tgt in PAIRS[:6]]
    lines[2] = "no tab in this one"
    bitext = write_lines(tmp_path / "crawled.tsv", lines)
    with pytest.raises(DataError, match=r"crawled\.tsv:3: 1 tab-separated column; expected at least 2"):
        dualmoco.score(bitext, model=model)
    scored = dualmoco.score(bitext, model=model, on_error="skip")
    assert scored.unreadable == 1 and [pair.src_line for pair in scored] == [1, 2, 4, 5, 6]
    assert [(pair.src, pair.tgt) for pair in scored] == [*PAIRS[:2], *PAIRS[3:6]]
    words = ["score", str(bitext), "--model", str(tiny_model), "--out", str(tmp_path / "scored.tsv")]
    assert main(words) == 2
    assert "crawled.tsv:3: 1 tab-separated column" in capsys.readouterr().err
    assert not (tmp_path / "scored.tsv").exists()
    assert main([*words, "--on-error", "skip"]) == 0
    assert capsys.readouterr().out.startswith("5 pairs scored; 1 unreadable line skipped; ")
    assert [pair.tgt_line for pair in read_mined(tmp_path / "scored.tsv")] == [1, 2, 4, 5, 6]


def test_score_takes_any_columns_and_two_files(tiny_model: Path, tmp_path: Path) -> None:
    """Columns by number, or a file per side, give the scores of a plain bitext."""
    bitexts: dict[str, list[Path | str]] = {
        "plain": [write_lines(tmp_path / "plain.tsv", [f"{src}\t{tgt}" for src, tgt in PAIRS[:6]])],
        "wide": [
            write_lines(tmp_path / "wide.tsv", [f"{tgt}\tx\t{src}" for src, tgt in PAIRS[:6]]),
            "--columns=2,0",
        ],
        "two": [
            write_lines(tmp_path / "two.en", [src for src, _ in PAIRS[:6]]),
            "--neighbors=3",
            write_lines(tmp_path / "two.zh", [tgt for _, tgt in PAIRS[:6]]),
        ],
    }
    for name, words in bitexts.items():
        out = ["--model", str(tiny_model), "--out", str(tmp_path / f"{name}.out.tsv"), "--quiet"]
        assert main(["score", *map(str, words), *out]) == 0
    written = [(tmp_path / f"{name}.out.tsv").read_text(encoding="utf-8").splitlines() for name in bitexts]
    assert [line.split("\t")[:7] for line in written[1]] == [line.split("\t") for line in written[0]]
    assert written[0] == written[2] and {line.split("\t")[7] for line in written[1][1:]} == {"x"}


def test_one_pair_is_a_pair_and_no_memory_is_refused(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command says of one pair, and of a size that nothing fits in."""
    files = [
        str(write_lines(tmp_path / f"{lang}.txt", [text])) for lang, text in zip(("en", "zh"), PAIRS[0], strict=True)
    ]
    words = ["mine", *files, "--model", str(tiny_model), "--out", str(tmp_path / "pairs.tsv")]
    assert main([*words, "--memory", "0"]) == 2
    assert capsys.readouterr().err == "dualmoco: memory 0; expected a size above 0, such as 500M or 4G\n"
    assert main(words) == 0
    assert capsys.readouterr().out == f"1 pair: {tmp_path / 'pairs.tsv'}\n"


def test_results_describe_themselves(model: dualmoco.Model, tmp_path: Path) -> None:
    """A model, mined pairs and an index have a short repr, an escaped HTML table, and data frames."""
    assert repr(model).startswith("<Model ") and "en, zh" in repr(model)
    assert "en, zh" in model._repr_html_()
    unsafe = "<script>alert(1)</script> a cat"
    pairs = dualmoco.mine([unsafe, *SRC[:20]], ["一只猫", *TGT[-20:]], model=model, threshold=-1.0)
    assert f"{len(pairs):,} pairs" in repr(pairs) and "threshold -1.0000" in repr(pairs)
    table = pairs._repr_html_()
    assert "<script>" not in table and table.count("<tr>") <= 12
    frame = pairs.to_pandas()
    assert len(frame) == len(pairs) and list(frame["src"]) == [pair.src for pair in pairs]
    files: dict[str, Path | list[str | Path]] = {"en": write_lines(tmp_path / "a.en", [unsafe, *SRC[:3]])}
    dualmoco.build_index(tmp_path / "index", files, model=model)
    index = dualmoco.open_index(tmp_path / "index")
    assert f"{len(index)} sentences in en" in repr(index) and "exact" in repr(index)
    assert "a.en" in index._repr_html_() and "<script>" not in index._repr_html_()
    assert index.to_pandas()["text"].tolist()[0] == unsafe


def test_data_frames_need_pandas(model: dualmoco.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pandas is not a dependency; without it one line says what to install."""
    pairs = dualmoco.mine(SRC[:5], TGT[-5:], model=model, threshold=-1.0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        pairs.to_pandas()


def test_unknown_keywords_are_refused(model: dualmoco.Model) -> None:
    """A misspelt keyword is an error that suggests the right one."""
    with pytest.raises(TypeError, match=r"'treshold'.*'threshold'"):
        dualmoco.mine(SRC, TGT, model=model, treshold=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'colour'.*margin"):
        dualmoco.paraphrases(SRC, model=model, colour="red")  # type: ignore[call-arg]


def test_progress_bars_follow_their_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text bar is used outside notebooks, and in notebooks without ipywidgets."""
    from tqdm import tqdm

    from dualmoco.core import progress

    assert progress.progress_bar() is tqdm
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert progress.progress_bar() is tqdm
    monkeypatch.setattr(progress, "find_spec", lambda name: name)
    assert progress.progress_bar().__module__ == "tqdm.notebook"


def test_every_command_has_a_function_and_every_name_is_documented() -> None:
    """The reference of Python names every public name; each command has a function of its name."""
    folder = Path(__file__).parents[1] / "docs" / "reference" / "python"
    page = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.md")))
    missing = [name for name in dualmoco.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == ["__version__"]
    renamed = {"search": "open_index", "data": "corpora"}
    for command in {path.stem for path in (Path(dualmoco.__file__).parent / "cli").glob("*.py")} - NOT_JOBS:
        assert renamed.get(command, command) in dualmoco.__all__


def test_jobs_on_files_equal_the_commands(model: dualmoco.Model, tiny_model: Path, tmp_path: Path) -> None:
    """Encode, prepare, inspect, compare, visualize, export and similarity by function, checked by their results."""
    text = write_lines(tmp_path / "en.txt", [*SRC[:30], SRC[0]])
    store = dualmoco.encode(text, tmp_path / "vectors", lang="en", model=model)
    assert (len(store.lines), store.count) == (31, len(set(SRC[:30])))
    bitext = write_lines(tmp_path / "pairs.tsv", [f"{src}\t{tgt}" for src, tgt in PAIRS])
    statistics = dualmoco.inspect(bitext, progress=False)
    assert statistics.pairs == len(PAIRS) and [side.lang for side in statistics.sides] == ["en", "zh"]
    manifest = dualmoco.prepare([bitext], "heldout=20", src="en", tgt="zh", out=tmp_path / "prepared", progress=False)
    assert manifest.total.read == len(PAIRS) and (tmp_path / "prepared" / "manifest.json").is_file()
    drawn = dualmoco.visualize(bitext, tmp_path / "figure.svg", model=model, count=5)
    assert len(drawn.pairs) == 5 and drawn.out.is_file() and set(drawn.pairs) <= set(PAIRS)
    cosines = dualmoco.similarity([pair[0] for pair in drawn.pairs], [pair[1] for pair in drawn.pairs], model=model)
    np.testing.assert_allclose(np.diag(cosines), drawn.cosines, atol=1e-5)
    exported = dualmoco.export(str(tiny_model), "en", "sentence-transformers", tmp_path / "exported")
    assert exported.lowest_cosine > 0.999
    with pytest.raises(ConfigError, match=r"resamples 0.*at least 1"):
        dualmoco.compare("a.json", "b.json", resamples=0)


def test_folders_are_aligned_like_single_documents(tmp_path: Path) -> None:
    """One output per pair of documents, equal to that of `align`; a file in place of the folder is refused."""
    for lang, sentences in (("en", [src for src, _ in PAIRS[:40]]), ("zh", [tgt for _, tgt in PAIRS[:40]])):
        (tmp_path / lang).mkdir()
        write_lines(tmp_path / lang / "a.txt", sentences)
    outcomes = dualmoco.align_folders(
        tmp_path / "en", tmp_path / "zh", tmp_path / "out", model="en-zh-static", split="no", progress=False
    )
    assert [outcome.error for outcome in outcomes] == [""]
    single = dualmoco.align(
        tmp_path / "en" / "a.txt", tmp_path / "zh" / "a.txt", model="en-zh-static", split="no", out=tmp_path / "a.tsv"
    )
    assert (tmp_path / "out" / "a.tsv").read_bytes() == (tmp_path / "a.tsv").read_bytes()
    assert repr(single).startswith("<Alignment of 40 sentences en and 40 sentences zh")
    assert len(single.to_pandas()) == len(single) and "<table>" in single._repr_html_()
    with pytest.raises(ConfigError, match=r"a\.tsv: a file; expected a folder"):
        dualmoco.align_folders(tmp_path / "en", tmp_path / "zh", tmp_path / "a.tsv")
    with pytest.raises(TypeError, match=r"'splitt'.*'split'"):
        dualmoco.align_folders(tmp_path / "en", tmp_path / "zh", tmp_path / "out", splitt="no")  # type: ignore[call-arg]


def test_names_with_a_null_character_are_one_line(tmp_path: Path) -> None:
    """No file or folder can have such a name; sentences may hold the character."""
    bad, text = str(tmp_path / "a\0b"), write_lines(tmp_path / "a.en", [src for src, _ in PAIRS[:3]])
    calls: list[Callable[[], object]] = [
        lambda: dualmoco.build_index(bad, {"en": text}),
        lambda: dualmoco.encode(text, bad),
        lambda: dualmoco.encode(text, out=Path(bad)),
        lambda: dualmoco.mine(bad, text),
        lambda: dualmoco.prepare(text, out=bad),
        lambda: dualmoco.align(bad, text),
        lambda: dualmoco.visualize(bad),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"^[^\n\0]*contains a null character; expected the name of a file"):
            call()
    assert list(tmp_path.iterdir()) == [text]
    assert dualmoco.similarity("Good\0 morning", "早上好").item() > 0

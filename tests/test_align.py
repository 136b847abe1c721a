"""`align` from documents to files: Python and command line, one pair and many, wrong input, interruption, Ray."""

from __future__ import annotations

import importlib.resources
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmoco
from commands import Moment, run_command
from dualmoco.alignment.aligner import LONGEST
from dualmoco.alignment.api import MOST_LONGEST, AlignmentResult
from dualmoco.alignment.batch import SUMMARY
from dualmoco.alignment.document import Text
from dualmoco.alignment.folders import documents_of, pairs_by_name, pairs_of_list
from dualmoco.alignment.languages import looks_like, settle_languages
from dualmoco.alignment.matching import Match, match_documents
from dualmoco.alignment.output import ENDINGS
from dualmoco.alignment.pair import MOST_TIMES, UnrelatedError, sentences_sha256
from dualmoco.alignment.pairs import count_links
from dualmoco.cli.main import build_parser, main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.storage import locked
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.text import read_lines
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL
from dualmoco.models.model import Model

DEMO = importlib.resources.files("dualmoco") / "data" / "demo" / "sentences.tsv"
ROWS = [line.split("\t") for line in DEMO.read_text(encoding="utf-8").splitlines()[1:]]
EN, ZH = [row[1] for row in ROWS], [row[2] for row in ROWS]
FRENCH = [
    "Le chat dort sur la table de la cuisine.", "Nous allons à la mer demain avec les enfants.",
    "Mon père travaille dans une petite boulangerie.", "Il pleuvait quand le train est enfin arrivé.",
] * 10  # fmt: skip
HEADER = "score\tconfidence\tsrc\ttgt\tsrc_places\ttgt_places"


@pytest.fixture(scope="module")
def model() -> Model:
    """The fast model."""
    return dualmoco.load(FAST_MODEL)


def write(path: Path, lines: Sequence[str]) -> Path:
    """Writes a text file and the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def pair_of(folder: Path, first: int = 0, last: int = 40, name: str = "") -> tuple[Path, Path]:
    """Two files of the same sentences."""
    return write(folder / f"{name}en.txt", EN[first:last]), write(folder / f"{name}zh.txt", ZH[first:last])


def run(*words: str | Path) -> int:
    """Runs `dualmoco align` with the fast model."""
    return main(["align", *map(str, words), "--model", FAST_MODEL, "--quiet"])


def rows_of(path: Path) -> list[list[str]]:
    """Rows of a TSV of links."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == HEADER
    return [line.split("\t") for line in lines[1:]]


def texts_of(found: AlignmentResult) -> list[tuple[str, str]]:
    """Both sides of each link."""
    return [(pair.src, pair.tgt) for pair in found.pairs]


def merged(first: int, last: int) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Sides of a document where every sixth line of one or the other side holds two sentences, and its links."""
    sides: tuple[list[str], list[str]] = ([], [])
    links, at = [], first
    while at < last:
        step = 2 if (at - first) % 6 == 2 and at + 1 < last else 1
        src, tgt = EN[at : at + step], ZH[at : at + step]
        if step == 2 and (at // 6) % 2:
            src = [" ".join(src)]
        elif step == 2:
            tgt = ["".join(tgt)]
        sides[0].extend(src)
        sides[1].extend(tgt)
        links.append((" ".join(src), "".join(tgt)))
        at += step
    return *sides, links


# Python


def test_sentences_are_placed_side_by_side(model: Model) -> None:
    """Every sentence stands beside its translation; languages are guessed; where it stands is known."""
    found = dualmoco.align(EN[:60], ZH[:60], model=model, progress=False)
    assert texts_of(found) == list(zip(EN[:60], ZH[:60], strict=True))
    assert (found.aligned.src.lang, found.aligned.tgt.lang) == ("en", "zh")
    assert len(found) == found.counts.links == found.counts.linked == 60 and found.counts.types == {"1-1": 60}
    assert [pair.src_places for pair in found.pairs] == [(str(number),) for number in range(1, 61)]
    assert all(0 <= pair.confidence <= 1 and pair.score is not None for pair in found.pairs)
    assert found.counts == count_links(found.pairs)
    origin = found.aligned.origin
    assert origin["model"] == FAST_MODEL and origin["model_sha256"] == model.identity.sha256
    assert origin["src_sha256"] == sentences_sha256(EN[:60]) and origin["tgt_sentences"] == 60
    assert origin["longest"] == LONGEST and origin["split"] == "auto" and origin["runs"] == "encoded"


def test_the_other_way_round_is_the_same(model: Model) -> None:
    """Chinese as the source, its language guessed, gives the same pairs."""
    src, tgt, links = merged(0, 60)
    found = dualmoco.align(tgt, src, model=model, split="no", progress=False)
    assert found.aligned.src.lang == "zh"
    assert [(b, a) for a, b in texts_of(found)] == links


@pytest.mark.parametrize("vectors", ["auto", "encoded", "averaged"])
def test_merged_sentences_are_linked(vectors: str, model: Model) -> None:
    """One to two and two to one, with vectors of runs made either way."""
    src, tgt, links = merged(0, 150)
    found = dualmoco.align(src, tgt, model=model, split="no", runs=vectors, progress=False)
    assert found.aligned.origin["runs"] == ("averaged" if vectors == "averaged" else "encoded")
    right = set(texts_of(found)) & set(links)
    assert len(right) > 0.97 * len(links) and {"1-1", "1-2", "2-1"} <= set(found.counts.types)


def test_words_can_be_left_out(model: Model) -> None:
    """The origin says whether they were looked at; scores are of vectors either way."""
    with_words, without = (
        dualmoco.align(EN[:40], ZH[:40], model=model, split="no", lexicon=lexicon, progress=False)
        for lexicon in (True, False)
    )
    assert with_words.aligned.origin["lexicon"] is True and without.aligned.origin["lexicon"] is False
    assert [pair.src for pair in with_words] == [pair.src for pair in without]
    assert [pair.score for pair in with_words] == [pair.score for pair in without]
    assert [pair.confidence for pair in with_words] != [pair.confidence for pair in without]


def test_the_longest_run_can_be_set(model: Model) -> None:
    """With 1 every link is one to one or one-sided."""
    src, tgt, _ = merged(0, 60)
    found = dualmoco.align(src, tgt, model=model, split="no", longest=1, progress=False)
    assert set(found.counts.types) <= {"1-1", "1-0", "0-1"} and found.aligned.origin["longest"] == 1


def test_the_default_model_aligns_the_example() -> None:
    """What the documentation of `align` shows."""
    found = dualmoco.align(
        ["How are you?", "I am fine. Thanks."], ["你好吗？", "我很好，", "谢谢。"], split="no", progress=False
    )
    assert [pair.type for pair in found.pairs] == ["1-1", "1-2"]
    assert found.aligned.origin["model"] == DEFAULT_MODEL


def test_left_out_and_foreign_sentences(model: Model) -> None:
    """What one side has alone stands alone."""
    src, tgt = [*EN[:30], *EN[40:70]], [*ZH[:50], *ZH[55:70]]
    found = dualmoco.align(src, tgt, model=model, progress=False)
    alone = [pair for pair in found.pairs if not pair.is_linked]
    assert {pair.tgt for pair in alone if pair.tgt} == set(ZH[30:40]) and {pair.src for pair in alone} >= set(EN[50:55])
    assert all(pair.score is None and pair.type in ("1-0", "0-1") for pair in alone)
    assert len(alone) == 15 and found.counts.linked == 55


def test_unsure_links_can_be_left_out(model: Model, tmp_path: Path) -> None:
    """Of all links those with both sides and enough confidence are kept, here and in the file."""
    src, tgt = [*EN[:30], *EN[35:70]], ZH[:70]
    every = dualmoco.align(src, tgt, model=model, progress=False)
    least = sorted(pair.confidence for pair in every.pairs if pair.is_linked)[10]
    out = tmp_path / "a.tsv"
    found = dualmoco.align(src, tgt, model=model, min_confidence=least, out=out, progress=False)
    assert list(found.pairs) == [pair for pair in every.pairs if pair.is_linked and pair.confidence >= least]
    assert len(found.aligned.links) == len(every.aligned.links) > len(found)
    assert [row[2] for row in rows_of(out)] == [pair.src for pair in found.pairs]
    note = json.loads(out.with_name("a.tsv.json").read_text(encoding="utf-8"))
    assert note["min_confidence"] == least and note["links"] == len(found)


def test_paragraphs_are_split(model: Model, tmp_path: Path) -> None:
    """Lines of several sentences are cut by themselves or when told, and places name paragraphs."""
    lines = [(" ".join(EN[at : at + 3]), "".join(ZH[at : at + 3])) for at in range(0, 30, 3)]
    paths = (
        write(tmp_path / "a.txt", [line[0] for line in lines]),
        write(tmp_path / "b.txt", [line[1] for line in lines]),
    )
    found = dualmoco.align(*paths, model=model, progress=False)
    assert found.pairs[4].src_places[0] == "2.2" and len(found.aligned.src.sentences) >= 30
    assert found.pairs == dualmoco.align(*map(str, paths), model=model, split="yes", progress=False).pairs
    whole = dualmoco.align(*paths, model=model, split="no", progress=False)
    assert texts_of(whole) == lines and whole.pairs[4].src_places == ("5",)


def test_files_of_all_kinds_are_written(model: Model, tmp_path: Path) -> None:
    """Links of every format, the note beside each, and the page; all the same when made again."""
    paths = pair_of(tmp_path, 0, 30)
    written: list[dict[str, bytes]] = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        for ending in ENDINGS:
            out, page = folder / f"x{ending}", folder / "x.html"
            dualmoco.align(*paths, model=model, out=out, html=page, progress=False)
            assert json.loads((folder / f"x{ending}.json").read_text(encoding="utf-8"))["links"] == 30
        written.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert written[0] == written[1]
    assert ZH[3] in written[0]["x.html"].decode() and written[0]["x.html"].startswith(b"<!")
    assert {"x.tsv", "x.parquet", "x.tmx", "x.xml", "x.intertext.xml", "x.src.xml", "x.tgt.xml"} <= set(written[0])
    assert [row[2] for row in rows_of(tmp_path / "one" / "x.tsv")] == EN[:30]


def test_one_sentence_a_side(model: Model) -> None:
    """The shortest documents there are; and more target sentences than a link may hold."""
    one = dualmoco.align(EN[:1], ZH[:1], model=model, src_lang="en", tgt_lang="zh", progress=False)
    assert texts_of(one) == [(EN[0], ZH[0])]
    many = dualmoco.align(EN[:1], ZH[:9], model=model, src_lang="en", tgt_lang="zh", force=True, progress=False)
    assert sum(len(pair.tgt_places) for pair in many.pairs) == 9 and many.counts.linked == 1


# Wrong input


BAD: dict[str, tuple[Sequence[str], Sequence[str], dict[str, Any], type[Exception], str]] = {
    "no source": ([], ZH[:5], {"src_lang": "en"}, DataError, r"^src: no sentences; expected at least one"),
    "empty target": (EN[:5], ["", " "], {"tgt_lang": "zh"}, DataError, r"^tgt: no sentences; expected at least one"),
    "far longer": (
        EN[:1], ZH * 4, {"src_lang": "en"}, DataError,
        r"^sentences of src: 1, of tgt: 1,280; expected two versions of one document: check the files and --split",
    ),
    "just too long": (EN[:2], ZH[: 2 * MOST_TIMES + 1], {}, DataError, r"^sentences of src: 2, of tgt: 41; expected"),
    "unrelated": (
        EN[:150], ZH[170:], {}, UnrelatedError,
        r"^src and tgt: only \d+ % of the sentences have a likely partner, as in unrelated texts; expected "
        r"translations, which have 40 % and more: check the files, or add --force$",
    ),
    "swapped": (
        ZH[:40], EN[:40], {"src_lang": "en", "tgt_lang": "zh"}, DataError,
        r"^src looks like zh and tgt like en; expected en and zh: name the files or the languages the other way round",
    ),
    "same look": (EN[:40], EN[:40], {}, ConfigError, r"^src and tgt: both look like en; expected two languages: name"),
    "same name": (
        EN[:40], ZH[:40], {"src_lang": "zh", "tgt_lang": "zh"}, ConfigError,
        r"^src and tgt: both are said to be zh; expected two languages: name them with --src and --tgt$",
    ),
    "lacking": (EN[:40], ZH[:40], {"src_lang": "fr"}, ModelError, r"has no language 'fr'; expected one of en, zh"),
    "foreign": (
        FRENCH, ZH[:40], {}, ConfigError, r"^src: looks like language fr; name it with --src or --tgt, one of en, zh$"
    ),
    "no letters": (EN[:40], ["1 2 3", "4"], {}, ConfigError, r"^tgt: looks like language unknown; name it with --src"),
    "no string": (EN[:40], [*ZH[:2], 3], {}, DataError, r"^tgt: sentence 2 is a int; expected a string$"),  # type: ignore[list-item]
    "longest 0": (EN[:40], ZH[:40], {"longest": 0}, ConfigError, r"^longest 0; expected from 1 to 10 sentences$"),
    "longest": (EN, ZH, {"longest": MOST_LONGEST + 1}, ConfigError, r"^longest 11; expected from 1 to 10 sentences$"),
    "confidence": (EN, ZH, {"min_confidence": 1.5}, ConfigError, r"^min_confidence 1.5; expected a number from 0 to"),
    "not a number": (EN, ZH, {"min_confidence": float("nan")}, ConfigError, r"^min_confidence nan; expected a number"),
    "split": (EN, ZH, {"split": "maybe"}, ConfigError, r"^split maybe; expected one of auto, yes, no$"),
    "runs": (EN, ZH, {"runs": "summed"}, ConfigError, r"^runs summed; expected one of auto, encoded, averaged$"),
    "ending": (EN, ZH, {"out": "x.doc"}, ConfigError, r"^x.doc: ends with .doc; expected one of .tsv, .parquet, .tmx"),
    "folder": (EN, ZH, {"out": "."}, ConfigError, r"^.: a folder; expected the name of a file to write$"),
    "page": (EN, ZH, {"html": "."}, ConfigError, r"^.: a folder; expected the name of a file to write$"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_wrong_input_is_named(fault: str, model: Model) -> None:
    """What was given, what was expected, what to do."""
    src, tgt, options, kind, said = BAD[fault]
    with pytest.raises(kind, match=said) as error:
        dualmoco.align(src, tgt, model=model, progress=False, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fault", ["far longer", "just too long", "unrelated", "swapped"])
def test_what_looks_wrong_can_be_forced(fault: str, model: Model) -> None:
    """Every sentence is in one link all the same."""
    src, tgt, options, _, _ = BAD[fault]
    found = dualmoco.align(src, tgt, model=model, force=True, progress=False, **options)
    assert sum(len(pair.src_places) for pair in found.pairs) == len(src)
    assert sum(len(pair.tgt_places) for pair in found.pairs) == len(tgt)


def test_just_short_enough_is_not_too_long(model: Model) -> None:
    """Twenty times as many sentences are not refused for their number."""
    found = dualmoco.align(EN[:2], ZH[: 2 * MOST_TIMES], model=model, progress=False)
    assert sum(len(pair.tgt_places) for pair in found.pairs) == 2 * MOST_TIMES


def test_another_language_is_a_warning(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    """It is aligned as what it was said to be, and the guess is shown."""
    text = Text("a.txt", FRENCH), Text("b.txt", ZH[:40])
    assert settle_languages(text, ("en", "zh"), model, force=False) == ("en", "zh")
    assert caplog.messages == ["a.txt: looks like language fr, is aligned as en; if that is wrong, name the language"]
    caplog.clear()
    assert settle_languages((Text("a", EN[:40]), text[1]), ("en", None), model, force=False) == ("en", "zh")
    assert not caplog.messages


def test_languages_of_texts_long_and_short() -> None:
    """By chunks of a long text, by all of a short one; unknown without letters."""
    assert [looks_like(lines) for lines in (EN, ZH, FRENCH, EN[:2], ZH[:2])] == ["en", "zh", "fr", "en", "zh"]
    assert looks_like(["1 2", "--"]) == looks_like([]) == ""


def test_files_that_cannot_be_read(model: Model, tmp_path: Path) -> None:
    """Another encoding, nothing in it, not there: with the name of the file, and the line where there is one."""
    en, _ = pair_of(tmp_path)
    (tmp_path / "gbk.txt").write_bytes("\n".join(ZH[:40]).encode("gbk"))
    (tmp_path / "wide.txt").write_bytes("\n".join(EN[:40]).encode("utf-16"))
    write(tmp_path / "none.txt", ["", " "])
    faults = {
        "gbk.txt": r"gbk\.txt:1: not UTF-8 \(invalid .*\); convert the file, for example with iconv$",
        "wide.txt": r"wide\.txt:1: not UTF-8 \(invalid .*\); convert the file, for example with iconv$",
        "none.txt": r"none\.txt: holds no text; expected at least one sentence; check that it is the right file$",
        "lost.txt": r"lost\.txt: no such file; expected a document: \.txt, \.md, \.html, \.docx or \.epub$",
        "": r": a folder; expected a document: \.txt, \.md, \.html, \.docx or \.epub$",
    }
    for name, said in faults.items():
        with pytest.raises(DataError, match=said):
            dualmoco.align(en, tmp_path / name, model=model, progress=False)


# The command, one pair


def test_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words and as JSON; the page stands beside the output or where it is told."""
    en, zh = pair_of(tmp_path)
    out = tmp_path / "a.tsv"
    assert run(en, zh, "--out", out, "--html") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "40 sentences en, 40 sentences zh"
    assert said[1].startswith("40 links: 1-1 40; ") and said[2] == f"{out}, {tmp_path / 'a.html'}"
    assert [row[2:4] for row in rows_of(out)] == [list(pair) for pair in zip(EN[:40], ZH[:40], strict=True)]
    assert run(zh, en, "--src", "zh", "--tgt", "en", "--out", out, "--html", tmp_path / "p.html", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    mean = float(np.mean([float(row[0]) for row in rows_of(out)]))
    assert found.pop("mean_score") == pytest.approx(mean, abs=2e-4)
    assert found == {
        "out": str(out), "html": str(tmp_path / "p.html"), "links": 40, "linked": 40, "types": {"1-1": 40}
    }  # fmt: skip
    assert (tmp_path / "p.html").is_file() and run(en, zh, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["html"] is None


def test_command_and_python_write_the_same(model: Model, tmp_path: Path) -> None:
    """The command is thin over the function."""
    src, tgt, _ = merged(0, 60)
    paths = write(tmp_path / "en.txt", src), write(tmp_path / "zh.txt", tgt)
    options = ["--split", "no", "--runs", "averaged", "--longest", "3", "--min-confidence", "0.6", "--no-lexicon"]
    assert run(*paths, "--out", tmp_path / "a.tsv", *options) == 0
    dualmoco.align(
        *paths, model=model, out=tmp_path / "b.tsv", split="no", runs="averaged", longest=3, min_confidence=0.6,
        lexicon=False, progress=False,
    )  # fmt: skip
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()
    assert (tmp_path / "a.tsv.json").read_bytes() == (tmp_path / "b.tsv.json").read_bytes()


def test_unrelated_texts_are_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and no output, unless they are forced."""
    en, zh = write(tmp_path / "en.txt", EN[:150]), write(tmp_path / "zh.txt", ZH[170:])
    out = tmp_path / "a.tsv"
    assert run(en, zh, "--out", out, "--html") == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"dualmoco: {en} and {zh}: only ") and error.endswith("check the files, or add --force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["en.txt", "zh.txt"]
    assert run(en, zh, "--out", out, "--html", "--force") == 0
    assert len(rows_of(out)) > 100 and (tmp_path / "a.html").is_file()


FAULTS: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "SRC or TGT is missing; expected two documents, two folders, or --list FILE"),
    "one file": (["EN"], "SRC or TGT is missing; expected two documents, two folders, or --list FILE"),
    "mixed": (["EN", "FOLDER"], "EN and FOLDER: a folder and a file; expected two of a kind"),
    "match": (["EN", "ZH", "--match"], "--match without two folders; expected folders of documents as SRC and TGT"),
    "list and files": (["EN", "ZH", "--list", "LIST"], "--list together with SRC; expected one of them"),
    "missing": (["--list", "LIST"], "LIST:1: FOLDER/lost.txt: no such file; relative names start from FOLDER"),
    "file out": (
        ["FOLDER", "FOLDER", "--out", "a.tsv"],
        "--out a.tsv: a file; expected a folder for several documents",
    ),
    "format": (["FOLDER", "FOLDER", "--format", "doc"], "name.doc: ends with .doc; expected one of .tsv, .parquet"),
    "engine": (["FOLDER", "FOLDER", "--engine", "abacus"], "engine abacus; expected local or ray"),
    "longest": (["FOLDER", "FOLDER", "--longest", "0"], "longest 0; expected from 1 to 10 sentences"),
    "no names": (["FOLDER", "FOLDER", "--src", "xx", "--tgt", "yy"], "expected such as 1.en.txt and 1.zh.txt, or"),
    "empty": (["FOLDER", "EMPTY"], "EMPTY: no document in it; expected text, Markdown, HTML, DOCX or EPUB files"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_command_is_one_line(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, what is wrong, and nothing written."""
    folder, empty = tmp_path / "docs", tmp_path / "empty"
    empty.mkdir()
    en, zh = pair_of(folder, name="1.")
    names = {"EN": en, "ZH": zh, "LIST": write(folder / "list.tsv", [f"{en.name}\tlost.txt"]), "FOLDER": folder}
    names["EMPTY"] = empty
    if fault == "no names":
        for path in (en, zh, names["LIST"]):
            path.rename(path.with_name(f"{path.stem.replace('.', '')}.{'xx' if path == en else 'yy'}"))
    words, said = FAULTS[fault]
    filled = [str(names.get(word, word)) for word in words]
    for name, path in names.items():
        said = said.replace(name, str(path))
    before = sorted(path for path in tmp_path.rglob("*"))
    assert run(*filled, *([] if "--out" in words else ["--out", str(tmp_path / "out")])) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the package."""
    with pytest.raises(SystemExit) as ended:
        main(["align", "--help"])
    said = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # lines are broken after hyphens too
    assert ended.value.code == 0
    for text in (
        f"sentences of one side in a link (default: {LONGEST})", f"(default: {DEFAULT_MODEL})",
        "tsv, parquet, tmx, xml or intertext.xml (default: tsv)", "auto, encoded or averaged (default: auto)",
        "or no if every line is one (default: auto)", "one-sided ones (default: 0.0)", "(default: local)",
    ):  # fmt: skip
        assert text in said
    parsed = build_parser().parse_args(["align", "a", "b", "--out", "c"])
    assert (parsed.longest, parsed.model, parsed.min_confidence) == (LONGEST, DEFAULT_MODEL, 0)


def test_threads_change_nothing(tmp_path: Path) -> None:
    """The same bytes with one thread and with two, for both kinds of vectors."""
    src, tgt, _ = merged(0, 150)
    words = [str(write(tmp_path / "en.txt", src)), str(write(tmp_path / "zh.txt", tgt)), "--split", "no"]
    kinds = ("encoded", "averaged")
    script = "import sys; from dualmoco.cli.main import main; sys.exit(any(main(a.split()) for a in sys.argv[1:]))"
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    written = []
    for threads in ("1", "2"):
        outs = {kind: tmp_path / f"{kind}{threads}.tsv" for kind in kinds}
        commands = [
            " ".join(["align", *words, "--model", FAST_MODEL, "--runs", kind, "--out", str(outs[kind])])
            for kind in kinds
        ]
        env = {**os.environ, **dict.fromkeys(names, threads)}
        subprocess.run([sys.executable, "-c", script, *commands], env=env, check=True, capture_output=True)
        written.append([path.read_bytes() for path in outs.values()])
    assert written[0] == written[1] and all(content.count(b"\n") > 100 for content in written[0])


# Many documents


def documents(folder: Path, count: int = 4) -> tuple[Path, Path]:
    """Folders of documents of 30 sentences each, with the same names but for the language."""
    for number in range(count):
        part = slice(30 * number, 30 * number + 30)
        write(folder / "en" / f"{number}.en.txt", EN[part])
        write(folder / "zh" / f"{number}.zh.txt", ZH[part])
    return folder / "en", folder / "zh"


def outputs(folder: Path) -> dict[str, bytes]:
    """All files that a batch wrote, its folder's name left out of the summary."""
    return {
        path.name: path.read_bytes().replace(str(folder).encode(), b"OUT") for path in sorted(folder.iterdir())
    }  # fmt: skip


def check_document(path: Path, number: int) -> None:
    """A document's links are its thirty pairs."""
    part = slice(30 * number, 30 * number + 30)
    assert [row[2:4] for row in rows_of(path)] == [list(pair) for pair in zip(EN[part], ZH[part], strict=True)]


def test_documents_are_paired_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One output each, with the note; the summary has all of them, and so has standard output."""
    en, zh = documents(tmp_path)
    out = tmp_path / "out"
    assert run(en, zh, "--out", out, "--html") == 0
    assert capsys.readouterr().out == f"4 pairs of documents aligned, 120 links: {out / SUMMARY}\n"
    for number in range(4):
        check_document(out / f"{number}.tsv", number)
    kinds = [f"{number}.{ending}" for number in range(4) for ending in ("html", "tsv", "tsv.json")]
    assert [path.name for path in sorted(out.iterdir())] == sorted([*kinds, SUMMARY])
    summary = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
    assert [(Path(row["src"]).name, row["links"], row["linked"], row["error"]) for row in summary] == [
        (f"{number}.en.txt", 30, 30, "") for number in range(4)
    ]
    assert run(en, zh, "--out", out, "--html", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "documents": summary}


def test_names_of_all_kinds_are_paired(tmp_path: Path) -> None:
    """The same stem, codes after a dot, a hyphen or an underscore, folders below, one folder for both sides."""
    en, zh, out = tmp_path / "en", tmp_path / "zh", tmp_path / "out"
    pairs = [("a.txt", "a.md"), ("b.en.txt", "b.zh.txt"), ("c_EN.txt", "c-zh.html"), ("sub/d.txt", "sub/d.txt")]
    for one, two in [*pairs, ("lone.txt", "other.txt"), (".hidden.txt", ".hidden.txt")]:
        write(en / one, ["x"])
        write(zh / two, ["x"])
    found = pairs_by_name(en, zh, [("en", "zh")], out, ".tmx")
    assert [(pair.src, pair.tgt) for pair in found] == [(en / one, zh / two) for one, two in pairs]
    assert [pair.out.name for pair in found] == ["a.tmx", "b.tmx", "c_EN.tmx", "d.tmx"]
    assert found[0].page == out / "a.html"
    both = tmp_path / "both"
    for name in ("1.en.txt", "1.zh.txt", "2.en.txt", "3.zh.txt"):
        write(both / name, ["x"])
    (pair,) = pairs_by_name(both, both, [("en", "zh")], out, ".tsv")
    assert (pair.src.name, pair.tgt.name) == ("1.en.txt", "1.zh.txt")
    assert documents_of(en) == sorted(en / name for name in ("a.txt", "b.en.txt", "c_EN.txt", "lone.txt", "sub/d.txt"))


def test_a_list_names_documents(tmp_path: Path) -> None:
    """Relative names start from its folder; outputs of one name are numbered; empty lines are nothing."""
    en, zh = documents(tmp_path / "docs", 2)
    (tmp_path / "docs" / "0.en.txt").write_bytes((en / "1.en.txt").read_bytes())
    lines = ["en/0.en.txt\tzh/0.zh.txt", "", f" 0.en.txt \t{zh / '1.zh.txt'}"]
    names, out = write(tmp_path / "docs" / "list.tsv", lines), tmp_path / "out"
    assert run("--list", names, "--out", out) == 0
    check_document(out / "0.tsv", 0)
    check_document(out / "0-2.tsv", 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a.txt", r"list\.tsv:1: 1 columns; expected source<TAB>target$"),
        ("a.txt\t", r"list\.tsv:1: 2 columns; expected source<TAB>target$"),
        ("a.txt\ta.txt\ta.txt", r"list\.tsv:1: 3 columns; expected source<TAB>target$"),
        ("a.txt\tb.txt", r"list\.tsv:1: .*b\.txt: no such file; relative names start from "),
        (" ", r"list\.tsv: no pair of documents; expected lines of source<TAB>target$"),
    ],
)
def test_wrong_lists_are_named(line: str, said: str, tmp_path: Path) -> None:
    """With the line."""
    write(tmp_path / "a.txt", ["x"])
    with pytest.raises(DataError, match=said):
        pairs_of_list(write(tmp_path / "list.tsv", [line]), tmp_path, ".tsv")


def test_documents_are_matched_by_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that tell nothing; one document of either side has no partner and is left out."""
    order = [3, 0, 4, 1, 2]
    for number in range(5):
        write(tmp_path / "en" / f"e{number}.txt", EN[30 * number : 30 * number + 30])
        at = order[number]
        write(tmp_path / "zh" / f"z{number}.txt", ZH[30 * at : 30 * at + 30] if at != 2 else ZH[250:290])
    out = tmp_path / "out"
    assert run(tmp_path / "en", tmp_path / "zh", "--match", "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)["documents"]
    pairs = [(Path(row["src"]).stem, Path(row["tgt"]).stem) for row in found]
    assert pairs == [(f"e{at}", f"z{order.index(at)}") for at in (0, 1, 3, 4)]
    for at in (0, 1, 3, 4):
        check_document(out / f"e{at}.tsv", at)


def test_documents_that_do_not_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair at all is an error."""
    monkeypatch.setattr("dualmoco.alignment.matching.LEAST_SHARE", 0.99)
    en, zh = write(tmp_path / "en" / "a.txt", EN[:150]).parent, write(tmp_path / "zh" / "b.txt", ZH[170:]).parent
    assert run(en, zh, "--match", "--out", tmp_path / "out") == 2
    said = f"{en} and {zh}: no two documents are versions of each other; expected translations"
    assert capsys.readouterr().err.splitlines()[-1] == f"dualmoco: {said}" and not (tmp_path / "out").exists()


def test_matching_of_known_vectors() -> None:
    """Copies among others are matched one to one; the share counts sentences of the shorter document."""
    generator = np.random.default_rng(0)
    src = [unit_vectors(generator.normal(size=(count, 64)).astype(np.float32)) for count in (20, 35, 12)]
    more = [unit_vectors(generator.normal(size=(count, 64)).astype(np.float32)) for count in (9, 30)]
    tgt = [src[2], np.concatenate([src[0], more[0]]), more[1], src[1][5:30]]
    assert match_documents(src, tgt) == [Match(0, 1, 1.0), Match(1, 3, 1.0), Match(2, 0, 1.0)]


def test_finished_documents_are_not_aligned_again(tmp_path: Path) -> None:
    """Outputs stay as they are, but those of a changed text, of another setting, or lost ones are made anew."""
    en, zh = documents(tmp_path)
    out = tmp_path / "out"

    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.name != SUMMARY}

    def changed(*words: str) -> set[str]:
        before = times()
        assert run(en, zh, "--out", out, *words) == 0
        after = times()
        return {name for name in after if before.get(name) != after[name]}

    assert run(en, zh, "--out", out) == 0
    first = outputs(out)
    assert changed() == set() and outputs(out) == first
    write(en / "2.en.txt", [*EN[60:90], "One more sentence about a blue bicycle in the garden."])
    assert changed() == {"2.tsv", "2.tsv.json"} and len(rows_of(out / "2.tsv")) == 31
    assert changed() == set()
    (out / "1.tsv").unlink()
    (out / "3.tsv.json").write_text("{", encoding="utf-8")
    assert changed() == {"1.tsv", "1.tsv.json", "3.tsv", "3.tsv.json"}
    pages = changed("--html")
    assert {f"{number}.html" for number in range(4)} <= pages and changed("--html") == set()
    assert {"0.tsv", "3.tsv"} <= changed("--longest", "3")
    write(en / "2.en.txt", EN[60:90])
    assert run(en, zh, "--out", out) == 0
    assert {name: content for name, content in outputs(out).items() if name in first} == first


def test_a_broken_document_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; what is wrong with each is said and in the summary; mended, only they are aligned."""
    en, zh = documents(tmp_path)
    out = tmp_path / "out"
    (zh / "1.zh.txt").write_bytes("\n".join(ZH[30:60]).encode("gbk"))
    write(zh / "2.zh.txt", ZH[200:230])
    assert run(en, zh, "--out", out) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[0].startswith(f"{zh / '1.zh.txt'}:1: not UTF-8 (")
    assert said[1].startswith(f"{en / '2.en.txt'} and {zh / '2.zh.txt'}: only ")
    assert said[2] == f"2 pairs of documents aligned, 60 links; 2 could not be: {out / SUMMARY}"
    errors = [row["error"] for row in json.loads((out / SUMMARY).read_text(encoding="utf-8"))]
    assert errors == ["", said[0], said[1], ""]
    assert sorted(path.name for path in out.glob("*.tsv")) == ["0.tsv", "3.tsv"]
    done = (out / "0.tsv").stat().st_mtime_ns
    documents(tmp_path)
    assert run(en, zh, "--out", out) == 0
    assert (out / "0.tsv").stat().st_mtime_ns == done
    check_document(out / "1.tsv", 1)


MOMENTS = [
    Moment(signal.SIGKILL, "dualmoco.alignment.batch", "write_outputs", call=2),
    Moment(signal.SIGKILL, "dualmoco.alignment.output", "write_json", call=2, after=False),  # links without their note
]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_an_interrupted_batch_is_resumed(moment: Moment, tmp_path: Path) -> None:
    """After `kill -9` the same command again gives what was never interrupted, and keeps what was done."""
    en, zh = documents(tmp_path)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run(en, zh, "--out", whole) == 0
    words = ["align", str(en), str(zh), "--out", str(out), "--model", FAST_MODEL, "--quiet"]
    stopped = run_command(words, tmp_path / "said", moment=moment)
    assert stopped.code == -signal.SIGKILL and not (out / SUMMARY).exists()
    assert sorted(path.name for path in out.glob("*.tsv")) == ["0.tsv", "1.tsv"]
    done = (out / "0.tsv").stat().st_mtime_ns
    assert run(en, zh, "--out", out) == 0
    assert outputs(out) == outputs(whole) and (out / "0.tsv").stat().st_mtime_ns == done


def test_two_at_once_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second says so, and writes nothing."""
    en, zh = documents(tmp_path, 1)
    out = tmp_path / "out"
    with locked(out):
        assert run(en, zh, "--out", out) == 2
    said = f"dualmoco: {out}: another process is at work in it; expected one at a time: wait for it\n"
    assert capsys.readouterr().err == said and not out.exists()


@pytest.fixture
def address() -> Iterator[str]:
    """A Ray cluster of one node with two CPUs."""
    ray: Any = pytest.importorskip("ray")
    pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster: Any = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    yield str(cluster.address)
    ray.shutdown()
    cluster.shutdown()


def test_a_cluster_writes_the_same(address: str, tmp_path: Path) -> None:
    """Byte for byte what this process writes, errors of documents too."""
    en, zh = documents(tmp_path)
    write(zh / "2.zh.txt", ZH[200:230])
    assert run(en, zh, "--out", tmp_path / "local") == 1
    assert run(en, zh, "--out", tmp_path / "ray", "--engine", "ray", "--address", address) == 1
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "local")
    assert sorted(path.name for path in (tmp_path / "ray").glob("*.tsv")) == ["0.tsv", "1.tsv", "3.tsv"]


def test_demo_sentences_are_what_these_tests_take_them_for() -> None:
    """Enough distinct pairs."""
    assert len(set(EN)) == len(set(ZH)) == len(EN) == 320 and len(list(read_lines(Path(str(DEMO))))) == 321


def test_outputs_never_share_a_name(tmp_path: Path) -> None:
    """A numbered output is not that of another document."""
    for name in ("a", "sub/a", "a-2"):
        for lang in ("en", "zh"):
            write(tmp_path / lang / f"{name}.{lang}.txt", ["x"])
    found = pairs_by_name(tmp_path / "en", tmp_path / "zh", [("en", "zh")], tmp_path / "out", ".tsv")
    assert len({pair.out for pair in found}) == 3


@pytest.mark.parametrize("words", [[], ["--src", "zh"], ["--tgt", "en"]])
def test_folders_the_other_way_round(words: list[str], tmp_path: Path) -> None:
    """Chinese as the source is paired by name too, its language guessed or named."""
    en, zh = documents(tmp_path, 2)
    assert run(zh, en, "--out", tmp_path / "out", *words) == 0


def test_a_file_is_not_paired_with_itself(tmp_path: Path) -> None:
    """One folder for both sides, and a file without a language in it."""
    for name, lines in (("1.en.txt", EN[:30]), ("1.zh.txt", ZH[:30]), ("README.txt", EN[200:240])):
        write(tmp_path / "docs" / name, lines)
    assert run(tmp_path / "docs", tmp_path / "docs", "--out", tmp_path / "out") == 0


def test_a_document_in_another_language_does_not_stop_the_others(tmp_path: Path) -> None:
    """Exit code 1, and the others are aligned."""
    en, zh = documents(tmp_path, 3)
    write(en / "0.en.txt", FRENCH)
    assert run(en, zh, "--out", tmp_path / "out") == 1
    check_document(tmp_path / "out" / "2.tsv", 2)


def test_confidence_of_a_batch_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of one pair is."""
    assert run(*documents(tmp_path, 1), "--out", tmp_path / "out", "--min-confidence", "5") == 2
    assert "min_confidence 5.0; expected a number from 0 to 1" in capsys.readouterr().err


def test_score_of_a_single_pair_is_usual(model: Model) -> None:
    """A document of one sentence has no other scale than cosines."""
    found = dualmoco.align(EN[:1], ZH[:1], model=model, src_lang="en", tgt_lang="zh", progress=False)
    assert found.pairs[0].score is not None and found.pairs[0].score < 3


def test_an_empty_side_is_named_before_its_language(model: Model) -> None:
    """Not as a language that cannot be told."""
    with pytest.raises(DataError, match="src: no sentences"):
        dualmoco.align([], ZH[:5], model=model)


def test_an_unreadable_document_does_not_stop_matching(tmp_path: Path) -> None:
    """It is left out or reported; the others are paired."""
    en, zh = documents(tmp_path, 3)
    write(zh / "none.txt", [""])
    assert run(en, zh, "--match", "--out", tmp_path / "out") in (0, 1)
    check_document(tmp_path / "out" / "1.tsv", 1)


def test_lone_unrelated_documents_do_not_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document a side, nothing in common: no match, rather than a match that cannot be aligned."""
    write(tmp_path / "en" / "a.txt", EN[:150])
    write(tmp_path / "zh" / "b.txt", ZH[170:])
    assert run(tmp_path / "en", tmp_path / "zh", "--match", "--out", tmp_path / "out") == 2

"""`dualmoco align` with two documents: what it prints, exit codes, wrong commands, threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from aligned_files import EN, ZH, merged, pair_of, rows_of, run, write
from dualmoco.alignment.aligner import DEFAULT_LONGEST
from dualmoco.cli.main import build_parser, main
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL, MANY_STATIC
from dualmoco.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    """The fast model."""
    return dualmoco.load(FAST_MODEL)


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
    assert found == {"out": str(out), "html": str(tmp_path / "p.html"), "links": 40, "linked": 40, "types": {"1-1": 40}}
    assert (tmp_path / "p.html").is_file() and run(en, zh, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["html"] is None


def test_command_and_python_write_the_same(model: Model, tmp_path: Path) -> None:
    """The command is thin over the function."""
    src, tgt, _ = merged(0, 60)
    paths = write(tmp_path / "en.txt", src), write(tmp_path / "zh.txt", tgt)
    options = ["--split", "no", "--runs", "averaged", "--longest", "3", "--min-confidence", "0.6", "--no-lexicon"]
    assert run(*paths, "--out", tmp_path / "a.tsv", *options) == 0
    dualmoco.align(
        *paths,
        model=model,
        out=tmp_path / "b.tsv",
        split="no",
        runs="averaged",
        longest=3,
        min_confidence=0.6,
        lexicon=False,
        progress=False,
    )
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()
    assert (tmp_path / "a.tsv.json").read_bytes() == (tmp_path / "b.tsv.json").read_bytes()


def test_outputs_replace_neither_documents_nor_corrections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page over the source, a page over the links, a corrected table and a corrected page."""
    en, zh = pair_of(tmp_path)
    page, out = tmp_path / "book.html", tmp_path / "book.tsv"
    page.write_text("".join(f"<p>{line}</p>" for line in EN[:40]), encoding="utf-8")
    source = page.read_bytes()
    assert run(page, zh, "--out", out, "--html") == 2 and page.read_bytes() == source and not out.exists()
    assert "book.html: is also an input" in capsys.readouterr().err
    assert run(en, zh, "--out", out, "--html", out) == 2 and "two outputs" in capsys.readouterr().err
    view = tmp_path / "view.html"
    assert run(en, zh, "--out", out, "--html", view) == 0
    assert run(en, zh, "--out", out, "--html", view) == 0
    made = out.read_bytes()
    for edited in (out, view):
        edited.write_text("corrected", encoding="utf-8")
        assert run(en, zh, "--out", out, "--html", view) == 2 and edited.read_text(encoding="utf-8") == "corrected"
        assert f"{edited.name}: was changed" in capsys.readouterr().err
        assert run(en, zh, "--out", out, "--html", view, "--overwrite") == 0
    assert out.read_bytes() == made


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
    "mixed": (["EN", "FOLDER"], "EN and FOLDER: one folder and one file; expected two"),
    "match": (["EN", "ZH", "--match"], "--match without two folders; expected folders of documents as SRC and TGT"),
    "list and files": (["EN", "ZH", "--list", "LIST"], "--list and SRC were both given; expected only one"),
    "missing": (["--list", "LIST"], "LIST:1: FOLDER/lost.txt: no such file; "),
    "file out": (
        ["FOLDER", "FOLDER", "--out", "a.tsv"],
        "a.tsv: a file; expected a folder for several documents",
    ),
    "format": (["FOLDER", "FOLDER", "--to", "doc"], "--to doc; expected one of tsv, parquet"),
    "engine": (["FOLDER", "FOLDER", "--engine", "abacus"], "engine abacus; expected one of local, ray"),
    "longest": (["FOLDER", "FOLDER", "--longest", "0"], "longest 0; expected 1 to 10"),
    "no names": (["FOLDER", "FOLDER", "--src", "xx", "--tgt", "yy"], "expected names such as 1.en.txt and 1.zh.txt"),
    "empty": (["FOLDER", "EMPTY"], "EMPTY: contains no documents; expected text, Markdown, HTML, DOCX"),
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
        f"sentences per side of a link (default: {DEFAULT_LONGEST})",
        f"(default: {DEFAULT_MODEL}, or {MANY_STATIC} for languages other than",
        "(choices: tsv, parquet, tmx, xlf, xml, intertext.xml, tei.xml, html, epub; default: tsv)",
        "(choices: auto, encoded, averaged; default: auto)",
        "(choices: auto, yes, no; default: auto)",
        "links to write (default: 0.0)",
        "(choices: local, ray; default: local)",
    ):
        assert text in said
    parsed = build_parser().parse_args(["align", "a", "b", "--out", "c"])
    assert (parsed.longest, parsed.model, parsed.min_confidence) == (DEFAULT_LONGEST, None, 0)


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

"""`dualmoco align` with many documents: pairing, matching, interruption, Ray."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aligned_files import EN, FRENCH, ZH, rows_of, run, write
from commands import Moment, run_command
from dualmoco.alignment.batch import SUMMARY, documents_of, match_documents, pairs_by_name, pairs_of_list
from dualmoco.core.errors import DataError
from dualmoco.core.storage import locked
from dualmoco.core.vectors import unit_vectors
from dualmoco.models.embedded import FAST_MODEL


def documents(folder: Path, count: int = 4) -> tuple[Path, Path]:
    """Folders of documents of 30 sentences each, with the same names but for the language."""
    for number in range(count):
        part = slice(30 * number, 30 * number + 30)
        write(folder / "en" / f"{number}.en.txt", EN[part])
        write(folder / "zh" / f"{number}.zh.txt", ZH[part])
    return folder / "en", folder / "zh"


def outputs(folder: Path) -> dict[str, bytes]:
    """All files that a batch wrote, its folder's name left out of the summary."""
    return {path.name: path.read_bytes().replace(str(folder).encode(), b"OUT") for path in sorted(folder.iterdir())}


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
    assert [(pair.src, pair.tgt) for pair in found.pairs] == [(en / one, zh / two) for one, two in pairs]
    assert [pair.out.name for pair in found.pairs] == ["a.tmx", "b.tmx", "c.tmx", "d.tmx"]
    assert found.pairs[0].page == out / "a.html"
    assert found.unpaired == [(en / "lone.txt", None), (None, zh / "other.txt")]
    both = tmp_path / "both"
    for name in ("1.en.txt", "1.zh.txt", "2.en.txt", "3.zh.txt"):
        write(both / name, ["x"])
    found = pairs_by_name(both, both, [("en", "zh")], out, ".tsv")
    assert [(pair.src.name, pair.tgt.name) for pair in found.pairs] == [("1.en.txt", "1.zh.txt")]
    assert found.unpaired == [(both / "2.en.txt", None), (both / "3.zh.txt", None)]
    assert documents_of(en) == sorted(en / name for name in ("a.txt", "b.en.txt", "c_EN.txt", "lone.txt", "sub/d.txt"))


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("1.1.txt", "1.2.txt", None),
        ("1.1.txt", "1.1.txt", "1.1"),
        ("sect.NAME.html", "sect.NAME.txt.gz", "sect.NAME"),
        ("guide_en.txt", "guide_zh_CN.txt", "guide"),
        ("guide-en-US.html", "guide.zh-Hans.md", "guide"),
        ("guide.en", "guide.zh", "guide"),
        ("guide.txt", "guide_zh.txt", "guide"),
        ("v1.0-final.eng.txt", "v1.0-final.zho.txt", "v1.0-final"),
        ("report.en.txt", "report.txt", "report"),
        ("then.txt", "zh.txt", None),
    ],
)
def test_whole_names_are_compared(src: str, tgt: str, expected: str | None, tmp_path: Path) -> None:
    """Only document types, compressions and languages are left out; the output has the name that both share."""
    en, zh = write(tmp_path / "en" / src, ["x"]).parent, write(tmp_path / "zh" / tgt, ["x"]).parent
    if expected is None:
        with pytest.raises(DataError, match="no two documents have the same name"):
            pairs_by_name(en, zh, [("en", "zh"), ("zh", "en")], tmp_path, ".tsv")
    else:
        found = pairs_by_name(en, zh, [("en", "zh"), ("zh", "en")], tmp_path, ".tsv")
        assert [pair.out.name for pair in found.pairs] == [f"{expected}.tsv"] and not found.unpaired


def test_equal_names_come_before_languages(tmp_path: Path) -> None:
    """A document is paired with that of its own name, even if others differ from it only in the language."""
    names = ["a.txt", "a.en.txt", "a.html", "b.en.txt"]
    for name in names:
        write(tmp_path / "en" / name, ["x"])
        write(tmp_path / "zh" / name, ["x"])
    write(tmp_path / "zh" / "b.zh.txt", ["x"])
    found = pairs_by_name(tmp_path / "en", tmp_path / "zh", [("en", "zh")], tmp_path, ".tsv")
    assert [(pair.src.name, pair.tgt.name) for pair in found.pairs] == [(name, name) for name in sorted(names)]
    assert found.unpaired == [(None, tmp_path / "zh" / "b.zh.txt")]


@pytest.mark.parametrize("names", [("a.txt", "a.docx"), ("a_en.html", "a.en.txt")])
def test_several_documents_of_one_name_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / "en" / name, ["x"])
    zh = write(tmp_path / "zh" / ("a.md" if "en" not in names[0] else "a.zh.md"), ["x"])
    message = (
        rf"en/{sorted(names)[0]}, .*en/{sorted(names)[1]} and {zh}: several documents with the same name; .*--list$"
    )
    with pytest.raises(DataError, match=message):
        pairs_by_name(tmp_path / "en", tmp_path / "zh", [("en", "zh"), ("zh", "en")], tmp_path, ".tsv")


def test_documents_without_a_partner_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In a warning, in the summary, and as a count."""
    en, zh = documents(tmp_path, 1)
    lone, out = [str(write(en / "lone.txt", EN[:3])), str(write(zh / "1.1.txt", ZH[:3]))], tmp_path / "out"
    assert run(en, zh, "--out", out) == 0
    assert (
        capsys.readouterr().out
        == f"1 pair of documents aligned, 30 links; 2 documents without a partner: {out / SUMMARY}\n"
    )
    assert f"not aligned, no partner: {lone[0]}, {lone[1]}" in caplog.messages
    rows = json.loads((out / SUMMARY).read_text(encoding="utf-8"))[1:]
    assert [(row["src"], row["tgt"], row["error"]) for row in rows] == [
        (lone[0], "", "no partner"),
        ("", lone[1], "no partner"),
    ]


def test_a_list_names_documents(tmp_path: Path) -> None:
    """Relative names start from its folder; outputs have the shared or the whole name; empty lines are nothing."""
    en, zh = documents(tmp_path / "docs", 2)
    (tmp_path / "docs" / "0.en.txt").write_bytes((en / "1.en.txt").read_bytes())
    lines = ["en/0.en.txt\tzh/0.zh.txt", "", f" 0.en.txt \t{zh / '1.zh.txt'}"]
    names, out = write(tmp_path / "docs" / "list.tsv", lines), tmp_path / "out"
    assert run("--list", names, "--out", out) == 0
    check_document(out / "0.tsv", 0)
    check_document(out / "0.en.tsv", 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a.txt", r"list\.tsv:1: 1 columns; expected source<TAB>target$"),
        ("a.txt\t", r"list\.tsv:1: 2 columns; expected source<TAB>target$"),
        ("a.txt\ta.txt\ta.txt", r"list\.tsv:1: 3 columns; expected source<TAB>target$"),
        ("a.txt\tb.txt", r"list\.tsv:1: .*b\.txt: no such file"),
        (" ", r"list\.tsv: no pairs.*expected lines of source<TAB>target$"),
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
    assert [(Path(row["src"]).stem, Path(row["tgt"]).stem) for row in found[4:]] == [("e2", ""), ("", "z4")]
    found = found[:4]
    pairs = [(Path(row["src"]).stem, Path(row["tgt"]).stem) for row in found]
    assert pairs == [(f"e{at}", f"z{order.index(at)}") for at in (0, 1, 3, 4)]
    for at in (0, 1, 3, 4):
        check_document(out / f"e{at}.tsv", at)


def test_documents_that_do_not_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair at all is an error."""
    monkeypatch.setattr("dualmoco.alignment.batch.MIN_VOTE_SHARE", 0.99)
    en, zh = write(tmp_path / "en" / "a.txt", EN[:150]).parent, write(tmp_path / "zh" / "b.txt", ZH[170:]).parent
    assert run(en, zh, "--match", "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"dualmoco: {en} and {zh}: no two documents match; expected")
    assert not (tmp_path / "out").exists()


def test_matching_of_known_vectors() -> None:
    """Copies among others are matched one to one, by the share of the shorter document's sentences."""
    generator = np.random.default_rng(0)
    src = [unit_vectors(generator.normal(size=(count, 64)).astype(np.float32)) for count in (20, 35, 12)]
    more = [unit_vectors(generator.normal(size=(count, 64)).astype(np.float32)) for count in (9, 30)]
    tgt = [src[2], np.concatenate([src[0], more[0]]), more[1], src[1][5:30]]
    assert match_documents(src, tgt) == [(0, 1), (1, 3), (2, 0)]


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
    for name in ("1.tsv", "3.tsv", "3.tsv.json"):
        (out / name).unlink()
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
    (zh / "1.zh.txt").write_bytes(b"\xff" + "\n".join(ZH[30:60]).encode("gbk"))
    write(zh / "2.zh.txt", ZH[200:230])
    assert run(en, zh, "--out", out) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[0].startswith(f"{zh / '1.zh.txt'}:1: not UTF-8 (")
    assert said[1].startswith(f"{en / '2.en.txt'} and {zh / '2.zh.txt'}: only ")
    assert said[2] == f"2 pairs of documents aligned, 60 links; 2 failed: {out / SUMMARY}"
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
    Moment(signal.SIGKILL, "dualmoco.core.storage", "write_json", call=4, after=False),  # before the last record
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


def test_a_record_without_its_links_is_no_result(tmp_path: Path) -> None:
    """Killed after the new record and before the new links: the same command finishes, and nothing looks edited."""
    en, zh = documents(tmp_path, 1)
    out = tmp_path / "out"
    assert run(en, zh, "--out", out) == 0
    write(en / "0.en.txt", EN[:29])
    words = ["align", str(en), str(zh), "--out", str(out), "--model", FAST_MODEL, "--quiet"]
    stopped = run_command(
        words, tmp_path / "said", moment=Moment(signal.SIGKILL, "dualmoco.core.storage", "write_json")
    )
    assert stopped.code == -signal.SIGKILL and rows_of(out / "0.tsv")[-1][2] == EN[29]
    assert run(en, zh, "--out", out) == 0
    assert rows_of(out / "0.tsv")[-1][2] != EN[29]


def test_corrected_links_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A corrected file stays, also when its text changes; then it is reported. --overwrite aligns again."""
    en, zh = documents(tmp_path, 2)
    out = tmp_path / "out"
    assert run(en, zh, "--out", out) == 0
    made = (out / "0.tsv").read_bytes()
    (out / "0.tsv").write_bytes(made + b"corrected\n")
    assert run(en, zh, "--out", out) == 0 and (out / "0.tsv").read_bytes() == made + b"corrected\n"
    write(en / "0.en.txt", EN[:29])
    assert run(en, zh, "--out", out) == 1 and (out / "0.tsv").read_bytes() == made + b"corrected\n"
    assert f"{out / '0.tsv'}: was changed after this command wrote it" in capsys.readouterr().out
    write(en / "0.en.txt", EN[:30])
    assert run(en, zh, "--out", out, "--overwrite") == 0 and (out / "0.tsv").read_bytes() == made


def test_pages_never_replace_the_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sources in HTML, and pages of the same names in the same folder."""
    document = "".join(f"<p>{line}</p>" for line in EN[:30])
    write(tmp_path / "en" / "0.html", [document])
    write(tmp_path / "zh" / "0.html", ["".join(f"<p>{line}</p>" for line in ZH[:30])])
    assert run(tmp_path / "en", tmp_path / "zh", "--out", tmp_path / "en", "--html") == 2
    assert "also an input" in capsys.readouterr().err
    assert (tmp_path / "en" / "0.html").read_text(encoding="utf-8") == f"{document}\n"


def test_two_at_once_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second says so, and writes nothing."""
    en, zh = documents(tmp_path, 1)
    out = tmp_path / "out"
    with locked(out):
        assert run(en, zh, "--out", out) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dualmoco: {out}: ") and "another process" in said and not out.exists()


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


def test_outputs_never_share_a_name(tmp_path: Path) -> None:
    """A numbered output is not that of another document."""
    for name in ("a", "sub/a", "a-2"):
        for lang in ("en", "zh"):
            write(tmp_path / lang / f"{name}.{lang}.txt", ["x"])
    found = pairs_by_name(tmp_path / "en", tmp_path / "zh", [("en", "zh")], tmp_path / "out", ".tsv")
    assert len({pair.out for pair in found.pairs}) == 3


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

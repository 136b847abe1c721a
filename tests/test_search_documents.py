"""Tests of documents in an index: ids and metadata, updates, deletions, filters, pages, and invalid input."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.search import index_update
from dualmoco.search.index import Hit, Index, open_index
from dualmoco.search.index_files import IndexKind
from dualmoco.search.index_update import build_index, delete_from_index

PAIRS = list(generate_pairs(120, seed=3))
SOURCES = ("news", "talks", "law")


def make_documents(first: int = 0, count: int = 120) -> list[dict[str, Any]]:
    """English and Chinese in turn, with a number, a word and a flag."""
    return [
        {
            "id": f"d{number}",
            "text": PAIRS[number % len(PAIRS)][number % 2],
            "lang": ("en", "zh")[number % 2],
            "year": 1900 + number,
            "source": SOURCES[number % 3],
            "checked": number % 5 == 0,
        }
        for number in range(first, first + count)
    ]


DOCUMENTS = make_documents()


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> Model:
    """The model."""
    return open_model(tiny_model)


@pytest.fixture(scope="module")
def built(opened: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the documents and of a text file."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "plain.en").write_text("Plain sentences have no metadata.\n", encoding="utf-8")
    build_index(folder / "index", {"en": folder / "plain.en"}, opened, documents=DOCUMENTS)
    return folder / "index"


@pytest.fixture
def index(built: Path, opened: Model, tmp_path: Path) -> Index:
    """A copy of the index, to be changed."""
    return open_index(shutil.copytree(built, tmp_path / "index"), opened)


def find_all(index: Index, **options: Any) -> list[Hit]:
    """All that a search can find."""
    return index.search("We need rain.", lang="en", k=1000, **options)[0]


def ids(hits: list[Hit]) -> list[str]:
    """Ids of documents, in the order of their numbers."""
    return sorted((hit.id for hit in hits if hit.id), key=lambda one: int(one[1:]))


def expected(condition: Callable[[dict[str, Any]], object]) -> list[str]:
    """Ids of the documents that meet a condition."""
    return [str(one["id"]) for one in DOCUMENTS if condition(one)]


@pytest.mark.parametrize(
    ("filter", "condition"),
    [
        ({"source": "news"}, lambda one: one["source"] == "news"),
        ({"source": ["news", "law"]}, lambda one: one["source"] != "talks"),
        ({"year": {">=": 1950}}, lambda one: one["year"] >= 1950),
        ({"year": {">": 1950, "<=": 1960}, "checked": True}, lambda one: 1950 < one["year"] <= 1960 and one["checked"]),
        ({"year": 1905.0}, lambda one: one["year"] == 1905),
        ({"source": {"<": "news"}}, lambda one: one["source"] == "law"),
        ("source=news, law", lambda one: one["source"] != "talks"),
        (["year<1910", "source=talks"], lambda one: one["year"] < 1910 and one["source"] == "talks"),
        (['{"year": {"<": 1903}}', "checked=false"], lambda one: one["year"] < 1903 and not one["checked"]),
        ({"year": 1800}, lambda one: False),
    ],
)
def test_filters_are_those_of_a_loop(
    built: Path, opened: Model, filter: Any, condition: Callable[[dict[str, Any]], object]
) -> None:
    """In all languages or one; sentences without metadata meet no condition."""
    index = open_index(built, opened)
    hits = find_all(index, filter=filter)
    assert ids(hits) == expected(condition) and len(hits) == len(ids(hits))
    in_chinese = find_all(index, filter=filter, within="zh")
    assert ids(in_chinese) == expected(lambda one: condition(one) and one["lang"] == "zh")


def test_hits_of_a_filter_are_the_nearest(built: Path, opened: Model) -> None:
    """The best hits under a filter are the first of all hits that meet it, with their own scores."""
    index = open_index(built, opened)
    everything = [hit for hit in find_all(index) if hit.metadata.get("source") == "law"]
    assert index.search("We need rain.", lang="en", k=7, filter={"source": "law"})[0] == everything[:7]
    first = everything[0]
    assert first.metadata == {key: DOCUMENTS[int(first.id[1:])][key] for key in ("year", "source", "checked")}
    assert type(first.metadata["checked"]) is bool
    assert (first.part, first.line) == ("documents", int(first.id[1:]) + 1)


def test_pages_are_runs_of_all_hits(built: Path, opened: Model) -> None:
    """Also with `exact_match`, filters and files."""
    index = open_index(built, opened)
    for options in ({}, {"filter": {"year": {">=": 1930}}}, {"exact_match": False}, {"files": "documents"}):
        whole = find_all(index, **options)
        pages = [
            index.search("We need rain.", lang="en", k=50, offset=start, **options)[0]
            for start in range(0, len(whole) + 50, 50)
        ]
        assert [hit for page in pages for hit in page] == whole and pages[-1] == []
    assert find_all(index, files=["plain.en"])[0].part == "plain.en"


def test_documents_with_one_text_are_several_hits(opened: Model, tmp_path: Path) -> None:
    """Each has its own id and metadata, and can be deleted alone."""
    documents = [{"id": name, "text": "We need rain.", "page": place} for place, name in enumerate("abc")]
    build_index(tmp_path / "index", model=opened, documents=documents)
    index = open_index(tmp_path / "index", opened)
    assert [(hit.id, hit.metadata["page"], hit.line) for hit in find_all(index)] == [
        ("a", 0, 1),
        ("b", 1, 2),
        ("c", 2, 3),
    ]
    index.delete(["b"])
    assert [hit.id for hit in find_all(index)] == ["a", "c"] and len(index) == 2
    assert [hit.id for hit in find_all(index, filter={"page": {">": 0}})] == ["c"]


def test_changes_are_those_of_a_dictionary(index: Index, opened: Model) -> None:
    """After random additions, updates and deletions, the index holds what a dictionary holds; so does a new one."""
    rng = np.random.default_rng(4)
    kept = {one["id"]: dict(one) for one in DOCUMENTS}
    for step in range(12):
        some = rng.choice(sorted(kept), 5, replace=False).tolist()
        if step % 3 == 0:
            new = make_documents(100 + 7 * step, 30)
            index.add(documents=new)
            kept |= {one["id"]: dict(one) for one in new}
        elif step % 3 == 1:
            index.update([{"id": one, "source": f"step {step}", "checked": None} for one in some])
            for one in some:
                kept[one] = {key: value for key, value in kept[one].items() if key != "checked"}
                kept[one]["source"] = f"step {step}"
        else:
            index.delete(some)
            kept = {one: document for one, document in kept.items() if one not in some}
        for searched in (index, open_index(index.folder, opened)):
            found = {
                hit.id: {"id": hit.id, "text": hit.text, "lang": hit.lang, **hit.metadata}
                for hit in find_all(searched)
                if hit.id
            }
            assert found == kept and len(searched) == len(kept) + 1
    assert len(index.parts) < 12, "parts of earlier additions are merged"


def test_merged_vectors_are_those_of_the_texts(index: Index, opened: Model, tmp_path: Path) -> None:
    """Copied, not encoded again: an index of all documents at once finds the same, bit for bit."""
    for start in range(120, 200, 8):
        index.add(documents=make_documents(start, 8))
    (tmp_path / "plain.en").write_text("Plain sentences have no metadata.\n", encoding="utf-8")
    build_index(tmp_path / "once", {"en": tmp_path / "plain.en"}, opened, documents=make_documents(0, 200))
    once = {(hit.id, hit.score, hit.text) for hit in find_all(open_index(tmp_path / "once", opened))}
    assert {(hit.id, hit.score, hit.text) for hit in find_all(index)} == once
    assert len(index.parts) <= 7


def test_builds_are_byte_identical(opened: Model, tmp_path: Path) -> None:
    """Two builds of the same documents have the same files."""
    for name in ("a", "b"):
        build_index(tmp_path / name, model=opened, documents=DOCUMENTS)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert any(path.name == "documents.sqlite" for path in files)
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.csv", "docs.tsv", "docs.parquet"])
def test_files_of_documents(name: str, opened: Model, tmp_path: Path) -> None:
    """Each format gives the same documents; languages are recognised, and numbers in cells are numbers."""
    rows = [
        {"id": "007", "text": "The cat, it sleeps.", "year": 1999, "code": "01"},
        {"id": "b", "text": "猫在睡觉。", "year": 2004, "code": "2"},
    ]
    path = tmp_path / name
    if name == "docs.parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name == "docs.jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    else:
        mark = "," if name == "docs.csv" else "\t"
        lines = [mark.join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join([mark.join(rows[0]), *lines]) + "\n", encoding="utf-8")
    build_index(tmp_path / "index", [path], opened)
    hits = find_all(open_index(tmp_path / "index", opened), filter=["year>1990", "code=01,2"])
    assert {(hit.id, hit.lang, hit.text, hit.metadata["year"], hit.metadata["code"]) for hit in hits} == {
        ("007", "en", "The cat, it sleeps.", 1999, "01"),
        ("b", "zh", "猫在睡觉。", 2004, "2"),
    }


def test_a_file_without_ids_replaces_the_file_of_its_name(opened: Model, tmp_path: Path) -> None:
    """Its documents are named by file and line; a file with ids only replaces documents of the same id."""
    path, folder = tmp_path / "notes.jsonl", tmp_path / "index"
    path.write_text('{"text": "One."}\n{"text": "Two."}\n', encoding="utf-8")
    build_index(folder, [path], opened)
    index = open_index(folder, opened)
    assert sorted(hit.id for hit in find_all(index)) == ["notes.jsonl:1", "notes.jsonl:2"]
    path.write_text('{"text": "Three."}\n', encoding="utf-8")
    index.add([path])
    assert [(hit.id, hit.text) for hit in find_all(index)] == [("notes.jsonl:1", "Three.")]
    path.write_text('{"id": "x", "text": "Four."}\n', encoding="utf-8")
    index.add([path])
    assert {hit.id for hit in find_all(index)} == {"notes.jsonl:1", "x"}


def test_deleting_by_filter_and_file(index: Index, tmp_path: Path) -> None:
    """All that meet a filter, and whole files; at least one file stays."""
    index.delete(filter={"source": "news"})
    assert ids(find_all(index)) == expected(lambda one: one["source"] != "news")
    index.delete(files=["plain.en"])
    assert all(hit.id for hit in find_all(index))
    with pytest.raises(DataError, match="nothing would be left"):
        index.delete(files=["documents"])
    index.delete(expected(lambda one: one["source"] != "news"))
    assert len(index) == 0 and find_all(index) == []
    index.add(documents=DOCUMENTS[:1])
    assert ids(find_all(index)) == ["d0"]


@pytest.mark.parametrize("moment", ["write_index_manifest", "_remove_strays"])
def test_interrupted_changes_are_whole_or_nothing(
    index: Index, opened: Model, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A crash before the manifest changes nothing; one after it leaves only files that the next change removes."""
    before = ids(find_all(index))
    changes: list[Callable[[], object]] = [
        lambda: delete_from_index(index.folder, ["d3"]),
        lambda: index.update([{"id": "d4", "source": "new"}]),
        lambda: index.add(documents=make_documents(500, 3)),
    ]
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(index_update, moment, interrupt)
            with pytest.raises(KeyboardInterrupt):
                change()
        found = ids(find_all(open_index(index.folder, opened)))
        if moment == "write_index_manifest":
            assert found == before
    delete_from_index(index.folder, ["d5"])
    again = open_index(index.folder, opened)
    kept = [one for one in before if one != "d5"]
    if moment == "_remove_strays":
        kept = [one for one in kept if one != "d3"] + ["d500", "d501", "d502"]
    assert ids(find_all(again)) == kept
    listed = {f"{part.record.number:05d}" for part in again.parts}
    assert {path.name for path in (index.folder / "parts").iterdir()} == listed
    for part in again.parts:
        names = {*part.record.files, "vectors", "part.json"}
        assert {path.name for path in part.folder.iterdir()} == names


def interrupt(*given: object) -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def test_searches_see_the_old_or_the_new_state(index: Index, opened: Model) -> None:
    """While another thread replaces all documents over and over, each search finds those of one state."""
    texts, states = [one["text"] for one in DOCUMENTS[:20:2]], 6
    index.delete(files=["plain.en"])
    index.delete([one["id"] for one in DOCUMENTS[20:]])
    index.delete([one["id"] for one in DOCUMENTS[1:20:2]])
    failures: list[BaseException] = []
    other = open_index(index.folder, opened)

    def change() -> None:
        try:
            for state in range(states):
                other.add(documents=[{**one, "lang": "en", "year": state} for one in DOCUMENTS[:20:2]])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    while thread.is_alive():
        index.refresh()
        hits = find_all(index)
        assert len(hits) == len(texts)
        years = {hit.metadata["year"] for hit in hits}
        assert len(years) == 1 or min(int(year) for year in years) >= 1900
        assert len(find_all(open_index(index.folder, opened, check=False))) == len(texts)
    thread.join()
    index.refresh()
    assert not failures and {hit.metadata["year"] for hit in find_all(index)} == {states - 1}


def test_inverted_lists_know_filters_and_deletions(opened: Model, tmp_path: Path) -> None:
    """Documents are left out of the lists without training them again."""
    pytest.importorskip("faiss")
    build_index(tmp_path / "index", model=opened, documents=DOCUMENTS, kind=IndexKind.ivf)
    index = open_index(tmp_path / "index", opened)
    lists = index.manifest.lists
    index.delete(["d1", "d2"])
    assert index.manifest.lists == lists
    assert ids(find_all(index)) == expected(lambda one: one["id"] not in ("d1", "d2"))
    assert ids(find_all(index, filter={"year": {"<": 1904}})) == ["d0", "d3"]
    index.add(documents=[{**DOCUMENTS[0], "year": 7}])
    assert ids(find_all(index, filter={"year": 7})) == ["d0"] and len(index) == 118


def test_old_indexes_have_no_new_keys(opened: Model, tmp_path: Path) -> None:
    """An index of text files has the manifest of earlier versions, so that they can open it."""
    build_index(tmp_path / "index", model=opened, sentences={"en": ["We need rain."]})
    part = json.loads((tmp_path / "index" / "manifest.json").read_text(encoding="utf-8"))["parts"][0]
    assert set(part) == {"name", "lang", "text_sha256", "rows", "files", "number"}


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        ([{"id": "a"}], DataError, r"^documents:1: found id; expected text or sentence"),
        ([{"text": 7}], DataError, r"^documents:1: text is a int; expected text"),
        ([{"text": " "}], DataError, r"^documents:1: no text"),
        (["a"], DataError, r"^documents:1: a str; expected an object with text"),
        ({"text": "a"}, DataError, r"^documents: a dict; expected mappings"),
        ([{"id": "a", "text": "One."}, {"id": "a", "text": "Two."}], DataError, r":2: the id 'a' is also that of doc"),
        ([{"id": "a", "text": "One."}, {"text": "Two."}], DataError, r":2: has no id"),
        ([{"text": "One."}, {"id": "a", "text": "Two."}], DataError, r":2: has an id, but documents before it"),
        ([{"id": 1.5, "text": "One."}], DataError, r":1: id is 1.5; expected text or a whole number"),
        (
            [{"text": "One.", "year": 1}, {"text": "Two.", "year": "old"}],
            DataError,
            r":2: year is 'old', text; expected number, as in other documents",
        ),
        ([{"text": "One.", "tags": ["a"]}], DataError, r":1: tags is a list; expected text, a number, true or false"),
        ([{"text": "One.", "size": float("nan")}], DataError, r":1: size is nan; expected a finite number"),
        ([{"text": "One.", "lang": "fr"}], ModelError, r"has no language 'fr'; expected one of en, zh"),
    ],
)
def test_documents_that_cannot_be_are_refused(
    opened: Model, tmp_path: Path, documents: Any, error: type[Exception], message: str
) -> None:
    """One line each, and nothing is written."""
    with pytest.raises(error, match=message):
        build_index(tmp_path / "index", model=opened, documents=documents)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "One."}\n{"text": \n', r"a.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"text": "caf\xe9"}\n', r"a.jsonl:1: not UTF-8"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: not valid JSON"),
        ("a.jsonl", b"\n", r"a.jsonl: no documents; expected at least one"),
        ("a.csv", b"id,words\n1,One.\n", r"a.csv:1: columns id, words; expected a header"),
        ("a.csv", b"id,text\n1,One.,2\n", r"a.csv:2: 3 columns; expected 2"),
        ("a.csv", b'id,text\n1,"One.\n', r"a.csv:\d: not a table"),
        ("a.csv", b"", r"a.csv:1: columns ; expected a header"),
        ("a.parquet", b"PAR1 and more", r"a.parquet: not a Parquet file, or damaged"),
        ("a.xlsx", b"PK", r"a.xlsx: .xlsx is not plain text"),
        ("absent.csv", None, r"absent.csv: no such file"),
    ],
)
def test_broken_files_are_one_line(
    opened: Model, tmp_path: Path, name: str, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, with the line of the file; nothing is written."""
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    words = ["search", "build", str(tmp_path / "index"), str(tmp_path / name), "--model", str(opened.identity.name)]
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    with pytest.raises(DataError, match=message):
        raise DataError(shown)
    assert not (tmp_path / "index").exists()


def test_documents_that_cannot_be_used_can_be_skipped(
    opened: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others keep their lines."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "One.", "n": 1}\n{\n{"text": "Two.", "n": "x"}\n{"text": "Four.", "n": 4}\n')
    build_index(tmp_path / "index", [path], opened, on_error="skip")
    found = find_all(open_index(tmp_path / "index", opened))
    assert sorted((hit.line, hit.text) for hit in found) == [(1, "One."), (4, "Four.")]
    assert "a.jsonl:2: not valid JSON" in caplog.text and "a.jsonl:3: n is 'x'" in caplog.text


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"yeer": 1}, r"filter 'yeer': no document of the index has this field; expected one of checked, source, year"),
        ({"year": "1990"}, r"filter year: '1990' is text; expected number"),
        ({"checked": 1}, r"filter checked: 1 is number; expected true/false"),
        ({"year": {"$gte": 1}}, r"filter year: .*expected the signs >=, <=, >, <"),
        ({"year": []}, r"filter year: no values"),
        ({"year": None}, r"filter year is a NoneType"),
        ("year", r"filter 'year'; expected FIELD=VALUE"),
        ("year>=old", r"filter year: 'old'; expected number"),
        ('{"year": ', r"not valid JSON"),
        (7, r"filter 7; expected a mapping"),
    ],
)
def test_filters_that_cannot_be_are_refused(built: Path, opened: Model, filter: Any, message: str) -> None:
    """Unknown fields are told the known ones."""
    with pytest.raises(ConfigError, match=message):
        find_all(open_index(built, opened), filter=filter)


def test_changes_that_cannot_be_are_refused(index: Index) -> None:
    """One line each, and the index is unchanged."""
    before = (index.folder / "manifest.json").read_bytes()
    for error, message, call in (
        (DataError, r"^id 'x9': not in the index; expected ids", lambda: index.delete(["d1", "x9"])),
        (DataError, r"^id 'x8' and 1 more: not in the index", lambda: index.delete(["x8", "x9"])),
        (DataError, r"^x\.en: not a file of the index; expected one of documents, plain\.en", _delete(index, "x.en")),
        (ConfigError, r"^nothing to delete; expected ids, files or a filter", index.delete),
        (DataError, r"^id 'x9': not in the index", lambda: index.update([{"id": "x9", "year": 1}])),
        (DataError, r"^documents:1: .*expected a mapping with the id", lambda: index.update([{"year": 1}])),
        (DataError, r"year is 'old', text; expected number", lambda: index.update([{"id": "d1", "year": "old"}])),
        (DataError, r"^document 'd1': no text", lambda: index.update([{"id": "d1", "text": ""}])),
        (DataError, r"year is 'old', text; expected number", _add(index, {"text": "One.", "year": "old"})),
        (ConfigError, r"^offset -1; expected at least 0", lambda: index.search("a", lang="en", offset=-1)),
        (DataError, r"^x: not a file of the index", lambda: index.search("a", lang="en", files="x")),
    ):
        with pytest.raises(error, match=message):
            call()
    assert (index.folder / "manifest.json").read_bytes() == before


def _delete(index: Index, name: str) -> Callable[[], object]:
    return lambda: index.delete(files=[name])


def _add(index: Index, document: dict[str, Any]) -> Callable[[], object]:
    return lambda: index.add(documents=[document])


@pytest.mark.parametrize("damage", ["bytes", "fields", "deleted"])
def test_damaged_documents_are_refused(index: Index, opened: Model, damage: str) -> None:
    """By their checksum, by their columns and by their number."""
    index.delete(["d1"])
    part = next(part for part in index.parts if part.record.deleted_file)
    manifest = json.loads((index.folder / "manifest.json").read_text(encoding="utf-8"))
    record = next(one for one in manifest["parts"] if one["number"] == part.record.number)
    if damage == "bytes":
        (part.folder / "documents.sqlite").write_bytes(b"SQLite format 3\x00 and more")
    elif damage == "fields":
        record["fields"]["other"] = "text"
    else:
        record["documents"] += 1
    (index.folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match=r"build the index again|build it again"):
        open_index(index.folder, opened)


def test_commands(opened: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Build, add, delete and query documents from the command line."""
    path, folder = tmp_path / "docs.jsonl", str(tmp_path / "index")
    path.write_text("".join(f"{json.dumps(one)}\n" for one in DOCUMENTS[:10]), encoding="utf-8")
    assert main(["search", "build", folder, str(path), "--model", str(opened.identity.name)]) == 0
    assert "metadata: year (number), source (text), checked (true/false)" in capsys.readouterr().out
    path.write_text(json.dumps({**DOCUMENTS[0], "source": "new"}) + "\n", encoding="utf-8")
    assert main(["search", "add", folder, str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 10
    assert main(["search", "delete", folder, "d1", "--filter", "year=1902", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 8
    query = ["search", "query", folder, "We need rain.", "--lang", "en"]
    assert main([*query, "-k", "20", "--filter", "source=new", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["metadata"]["source"], hit["part"]) == ("d0", "new", "docs.jsonl")
    assert main([*query, "-k", "20", "--offset", "6", "--file", "docs.jsonl"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 3
    assert main([*query, "--filter", "yeer=1"]) == 2
    assert "expected one of checked, source, year" in capsys.readouterr().err


def test_public_functions(opened: Model, tmp_path: Path) -> None:
    """The functions of the package do what the methods do, and a table has all columns."""
    pytest.importorskip("pandas")
    dualmoco.build_index(tmp_path / "index", model=opened, documents=DOCUMENTS[:4])
    dualmoco.update_index(tmp_path / "index", [{"id": "d0", "text": "It snows."}], opened)
    dualmoco.delete_from_index(tmp_path / "index", ["d3"])
    table = open_index(tmp_path / "index", opened).to_pandas()
    assert set(table.columns) == {"lang", "file", "line", "text", "id", "year", "source", "checked"}
    assert dict(zip(table["id"], table["text"], strict=True))["d0"] == "It snows." and len(table) == 3

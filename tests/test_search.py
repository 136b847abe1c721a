"""Tests of `dualmoco search`: hits against brute force, additions, interruptions, damage, inverted lists."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualmoco.cli.main import main
from dualmoco.cli.search import read_queries
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.core.storage import file_sha256, locked, write_json
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.search import index_update as build
from dualmoco.search.index import Hit, open_index
from dualmoco.search.index_files import IndexKind, read_index_manifest
from dualmoco.search.index_update import add_to_index, build_index

PAIRS = list(generate_pairs(300, seed=5))
ENGLISH, CHINESE = ([pair[side] for pair in PAIRS] for side in (0, 1))
QUERIES = [zh for _, zh in generate_pairs(20, seed=6)]


def write(path: Path, lines: list[str]) -> Path:
    """A text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> Model:
    """The model."""
    return open_model(tiny_model)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[TextFile]:
    """English with an empty line and a repeated one before the rest, and Chinese."""
    folder = tmp_path_factory.mktemp("texts")
    english = write(folder / "a.en", [ENGLISH[7], "", f"  {ENGLISH[7]} ", *ENGLISH])
    return [TextFile(english, "en"), TextFile(write(folder / "a.zh", CHINESE), "zh")]


@pytest.fixture(scope="module")
def exact(opened: Model, texts: list[TextFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exact index of both."""
    folder = tmp_path_factory.mktemp("exact") / "index"
    build_index(folder, texts, opened)
    return folder


@pytest.fixture
def copy(exact: Path, tmp_path: Path) -> Path:
    """The exact index, to be changed."""
    return Path(shutil.copytree(exact, tmp_path / "index"))


def brute_force(model: Model, query: str, lang: str, files: list[TextFile], within: str | None = None) -> list[Hit]:
    """Every distinct sentence by its plain dot product with a query, the highest first."""
    vector = model.encode(query, lang=lang)[0].astype(np.float64)
    hits = []
    for file in files:
        if within in (None, file.lang):
            first: dict[str, int] = {}
            for number, line in enumerate(file.path.read_text(encoding="utf-8").split("\n"), 1):
                if line.strip():
                    first.setdefault(line.strip(), number)
            vectors = model.encode(list(first), lang=file.lang)
            for (text, number), other in zip(first.items(), vectors, strict=True):
                score = sum(a * float(b) for a, b in zip(vector.tolist(), other, strict=True))
                hits.append(Hit(score, text, file.lang, file.path.name, number))
    return sorted(hits, key=lambda hit: -hit.score)


def assert_same(found: list[Hit], expected: list[Hit]) -> None:
    """Hits are those expected, whatever the order of equal scores."""
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected[: len(found)]], abs=2e-6)
    places = {(hit.lang, hit.part, hit.text): hit for hit in expected}
    for hit in found:
        known = places[hit.lang, hit.part, hit.text]
        assert hit.line == known.line and hit.score == pytest.approx(known.score, abs=2e-6)


def test_sentences_of_python_are_searched(opened: Model, tmp_path: Path) -> None:
    """By language or recognised one by one; a hit tells the place of its sentence in the list."""
    build_index(
        tmp_path / "named", model=opened, sentences={"en": ["We need rain.", "", "Tom ran."], "zh": ["下雨了。"]}
    )
    (hits,) = open_index(tmp_path / "named", opened).search("Tom ran.", k=1)
    assert (hits[0].text, hits[0].lang, hits[0].part, hits[0].line) == ("Tom ran.", "en", "sentences-1", 3)
    build_index(tmp_path / "mixed", model=opened, sentences=np.array(["We need rain.", "下雨了。", "Tom ran."]))
    index = open_index(tmp_path / "mixed", opened)
    assert [hits[0].line for hits in index.search(["We need rain.", "下雨了。", "Tom ran."], k=1)] == [1, 2, 3]
    assert index.manifest.languages == ["en", "zh"] and len(index) == 3


def test_an_open_index_is_extended(copy: Path, opened: Model, texts: list[TextFile]) -> None:
    """What is added is found at once, and by whoever opens the index later."""
    index = open_index(copy, opened)
    before = len(index)
    index.add(sentences=["Zebras sing at dawn.", "斑马在唱歌。"])
    index.add(sentences={"en": ["Zebras dance at noon."]})
    assert len(index) == before + 3
    for query, part, line in (("Zebras sing at dawn.", 1, 1), ("斑马在唱歌。", 1, 2), ("Zebras dance at noon.", 3, 1)):
        for searched in (index, open_index(copy, opened)):
            hit = searched.search(query, k=1)[0][0]
            assert (hit.text, hit.part, hit.line) == (query, f"sentences-{len(texts) + part}", line)


def test_vectors_are_queries(exact: Path, opened: Model, texts: list[TextFile]) -> None:
    """Of any length, as arrays or lists: the hits are those of the sentences."""
    index = open_index(exact, opened)
    queries = [line for line in texts[0].path.read_text(encoding="utf-8").split("\n") if line.strip()][:70]
    vectors = 3 * opened.encode(queries, lang="en")
    found, expected = index.search(vectors=vectors, k=3), index.search(queries, lang="en", k=3)
    assert [[hit.text for hit in hits] for hits in found] == [[hit.text for hit in hits] for hits in expected]
    assert index.search(vectors=vectors[0].tolist(), k=3)[0] == found[0]


def test_hits_below_a_score_are_left_out(exact: Path, opened: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """In Python and on the command line; a query may have no hit."""
    index = open_index(exact, opened)
    query = index.parts[0].text(0)
    (hits,) = index.search(query, k=9)
    least = hits[4].score
    (kept,) = index.search(query, k=9, min_score=least)
    assert kept == hits[: sum(hit.score >= least for hit in hits)] and len(kept) < 9
    assert index.search(query, k=9, min_score=1, exact_match=False) == [[]]
    assert main(["search", "query", str(exact), query, "-k", "9", "--json", "--min-score", str(least)]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == len(kept)


def test_python_searches_that_cannot_be_are_refused(exact: Path, opened: Model, tmp_path: Path) -> None:
    """One line each, and nothing is written."""
    index, wrong = open_index(exact, opened), tmp_path / "wrong"
    for error, message, call in (
        (DataError, r"^nothing to search; expected text files, sentences", lambda: build_index(wrong, model=opened)),
        (
            DataError,
            r"^sentences of en: item 1, 'b\\nc', has several lines; expected one line each$",
            lambda: build_index(wrong, model=opened, sentences={"en": ["a", "b\nc"]}),
        ),
        (
            ModelError,
            r"has no language '\.\./fr'; expected one of en, zh",
            lambda: build_index(wrong, model=opened, sentences={"../fr": ["a"]}),
        ),
        (DataError, r"^sentences-1: .*no sentence", lambda: build_index(wrong, model=opened, sentences={"en": [" "]})),
        (DataError, r"^sentences of en: a dict; expected", lambda: index.add(sentences={"en": {"a": "b"}})),
        (DataError, r"^'a\\udcff': an unpaired surrogate", lambda: index.add(sentences=["a\udcff"])),
        (DataError, r"^queries: a dict; expected strings", lambda: index.search({"a": 1})),
        (
            DataError,
            r"^vectors of queries: vectors of dimension 3; expected \d+",
            lambda: index.search(vectors=[1, 2, 3]),
        ),
        (
            DataError,
            r"^vectors of queries: .*NaN or infinity",
            lambda: index.search(vectors=[np.nan] * opened.dimension),
        ),
        (ConfigError, r"^texts, lang and exact_match are for text queries", lambda: index.search("a", vectors=[1.0])),
        (ConfigError, r"^min_score 1\.5; expected a cosine from -1 to 1$", lambda: index.search("a", min_score=1.5)),
        (ConfigError, r"^min_score nan; expected a cosine", lambda: index.search("a", min_score=float("nan"))),
    ):
        with pytest.raises(error, match=message):
            call()
    assert not wrong.exists()


@pytest.mark.parametrize("within", [None, "en", "zh"])
def test_hits_are_those_of_brute_force(exact: Path, opened: Model, texts: list[TextFile], within: str | None) -> None:
    """Scores, texts, files and lines agree with a loop, in the whole index and in one language."""
    found = open_index(exact).search(QUERIES[:6], lang="zh", k=9, within=within)
    assert [len(hits) for hits in found] == [9] * 6
    for query, hits in zip(QUERIES, found, strict=False):
        assert_same(hits, brute_force(opened, query, "zh", texts, within))


def test_more_queries_than_a_batch(exact: Path) -> None:
    """Queries answered together or one by one have the same hits."""
    index = open_index(exact)
    together = index.search(CHINESE[:100], lang="zh", k=3)
    assert together[70:73] == [index.search(query, lang="zh", k=3)[0] for query in CHINESE[70:73]]


@pytest.mark.parametrize("precision", [VectorPrecision.fp16, VectorPrecision.int8])
def test_smaller_vectors(
    opened: Model, texts: list[TextFile], exact: Path, precision: VectorPrecision, tmp_path: Path
) -> None:
    """Half precision and int8 take less room and find nearly the same."""
    folder = tmp_path / "index"
    build_index(folder, texts, opened, precision=precision)
    sizes = [sum(path.stat().st_size for path in place.glob("parts/*/vectors/0*.npy")) for place in (folder, exact)]
    assert sizes[0] < 0.6 * sizes[1]
    found, true = (open_index(place).search(QUERIES, lang="zh", k=5) for place in (folder, exact))
    same = [len({hit.text for hit in a} & {hit.text for hit in b}) for a, b in zip(found, true, strict=True)]
    assert sum(same) >= 0.9 * 5 * len(QUERIES)
    assert found[0][0].score == pytest.approx(true[0][0].score, abs=0.01)


def test_without_exact_matches(opened: Model, tmp_path: Path) -> None:
    """Sentences equal but for case, width, punctuation and spaces are left out, however many; all others stay."""
    ends = ["", ".", "!", "!!", "...", " .", "?!", ". ", "~", " - "]
    equal = [f"{text}{end}".strip() for text in ("Go home", "go home", "GO  HOME", "ｇｏ ｈｏｍｅ") for end in ends]
    file = TextFile(write(tmp_path / "a.en", [*equal, *ENGLISH[:20]]), "en")
    build_index(tmp_path / "index", [file], opened)
    index = open_index(tmp_path / "index")
    assert {hit.text for hit in index.search("Go home", lang="en", k=5)[0]} <= set(equal)
    found = index.search(["Go home", ENGLISH[3]], lang="en", k=12, exact_match=False)
    everything = brute_force(opened, "Go home", "en", [file])
    assert_same(found[0], [hit for hit in everything if hit.text not in equal])
    assert len(found[0]) == 12 and ENGLISH[3] not in [hit.text for hit in found[1]]


def test_k_beyond_the_index_and_one_line(opened: Model, tmp_path: Path) -> None:
    """An index of one sentence gives that one, however many are asked for."""
    build_index(tmp_path / "index", [TextFile(write(tmp_path / "a", ["你好。"]), "zh")], opened)
    hits = open_index(tmp_path / "index").search("hello", lang="en", k=50)[0]
    assert [(hit.text, hit.lang, hit.part, hit.line) for hit in hits] == [("你好。", "zh", "a", 1)]


def test_index_is_self_contained(tiny_model: Path, tmp_path: Path) -> None:
    """An index works after its files are gone, itself moved, and its model moved and named anew."""
    file, model = write(tmp_path / "a.en", ENGLISH), Path(shutil.copytree(tiny_model, tmp_path / "model"))
    build_index(tmp_path / "index", [TextFile(file, "en")], open_model(model))
    before = open_index(tmp_path / "index").search(QUERIES, lang="zh")
    file.unlink()
    (tmp_path / "index").rename(tmp_path / "moved")
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"does not exist.*--model"):
        open_index(tmp_path / "moved").search(QUERIES, lang="zh")
    assert open_index(tmp_path / "moved", open_model(tmp_path / "elsewhere")).search(QUERIES, lang="zh") == before


def test_another_model_is_refused(copy: Path, tiny_model: Path, tmp_path: Path) -> None:
    """A model with another checksum may neither search nor add."""
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    settings = other / "config_sentence_transformers.json"
    settings.write_text(settings.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"other: checksum .*; expected .*the model that made the index"):
        open_index(copy, open_model(other))
    with pytest.raises(ModelError, match="the model that made the index"):
        add_to_index(copy, [TextFile(write(tmp_path / "b", ["b"]), "en")], open_model(other))


def test_adding_is_building_at_once(copy: Path, texts: list[TextFile], opened: Model, tmp_path: Path) -> None:
    """An index that grew finds what brute force finds in all its files; old vectors are not touched."""
    old = {path: path.stat().st_mtime_ns for path in copy.glob("parts/*/vectors/*")}
    more = TextFile(write(tmp_path / "more.en", [en for en, _ in generate_pairs(80, seed=9)]), "en")
    assert add_to_index(copy, [more]).rows == len(open_index(copy)) > 600
    assert {path: path.stat().st_mtime_ns for path in old} == old
    for within in (None, "en"):
        for query, hits in zip(QUERIES, open_index(copy).search(QUERIES[:4], lang="zh", within=within), strict=False):
            assert_same(hits, brute_force(opened, query, "zh", [*texts, more], within))
    with pytest.raises(DataError, match=r"more.en: is already in the index, as more.en"):
        add_to_index(copy, [more])
    assert len(list((copy / "parts").iterdir())) == 3


@pytest.mark.parametrize("kind", [IndexKind.exact, IndexKind.ivf])
def test_a_changed_file_replaces_its_old_sentences(
    opened: Model, tmp_path: Path, kind: IndexKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Old sentences are gone, others stay, each place is cited once, and one line has the numbers."""
    if kind != IndexKind.exact:
        pytest.importorskip("faiss")
    caplog.set_level("INFO")
    cat, dog = tmp_path / "cat.en", write(tmp_path / "dog.en", ["The dog barks."])
    folder = tmp_path / "index"
    build_index(folder, {"en": [write(cat, ["The cat sleeps.", "It rains."]), dog]}, opened, kind=kind)
    add_to_index(folder, {"en": write(cat, ["The cat is awake.", "It rains.", "We eat."])}, opened)
    assert "cat.en: replaced its 2 old sentences with 3" in caplog.text
    hits = open_index(folder, opened).search("The cat sleeps.", lang="en", k=10)[0]
    assert sorted((hit.part, hit.line, hit.text) for hit in hits) == [
        ("cat.en", 1, "The cat is awake."),
        ("cat.en", 2, "It rains."),
        ("cat.en", 3, "We eat."),
        ("dog.en", 1, "The dog barks."),
    ]
    assert sorted(path.name for path in (folder / "parts").iterdir()) == ["00001", "00002"]
    assert add_to_index(folder, {"en": write(cat, ["The cat sleeps."])}, opened).rows == 2
    assert open_index(folder, opened).search("The cat sleeps.", lang="en", k=1)[0][0].line == 1


def test_every_occurrence_is_cited(
    opened: Model, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hit has all lines of its sentence, as text the first one and their number."""
    file = write(tmp_path / "a.en", ["Yes.", "", "No.", " Yes. ", "Yes.", "Maybe."])
    build_index(tmp_path / "index", {"en": file}, opened)
    hits = open_index(tmp_path / "index", opened).search("Yes.", lang="en", k=3)[0]
    assert {hit.text: (hit.line, hit.lines) for hit in hits} == {
        "Yes.": (1, (1, 4, 5)),
        "No.": (3, (3,)),
        "Maybe.": (6, (6,)),
    }
    assert main(["search", "query", str(tmp_path / "index"), "Yes.", "--lang", "en", "-k", "1"]) == 0
    assert "(a.en:1 and 2 more lines)" in capsys.readouterr().out


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edits the manifest of an index or a store."""
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    change(content)
    write_json(folder / "manifest.json", content)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["parts"][0]["files"].update({"../../secret": "0"}),
        lambda content: content["parts"][0]["files"].pop("texts.txt"),
        lambda content: content["parts"][0].update(rows="7"),
        lambda content: content["parts"][0].update(rows=-1),
        lambda content: content["parts"][0].update(number="../0"),
        lambda content: content["parts"][0].update(number=1),
        lambda content: content.update(parts=[]),
        lambda content: content.update(model=7),
        lambda content: content.update(kind="ivf"),
        lambda content: content.update(
            lists={"file": "../index-00001.faiss", "sha256": "", "lists": 1, "probes": 1, "recall": 1.0}, kind="ivf"
        ),
    ],
)
def test_manifests_that_cannot_be_are_refused(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Names of files in other places, and values of other types."""
    change_manifest(copy, change)
    with pytest.raises(DataError, match=r"^[^\n]*index: has no readable manifest.json; expected an index[^\n]*$"):
        open_index(copy, check=False)


def test_nested_manifest_is_one_line(copy: Path) -> None:
    """JSON that is nested too deeply is no traceback."""
    (copy / "manifest.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match=r"has no readable manifest.json"):
        open_index(copy)


@pytest.mark.parametrize("name", ["texts.txt", "offsets.npy", "lines.npy", "repeats.npy", "vectors"])
def test_links_out_of_an_index_are_refused(copy: Path, tmp_path: Path, name: str) -> None:
    """Every file lies in the folder of the index."""
    place = copy / "parts" / "00000" / name
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="is outside"):
        open_index(copy, check=False)


@pytest.mark.parametrize("value", [1e29, float("nan"), 0.5])
@pytest.mark.parametrize("check", [True, False])
def test_vectors_of_other_lengths_are_refused(copy: Path, value: float, check: bool) -> None:
    """When the index is opened, even if all checksums fit, or else when such a vector is found."""
    store = copy / "parts" / "00000" / "vectors"
    vectors = np.load(store / "00000.npy")
    vectors *= value
    np.save(store / "00000.npy", vectors)
    change_manifest(store, lambda content: content["shards"][0].update(sha256=file_sha256(store / "00000.npy")))
    with pytest.raises(DataError, match=r"not of length 1|contain NaN"):
        open_index(copy, check=check).search(ENGLISH[0], lang="en", within="en")


def test_exchanged_vectors_and_sentences_are_refused(copy: Path) -> None:
    """Vectors of another text, and offsets that are not those of the lines."""
    part = copy / "parts" / "00000"
    offsets = np.load(part / "offsets.npy")
    offsets[1:-1] += 1
    np.save(part / "offsets.npy", offsets)
    checksum = file_sha256(part / "offsets.npy")
    change_manifest(copy, lambda content: content["parts"][0]["files"].update({"offsets.npy": checksum}))
    with pytest.raises(DataError, match="offsets do not fit the lines"):
        open_index(copy)
    with pytest.raises(DataError, match="the offsets of sentence"):
        open_index(copy, check=False).search(ENGLISH[0], lang="en", within="en")
    (part / "vectors").rename(copy / "aside")
    (copy / "parts" / "00001" / "vectors").rename(part / "vectors")
    (copy / "aside").rename(copy / "parts" / "00001" / "vectors")
    with pytest.raises(DataError, match=r"vectors are of another text|vectors; expected"):
        open_index(copy, check=False)


def test_failed_addition_changes_nothing(
    copy: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a bad file, an interruption nor another process changes what an index finds; adding then succeeds."""
    before, manifest = open_index(copy).search(QUERIES, lang="en"), (copy / "manifest.json").read_bytes()
    good, bad = write(tmp_path / "good", ["one", "two"]), tmp_path / "bad"
    bad.write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(DataError, match="bad:2: not UTF-8"):
        add_to_index(copy, [TextFile(good, "en"), TextFile(bad, "en")])
    with monkeypatch.context() as patch:
        patch.setattr(build, "write_index_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add_to_index(copy, [TextFile(good, "en")])
    with locked(copy), pytest.raises(RunError, match="another process"):
        add_to_index(copy, [TextFile(good, "en")])
    assert open_index(copy).search(QUERIES, lang="en") == before
    assert (copy / "manifest.json").read_bytes() == manifest
    assert add_to_index(copy, [TextFile(write(tmp_path / "other", ["three"]), "zh")]).parts[-1].rows == 1
    assert open_index(copy).search("three", lang="zh", k=1)[0][0].part == "other"
    assert sorted(path.name for path in (copy / "parts").iterdir()) == ["00000", "00001", "00002"]


def interrupt(*given: object) -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def test_interrupted_build_is_resumed(
    opened: Model, texts: list[TextFile], exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was encoded before an interruption is kept, and nothing that is not whole can be opened."""
    folder = tmp_path / "index"
    with monkeypatch.context() as patch:
        whole, calls = encode_file, []

        def stop_at_second(*given: Any) -> None:
            calls.append(given)
            interrupt() if len(calls) == 2 else whole(*given)

        patch.setattr(build, "encode_file", stop_at_second)
        with pytest.raises(KeyboardInterrupt):
            build_index(folder, texts, opened)
    assert not folder.exists()
    with pytest.raises(DataError, match=r"build was interrupted.*run the same"):
        open_index(folder)
    (shard,) = tmp_path.glob(".index.building/parts/00000/vectors/0*.npy")
    made = shard.stat().st_mtime_ns
    build_index(folder, texts, opened)
    assert next(folder.glob("parts/00000/vectors/0*.npy")).stat().st_mtime_ns == made
    assert open_index(folder).search(QUERIES, lang="zh") == open_index(exact).search(QUERIES, lang="zh")
    assert not list(tmp_path.glob(".index*"))
    with pytest.raises(DataError, match="already exists"):
        build_index(folder, texts, opened)


def test_interrupted_build_of_something_else_starts_anew(
    opened: Model, texts: list[TextFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another precision or other files left behind is not mixed in."""
    with monkeypatch.context() as patch:
        patch.setattr(build, "write_index_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_index(tmp_path / "index", texts, opened, precision=VectorPrecision.int8)
    build_index(tmp_path / "index", texts[1:], opened)
    index = open_index(tmp_path / "index")
    assert index.manifest.languages == ["zh"] and len(list((tmp_path / "index" / "parts").iterdir())) == 1
    assert index.search(CHINESE[0], lang="zh")[0][0].score == pytest.approx(1.0, abs=2e-6)


def damage(path: Path) -> None:
    """Changes the last byte of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["vectors/00000.npy", "texts.txt", "offsets.npy", "lines.npy"])
def test_damage_is_found(copy: Path, name: str) -> None:
    """A changed byte or a missing end in any file is named by its file."""
    path = copy / "parts" / "00001" / name
    content = path.read_bytes()
    damage(path)
    if name == "offsets.npy":  # its last number is compared with the size of the texts
        with pytest.raises(DataError, match="offsets do not fit"):
            open_index(copy, check=False)
    else:
        with pytest.raises(DataError, match=rf"{path.name}: is damaged"):
            open_index(copy)
        assert open_index(copy, check=False).folder == copy
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError):
        open_index(copy)
    path.unlink()
    with pytest.raises(DataError):
        open_index(copy)


def test_what_is_no_index(exact: Path, tmp_path: Path, opened: Model, tiny_model: Path) -> None:
    """Other folders and files are refused by their name; nothing is built over them."""
    for folder in (tmp_path / "absent", tiny_model, exact / "parts" / "00000" / "vectors"):
        with pytest.raises(DataError, match=folder.name):
            open_index(folder)
    file = write(tmp_path / "a", ["a"])
    for place in (tiny_model, file):
        with pytest.raises(DataError, match="already exists"):
            build_index(place, [TextFile(file, "en")], opened)
    assert file.read_text(encoding="utf-8") == "a\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "new", "en=absent", "--model", "MODEL"], "absent: no such file"),
        (["build", "new", "en=empty", "--model", "MODEL"], "no sentences in 2 lines"),
        (["build", "new", "en=broken", "--model", "MODEL"], "broken:1: not UTF-8"),
        (["build", "new", "fr=good", "--model", "MODEL"], "'fr'"),
        (["build", "new", "en=", "--model", "MODEL"], "expected FILE or LANG=FILE"),
        (
            ["build", "new", "en=good", "--model", "MODEL", "--precision", "fp8"],
            "--precision fp8; expected one of fp32",
        ),
        (["build", "new", "en=good", "--model", "MODEL", "--index", "tree"], "--index tree; expected one of exact"),
        (["build", "new", "en=good", "en=good", "--model", "MODEL"], "a second en file of this name"),
        (["add", "absent", "en=good"], "absent: no such folder"),
        (["add", "INDEX", "fr=good"], "'fr'"),
        (["query", "INDEX", "a", "--lang", "fr"], "'fr'"),
        (["query", "INDEX", "a", "--lang", "en", "--in", "fr"], "has no sentences in 'fr'; expected one of en, zh"),
        (["query", "INDEX", " ", "--lang", "en"], "a query has no text"),
        (["query", "INDEX", "a", "--lang", "en", "-k", "0"], "k 0; expected at least 1"),
        (["query", "INDEX", "a", "--lang", "en", "--probes", "4"], "this index is exact"),
        (["query", "absent", "a", "--lang", "en"], "absent"),
    ],
)
def test_one_line_for_each_error(
    words: list[str],
    message: str,
    exact: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong words and files end with code 2 and one line that says what to do; no index appears."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("good", b"a\n"), ("empty", b"\n \n"), ("broken", b"\xff\n")):
        Path(name).write_bytes(content)
    places = {"MODEL": str(tiny_model), "INDEX": str(exact)}
    assert main(["search", *(places.get(word, word) for word in words)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert not Path("new").exists()


def test_commands(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Build, add and query from the command line, as JSON and as text."""
    english, chinese = write(tmp_path / "a.en", ENGLISH), write(tmp_path / "a.zh", CHINESE)
    index = str(tmp_path / "index")
    assert main(["search", "build", index, f"en={english}", "--model", str(tiny_model), "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["sentences"] == len(set(ENGLISH)) and built["parts"][0]["lang"] == "en"
    assert main(["search", "add", index, f"zh={chinese}"]) == 0
    assert "zh" in capsys.readouterr().out
    words = ["search", "query", index, CHINESE[0], ENGLISH[1], "--lang", "zh", "-k", "3", "--in", "zh"]
    assert main([*words, "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    expected = open_index(index).search([CHINESE[0], ENGLISH[1]], lang="zh", k=3, within="zh")
    assert first == {"query": CHINESE[0], "hits": [{**vars(hit), "lines": list(hit.lines)} for hit in expected[0]]}
    assert second["query"] == ENGLISH[1]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == CHINESE[0] and lines[1] == f"   1.000  zh  {CHINESE[0]}  (a.zh:{CHINESE.index(CHINESE[0]) + 1})"
    assert lines[4] == ""


def test_a_text_file_in_place_of_an_index(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers as those of an index that was built, also of standard input, and no files are left."""
    english, index = write(tmp_path / "a.en", ENGLISH), str(tmp_path / "index")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    model, rest = ["--model", str(tiny_model)], [ENGLISH[5], "-k", "3", "--no-exact-match"]
    assert main(["search", "build", index, f"en={english}", *model]) == 0
    capsys.readouterr()
    assert main(["search", "query", index, *rest]) == 0
    expected = capsys.readouterr().out
    assert main(["search", "query", f"en={english}", *rest, *model]) == 0
    assert capsys.readouterr().out == expected and expected.count("(a.en:") == 3
    assert ENGLISH[5] not in expected.split("\n", 1)[1]
    with english.open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["search", "query", "en=-", *rest, *model]) == 0
    assert capsys.readouterr().out == expected.replace("(a.en:", "(standard-input.txt:")
    assert not list((tmp_path / "tmp").iterdir())
    assert main(["search", "query", "en=-", *model]) == 2
    assert "en=-: standard input is the text to search; expected queries as TEXT" in capsys.readouterr().err


def test_queries_are_answered_as_they_come() -> None:
    """A line is given on before the next one is there; many at once come in batches; the last needs no end."""
    reading, writing = os.pipe()
    queries = read_queries(reading)
    os.write(writing, "一\n".encode())
    assert next(queries) == ["一"]
    os.write(writing, b"\n  \nhal")
    os.write(writing, b"f\n" + b"x\n" * 70)
    assert [len(batch) for batch in (next(queries), next(queries))] == [62, 9]  # 64 lines with two empty ones, then 9
    os.write(writing, b"last")
    os.close(writing)
    assert list(queries) == [["last"]]
    os.close(reading)


def test_broken_query_comes_after_the_good_ones() -> None:
    """Queries before invalid UTF-8 are answered, then its line is named."""
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n\xff\nfour\n")
    os.close(writing)
    queries = read_queries(reading)
    assert next(queries) == ["one", "two"]
    with pytest.raises(DataError, match="standard input, line 3: not UTF-8"):
        next(queries)
    os.close(reading)


def test_standard_input(
    exact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without texts, every line of standard input that has text is a query."""
    with write(tmp_path / "queries", [CHINESE[2], "", CHINESE[3]]).open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["search", "query", str(exact), "--lang", "zh", "--json", "-k", "1"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["query"] for answer in answers] == CHINESE[2:4]
    assert [answer["hits"][0]["text"] for answer in answers] == CHINESE[2:4]


def test_closed_pipe_is_no_error(
    exact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nobody reads the answers, the command ends without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["search", "query", str(exact), CHINESE[0], "--lang", "zh"]) == 141
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[TextFile]:
    """About a thousand sentences of each language."""
    pairs = list(generate_pairs(1500, seed=11))
    folder = tmp_path_factory.mktemp("many")
    sides = [write(folder / f"many.{lang}", [pair[side] for pair in pairs]) for side, lang in enumerate(("en", "zh"))]
    return [TextFile(sides[0], "en"), TextFile(sides[1], "zh")]


@pytest.fixture(scope="module", params=[IndexKind.ivf, IndexKind.ivfpq])
def listed(
    request: pytest.FixtureRequest, opened: Model, many: list[TextFile], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An index of inverted lists to which the Chinese part was added later."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("lists") / "index"
    build_index(folder, many[:1], opened, kind=request.param)
    add_to_index(folder, many[1:])
    return folder


@pytest.mark.parametrize("within", [None, "en", "zh"])
def test_inverted_lists_find_nearly_all(listed: Path, opened: Model, many: list[TextFile], within: str | None) -> None:
    """Scores are exact; all lists find what brute force finds, the measured number of lists most of it."""
    index = open_index(listed)
    assert index.lists and index.manifest.lists and index.manifest.lists.recall >= 0.95
    assert index.lists.index.ntotal == len(index)
    true = [brute_force(opened, query, "zh", many, within) for query in QUERIES[:5]]
    for query, expected in zip(QUERIES, true, strict=False):
        everything = index.search(query, lang="zh", k=5, within=within, probes=10_000)[0]
        assert_same(everything[:1], expected)
        assert sum(hit.score >= expected[4].score - 2e-6 for hit in everything) >= 4
    found = index.search(QUERIES[:5], lang="zh", k=5, within=within)
    good = [sum(hit.score >= a[4].score - 2e-6 for hit in hits) for a, hits in zip(true, found, strict=True)]
    assert sum(good) >= 20 and all(len(hits) == 5 for hits in found)


def test_recall_is_that_of_a_loop(listed: Path) -> None:
    """The recall in the manifest is the share of true neighbours found, counted one by one."""
    from dualmoco.search.faiss_index import RECALL_DEPTH, held_out

    index = open_index(listed)
    assert index.lists and index.manifest.lists
    vectors = index.vectors[:]
    rows = held_out(len(vectors))
    assert len(rows) == 500
    near = index.lists.search(vectors[rows], RECALL_DEPTH + 1, index.manifest.lists.probes)
    hits = 0
    for place, row in enumerate(rows.tolist()):
        scores = (vectors.astype(np.float64) * vectors[row]).sum(axis=1).round(6)
        tenth = np.sort(np.delete(scores, row))[-RECALL_DEPTH]
        found = [score for score, i in zip(near.scores[place], near.ids[place], strict=True) if i != row][:RECALL_DEPTH]
        hits += sum(score >= tenth for score in found)
    assert hits / (RECALL_DEPTH * len(rows)) == pytest.approx(index.manifest.lists.recall, abs=2e-3)


def test_few_lists_still_give_k(listed: Path) -> None:
    """A query whose lists hold too few sentences looks into all of them."""
    index = open_index(listed)
    hits = index.search(QUERIES[0], lang="zh", k=len(index), probes=1)[0]
    assert len({(hit.lang, hit.line) for hit in hits}) == len(hits) == len(index)


def test_lists_need_whole_files(listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old lists are removed after an addition; damaged ones are refused, as is a file that is none."""
    folder = Path(shutil.copytree(listed, tmp_path / "index"))
    (file,) = folder.glob("*.faiss")
    damage(file)
    with pytest.raises(DataError, match=r"faiss: is damaged"):
        open_index(folder)
    file.write_bytes(b"something else")
    assert main(["search", "query", str(folder), "a", "--lang", "en"]) == 2
    assert "cannot be read by FAISS" in capsys.readouterr().err


def test_product_codes_need_sentences(opened: Model, tmp_path: Path) -> None:
    """Too few sentences for product codes are refused; plain lists take one sentence."""
    pytest.importorskip("faiss")
    few = [TextFile(write(tmp_path / "few", ["one", "two"]), "en")]
    with pytest.raises(ConfigError, match="ivfpq with 2 sentences; expected at least 256"):
        build_index(tmp_path / "pq", few, opened, kind=IndexKind.ivfpq)
    build_index(tmp_path / "ivf", few, opened, kind=IndexKind.ivf)
    assert [hit.text for hit in open_index(tmp_path / "ivf").search("two", lang="en")[0]] == ["two", "one"]
    assert read_index_manifest(tmp_path / "ivf").kind == IndexKind.ivf


def test_a_name_that_no_index_can_have_is_one_line(opened: Model, tmp_path: Path) -> None:
    """Too long for a file system."""
    calls: list[Callable[[Path], object]] = [
        open_index,
        lambda folder: add_to_index(folder, sentences=["a"]),
        lambda folder: build_index(folder, model=opened, sentences=["a"]),
    ]
    for call in calls:
        with pytest.raises(DataError, match=r"cannot be used as an index \(OSError .*File name too long"):
            call(tmp_path / ("x" * 300))


def test_lines_that_are_not_utf8_can_be_skipped(
    opened: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other lines keep their numbers, and the index the name of the file, which replaces it when added again."""
    path, name = tmp_path / "news.en.gz", str(opened.identity.name)
    lines = [line.encode() for line in ENGLISH[:9]]
    path.write_bytes(gzip.compress(b"\n".join([b"caf\xe9 bar", *lines])))
    with pytest.raises(DataError, match=r"news\.en\.gz:1: not UTF-8"):
        build_index(tmp_path / "index", {"en": path}, opened)
    assert main(["search", "build", str(tmp_path / "index"), f"en={path}", "--model", name, "--on-error", "skip"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("9 distinct sentences  news.en.gz")
    assert f"{path}: skipped lines that are not UTF-8: 1" in caplog.text
    found = open_index(tmp_path / "index", opened).search([ENGLISH[4]], lang="en", k=1)[0][0]
    assert (found.text, found.line, found.part) == (ENGLISH[4], 6, "news.en.gz")
    path.write_bytes(gzip.compress(b"\n".join([*lines, b"caf\xe9 bar", b"\xff"])))
    assert main(["search", "add", str(tmp_path / "index"), f"en={path}", "--on-error", "skip"]) == 0
    index = open_index(tmp_path / "index", opened)
    assert [part.name for part in index.manifest.parts] == ["news.en.gz"]
    assert index.search([ENGLISH[4]], lang="en", k=1)[0][0].line == 5

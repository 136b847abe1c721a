"""Vectors of text files on disk: shards, resumption, and what is refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Moment, run_command
from dualmoco.cli.main import main
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError, ModelError, RunError
from dualmoco.core.progress import Progress
from dualmoco.core.storage import file_sha256, write_json
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.engine import LocalEngine, Work
from dualmoco.embeddings.store import ShardedVectors, open_store, pack, unpack
from dualmoco.embeddings.unique_lines import EMPTY, TextFile, find_unique_lines, lines_at
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.languages import common_language


def random_units(count: int, dimension: int = 16, seed: int = 0) -> Vectors:
    """Unit vectors in random directions."""
    return unit_vectors(np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Some two hundred English lines, a few of them empty or repeated."""
    lines = [src for src, _ in generate_pairs(200, seed=3)]
    lines[7], lines[50], lines[120] = "", lines[0], f"  {lines[1]}  "
    path = tmp_path / "text.en.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(("precision", "least"), [("fp32", 1.0), ("fp16", 0.999999), ("int8", 0.9995)])
def test_stored_vectors_keep_their_direction(precision: str, least: float) -> None:
    """Unpacked vectors have unit length and nearly the direction they had."""
    vectors = random_units(50, 64)
    again = unpack(pack(vectors, VectorPrecision(precision)))
    np.testing.assert_allclose(np.linalg.norm(again, axis=1), 1, atol=1e-5)
    assert (vectors * again).sum(axis=1).min() >= least - 1e-6


def test_shards_read_as_one_array(tmp_path: Path) -> None:
    """Slices and row numbers of any shape give what the joined array gives."""
    whole = random_units(23)
    paths = []
    for number, part in enumerate(np.split(whole, [5, 6, 20])):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], part)
    shards = ShardedVectors(paths, 16)
    assert shards.shape == (23, 16)
    for rows in (slice(0, 23), slice(3, 9), slice(5, 6), slice(22, 40), slice(7, 7), slice(1, 20, 4)):
        np.testing.assert_array_equal(shards[rows], whole[rows])
    ids = np.array([[22, 0], [5, 5], [19, 6]])
    np.testing.assert_array_equal(shards[ids], whole[ids])


@pytest.mark.parametrize("precision", list(VectorPrecision))
def test_rows_read_from_their_place_are_those_of_the_map(precision: VectorPrecision, tmp_path: Path) -> None:
    """In any order and as often as asked for, from any shard; a file that became shorter is named."""
    vectors = unit_vectors(np.random.default_rng(0).standard_normal((25, 16)).astype(np.float32))
    paths = []
    for start in (0, 10, 20):
        paths.append(tmp_path / f"{start}.npy")
        np.save(paths[-1], pack(vectors[start : start + 10], precision))
    shards = ShardedVectors(paths, 16)
    rows = np.array([24, 0, 9, 10, 19, 20, 9, 3])
    assert np.array_equal(shards.read(rows), shards[rows])
    assert shards.read(rows[:0]).shape == (0, 16)
    with paths[1].open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=r"^[^\n]*10.npy: became shorter while in use; encode again$"):
        shards.read(rows)


def test_lines_are_numbered_by_first_appearance(tmp_path: Path) -> None:
    """Equal lines share a row, empty ones have none, spaces at the ends do not count."""
    path = tmp_path / "t.txt"
    path.write_text("b\n\na\n b \n \nc\n", encoding="utf-8")
    lines = find_unique_lines(path)
    assert lines.rows.tolist() == [0, -1, 1, 0, -1, 2] and lines.first.tolist() == [0, 2, 5]
    assert list(lines_at(path, [0, 3, 5])) == ["b", "b", "c"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no sentences in 0 lines"), (b"\n \n", "no sentences in 2 lines"), (b"ok\n\xff\n", "t.txt:2: not UTF-8")],
    ids=["empty", "blank", "invalid"],
)
def test_unusable_text_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    """One line says what is wrong and where."""
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        find_unique_lines(path)
    with pytest.raises(DataError, match="no such file"):
        find_unique_lines(tmp_path / "none.txt")


SMALL = StoreForm(shard_rows=32)


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> Model:
    """The model."""
    return open_model(tiny_model)


def test_store_holds_the_backend_s_vectors(opened: Model, text: Path, tmp_path: Path) -> None:
    """Row by row, each distinct sentence once."""
    store = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    lines = [line.strip() for line in text.read_text(encoding="utf-8").splitlines()]
    distinct = list(dict.fromkeys(line for line in lines if line))
    assert store.count == len(distinct) and len(store.shards) == -(-len(distinct) // 32)
    expected = opened.encode(distinct, lang="en")
    np.testing.assert_allclose(store.vectors()[:], expected, atol=1e-6)
    assert [lines[line] for line in store.first_lines()] == distinct
    rows = [store.lines[number] for number, line in enumerate(lines) if line]
    assert [distinct[row] for row in rows] == [line for line in lines if line]


def test_interrupted_encoding_is_resumed(opened: Model, text: Path, tmp_path: Path) -> None:
    """What was written is not encoded again, and the result is that of an unbroken run."""
    whole = encode_file(TextFile(text, "en"), tmp_path / "whole", opened, SMALL)

    def stop(number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_file(TextFile(text, "en"), tmp_path / "broken", opened, SMALL, done=stop)
    written: list[int] = []
    again = encode_file(TextFile(text, "en"), tmp_path / "broken", opened, SMALL, done=written.append)
    assert written == list(range(2, len(whole.shards)))
    np.testing.assert_array_equal(again.vectors()[:], whole.vectors()[:])


class Changing(LocalEngine):
    """Changes the text after its lines were counted and before they are encoded."""

    def __init__(self, path: Path, content: str) -> None:
        self.path, self.content = path, content

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Processes pieces of the changed text."""
        self.path.write_text(self.content, encoding="utf-8")
        yield from super().run(work, pieces, progress)


@pytest.mark.parametrize("change", ["cut", "shifted", "edited"])
def test_text_that_changes_while_it_is_encoded(opened: Model, text: Path, tmp_path: Path, change: str) -> None:
    """One line says so, nothing is poisoned, and another run gives the vectors of the text as it is then."""
    before = text.read_text(encoding="utf-8")
    lines = before.splitlines(keepends=True)
    lines = {"cut": lines[:150], "shifted": lines[1:], "edited": [*lines[:100], "Edited.\n", *lines[101:]]}[change]
    message = r"^[^\n]*text.en.txt: changed while it was read; run the command again when the file is complete$"
    with pytest.raises(DataError, match=message):
        encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL, Changing(text, "".join(lines)))
    store = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    sentences = [line.strip() for line in lines if line.strip()]
    assert store.count == len(store.vectors()) == len(set(sentences))
    np.testing.assert_allclose(
        store.vectors()[store.lines[store.lines >= 0]], opened.encode(sentences, lang="en"), atol=1e-6
    )


def test_vectors_of_earlier_runs_survive_a_change_of_the_text(opened: Model, text: Path, tmp_path: Path) -> None:
    """Shards that were encoded before stay; with the old text again, the rest is added."""
    before = text.read_text(encoding="utf-8")
    whole = encode_file(TextFile(text, "en"), tmp_path / "whole", opened, SMALL)
    with pytest.raises(KeyboardInterrupt):
        encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL, done=_interrupt)
    with pytest.raises(DataError, match="changed while it was read"):
        encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL, Changing(text, before[: len(before) // 2]))
    with pytest.raises(DataError, match="text_sha256"):
        encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    text.write_text(before, encoding="utf-8")
    written: list[int] = []
    again = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL, done=written.append)
    assert 0 not in written
    np.testing.assert_array_equal(again.vectors()[:], whole.vectors()[:])


def _interrupt(number: int) -> None:
    raise KeyboardInterrupt


def test_shards_with_another_number_of_rows(opened: Model, text: Path, tmp_path: Path) -> None:
    """A short shard, as a text that shrank left it, is refused when opened and made again when encoded."""
    store = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    expected, path = np.array(store.vectors()[:]), tmp_path / "v" / "00001.npy"
    with pytest.raises(RunError, match=r"shard 1 has the shape \(10, \d+\); expected \(32, \d+\)"):
        store.add(1, np.load(path)[:10])
    np.save(path, np.load(path)[:10])
    with pytest.raises(DataError, match=r"00001.npy: 10 vectors; expected 32"):
        open_store(tmp_path / "v").vectors()
    content = json.loads((tmp_path / "v" / "manifest.json").read_text(encoding="utf-8"))
    content["shards"][1] |= {"rows": 10, "sha256": file_sha256(path)}
    write_json(tmp_path / "v" / "manifest.json", content)
    with pytest.raises(DataError, match=r"00001.npy: 10 vectors; expected 32"):
        open_store(tmp_path / "v").vectors()
    again = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    np.testing.assert_array_equal(again.vectors()[:], expected)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("manifest.json", b"[" * 100_000, "nested too deeply"),
        ("manifest.json", b"{}", "not a folder of dualmoco encode"),
        ("manifest.json", b"\xff", "not a folder of dualmoco encode"),
        ("rows.npy", b"", "rows.npy: cannot be read"),
        ("rows.npy", b"PK\x03\x04", "rows.npy: cannot be read"),
        ("00001.npy", b"", "00001.npy: cannot be read"),
        ("00001.npy", b"\x93NUMPY\x01\x00\x04\x00((((", "00001.npy: cannot be read"),
    ],
)
def test_damaged_stores_are_refused(
    opened: Model, text: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    """Whatever is in its files, the error is one line."""
    encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    (tmp_path / "v" / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        open_store(tmp_path / "v").vectors()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../00000.npy", "/tmp/00000.npy", "0.npy", "00000.npy.npy"])
def test_shards_lie_in_their_store(opened: Model, text: Path, tmp_path: Path, name: str) -> None:
    """A manifest cannot name another file, nor can a link stand for one."""
    folder = tmp_path / "v"
    encode_file(TextFile(text, "en"), folder, opened, SMALL)
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    content["shards"][0]["file"] = name
    write_json(folder / "manifest.json", content)
    with pytest.raises(DataError, match=r"a shard is named|not a folder of dualmoco encode"):
        open_store(folder)
    content["shards"][0]["file"] = "00000.npy"
    write_json(folder / "manifest.json", content)
    (folder / "00000.npy").rename(tmp_path / "outside.npy")
    (folder / "00000.npy").symlink_to(tmp_path / "outside.npy")
    with pytest.raises(DataError, match="is outside"):
        open_store(folder)


def test_damaged_shard_is_made_again(opened: Model, text: Path, tmp_path: Path) -> None:
    """A flipped byte is found by its checksum, and only that shard is redone."""
    store = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    expected = np.array(store.vectors()[:])
    path = tmp_path / "v" / "00002.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)
    (tmp_path / "v" / "00003.npy").unlink()
    written: list[int] = []
    again = encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL, done=written.append)
    assert written == [2, 3]
    np.testing.assert_array_equal(again.vectors()[:], expected)


def test_vectors_of_something_else_are_refused(opened: Model, text: Path, tmp_path: Path) -> None:
    """Another text, precision or language, and a folder of other files."""
    encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL)
    other = tmp_path / "other.txt"
    other.write_text("Something else.\n", encoding="utf-8")
    for file, form, said in (
        (TextFile(other, "en"), SMALL, "text_sha256"),
        (TextFile(text, "en"), replace(SMALL, precision=VectorPrecision.int8), "precision 'fp32'; expected 'int8'"),
        (TextFile(text, "zh"), SMALL, "lang 'en'; expected 'zh'"),
    ):
        with pytest.raises(DataError, match=said):
            encode_file(file, tmp_path / "v", opened, form)
    with pytest.raises(DataError, match="contains other files"):
        encode_file(TextFile(text, "en"), tmp_path, opened, SMALL)
    with pytest.raises(DataError, match="not a folder of dualmoco encode"):
        open_store(tmp_path)
    with pytest.raises(ModelError, match="'fr'"):
        encode_file(TextFile(text, "fr"), tmp_path / "w", opened, SMALL)
    assert not (tmp_path / "w").exists()


def test_encoding_killed_at_its_very_start_is_resumed(opened: Model, text: Path, tmp_path: Path) -> None:
    """Half-written files of a run that never began its first shard do not stand in the way."""
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / ".rows.npy.partial").write_bytes(b"half")
    assert encode_file(TextFile(text, "en"), tmp_path / "v", opened, SMALL).count


@pytest.mark.parametrize(
    "moment",
    [
        Moment(signal.SIGKILL, "dualmoco.embeddings.store", "write_bytes"),  # its rows are there, its manifest is not
        Moment(signal.SIGKILL, "dualmoco.embeddings.store", "write_bytes", call=7),  # a shard that no manifest names
        Moment(signal.SIGKILL, "pathlib", "Path.replace", call=10, after=False),  # half-written beside its place
        Moment(signal.SIGINT, "dualmoco.embeddings.store", "Store.add", call=6),
    ],
    ids=str,
)
def test_killed_encoding_is_resumed(tiny_model: Path, text: Path, tmp_path: Path, moment: Moment) -> None:
    """Run again, the command gives the same files as one that was left alone."""

    def words(out: str) -> list[str]:
        options = ["--lang", "en", "--model", str(tiny_model), "--shard-rows", "20"]
        return ["encode", str(text), "--out", str(tmp_path / out), *options]

    assert main(words("whole")) == 0
    assert run_command(words("killed"), tmp_path / "said", moment=moment).code != 0
    assert len(list((tmp_path / "killed").glob("*.npy"))) < len(list((tmp_path / "whole").glob("*.npy")))
    assert main(words("killed")) == 0
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "killed").iterdir() if not path.name.endswith(".partial"))
    for name in files:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_command_says_what_it_made(
    tiny_model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON for machines; another model for the same vectors is refused."""
    words = ["encode", str(text), "--lang", "en", "--out", str(tmp_path / "v"), "--precision", "fp16"]
    assert main([*words, "--model", str(tiny_model), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["lines"] == 200 and result["precision"] == "fp16" and result["shards"] == 1
    assert np.load(tmp_path / "v" / "00000.npy").dtype == np.float16
    assert main([*words, "--model", "en-zh-static"]) == 2
    assert "contains vectors with model_sha256" in capsys.readouterr().err


MORE = {
    "en": ["The harbour was quiet.", "She asked for the bill.", "We leave on Monday."] * 20,
    "zh": ["港口很安静。", "她要了账单。", "我们星期一出发。"] * 20,
}


@pytest.mark.parametrize(("written", "named"), [("en", "zh"), ("zh", "en"), ("en", "en"), ("zh", "zh")])
def test_a_text_in_another_language_is_warned_of(
    written: str, named: str, opened: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As its lines are identified; it is encoded all the same."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in MORE[written]), encoding="utf-8")
    assert encode_file(TextFile(path, named), tmp_path / "store", opened).count == 3
    said = [record.message for record in caplog.records if "looks like" in record.message]
    assert len(said) == (written != named)
    parts = str(path), f"looks like {written}", f"encoded as {named}"
    assert all(part in line for line in said for part in parts)


def test_few_or_mixed_lines_have_no_common_language() -> None:
    """A guess is worse than nothing."""
    assert common_language(MORE["en"][:20]) == "" and common_language(["12", "3.4"] * 100) == ""
    assert common_language(MORE["en"]) == "en" and common_language(MORE["zh"]) == "zh"
    blocks = [*MORE["en"][:50], *MORE["zh"][:50]]
    assert common_language(blocks) == ""


def test_lines_that_are_not_utf8_can_be_skipped(
    tiny_model: Path, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A skipped line has no vector, and the other lines keep their rows; the same command again has nothing to do."""
    lines, out = text.read_bytes().splitlines(), tmp_path / "vectors"
    lines[3] = b"\xff\xfe\xfa"
    text.write_bytes(b"\n".join(lines))
    words = ["encode", str(text), "--lang", "en", "--model", str(tiny_model), "--out", str(out)]
    assert main(words) == 2 and not (out / "manifest.json").exists()
    for _ in range(2):
        assert main([*words, "--on-error", "skip"]) == 0
    assert caplog.messages == [f"{text}: skipped lines that are not UTF-8: 1"] * 2
    store, model = open_store(out), open_model(tiny_model)
    assert len(store.lines) == len(lines) and np.flatnonzero(store.lines == EMPTY).tolist() == [3, 7]
    expected = model.encode([lines[4].decode()], lang="en")[0]
    np.testing.assert_allclose(store.vectors()[store.lines[4]], expected, atol=1e-6)

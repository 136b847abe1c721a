"""Files of pairs: valid whatever the sentences hold, with the lines where the sentences stand."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from dualmoco.core.errors import DataError
from dualmoco.data.grammar import generate_pairs
from dualmoco.mining.io import PairTable, write_pairs
from dualmoco.mining.score import score
from dualmoco.models.load import open_model
from dualmoco.models.model import Model

LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> Model:
    """The model."""
    return open_model(tiny_model)


def table_of(lines: list[int]) -> PairTable:
    """Pairs of some lines."""
    zeros = np.zeros(len(lines))
    return PairTable(zeros, zeros, zeros, np.array(lines), np.array(lines))


def is_xml(character: str) -> bool:
    """Whether XML 1.0 has a character: https://www.w3.org/TR/xml/#charsets."""
    code = ord(character)
    allowed = (0x9, 0xA, 0xD, range(0x20, 0xD800), range(0xE000, 0xFFFE), range(0x10000, 0x110000))
    return any(code in some if isinstance(some, range) else code == some for some in allowed)


def test_tmx_is_valid_whatever_characters_come(tmp_path: Path) -> None:
    """Expat reads every character that XML has as it was written; those it has not are left out."""
    codes = [*range(0x300), *range(0x2000, 0x2070), *range(0xD7F0, 0xD800), *range(0xE000, 0xE010)]
    codes += [*range(0xFDC0, 0xFE00), *range(0xFFE0, 0x10010), 0x1F600, 0x1FFFE, 0x1FFFF, 0x10FFFE, sys.maxunicode]
    texts = [f"a{chr(code)}b" for code in codes if chr(code) not in "\r\n"]
    origin = {"model": "".join(texts), "\ufffe": "\uffff"}
    write_pairs(tmp_path / "p.tmx", table_of([1] * len(texts)), (texts, texts[::-1]), ("en\x0b", "zh\uffff"), origin)
    root = ElementTree.parse(tmp_path / "p.tmx").getroot()
    expected = ["".join(filter(is_xml, text)) for text in texts]
    assert len([text for text in expected if text == "ab"]) == 29 + 2  # controls but tab and line ends, two others
    for lang, side in (("en", expected), ("zh", expected[::-1])):
        assert [tuv.findtext("seg") for tuv in root.iter("tuv") if tuv.get(LANG) == lang] == side
    assert root.findtext("header/prop") == "".join(expected)


PAIRS = [(1 + 3 * number, src, tgt) for number, (src, tgt) in enumerate(generate_pairs(30, seed=8))]


def write_bitext(path: Path) -> Path:
    """Writes each pair on its line; the lines between cannot be read."""
    lines = ["no pair"] * PAIRS[-1][0]
    for number, src, tgt in PAIRS:
        lines[number - 1] = f"{src}\t{tgt}"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", [".tsv", ".parquet"])
def test_scored_pairs_have_the_lines_of_the_bitext(opened: Model, tmp_path: Path, ending: str) -> None:
    """The number of a pair's line is the reader's, also where a threshold leaves pairs out."""
    path, out = write_bitext(tmp_path / "bitext.tsv"), tmp_path / f"s{ending}"
    scored = score(path, model=opened, threshold=0.0, out=out, on_error="skip")
    assert scored.unreadable == PAIRS[-1][0] - len(PAIRS)
    if ending == ".tsv":
        cells = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()[1:]]
        written = [(int(line), int(same), src, tgt) for _, src, tgt, _, _, line, same in cells]
    else:
        columns = pq.read_table(out).to_pydict()
        written = list(zip(*(columns[name] for name in ("src_line", "tgt_line", "src", "tgt")), strict=True))
    assert 0 < len(written) < len(PAIRS)
    assert set(written) <= {(line, line, src, tgt) for line, src, tgt in PAIRS}
    assert written == sorted(written)


def test_a_pair_with_an_empty_side_is_never_left_out_silently(opened: Model, tmp_path: Path) -> None:
    """It ends the work by the number of its line, or is reported."""
    pairs = [(src, tgt) for _, src, tgt in PAIRS]
    pairs[4] = ("alone", " \u3000")
    with pytest.raises(DataError, match=r"^pairs:5: one side is empty; expected two sentences"):
        score(pairs, model=opened, out=tmp_path / "s.tsv")
    assert not (tmp_path / "s.tsv").exists()
    scored = score(pairs, model=opened, on_error="skip")
    assert scored.unreadable == 1 and scored.candidates == 29
    with pytest.raises(DataError, match="no pairs to score"):
        score(pairs[4:5], model=opened, on_error="skip")


def test_columns_are_kept_before_damage(tmp_path: Path, opened: Model) -> None:
    """Lines that are not UTF-8, and the rest of a file that breaks off, do not cost the columns of the others."""
    lines = [f"{src}\t{tgt}\tid-{n}\n".encode() for n, (src, tgt) in enumerate(generate_pairs(30, seed=1))]
    path = tmp_path / "damaged.tsv"
    path.write_bytes(b"".join([*lines[:10], b"\xff\tx\ty\n", *lines[10:], b"\xff\n"]))
    scored = score(path, model=opened, threshold=-1.0, out=tmp_path / "out.tsv", on_error="skip", progress=False)
    assert (scored.unreadable, scored.candidates) == (2, 30)
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0][-1] == "column_3" and [row[-1] for row in rows[1:]] == [f"id-{n}" for n in range(30)]

"""Mined pairs read back: what `output.py` writes, one pair after the other, from TSV, Parquet or TMX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, iterparse

from dualmoco.mining.threshold import Calibration, ModelCalibration
from dualmoco.text.files import read_lines


class MinedPair(NamedTuple):
    """Two sentences, their score, their mean cosines with their neighbours, and where they first stand, from 1."""

    score: float
    src: str
    tgt: str
    src_mean: float
    tgt_mean: float
    src_line: int
    tgt_line: int


@dataclass(frozen=True)
class MiningResult:
    """What was found; iterating gives the pairs by descending score (of a scored bitext, in their order)."""

    out: Path | None
    """The file of pairs; None if they were only asked for here."""
    pairs: list[MinedPair] | None
    """The pairs themselves where there is no file."""
    count: int
    """Pairs that were accepted."""
    candidates: int
    """Pairs that were scored."""
    threshold: float | None
    calibration: Calibration | None = None
    recall: float | None = None
    """Of approximate neighbours, measured on a sample."""
    quantiles: tuple[float, ...] = ()
    """Of all scores of a bitext: 5, 25, 50, 75 and 95 %."""
    unreadable: int = 0
    """Lines of a bitext that were left out."""
    model_calibration: ModelCalibration | None = None
    """Where the threshold is the model's own, what it stands for."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[MinedPair]:
        if self.pairs is not None:
            return iter(self.pairs)
        assert self.out is not None
        return read_mined(self.out)


def read_mined(path: Path) -> Iterator[MinedPair]:
    """Yields the pairs of a file that `dualmoco mine`, `score` or `paraphrases` wrote.

    Args:
        path: Ends with .tsv, .parquet or .tmx.

    Yields:
        One pair.
    """
    readers = {".tsv": _read_tsv, ".parquet": _read_parquet, ".tmx": _read_tmx}
    return readers[path.suffix](path)


def _read_tsv(path: Path) -> Iterator[MinedPair]:
    lines = read_lines(path)
    next(lines)
    for line in lines:
        score, src, tgt, src_mean, tgt_mean, src_line, tgt_line = line.split("\t")
        yield MinedPair(float(score), src, tgt, float(src_mean), float(tgt_mean), int(src_line), int(tgt_line))


def _read_parquet(path: Path) -> Iterator[MinedPair]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            yield MinedPair(**row)


def _read_tmx(path: Path) -> Iterator[MinedPair]:
    for _, unit in iterparse(path):
        if unit.tag == "tu":
            yield _from_unit(unit)
            unit.clear()


def _from_unit(unit: Element) -> MinedPair:
    known: dict[str, Any] = {prop.attrib["type"]: prop.text for prop in unit.iter("prop")}
    src, tgt = (segment.text or "" for segment in unit.iter("seg"))
    score, src_mean, tgt_mean = (float(known[name]) for name in ("score", "src_mean", "tgt_mean"))
    return MinedPair(score, src, tgt, src_mean, tgt_mean, int(known["src_line"]), int(known["tgt_line"]))

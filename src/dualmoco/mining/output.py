"""Takes pairs that were mined or scored, writes them as TSV, Parquet or TMX, with where they come from."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.errors import ConfigError, require
from dualmoco.core.storage import write_bytes, write_json
from dualmoco.core.vectors import Floats, Ids
from dualmoco.embeddings.lines import lines_at
from dualmoco.mining.tmx import TranslationUnit, as_tmx

COLUMNS = ("score", "src", "tgt", "src_mean", "tgt_mean", "src_line", "tgt_line")
SentenceSides = Sequence[Sequence[str]]
"""The source sentences and the target sentences of pairs."""
ENDINGS = (".tsv", ".parquet", ".tmx")


@dataclass(frozen=True)
class PairTable:
    """p pairs with their scores, both sentences' mean cosine to their neighbours, and their lines, from 1."""

    scores: Floats
    src_means: Floats
    tgt_means: Floats
    src_lines: Ids
    tgt_lines: Ids


def check_pairs_path(path: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Refuses an output file of an unknown kind.

    Args:
        path: The file to be written.
        endings: Those that can be written.

    Raises:
        ConfigError: A folder, another ending, or Parquet without its package.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: a folder; expected the name of a file to write")
    if path.suffix not in endings:
        raise ConfigError(f"{path}: ends with {path.suffix or 'nothing'}; expected one of {', '.join(endings)}")
    if path.suffix == ".parquet":
        require("pyarrow.parquet", "data", "Parquet")


def write_pairs(
    path: Path, table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, object]
) -> None:
    """Writes the pairs with their sentences, and `PATH.json` with where they come from.

    Args:
        path: Ends with .tsv, .parquet or .tmx.
        table: The pairs, in the order to be written.
        sides: The p source and the p target sentences, in the same order.
        langs: Their languages.
        origin: Model and text checksums and every setting.

    Raises:
        RunError: The disk is full or not writable; an older file is then as it was.
    """
    writers = {".tsv": _tsv, ".parquet": _parquet, ".tmx": _tmx}
    write_bytes(path, writers[path.suffix](table, sides, langs, {name: str(value) for name, value in origin.items()}))
    write_json(path.with_name(f"{path.name}.json"), dict(origin))


def sentences_at(path: Path, lines: Ids) -> list[str]:
    """The sentences of some lines of a file, from 1, in the order of the lines given."""
    wanted, places = np.unique(lines - 1, return_inverse=True)
    found = list(lines_at(path, wanted.tolist()))
    return [found[place] for place in places.tolist()]


def _rows(table: PairTable) -> Iterator[tuple[float, float, float, int, int]]:
    columns = (table.scores, table.src_means, table.tgt_means, table.src_lines, table.tgt_lines)
    return zip(*(column.tolist() for column in columns), strict=True)


def _tsv(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    stream = io.StringIO()
    stream.write("\t".join(COLUMNS) + "\n")
    for (score, a, b, i, j), src, tgt in zip(_rows(table), *sides, strict=True):
        texts = "\t".join(" ".join(text.split("\t")) for text in (src, tgt))
        stream.write(f"{score:.6f}\t{texts}\t{a:.6f}\t{b:.6f}\t{i}\t{j}\n")
    return stream.getvalue().encode()


def _parquet(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = (table.scores, *sides, table.src_means, table.tgt_means, table.src_lines, table.tgt_lines)
    arrow = pa.table(dict(zip(COLUMNS, values, strict=True))).replace_schema_metadata(dict(origin))
    stream = io.BytesIO()
    pq.write_table(arrow, stream, compression="zstd")
    return stream.getvalue()


def _tmx(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    units = (
        TranslationUnit(src, tgt, {"score": f"{score:.6f}", "src_mean": f"{a:.6f}", "tgt_mean": f"{b:.6f}",
                                   "src_line": i, "tgt_line": j})
        for (score, a, b, i, j), src, tgt in zip(_rows(table), *sides, strict=True)
    )  # fmt: skip
    return as_tmx(units, langs, origin)

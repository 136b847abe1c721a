"""All formats by name and extension: read a `Source` as raw blocks (`prepare`, `inspect`) or as rows (all others)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dualmoco.core.errors import DataError, DualmocoError
from dualmoco.data.manifest import PREPARED_MANIFEST
from dualmoco.data.readers import columnar, lines, tmx
from dualmoco.data.readers.base import Raw, Report, Row, Source, clip_reason
from dualmoco.data.text_column import PairBlock
from dualmoco.text.files import plain_suffix

Reader = Callable[[Source, Report], Iterator[Raw]]
READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {  # and their extensions
    "tsv": (lines.read_tsv, (".tsv", ".tab", ".txt")),
    "csv": (lines.read_csv, (".csv",)),
    "jsonl": (lines.read_jsonl, (".jsonl", ".ndjson", ".json")),
    "aligned": (lines.read_aligned, ()),
    "moses": (lines.read_moses, (".zip",)),
    "tmx": (tmx.read_tmx, (".tmx",)),
    "xliff": (tmx.read_xliff, (".xlf", ".xliff", ".sdlxliff")),
    "parquet": (columnar.read_parquet, (".parquet",)),
    "arrow": (columnar.read_arrow, (".arrow", ".feather")),
    "dataset": (columnar.read_dataset, ()),
    "gettext": (tmx.read_gettext, (".po", ".mo")),
}


def read_pairs(source: Source, form: str = "auto", *, report: Report) -> Iterator[Row]:
    """Yields the pairs of a file, or of a folder written by `prepare`, numbered across its files."""
    # Sentences are unchanged and possibly empty; `report` is called for every unreadable line.
    if form != "dataset" and not source.path.exists():
        raise DataError(f"{source.path}: no such file; expected sentence pairs")
    before = last = 0

    def report_line(line: int, what: str) -> None:
        report(before + line, what)

    for shard in find_shards(source):
        for block, block_end in parse_blocks(shard, form, report_line):
            for src, tgt, line in zip(block.src.texts(), block.tgt.texts(), block.lines.tolist(), strict=True):
                yield Row(src, tgt, before + line)
            last = before + block_end
        before = last


def parse_blocks(source: Source, form: str, report: Report) -> Iterator[tuple[PairBlock, int]]:
    """Yields the pairs of a file in blocks, each with the number of its last line.

    `report` is called for every unreadable line, and once if the file breaks off after some pairs. If `report` raises,
    so does this function.
    """
    last = 0
    try:
        for raw in read_blocks(source, form, report):
            block, problems = raw.parse()
            for problem in problems:
                report(*problem)
            yield block, raw.last
            last = raw.last
    except DataError as error:
        if not last:
            raise
        try:
            report(last + 1, str(error).removeprefix(f"{source.path}: "))
        except DataError:
            raise error from None


def find_shards(source: Source) -> list[Source]:
    """The Parquet files of a folder, or the source itself if it has none."""
    paths = sorted(source.path.glob("*.parquet"))
    columns = ("src", "tgt") if (source.path / PREPARED_MANIFEST).is_file() else source.columns
    return [replace(source, path=path, columns=columns) for path in paths] or [source]


def read_blocks(source: Source, form: str, report: Report) -> Iterator[Raw]:
    """Yields the raw blocks of a file; `report` is called for lines that the reader cannot read."""
    reader, _ = READERS[form if form != "auto" else guess_format(source)]
    line = 0
    try:
        for raw in reader(source, report):
            line = raw.last
            yield raw
    except (DualmocoError, MemoryError):
        raise
    except Exception as error:  # the libraries that readers call raise any exception for a damaged file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{source.path}: cannot be read after line {line}: {clip_reason(reason)}") from error


def guess_format(source: Source) -> str:
    """The name of the reader for a file; DataError if its extension is unknown."""
    if source.tgt_path is not None:
        return "aligned"
    if source.path.is_dir():
        return "dataset"
    suffix = plain_suffix(source.path)
    for name, (_, suffixes) in READERS.items():
        if suffix in suffixes:
            return name
    known = " ".join(suffix for _, suffixes in READERS.values() for suffix in suffixes)
    raise DataError(
        f"{source.path}: unknown extension; expected {known}, or format one of {', '.join(READERS)}; "
        "set tgt_files for two aligned files"
    )


def check_format(name: str) -> None:
    """DataError if there is no reader of this name."""
    if name != "auto" and name not in READERS:
        raise DataError(f"format {name!r}; expected auto or one of {', '.join(READERS)}")

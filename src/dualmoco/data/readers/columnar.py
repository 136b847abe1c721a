"""Readers of Parquet files, Arrow files and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dualmoco.core.errors import DataError, require
from dualmoco.data.readers.base import PARSED_ROWS, Raw, Report, Row, Source, clip_reason, in_blocks, pick_pair

if TYPE_CHECKING:
    import pyarrow as pa

TRANSLATION = "translation"  # column of datasets with a mapping from languages to sentences


def read_parquet(source: Source, report: Report) -> Iterator[Raw]:
    """A Parquet file."""
    pa, pq = require("pyarrow", "data", "A Parquet file"), require("pyarrow.parquet", "data", "A Parquet file")
    try:
        with pq.ParquetFile(source.path, memory_map=True) as file:
            names = file.schema_arrow.names
            batches = file.iter_batches(PARSED_ROWS, columns=_wanted(source, names))
            yield from in_blocks(_rows(batches, source, names, report))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source.path}: not a Parquet file, or damaged ({clip_reason(error)})") from None


def read_arrow(source: Source, report: Report) -> Iterator[Raw]:
    """An Arrow IPC file or stream, memory-mapped."""
    pa = require("pyarrow", "data", "An Arrow file")
    try:
        with pa.memory_map(str(source.path)) as file:
            try:
                reader = pa.ipc.open_file(file)
                batches: Iterable[Any] = map(reader.get_batch, range(reader.num_record_batches))
            except pa.ArrowInvalid:
                file.seek(0)
                batches = reader = pa.ipc.open_stream(file)
            names = reader.schema.names
            _wanted(source, names)
            yield from in_blocks(_rows(map(_validated, batches), source, names, report))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source.path}: not an Arrow file, or damaged ({clip_reason(error)})") from None


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Checks the offsets of a batch, which may point anywhere in a damaged file. UTF-8 is checked for each row."""
    for column in batch.columns:
        column.view(_binary_type(column.type)).validate(full=True)
    return batch


def _binary_type(kind: pa.DataType) -> pa.DataType:
    """A type with bytes instead of strings, also inside structs."""
    pa = require("pyarrow", "data", "An Arrow file")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _binary_type(field.type), field.nullable) for field in kind])
    return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, kind)


def read_dataset(source: Source, report: Report) -> Iterator[Raw]:
    """The training split of a folder written by `save_to_disk`, or of a hub dataset NAME or NAME:CONFIGURATION."""
    datasets = require("datasets", "data", "A Hugging Face dataset")
    name, _, configuration = str(source.path).partition(":")
    try:
        if source.path.is_dir():
            dataset: Any = datasets.load_from_disk(str(source.path))
            dataset = dataset["train"] if isinstance(dataset, datasets.DatasetDict) else dataset
        else:
            dataset = datasets.load_dataset(name, configuration or None, split="train", streaming=True)
    except Exception as error:  # the hub's errors have no common class
        raise DataError(f"{source.path}: cannot be opened as a dataset ({clip_reason(error)})") from None
    keys = _keys(source, list(dataset.column_names or []))
    yield from in_blocks(_pick_rows(enumerate(dataset, start=1), keys, report))


def _rows(batches: Iterable[pa.RecordBatch], source: Source, names: list[str], report: Report) -> Iterator[Row]:
    keys, wanted, number = _keys(source, names), _wanted(source, names), 0
    for batch in batches:
        _check_buffers(batch)
        yield from _pick_rows(_records(batch.select(wanted), number + 1, report), keys, report)
        number += len(batch)


def _check_buffers(batch: pa.RecordBatch) -> None:
    """ArrowInvalid if offsets lead out of the memory of a batch, which would crash the process."""
    import pyarrow as pa

    batch.validate()  # lengths; offsets are checked column by column, because only the first error is reported
    for column in _flatten(batch.columns):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            if not is_text or "Invalid UTF8" not in str(error):  # which affects only its own row
                raise


def _flatten(columns: Iterable[Any]) -> Iterator[Any]:
    """The columns, with each structure replaced by its fields."""
    import pyarrow as pa

    for column in columns:
        if pa.types.is_struct(column.type):
            yield from _flatten(column.field(place) for place in range(column.type.num_fields))
        else:
            yield column


def _records(batch: pa.RecordBatch, first: int, report: Report) -> Iterator[tuple[int, Any]]:
    """The rows of a batch that Python can represent, with their numbers."""
    try:
        records = batch.to_pylist()
    except (ValueError, OverflowError):  # invalid UTF-8, a timestamp beyond the calendar
        pass
    else:
        yield from enumerate(records, start=first)
        return
    for row in range(len(batch)):
        try:
            record = batch.slice(row, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:
            report(first + row, f"not readable ({clip_reason(error)}); expected two sentences")
        else:
            yield first + row, record


def _pick_rows(records: Iterable[tuple[int, Any]], keys: tuple[str, str], report: Report) -> Iterator[Row]:
    for number, record in records:
        try:
            pair = pick_pair(record, keys)
        except ValueError as error:
            report(number, str(error))
        else:
            yield Row(*pair, number)


def _keys(source: Source, names: list[str]) -> tuple[str, str]:
    if names == [TRANSLATION] or (TRANSLATION in names and source.columns is None):
        return source.columns or (source.src, source.tgt)
    return source.choose_names(names)


def _wanted(source: Source, names: list[str]) -> list[str]:
    keys = _keys(source, names)
    return list(keys) if set(keys) <= set(names) else [TRANSLATION]

"""The sentence pairs of any bitext, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dualmoco.core.errors import DataError
from dualmoco.data.bitext import SentencePair
from dualmoco.data.readers.formats import read
from dualmoco.data.readers.source import Source


def read_sentence_pairs(source: Source, form: str) -> Iterator[SentencePair]:
    """Yields the pairs of a file in any format of prepare, or of a folder that it made.

    Args:
        source: The file or folder.
        form: Name of a reader, or `auto`.

    Yields:
        Source and target sentence, as they stand in the file; either may be empty.

    Raises:
        DataError: A file that is not there or cannot be read.
    """
    if not source.path.exists():
        raise DataError(f"{source.path}: no such file; expected sentence pairs")
    shards = [replace(source, path=path) for path in sorted(source.path.glob("*.parquet"))]  # none unless a folder
    for shard in shards or [source]:
        for raw in read(shard, form, lambda line, what: None):
            block, _ = raw.parse()
            yield from zip(block.src.texts(), block.tgt.texts(), strict=True)

"""Work done in this process, one piece after the other; the libraries below use all cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dualmoco.embeddings.engines.engine import Block, Encoding, Scanning, encode_shard
from dualmoco.search.neighbors import Candidates, Tell


class LocalEngine:
    """This process."""

    def encode(
        self, work: Encoding, shards: Iterable[tuple[int, list[str]]], tell: Tell
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Packed vectors of each shard, in order."""
        for number, texts in shards:
            yield number, encode_shard(work.backend, texts, work.precision)
            tell(len(texts))

    def scan(
        self, work: Scanning, blocks: Sequence[Block], tell: Tell
    ) -> Iterator[tuple[Block, Candidates, Candidates | None]]:
        """Candidates of each block, in order."""
        scan = work.open()
        for block in blocks:
            yield block, *scan(block, tell)

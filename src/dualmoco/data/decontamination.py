"""Decontamination: finds sentences that are equal to a test sentence, by id, or similar to one, by character n-grams.

Similarity is the Jaccard index of two bags of n-grams. The search is exact. If a sentence with n n-grams has similarity
t to a test sentence, at most (1 - t) n of its n-grams are missing from the test sentence. So at least one of its
(1 - t) n + 1 rarest n-grams occurs there. An index finds these candidates for a whole block at once. Bit signatures of
the n-grams then rule out most candidates, and the remaining ones are compared n-gram by n-gram.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Ids
from dualmoco.data.text_column import Ints, Mask, TextColumn, hash_rows
from dualmoco.text.files import read_cells

Grams = np.ndarray[tuple[int], np.dtype[np.uint64]]
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
LEAST_BITS, MOST_BITS = 8, 20  # log2 of the number of buckets of the index: n-grams by hash
CLASS_BITS, CLASS_WIDTH = 4, 16  # size classes: test sentences by number of n-grams
MAX_FREQUENCY = (1 << 20) - 1  # n-grams that occur in more test sentences count as equally frequent
SIGNATURE_BITS = 256
ROUNDING_ERROR = 1e-9
INDEX_ARRAYS = ("ids", "grams", "sizes", "ends", "signatures", "starts", "owners", "owner_sizes")


@dataclass(frozen=True)
class TestFile:
    """A file with test sentences."""

    path: str
    sha256: str
    sentences: int


class Exclusion:
    """An index of test sentences."""

    folder: Path | None

    def __init__(self, sentences: Iterable[str], *, similarity: float, ngram: int = 4) -> None:
        """Indexes test sentences; `similarity` is the minimum Jaccard index, 0 to find equal sentences only."""
        self.similarity, self.ngram, self.folder = similarity, ngram, None
        folded = TextColumn.from_texts(list(dict.fromkeys(sentences))).fold()
        self.ids, first = np.unique(hash_rows(folded), return_index=True)
        self._index_ngrams(folded.take(first if similarity else first[:0]).compact())

    def _index_ngrams(self, folded: TextColumn) -> None:
        """Builds the arrays that `similar` needs."""
        self.grams, self.sizes = hash_ngrams(folded, self.ngram)
        self.ends = np.cumsum(self.sizes)
        self.signatures = _sign(self.grams, self.sizes)
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.bucket_bits = min(max(LEAST_BITS, (4 * len(self.grams)).bit_length()), MOST_BITS)
        cells = (self._bucket(self.grams) << CLASS_BITS) | _size_class(self.sizes[owners])
        count = 1 << (self.bucket_bits + CLASS_BITS)
        self.starts = np.zeros(count + 1, dtype=np.int32)  # of each cell in `owners`
        np.cumsum(np.bincount(cells, minlength=count), out=self.starts[1:])
        self.owners = owners[np.argsort(cells, kind="stable")]
        self.owner_sizes = self.sizes[self.owners].astype(np.int32)

    def share(self, folder: Path) -> None:
        """Writes the index to files, which other processes then memory-map instead of copying it."""
        for name in INDEX_ARRAYS:
            content = io.BytesIO()
            np.save(content, getattr(self, name))
            (folder / f"{name}.npy").write_bytes(content.getbuffer())
        self.folder = folder

    def __getstate__(self) -> dict[str, Any]:
        if self.folder is None:
            return self.__dict__
        return {name: value for name, value in self.__dict__.items() if name not in INDEX_ARRAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if self.folder is not None:
            for name in INDEX_ARRAYS:
                setattr(self, name, np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))

    def __len__(self) -> int:
        return len(self.ids)

    def equal(self, ids: Ids) -> Mask:
        """Whether each id is the id of a test sentence."""
        if not len(self.ids):
            return np.zeros(len(ids), dtype=bool)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.asarray(self.ids[places] == ids)

    def similar(self, folded: TextColumn) -> Mask:
        """Whether each folded row is similar to a test sentence."""
        found = np.zeros(len(folded), dtype=bool)
        if not self.similarity or not len(self.grams) or not len(folded):
            return found
        grams, sizes = hash_ngrams(folded.compact(), self.ngram)
        rows, tests = self._candidates(grams, sizes)
        absent = np.bitwise_count(_sign(grams, sizes)[rows] & ~self.signatures[tests]).sum(axis=1)
        # J >= t means that at least t / (1 + t) of both bags together is shared
        shared = self.similarity / (1 + self.similarity) * (sizes[rows] + self.sizes[tests]) - ROUNDING_ERROR
        fits = absent <= sizes[rows] - shared
        ends = np.cumsum(sizes)
        for row, test in zip(rows[fits].tolist(), tests[fits].tolist(), strict=True):
            if not found[row]:
                found[row] = self._jaccard(grams[ends[row] - sizes[row] : ends[row]], test)
        return found

    def _candidates(self, grams: Grams, sizes: Ints) -> tuple[Ints, Ints]:
        """Pairs of a row and a test sentence of similar size that contains one of its rarest n-grams; some repeat."""
        least = np.ceil(self.similarity * sizes - ROUNDING_ERROR).astype(np.int64)  # shared n-grams
        most = np.floor(sizes / self.similarity + ROUNDING_ERROR).astype(np.int64)
        first_class, last_class = _size_class(least), _size_class(most)
        row = np.repeat(np.arange(len(sizes)), sizes)
        bucket = self._bucket(grams)
        start, end = self._cells(bucket, first_class[row], last_class[row])
        counts = np.minimum(end - start, MAX_FREQUENCY).astype(np.int64)
        worth = np.repeat(_sum_rows(counts == 0, sizes) <= sizes - least, sizes)  # otherwise too few occur
        packed = (row[worth] << 44) | (counts[worth] << 24) | bucket[worth]
        packed.sort()  # by row, then by rarity
        row, bucket = packed >> 44, packed & ((1 << 24) - 1)
        firsts = np.flatnonzero(np.diff(row, prepend=-1))
        rank = np.arange(len(row)) - np.repeat(firsts, np.diff(np.append(firsts, len(row))))
        probes = rank <= (sizes - least)[row]
        row, bucket = row[probes], bucket[probes]
        start, end = self._cells(bucket, first_class[row], last_class[row])
        counts = (end - start).astype(np.int64)
        places = np.repeat(start - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        other, row = self.owner_sizes[places], np.repeat(row.astype(np.int32), counts)
        fits = (least.astype(np.int32)[row] <= other) & (other <= most.astype(np.int32)[row])
        return row[fits], self.owners[places[fits]]

    def _bucket(self, grams: Grams) -> Ints:
        """The bucket of the index that each n-gram falls into."""
        return (grams >> np.uint64(64 - self.bucket_bits)).view(np.int64)

    def _cells(self, bucket: Ints, first_class: Ints, last_class: Ints) -> tuple[np.ndarray, np.ndarray]:
        """Start and end in `owners` of the test sentences of a bucket and a range of size classes."""
        cell = bucket << CLASS_BITS
        return self.starts[cell | first_class], self.starts[(cell | last_class) + 1]

    def _jaccard(self, grams: Grams, test: int) -> bool:
        other = self.grams[self.ends[test] - self.sizes[test] : self.ends[test]].tolist()
        shared = (Counter(grams.tolist()) & Counter(other)).total()
        return bool(shared >= self.similarity * (len(grams) + len(other) - shared) - ROUNDING_ERROR)


def _size_class(sizes: Ints) -> Ints:
    """The size class of each bag of n-grams."""
    return np.minimum(sizes // CLASS_WIDTH, (1 << CLASS_BITS) - 1)


def _sum_rows(values: np.ndarray, sizes: Ints) -> Ints:
    """The sum of each row's values, which are stored row after row."""
    before = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(sizes)
    sums: Ints = before[ends] - before[ends - sizes]
    return sums


def _sign(grams: Grams, sizes: Ints) -> np.ndarray:
    """Signatures (rows, 4): which of 256 bits the n-grams of each row hash to."""
    bits = np.zeros((len(sizes), SIGNATURE_BITS), dtype=bool)
    bits[np.repeat(np.arange(len(sizes)), sizes), (grams & np.uint64(SIGNATURE_BITS - 1)).view(np.int64)] = True
    return np.packbits(bits, axis=1).view(np.uint64)


def hash_ngrams(folded: TextColumn, ngram: int) -> tuple[Grams, Ints]:
    """64-bit hashes of the n-grams of a compact column, row after row, and their number in each row."""
    codes = folded.codes.astype(np.uint64)
    counts = np.maximum(folded.lengths - ngram + 1, 0)
    rolling = np.zeros(max(len(codes) - ngram + 1, 0), dtype=np.uint64)
    for offset in range(ngram):
        rolling = (rolling + codes[offset : offset + len(rolling)]) * HASH_MULTIPLIER
        rolling ^= rolling >> np.uint64(29)
    ends = np.cumsum(counts)
    places = np.repeat(folded.starts - (ends - counts), counts) + np.arange(counts.sum())
    hashes = rolling[places] * HASH_MULTIPLIER
    return hashes ^ (hashes >> np.uint64(32)), counts


def read_test_sets(paths: Iterable[Path], root: Path) -> tuple[list[str], list[TestFile]]:
    """Test sentences, every tab-separated field of every line, and a record of each file, named relative to `root`."""
    sentences: list[str] = []
    files: list[TestFile] = []
    for path in paths:
        fields = [cell for _, cells in read_cells(path) for cell in cells if cell.strip()]
        sentences += fields
        name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        files.append(TestFile(name, file_sha256(path), len(fields)))
    return sentences, files

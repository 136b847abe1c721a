"""Test sentences that may not enter training: equal ones by id, similar ones by their character n-grams.

Similarity is the Jaccard index of two bags of n-grams, found exactly. A sentence of n n-grams that reaches a similarity
t with a test sentence lacks at most (1 - t) n of them in it. So of its (1 - t) n + 1 rarest ones at least one occurs in
that test sentence, which an index finds for a whole block at once; and hardly any bit of a signature of its n-grams is
absent from the other's. The few pairs left are compared n-gram by n-gram.
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
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
LEAST_BITS, MOST_BITS = 8, 20  # of the number of buckets of the index: n-grams by hash
CLASS_BITS, CLASS_WIDTH = 4, 16  # test sentences by number of n-grams
COMMON = (1 << 20) - 1  # n-grams that more test sentences share are all equally common
SIGNATURE_BITS = 256
ROUNDING = 1e-9
ARRAYS = ("ids", "grams", "sizes", "ends", "signatures", "starts", "owners", "owner_sizes")  # of the index


@dataclass(frozen=True)
class TestFile:
    """A file whose sentences are excluded."""

    path: str
    sha256: str
    sentences: int


class Exclusion:
    """The sentences of some test sets."""

    folder: Path | None

    def __init__(self, sentences: Iterable[str], *, similarity: float, ngram: int = 4) -> None:
        """Indexes test sentences.

        Args:
            sentences: In any language.
            similarity: Jaccard similarity from which a sentence counts as one of them; 0 for equal ones only.
            ngram: Characters of an n-gram.
        """
        self.similarity, self.ngram, self.folder = similarity, ngram, None
        folded = TextColumn.from_texts(list(dict.fromkeys(sentences))).fold()
        self.ids, first = np.unique(hash_rows(folded), return_index=True)
        self._index_ngrams(folded.take(first if similarity else first[:0]).compact())

    def _index_ngrams(self, folded: TextColumn) -> None:
        """Makes what `similar` needs; hardly anything if there is no sentence."""
        self.grams, self.sizes = hash_ngrams(folded, self.ngram)
        self.ends = np.cumsum(self.sizes)
        self.signatures = _sign(self.grams, self.sizes)
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.bucket_bits = min(max(LEAST_BITS, (4 * len(self.grams)).bit_length()), MOST_BITS)
        cells = (self._bucket(self.grams) << CLASS_BITS) | _size_class(self.sizes[owners])
        count = 1 << (self.bucket_bits + CLASS_BITS)
        self.starts = np.zeros(count + 1, dtype=np.int32)  # of each cell's test sentences
        np.cumsum(np.bincount(cells, minlength=count), out=self.starts[1:])
        self.owners = owners[np.argsort(cells, kind="stable")]
        self.owner_sizes = self.sizes[self.owners].astype(np.int32)

    def share(self, folder: Path) -> None:
        """Writes the index to files, which other processes then map into memory instead of copying it."""
        for name in ARRAYS:
            content = io.BytesIO()
            np.save(content, getattr(self, name))
            (folder / f"{name}.npy").write_bytes(content.getbuffer())
        self.folder = folder

    def __getstate__(self) -> dict[str, Any]:
        if self.folder is None:
            return self.__dict__
        return {name: value for name, value in self.__dict__.items() if name not in ARRAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if self.folder is not None:
            for name in ARRAYS:
                setattr(self, name, np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))

    def __len__(self) -> int:
        return len(self.ids)

    def equal(self, ids: Ids) -> Mask:
        """Mask of the ids that are those of a test sentence."""
        if not len(self.ids):
            return np.zeros(len(ids), dtype=bool)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.asarray(self.ids[places] == ids)

    def similar(self, folded: TextColumn) -> Mask:
        """Mask of the folded rows that are similar to a test sentence."""
        found = np.zeros(len(folded), dtype=bool)
        if not self.similarity or not len(self.grams) or not len(folded):
            return found
        grams, sizes = hash_ngrams(folded.compact(), self.ngram)
        rows, tests = self._candidates(grams, sizes)
        absent = np.bitwise_count(_sign(grams, sizes)[rows] & ~self.signatures[tests]).sum(axis=1)
        # J >= t means that at least t / (1 + t) of both bags together is shared
        shared = self.similarity / (1 + self.similarity) * (sizes[rows] + self.sizes[tests]) - ROUNDING
        fits = absent <= sizes[rows] - shared
        ends = np.cumsum(sizes)
        for row, test in zip(rows[fits].tolist(), tests[fits].tolist(), strict=True):
            if not found[row]:
                found[row] = self._jaccard(grams[ends[row] - sizes[row] : ends[row]], test)
        return found

    def _candidates(self, grams: Grams, sizes: Ints) -> tuple[Ints, Ints]:
        """Pairs of a row and a test sentence of its size that shares one of its rarest n-grams; some repeat."""
        least = np.ceil(self.similarity * sizes - ROUNDING).astype(np.int64)  # n-grams shared, so also the other's size
        most = np.floor(sizes / self.similarity + ROUNDING).astype(np.int64)
        first_class, last_class = _size_class(least), _size_class(most)
        row = np.repeat(np.arange(len(sizes)), sizes)
        bucket = self._bucket(grams)
        start, end = self._cells(bucket, first_class[row], last_class[row])
        counts = np.minimum(end - start, COMMON).astype(np.int64)
        worth = np.repeat(_sum_rows(counts == 0, sizes) <= sizes - least, sizes)  # else too few occur anywhere
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
        """Where the test sentences of a bucket and of some classes of size begin and end."""
        cell = bucket << CLASS_BITS
        return self.starts[cell | first_class], self.starts[(cell | last_class) + 1]

    def _jaccard(self, grams: Grams, test: int) -> bool:
        other = self.grams[self.ends[test] - self.sizes[test] : self.ends[test]].tolist()
        shared = (Counter(grams.tolist()) & Counter(other)).total()
        return bool(shared >= self.similarity * (len(grams) + len(other) - shared) - ROUNDING)


def _size_class(sizes: Ints) -> Ints:
    """Which class of similar sizes each bag belongs to."""
    return np.minimum(sizes // CLASS_WIDTH, (1 << CLASS_BITS) - 1)


def _sum_rows(values: np.ndarray, sizes: Ints) -> Ints:
    """The sum of each row's values, which lie one after the other."""
    before = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(sizes)
    sums: Ints = before[ends] - before[ends - sizes]
    return sums


def _sign(grams: Grams, sizes: Ints) -> np.ndarray:
    """For each row, which of 256 bits its n-grams fall on, as four integers (rows, 4)."""
    bits = np.zeros((len(sizes), SIGNATURE_BITS), dtype=bool)
    bits[np.repeat(np.arange(len(sizes)), sizes), (grams & np.uint64(SIGNATURE_BITS - 1)).view(np.int64)] = True
    return np.packbits(bits, axis=1).view(np.uint64)


def hash_ngrams(folded: TextColumn, ngram: int) -> tuple[Grams, Ints]:
    """The n-grams of each row, as 64-bit hashes.

    Args:
        folded: Rows without gaps between them (see `TextColumn.compact`).
        ngram: Characters of an n-gram.

    Returns:
        All n-grams, row after row, and how many each row has.
    """
    codes = folded.codes.astype(np.uint64)
    counts = np.maximum(folded.lengths - ngram + 1, 0)
    rolling = np.zeros(max(len(codes) - ngram + 1, 0), dtype=np.uint64)
    for offset in range(ngram):
        rolling = (rolling + codes[offset : offset + len(rolling)]) * MULTIPLIER
        rolling ^= rolling >> np.uint64(29)
    ends = np.cumsum(counts)
    places = np.repeat(folded.starts - (ends - counts), counts) + np.arange(counts.sum())
    hashes = rolling[places] * MULTIPLIER
    return hashes ^ (hashes >> np.uint64(32)), counts


def read_test_sets(paths: Iterable[Path], root: Path) -> tuple[list[str], list[TestFile]]:
    """Every tab-separated field of every line of some files.

    Args:
        paths: Text files, plain or compressed.
        root: Folder that the files are named relative to.

    Returns:
        The sentences, and what each file gave.

    Raises:
        DataError: A file that cannot be read.
    """
    sentences: list[str] = []
    files: list[TestFile] = []
    for path in paths:
        fields = [cell for _, cells in read_cells(path) for cell in cells if cell.strip()]
        sentences += fields
        name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        files.append(TestFile(name, file_sha256(path), len(fields)))
    return sentences, files

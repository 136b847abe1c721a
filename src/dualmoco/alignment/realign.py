"""Re-aligning between confirmed links: confirmed links stay, and the text between them is aligned separately.

Vectors of sentences are kept in a file, and only vectors of new or edited sentences are computed. The vector of a span
is the mean of its sentence vectors, so no sentence is encoded twice. Shapes: N sentences, D dimension.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dualmoco.alignment.aligner import DEFAULT_LONGEST, Side, align_sides
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.editing import SIDES, EditedAlignment, SideName
from dualmoco.alignment.lexical import Words, split_words
from dualmoco.core.storage import write_bytes
from dualmoco.core.vectors import Vectors
from dualmoco.models.model import Model

SURE = 1.0  # confidence of a deletion between confirmed links, where the other side has no sentence left
Stretch = list[Any]  # row, count and links; see `editing._realign`
LinkSizes = list[tuple[int, int, float | None, float]]  # numbers of source and target sentences, score, confidence
StretchLinks = dict[tuple[tuple[str, ...], tuple[str, ...]], LinkSizes]
"""The links between the source and the target sentences of stretches."""


def realign_operation(
    edited: EditedAlignment,
    vectors: tuple[Vectors, Vectors],
    words: tuple[Words, Words] | tuple[None, None],
    longest: int = DEFAULT_LONGEST,
    known: StretchLinks | None = None,
) -> dict[str, Any]:
    """The operation that aligns everything between the confirmed rows again.

    Args:
        edited: The alignment.
        vectors: Unit vectors of all source and all target sentences.
        words: The words of both texts; None to align by vectors only.
        longest: Maximum sentences per side of a link.
        known: Links of stretches that were aligned before; replaced by those of the current stretches.
    """
    stretches: list[Stretch] = []
    links: StretchLinks = {}
    start = i = j = 0
    for is_confirmed, group in groupby(edited.rows, key=lambda row: row.is_confirmed):
        rows = list(group)
        m, n = (sum(len(row.side(side)) for row in rows) for side in SIDES)
        if not is_confirmed:
            key = (
                tuple(sentence.text for row in rows for sentence in row.src),
                tuple(sentence.text for row in rows for sentence in row.tgt),
            )
            if known and key in known:
                links[key] = known[key]
            else:
                src_words = _words_between(words[0], i, i + m) if words[0] else None
                tgt_words = _words_between(words[1], j, j + n) if words[1] else None
                src = Side.from_sentences(key[0], edited.langs[0], vectors[0][i : i + m], None, src_words)
                tgt = Side.from_sentences(key[1], edited.langs[1], vectors[1][j : j + n], None, tgt_words)
                links[key] = align_stretch(src, tgt, longest)
            stretches.append([start, len(rows), links[key]])
        start, i, j = start + len(rows), i + m, j + n
    if known is not None:
        known.clear()
        known.update(links)
    return {"type": "realign", "stretches": stretches}


def _words_between(words: Words, first: int, end: int) -> Words:
    """The words of some sentences."""
    ends = words.ends[first : end + 1]
    return Words(words.ids[ends[0] : ends[-1]], ends - ends[0], words.vectors)


def align_stretch(src: Side, tgt: Side, longest: int = DEFAULT_LONGEST) -> LinkSizes:
    """The links of two texts, in order."""
    counts = len(src.lengths), len(tgt.lengths)
    if not all(counts):
        return [(int(counts[0] > 0), int(counts[1] > 0), None, SURE)] * max(counts)
    links = align_sides(src, tgt, find_anchors(src.vectors, tgt.vectors), longest)
    sizes = (np.diff(spans)[:, 0].tolist() for spans in (links.src, links.tgt))
    scores = (None if np.isnan(score) else round(score, 5) for score in links.scores.tolist())
    return list(zip(*sizes, scores, links.confidence.tolist(), strict=True))


class SentenceVectors:
    """Vectors of the sentences of an alignment, in memory and in a file; a damaged file is made again.

    Args:
        path: The file.
        model: Model that encodes sentences; vectors of another model are not used.
        langs: Languages of both sides.
    """

    def __init__(self, path: Path, model: Model, langs: tuple[str, str]) -> None:
        self.path, self.model, self.langs = path, model, langs
        self._version = model.identity.sha256
        self._rows: dict[SideName, dict[int, int]] = {"src": {}, "tgt": {}}  # row of each sentence's hash
        self._vectors: dict[SideName, Vectors] = {}
        try:
            self._load()
        except (OSError, SafetensorError, KeyError, ValueError):
            self._rows, self._vectors = {"src": {}, "tgt": {}}, {}

    def _load(self) -> None:
        with safe_open(self.path, framework="numpy") as stored:
            if (stored.metadata() or {}).get("model") != self._version:
                return
            for side in SIDES:
                hashes, vectors = stored.get_tensor(f"{side}_hashes"), stored.get_tensor(f"{side}_vectors")
                if len(hashes) == len(vectors):
                    self._rows[side] = {int(number): row for row, number in enumerate(hashes)}
                    self._vectors[side] = vectors

    def both(self, edited: EditedAlignment) -> tuple[Vectors, Vectors]:
        """Unit vectors of all sentences of both sides; only new ones are computed."""
        new, found = 0, []
        for side, lang in zip(SIDES, self.langs, strict=True):
            texts = [sentence.text for sentence in edited.sentences(side)]
            hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
            known = self._rows[side]
            missing = {number: text for number, text in zip(hashes, texts, strict=True) if number not in known}
            if missing or side not in self._vectors:
                added = self.model.encode_as(list(missing.values()), lang)
                kept = self._vectors.get(side, added[:0])
                self._vectors[side] = np.concatenate([kept, added])
                known.update({number: len(kept) + row for row, number in enumerate(missing)})
                new += len(missing)
            found.append(self._vectors[side][[known[number] for number in hashes]])
        if new:
            self._save()
        return found[0], found[1]

    def _save(self) -> None:
        tensors = {}
        for side in SIDES:
            tensors[f"{side}_hashes"] = np.fromiter(self._rows[side], dtype=np.uint64)  # in row order
            tensors[f"{side}_vectors"] = np.ascontiguousarray(self._vectors[side])
        write_bytes(self.path, save(tensors, {"model": self._version}))


class Realigner:
    """Re-aligns one alignment again and again.

    Args:
        path: File of the vectors.
        model: Model that encodes sentences; ModelError if it lacks a language.
        langs: Languages of both sides.
        longest: Maximum sentences per side of a link.
    """

    def __init__(self, path: Path, model: Model, langs: tuple[str, str], longest: int = DEFAULT_LONGEST) -> None:
        for lang in langs:
            model.resolve(lang, ())
        self.vectors, self.langs, self.longest = SentenceVectors(path, model, langs), langs, longest
        self._known: StretchLinks = {}

    def plan(self, edited: EditedAlignment) -> dict[str, Any]:
        """See `realign_operation`."""
        texts = [[sentence.text for sentence in edited.sentences(side)] for side in SIDES]
        words = split_words((texts[0], texts[1]), self.langs)
        return realign_operation(edited, self.vectors.both(edited), words, self.longest, self._known)

"""Two documents to links: read, split, encoded, aligned. Shapes: N and M sentences, D dimension."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np

from dualmoco.alignment.aligner import LONGEST, Side, align_sides
from dualmoco.alignment.anchors import FEWEST_PARTNERS, Anchors, find_anchors, partner_share
from dualmoco.alignment.document import Aligned, Document, Text
from dualmoco.alignment.gains import Prices
from dualmoco.alignment.languages import settle_languages
from dualmoco.alignment.meetings import Words
from dualmoco.alignment.runs import run_encoder
from dualmoco.alignment.splitting import SplitMode, split_text
from dualmoco.alignment.words import cut_words
from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Vectors
from dualmoco.core.version import VERSION
from dualmoco.models.model import STATIC, Model

ENCODED_SENTENCES = 20_000
"""Sentences of both sides up to which runs are encoded by a model that is not static."""
MOST_TIMES = 20
"""How many times more sentences one side may have than the other."""


class UnrelatedError(DataError):
    """Two texts that are not translations of each other."""


class RunVectors(StrEnum):
    """How runs of several sentences get their vectors."""

    auto = "auto"
    """Encoded if the model is static or the documents are not long, averaged otherwise."""
    encoded = "encoded"
    averaged = "averaged"


@dataclass(frozen=True)
class AlignSettings:
    """What decides an alignment besides the texts and the model."""

    split: SplitMode = SplitMode.auto
    runs: RunVectors = RunVectors.auto
    longest: int = LONGEST
    """Sentences of one side in a link."""
    lexicon: bool = True
    """Whether words that translate each other are learnt from the documents."""
    force: bool = False
    """Whether texts that do not look like translations are aligned."""


def align_texts(
    src: Text, tgt: Text, langs: tuple[str | None, str | None], model: Model, settings: AlignSettings
) -> Aligned:
    """Aligns two documents.

    Args:
        src: One document.
        tgt: The other.
        langs: Their languages; None to guess.
        model: What encodes them.
        settings: What decides.

    Returns:
        Both, as sentences, with their links.

    Raises:
        ConfigError: Languages that cannot be told.
        DataError: A document without sentences, or one far longer than the other.
        ModelError: A model without the languages.
        UnrelatedError: Texts that are not translations of each other.
    """
    found = settle_languages((src, tgt), langs, model, force=settings.force)
    documents = split_text(src, found[0], settings.split), split_text(tgt, found[1], settings.split)
    _check_sizes(*documents, settings)
    vectors = tuple(model.encode(document.sentences, lang=document.lang) for document in documents)
    anchors = find_anchors(*vectors)
    share = partner_share(anchors, *map(len, vectors))
    if share < FEWEST_PARTNERS and not settings.force:
        raise UnrelatedError(
            f"{src.name} and {tgt.name}: only {100 * share:.0f} % of the sentences have a likely partner, as in "
            f"unrelated texts; expected translations, which have {100 * FEWEST_PARTNERS:.0f} % and more: check the "
            "files, or add --force"
        )
    encoded = are_encoded(settings.runs, documents, model)
    words = _words(documents, settings)
    src_side, tgt_side = (
        _side(document, some, model, encoded, own)
        for document, some, own in zip(documents, vectors, words, strict=True)
    )
    links = align_sides(src_side, tgt_side, anchors, longest=settings.longest)
    return Aligned(*documents, links, _origin(documents, model, settings, encoded, anchors))


def text_lengths(sentences: Sequence[str]) -> Floats:
    """Characters of sentences, shape (N,)."""
    return np.array([len(sentence) for sentence in sentences], dtype=np.float64)


def are_encoded(runs: RunVectors, documents: Sequence[Document], model: Model) -> bool:
    """Whether runs of these documents are encoded rather than averaged."""
    if runs != RunVectors.auto:
        return runs == RunVectors.encoded
    is_static = all(model.backend(document.lang).name == STATIC for document in documents)
    return is_static or sum(len(document.sentences) for document in documents) <= ENCODED_SENTENCES


def _words(documents: Sequence[Document], settings: AlignSettings) -> Sequence[Words | None]:
    src, tgt = documents
    if not settings.lexicon:
        return None, None
    return cut_words((src.sentences, tgt.sentences), (src.lang, tgt.lang))


def _side(document: Document, vectors: Vectors, model: Model, encoded: bool, words: Words | None) -> Side:
    lengths, lang = text_lengths(document.sentences), document.lang
    encode = run_encoder(document.sentences, lang, lambda texts: model.encode(texts, lang=lang)) if encoded else None
    return Side(vectors, lengths, encode, words)


def _check_sizes(src: Document, tgt: Document, settings: AlignSettings) -> None:
    short, long = sorted((src, tgt), key=lambda document: len(document.sentences))
    if len(long.sentences) > MOST_TIMES * len(short.sentences) and not settings.force:
        raise DataError(
            f"sentences of {short.name}: {len(short.sentences):,}, of {long.name}: {len(long.sentences):,}; expected "
            "two versions of one document: check the files and --split, or add --force"
        )


def _origin(
    documents: Sequence[Document], model: Model, settings: AlignSettings, encoded: bool, anchors: Anchors
) -> dict[str, object]:
    src, tgt = documents
    return {
        "tool": "dualmoco align", "version": VERSION, "model": model.identity.name,
        "model_sha256": model.identity.sha256, "backend": model.backend(src.lang).name,
        "src": src.name, "tgt": tgt.name, "src_lang": src.lang, "tgt_lang": tgt.lang,
        "src_sentences": len(src.sentences), "tgt_sentences": len(tgt.sentences),
        "src_sha256": sentences_sha256(src.sentences), "tgt_sha256": sentences_sha256(tgt.sentences),
        "split": settings.split.value, "runs": "encoded" if encoded else "averaged", "longest": settings.longest,
        "lexicon": settings.lexicon,
        "anchors": len(anchors.src), "prices": asdict(Prices()),
    }  # fmt: skip


def sentences_sha256(sentences: Sequence[str]) -> str:
    """The checksum of a document's sentences."""
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()

"""Which languages two documents are in: as they were said to be, or as their text looks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from dualmoco.alignment.align import LONGEST, Side, align_sides, run_encoder
from dualmoco.alignment.anchors import FEWEST_PARTNERS, Anchors, find_anchors, partner_share
from dualmoco.alignment.documents import Aligned, Document, SplitMode, Text, read_text, split_text
from dualmoco.alignment.lexical import Words, cut_words
from dualmoco.alignment.output import (
    ENDINGS,
    AlignedPair,
    LinkCounts,
    aligned_pairs,
    alignment_page,
    count_links,
    write_aligned,
)
from dualmoco.alignment.scoring import AlignmentCosts
from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.progress import showing
from dualmoco.core.storage import write_text
from dualmoco.core.vectors import Floats, Vectors
from dualmoco.core.version import VERSION
from dualmoco.mining.io import check_pairs_path
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, STATIC, Model
from dualmoco.text.languages import base_language, common_language, identify

logger = logging.getLogger(__name__)
SAMPLE_CHARACTERS = 4000


def resolve_languages(
    texts: tuple[Text, Text], given: tuple[str | None, str | None], model: Model, *, force: bool
) -> tuple[str, str]:
    """The languages of two documents, checked against what they look like.

    Args:
        texts: The documents.
        given: What the user said; None for a side whose language is to be guessed.
        model: Must have both.
        force: Whether sides that look swapped are taken as they are.

    Returns:
        A language of the model for each side.

    Raises:
        ConfigError: A language that cannot be guessed, the same language twice, or sides that look swapped.
        ModelError: A language that the model does not have.
    """
    looks = tuple(looks_like(text.lines) for text in texts)
    said = [lang or _known(look, model, text) for lang, look, text in zip(given, looks, texts, strict=True)]
    src, tgt = said
    if src == tgt:
        raise ConfigError(
            f"{texts[0].name} and {texts[1].name}: both {'are said to be' if all(given) else 'look like'} {src}; "
            "expected two languages: name them with --src and --tgt"
        )
    for lang in said:
        model.backend(lang)
    swapped = looks == (base_language(tgt), base_language(src))
    if swapped and not force:
        raise DataError(
            f"{texts[0].name} looks like {tgt} and {texts[1].name} like {src}; expected {src} and {tgt}: name the "
            "files or the languages the other way round, or add --force"
        )
    for text, lang, look in zip(texts, said, looks, strict=True):
        if look and look != base_language(lang):
            logger.warning(
                "%s: looks like language %s, is aligned as %s; if that is wrong, name the language",
                text.name,
                look,
                lang,
            )
    return src, tgt


def looks_like(lines: Sequence[str]) -> str:
    """The language that most lines seem to be in, as a two-letter code; empty if that cannot be told."""
    found = common_language(lines)
    if found:
        return found
    text = " ".join(line.strip() for line in lines if any(map(str.isalpha, line)))[:SAMPLE_CHARACTERS]
    return identify(text) if text else ""


def _known(look: str, model: Model, text: Text) -> str:
    """The language of the model that a text looks like."""
    languages = [look] if model.languages is None and look else model.languages or []
    for lang in languages:
        if look and base_language(lang) == look:
            return lang
    expected = "; name it with --src or --tgt" + (f", one of {', '.join(languages)}" if languages else "")
    raise ConfigError(f"{text.name}: looks like language {look or 'unknown'}{expected}")


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
    found = resolve_languages((src, tgt), langs, model, force=settings.force)
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
        "tool": "dualmoco align",
        "version": VERSION,
        "model": model.identity.name,
        "model_sha256": model.identity.sha256,
        "backend": model.backend(src.lang).name,
        "src": src.name,
        "tgt": tgt.name,
        "src_lang": src.lang,
        "tgt_lang": tgt.lang,
        "src_sentences": len(src.sentences),
        "tgt_sentences": len(tgt.sentences),
        "src_sha256": sentences_sha256(src.sentences),
        "tgt_sha256": sentences_sha256(tgt.sentences),
        "split": settings.split.value,
        "runs": "encoded" if encoded else "averaged",
        "longest": settings.longest,
        "lexicon": settings.lexicon,
        "anchors": len(anchors.src),
        "prices": asdict(AlignmentCosts()),
    }


def sentences_sha256(sentences: Sequence[str]) -> str:
    """The checksum of a document's sentences."""
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()


Texts = str | Path | Sequence[str]
"""The name of a document: plain text, Markdown, HTML, DOCX or EPUB; or its sentences."""
MOST_LONGEST = 10


class AlignOptions(TypedDict, total=False):
    """Settings of an alignment."""

    split: str  # into sentences: auto (default), yes, or no if every line is one
    runs: str  # vectors of several sentences together: auto (default), encoded or averaged
    longest: int  # sentences of one side in a link; 5
    lexicon: bool  # learn from the documents which words translate each other, and go by them too; True
    min_confidence: float  # leave out links of less, and those with one side only; 0 keeps all
    force: bool  # align texts that do not look like translations; False
    backend: str  # of a model given by its name: auto (default), torch, static, int8, onnx or onnx-int8
    progress: bool  # whether to show progress bars; True


@dataclass(frozen=True)
class AlignmentResult:
    """What came of an alignment."""

    aligned: Aligned
    """Both documents as sentences, and all their links."""
    pairs: Sequence[AlignedPair]
    """The links that were kept, as text, in order."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[AlignedPair]:
        return iter(self.pairs)

    @property
    def counts(self) -> LinkCounts:
        """The links that were kept, by type."""
        return count_links(self.pairs)


def align(
    src: Texts,
    tgt: Texts,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    html: str | Path | None = None,
    **options: Unpack[AlignOptions],
) -> AlignmentResult:
    """Places the sentences of two versions of a document side by side, in order.

    Args:
        src: One version.
        tgt: The other.
        model: What encodes both, or its name.
        src_lang: Language of `src`; guessed if None.
        tgt_lang: Language of `tgt`.
        out: File for the links, .tsv, .parquet, .tmx or .xml; None to have them only here.
        html: File for a page that shows both texts side by side.
        options: See `AlignOptions`.

    Returns:
        The links.

    Raises:
        ConfigError: A setting that cannot be, or languages that cannot be told.
        DataError: A document that cannot be read, has no sentences, or is far longer than the other.
        ModelError: A model that cannot be opened, or lacks a language.
        UnrelatedError: Texts that are not translations of each other.

    Example:
        >>> result = align(["How are you?", "I am fine. Thanks."], ["你好吗？", "我很好，", "谢谢。"], split="no")
        >>> [pair.type for pair in result.pairs]
        ['1-1', '1-2']
    """
    settings = align_settings(options)
    check_outputs(out, html)
    opened = model if isinstance(model, Model) else open_model(model, options.get("backend", AUTO))
    with showing(options.get("progress", True)):
        texts = as_text(src, "src"), as_text(tgt, "tgt")
        aligned = align_texts(*texts, (src_lang, tgt_lang), opened, settings)
    kept = keep_confident(aligned, options.get("min_confidence", 0.0))
    write_outputs(kept, out, html)
    return AlignmentResult(aligned, aligned_pairs(kept))


def align_settings(options: AlignOptions) -> AlignSettings:
    """Settings from plain words; ConfigError for one that cannot be."""
    longest, least = options.get("longest", LONGEST), options.get("min_confidence", 0.0)
    if not 0 <= least <= 1:
        raise ConfigError(f"min_confidence {least}; expected a number from 0 to 1")
    if not 1 <= longest <= MOST_LONGEST:
        raise ConfigError(f"longest {longest}; expected from 1 to {MOST_LONGEST} sentences")
    return AlignSettings(
        parse_choice(SplitMode, options.get("split", SplitMode.auto), "split"),
        parse_choice(RunVectors, options.get("runs", RunVectors.auto), "runs"),
        longest,
        options.get("lexicon", True),
        options.get("force", False),
    )


def check_outputs(out: str | Path | None, html: str | Path | None) -> None:
    """ConfigError for a file that cannot be written, before anything is done."""
    if out is not None:
        check_pairs_path(Path(out), ENDINGS)
    if html is not None:
        require("jinja2", "eval", "A page")
        if Path(html).is_dir():
            raise ConfigError(f"{html}: a folder; expected the name of a file to write")


def write_outputs(aligned: Aligned, out: str | Path | None, html: str | Path | None) -> None:
    """Writes the links, and the page, to the files that are named."""
    if out is not None:
        write_aligned(Path(out), aligned)
    if html is not None:
        write_text(Path(html), alignment_page(aligned))


def keep_confident(aligned: Aligned, least: float) -> Aligned:
    """The links with both sides and at least so much confidence; all for 0."""
    if not least:
        return aligned
    kept = aligned.links.is_linked & (aligned.links.confidence >= least)
    origin = {**aligned.origin, "min_confidence": least}
    return Aligned(aligned.src, aligned.tgt, aligned.links.take(np.flatnonzero(kept)), origin)


def as_text(given: Texts, name: str) -> Text:
    """A document as lines: a file, or sentences.

    Args:
        given: The name of a file, or sentences.
        name: Of the side, for messages about sentences.

    Returns:
        The text.

    Raises:
        DataError: A file that cannot be read, or a sentence that is no string.
    """
    if isinstance(given, str | Path):
        return read_text(Path(given))
    for number, sentence in enumerate(given):
        if not isinstance(sentence, str):
            raise DataError(f"{name}: sentence {number} is a {type(sentence).__name__}; expected a string")
    if not any(sentence.strip() for sentence in given):
        raise DataError(f"{name}: no sentences; expected at least one")
    return Text(name, [" ".join(sentence.splitlines()) for sentence in given])

"""`dualmoco.align`: from two documents to links and their files.

The steps are: resolve the languages, split and encode the documents, check by anchors that they are translations, align
the sentences, and write the links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from dualmoco.alignment.aligner import DEFAULT_LONGEST, Side, align_sides
from dualmoco.alignment.anchors import MIN_ANCHOR_SHARE, anchor_share, find_anchors
from dualmoco.alignment.documents import read_text
from dualmoco.alignment.lexical import split_words
from dualmoco.alignment.output import (
    ALIGNMENT_ENDINGS,
    Aligned,
    AlignedPair,
    LinkCounts,
    aligned_pairs,
    alignment_page,
    count_links,
    link_files,
    write_aligned,
)
from dualmoco.alignment.scoring import AlignmentCosts
from dualmoco.alignment.splitting import Document, SplitMode, Text, split_text
from dualmoco.core import VERSION
from dualmoco.core.config_loader import check_options, parse_choice
from dualmoco.core.display import data_frame, html_table
from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.progress import showing
from dualmoco.core.storage import check_replaceable, write_recorded
from dualmoco.mining.io import check_pairs_path
from dualmoco.models.load import GivenText, as_model, open_for
from dualmoco.models.model import AUTO, STATIC, Model, warn_of_language
from dualmoco.text.languages import apparent_language, base_language

DocumentInput = str | Path | Sequence[str]
"""Path of a document (text, Markdown, HTML, DOCX, ODT, RTF, PDF, EPUB or subtitles), or its sentences."""
MAX_LONGEST = 10
MAX_ENCODED_SENTENCES = 20_000  # a slow model encodes spans if both documents have at most this many sentences
MAX_SIZE_RATIO = 20  # maximum ratio of the numbers of sentences of both documents


class UnrelatedError(DataError):
    """The two texts are not translations of each other."""


class SpanVectors(StrEnum):
    """How to compute the vectors of spans of several sentences."""

    auto = "auto"  # encoded if the model is static or the documents are not long, averaged otherwise
    encoded = "encoded"
    averaged = "averaged"


class AlignOptions(TypedDict, total=False):
    """Settings of an alignment."""

    split: str  # split lines into sentences: auto (default), yes, or no if each line is one sentence
    runs: str  # vectors of several sentences together: auto (default), encoded or averaged
    longest: int  # maximum sentences per side of a link; 5
    lexicon: bool  # learn word translations from the documents, and use them; True
    min_confidence: float  # drop links with less confidence, and deletions; 0 keeps all
    force: bool  # align texts that do not look like translations; False
    overwrite: bool  # replace existing outputs, even if they were edited; False
    backend: str  # back-end of a model given by name: auto (default), torch, static, int8, onnx or onnx-int8
    dimension: int | None  # number of leading components to keep, for a model given by name; None: all
    progress: bool  # show progress bars; True


@dataclass(frozen=True)
class AlignSettings:
    """Checked settings of an alignment; see `AlignOptions`."""

    split: SplitMode = SplitMode.auto
    runs: SpanVectors = SpanVectors.auto
    longest: int = DEFAULT_LONGEST
    lexicon: bool = True
    force: bool = False


@dataclass(frozen=True, repr=False)
class Alignment:
    """Two aligned documents; iterating yields the links that were kept, in order."""

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
        """Counts of the links that were kept, by type."""
        return count_links(self.pairs)

    def __repr__(self) -> str:
        src, tgt = self.aligned.src, self.aligned.tgt
        return (
            f"<Alignment of {len(src.sentences):,} sentences {src.lang} and {len(tgt.sentences):,} sentences "
            f"{tgt.lang}: {len(self):,} links>"
        )

    def _repr_html_(self) -> str:
        rows = ((pair.type, f"{pair.confidence:.2f}", pair.src, pair.tgt) for pair in self)
        return html_table(repr(self)[1:-1], ("type", "confidence", "src", "tgt"), rows, len(self))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per link; ConfigError if pandas is not installed."""
        columns = ("type", "score", "confidence", "src", "tgt", "src_places", "tgt_places")
        return data_frame(columns, ([getattr(pair, column) for column in columns] for pair in self))


def align(
    src: DocumentInput,
    tgt: DocumentInput,
    *,
    model: Model | str | Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    html: str | Path | None = None,
    **options: Unpack[AlignOptions],
) -> Alignment:
    """Aligns the sentences of two versions of a document, in order.

    Args:
        src: Source document.
        tgt: Target document.
        model: A model, or its name; chosen by the languages if None.
        src_lang: Language of `src`; recognised if None.
        tgt_lang: Language of `tgt`; recognised if None.
        out: File to write the links to; its extension, one of ALIGNMENT_ENDINGS, determines the format.
        html: File to write a page with both texts side by side to.
        options: See `AlignOptions`.

    Returns:
        The links.

    Raises:
        ConfigError: An option is invalid, or a text has no letters to recognise its language by.
        DataError: A document cannot be read, has no sentences, or is much longer than the other.
        ModelError: The model cannot be opened, or lacks a language.
        UnrelatedError: The texts are not translations of each other.

    Examples:
        >>> result = align(["How are you?", "I am fine. Thanks."], ["你好吗？", "我很好，", "谢谢。"], split="no")
        >>> [pair.type for pair in result.pairs]
        ['1-1', '1-2']
    """
    settings = align_settings(options)
    check_outputs(out, html)
    check_alignment_files(out, html, (src, tgt), overwrite=options.get("overwrite", False))
    langs, run = (src_lang, tgt_lang), (options.get("backend", AUTO), options.get("dimension"))
    opened = None if model is None else as_model(model, *run)
    with showing(options.get("progress", True)):
        texts = as_text(src, "src"), as_text(tgt, "tgt")
        aligned = align_texts(*texts, langs, opened or model_for_texts(texts, langs, *run), settings)
    kept = keep_confident(aligned, options.get("min_confidence", 0.0))
    write_outputs(kept, out, html)
    return Alignment(aligned, aligned_pairs(kept))


def align_settings(options: AlignOptions) -> AlignSettings:
    """Checks options; ConfigError if one is invalid."""
    check_options(options, AlignOptions)
    longest, least = options.get("longest", DEFAULT_LONGEST), options.get("min_confidence", 0.0)
    if not 0 <= least <= 1:
        raise ConfigError(f"min_confidence {least}; expected a number from 0 to 1")
    if not 1 <= longest <= MAX_LONGEST:
        raise ConfigError(f"longest {longest}; expected 1 to {MAX_LONGEST} sentences")
    return AlignSettings(
        parse_choice(SplitMode, options.get("split", SplitMode.auto), "split"),
        parse_choice(SpanVectors, options.get("runs", SpanVectors.auto), "runs"),
        longest,
        options.get("lexicon", True),
        options.get("force", False),
    )


def check_outputs(out: str | Path | None, html: str | Path | None) -> None:
    """Checks before any work that the outputs can be written; ConfigError if not."""
    if out is not None:
        check_pairs_path(Path(out), ALIGNMENT_ENDINGS)
    if html is not None:
        require("jinja2", "eval", "A page")
        if Path(html).is_dir():
            raise ConfigError(f"{html}: a folder; expected the name of a file to write")


def check_alignment_files(
    out: str | Path | None, html: str | Path | None, inputs: Sequence[object], *, overwrite: bool
) -> None:
    """ConfigError if an output is an input, or exists and was edited; see `check_replaceable`."""
    files = [Path(out), *link_files(Path(out))[:-1]] if out is not None else []
    pages = [Path(html)] if html is not None else []
    check_replaceable([*files, *pages], inputs, overwrite=overwrite, has_record=True)


def as_text(given: DocumentInput, name: str) -> Text:
    """Reads a document, or checks its sentences; DataError if that fails. `name` is the side, used in messages."""
    if isinstance(given, str | Path):
        return read_text(Path(given))
    for number, sentence in enumerate(given):
        if not isinstance(sentence, str):
            raise DataError(f"{name}: sentence {number} is of type {type(sentence).__name__}; expected a string")
    if not any(sentence.strip() for sentence in given):
        raise DataError(f"{name}: no sentences; expected at least one")
    return Text(name, [" ".join(sentence.splitlines()) for sentence in given])


def align_texts(
    src: Text, tgt: Text, langs: tuple[str | None, str | None], model: Model, settings: AlignSettings
) -> Aligned:
    """Aligns two documents, and recognises languages that are None. Raises the errors of `align`."""
    src_lang, tgt_lang = resolve_languages((src, tgt), langs, model, force=settings.force)
    documents = split_text(src, src_lang, settings.split), split_text(tgt, tgt_lang, settings.split)
    if not settings.force:
        _check_sizes(*documents)
    vectors = [model.encode_as(document.sentences, document.lang) for document in documents]
    anchors = find_anchors(*vectors)
    share = anchor_share(anchors, *map(len, vectors))
    if share < MIN_ANCHOR_SHARE and not settings.force:
        raise UnrelatedError(
            f"{src.name} and {tgt.name}: only {100 * share:.0f} % of the sentences have a likely translation, which is "
            f"typical of unrelated texts; expected at least {100 * MIN_ANCHOR_SHARE:.0f} %: check the files, or add "
            "--force"
        )
    is_encoded = _encodes_spans(settings.runs, documents, model)
    sentences = documents[0].sentences, documents[1].sentences
    words = split_words(sentences, (src_lang, tgt_lang)) if settings.lexicon else (None, None)
    encoders = [partial(model.encode_as, lang=lang) if is_encoded else None for lang in (src_lang, tgt_lang)]
    src_side, tgt_side = map(Side.from_sentences, sentences, (src_lang, tgt_lang), vectors, encoders, words)
    links = align_sides(src_side, tgt_side, anchors, longest=settings.longest)
    return Aligned(*documents, links, _origin(*documents, model, settings, is_encoded, len(anchors.src)))


def model_for_texts(
    texts: Sequence[Text], langs: Sequence[str | None], backend: str = AUTO, dimension: int | None = None
) -> Model:
    """The default model for the languages of documents, which are recognised where they are None."""
    given = [GivenText(lang, text.lines, text.name) for lang, text in zip(langs, texts, strict=True)]
    return open_for(None, given, backend, dimension)[0]


def resolve_languages(
    texts: tuple[Text, Text], given: tuple[str | None, str | None], model: Model, *, force: bool
) -> tuple[str, str]:
    """Recognises the languages of two documents where None is given; with `force`, documents may look swapped."""
    src, tgt = (model.resolve(lang, text.lines, text.name) for lang, text in zip(given, texts, strict=True))
    langs = zip(texts, (src, tgt), given, strict=True)
    looks = [apparent_language(text.lines, lang) if asked else "" for text, lang, asked in langs]
    if src != tgt and looks == [base_language(tgt), base_language(src)] and not force:
        raise DataError(
            f"{texts[0].name} looks like {tgt} and {texts[1].name} like {src}; expected {src} and {tgt}: swap the "
            "files or the languages, or add --force"
        )
    for text, lang, look in zip(texts, (src, tgt), looks, strict=True):
        if look:
            warn_of_language(text.name, look, lang)
    return src, tgt


def _check_sizes(src: Document, tgt: Document) -> None:
    short, long = sorted((src, tgt), key=lambda document: len(document.sentences))
    if len(long.sentences) > MAX_SIZE_RATIO * len(short.sentences):
        raise DataError(
            f"sentences of {short.name}: {len(short.sentences):,}, of {long.name}: {len(long.sentences):,}; expected "
            "two versions of one document: check the files and --split, or add --force"
        )


def _encodes_spans(runs: SpanVectors, documents: Sequence[Document], model: Model) -> bool:
    if runs is not SpanVectors.auto:
        return runs is SpanVectors.encoded
    is_static = all(model.backend(document.lang).name == STATIC for document in documents)
    return is_static or sum(len(document.sentences) for document in documents) <= MAX_ENCODED_SENTENCES


def _origin(
    src: Document, tgt: Document, model: Model, settings: AlignSettings, is_encoded: bool, anchors: int
) -> dict[str, object]:
    return {
        "tool": "dualmoco align",
        "version": VERSION,
        "model": model.identity.name,
        "model_sha256": model.identity.sha256,
        "backend": model.backend(src.lang).name,
        "dimension": model.dimension,
        "src": src.name,
        "tgt": tgt.name,
        "src_lang": src.lang,
        "tgt_lang": tgt.lang,
        "src_sentences": len(src.sentences),
        "tgt_sentences": len(tgt.sentences),
        "src_sha256": sentences_sha256(src.sentences),
        "tgt_sha256": sentences_sha256(tgt.sentences),
        "split": settings.split.value,
        "runs": "encoded" if is_encoded else "averaged",
        "longest": settings.longest,
        "lexicon": settings.lexicon,
        "anchors": anchors,
        "prices": asdict(AlignmentCosts()),
    }


def sentences_sha256(sentences: Sequence[str]) -> str:
    """The checksum of a document's sentences."""
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()


def keep_confident(aligned: Aligned, least: float) -> Aligned:
    """Drops deletions and links with less confidence; keeps everything if `least` is 0."""
    if not least:
        return aligned
    kept = aligned.links.is_linked & (aligned.links.confidence >= least)
    origin = {**aligned.origin, "min_confidence": least}
    return Aligned(aligned.src, aligned.tgt, aligned.links.take(np.flatnonzero(kept)), origin)


def write_outputs(aligned: Aligned, out: str | Path | None, html: str | Path | None) -> None:
    """Writes the links and the page, if files are given."""
    page = Path(html) if html is not None else None
    if out is not None:
        write_aligned(Path(out), aligned, page)
    elif page is not None:
        write_recorded(page, aligned.origin, {page: alignment_page(aligned).encode()})

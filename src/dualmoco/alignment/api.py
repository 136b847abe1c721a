"""What people call: two versions of a document in, their sentences side by side out.

Takes files or sentences, a model or its name, and settings as plain words; gives pairs, in a file if one is named. The
command of the same name is thin over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from dualmoco.alignment.aligner import LONGEST
from dualmoco.alignment.document import Aligned, Text
from dualmoco.alignment.output import ENDINGS, write_aligned
from dualmoco.alignment.page import alignment_page
from dualmoco.alignment.pair import AlignSettings, RunVectors, align_texts
from dualmoco.alignment.pairs import AlignedPair, LinkCounts, aligned_pairs, count_links
from dualmoco.alignment.reading import read_text
from dualmoco.alignment.splitting import SplitMode
from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.options import parse_choice
from dualmoco.core.progress import showing
from dualmoco.core.storage import write_text
from dualmoco.mining.output import check_pairs_path
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.model import AUTO, Model
from dualmoco.models.opening import open_model

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
    src: Texts, tgt: Texts, *, model: Model | str | Path = DEFAULT_MODEL, src_lang: str | None = None,
    tgt_lang: str | None = None, out: str | Path | None = None, html: str | Path | None = None,
    **options: Unpack[AlignOptions],
) -> AlignmentResult:  # fmt: skip
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
        parse_choice(RunVectors, options.get("runs", RunVectors.auto), "runs"), longest,
        options.get("lexicon", True), options.get("force", False),
    )  # fmt: skip


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

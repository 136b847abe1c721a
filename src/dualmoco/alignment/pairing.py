"""Which documents of two folders are versions of each other: sentences that translate each other vote for theirs.

Takes documents and their sentence vectors, gives pairs of documents, one to one. Shapes: n and m sentences of all
documents together, D dimension.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from dualmoco.alignment.anchors import FEWEST_PARTNERS, find_anchors, partner_share
from dualmoco.alignment.documents import Text, read_text, split_text
from dualmoco.alignment.pipeline import AlignSettings, resolve_languages
from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.mining.margins import Margin, ScoredPairs, one_to_one, select_pairs
from dualmoco.models.model import Model
from dualmoco.search.exact import nearest_both_ways
from dualmoco.text.files import read_cells

NEIGHBORS = 3
LEAST_SHARE = 0.2
"""Of the shorter document's sentences that must have their partner in the other."""


@dataclass(frozen=True)
class Match:
    """Two documents that belong together."""

    src: int
    tgt: int
    share: float
    """Of the shorter document's sentences that have their partner in the other."""


def match_documents(src: Sequence[Vectors], tgt: Sequence[Vectors]) -> list[Match]:
    """Pairs documents, each with at most one other.

    Args:
        src: Unit vectors (n, D) of the sentences of each source document.
        tgt: Of each target document.

    Returns:
        The pairs, by the source documents' order.
    """
    near = nearest_both_ways(np.concatenate(src), np.concatenate(tgt), NEIGHBORS)
    pairs = select_pairs(*near, Margin.distance)
    pairs = pairs.take(pairs.scores > 0)
    owners = _owners(src)[pairs.src], _owners(tgt)[pairs.tgt]
    votes = np.zeros((len(src), len(tgt)))
    np.add.at(votes, owners, 1.0)
    sizes = np.minimum(np.array([len(side) for side in src])[:, None], np.array([len(side) for side in tgt])[None, :])
    shares = np.round(votes / sizes, 6)
    rows, columns = np.nonzero(shares >= LEAST_SHARE)
    order = np.lexsort((columns, rows, -shares[rows, columns]))
    chosen = one_to_one(ScoredPairs(rows[order], columns[order], shares[rows[order], columns[order]]))
    found = [
        Match(*match) for match in zip(chosen.src.tolist(), chosen.tgt.tolist(), chosen.scores.tolist(), strict=True)
    ]
    related = [match for match in found if _are_related(src[match.src], tgt[match.tgt])]
    return sorted(related, key=lambda match: match.src)


def _are_related(src: Vectors, tgt: Vectors) -> bool:
    """Whether two documents are translations; among few, the best partner of an unrelated one has votes too."""
    return partner_share(find_anchors(src, tgt), len(src), len(tgt)) >= FEWEST_PARTNERS


def _owners(documents: Sequence[Vectors]) -> Ids:
    """The document of each sentence."""
    return np.repeat(np.arange(len(documents)), [len(document) for document in documents])


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentPair:
    """Two documents to be aligned, and where the links go."""

    src: Path
    tgt: Path
    out: Path

    @property
    def page(self) -> Path:
        """Where the page goes."""
        return self.out.with_suffix(".html")

    @property
    def names(self) -> tuple[str, str, str]:
        """All three as text."""
        return str(self.src), str(self.tgt), str(self.out)


def pairs_of_list(path: Path, out: Path, ending: str) -> list[DocumentPair]:
    """Reads a list of pairs of documents.

    Args:
        path: Lines of source, tab, target; relative names start from the folder of the list.
        out: Folder of the outputs.
        ending: Of the outputs, such as .tsv.

    Returns:
        The pairs; outputs are named after the sources.

    Raises:
        DataError: A line of another form, a file that is not there, or no line at all.
    """
    found = []
    for number, cells in read_cells(path):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}:{number}: {len(cells)} columns; expected source<TAB>target")
        src, tgt = (path.parent / cell.strip() for cell in cells)
        for file in (src, tgt):
            if not file.is_file():
                raise DataError(f"{path}:{number}: {file}: no such file; relative names start from {path.parent}")
        found.append((src, tgt))
    if not found:
        raise DataError(f"{path}: no pair of documents; expected lines of source<TAB>target")
    return _named(found, out, ending)


def pairs_by_name(src: Path, tgt: Path, langs: Sequence[tuple[str, str]], out: Path, ending: str) -> list[DocumentPair]:
    """Pairs the documents of two folders whose names are equal but for the language and the ending.

    Args:
        src: Folder of source documents.
        tgt: Folder of target documents; may be the same one.
        langs: Codes that names may end with, such as `chapter1.en.txt` and `chapter1_zh.txt`; of several pairs the one
            by which most documents are paired.
        out: Folder of the outputs.
        ending: Of the outputs.

    Returns:
        The pairs in alphabetical order.

    Raises:
        DataError: No document, or none that has a partner.
    """
    found = max((_same_names(src, tgt, codes) for codes in langs), key=len)
    if not found:
        raise DataError(
            f"{src} and {tgt}: no two documents have the same name but for the language; expected such as 1.en.txt and "
            "1.zh.txt, or --match, or --list"
        )
    return _named(found, out, ending)


def pairs_by_content(
    src: Path,
    tgt: Path,
    langs: tuple[str | None, str | None],
    model: Model,
    settings: AlignSettings,
    out: Path,
    ending: str,
) -> list[DocumentPair]:
    """Pairs the documents of two folders that say the same; see `match_documents`.

    Args:
        src: Folder of source documents.
        tgt: Folder of target documents.
        langs: Their languages; None to guess from each side's first document.
        model: What encodes them.
        settings: How they are split.
        out: Folder of the outputs.
        ending: Of the outputs.

    Returns:
        The pairs, by the names of the sources.

    Raises:
        DataError: An empty folder, or documents of which no two belong together.
    """
    texts = _readable(src), _readable(tgt)
    files = [list(side) for side in texts]
    found = resolve_languages((texts[0][files[0][0]], texts[1][files[1][0]]), langs, model, force=settings.force)
    vectors: tuple[list[Vectors], list[Vectors]] = ([], [])
    with counting("matching", sum(map(len, files)), " documents") as progress:
        for side, lang, made in zip(texts, found, vectors, strict=True):
            for text in side.values():
                sentences = split_text(text, lang, settings.split).sentences
                made.append(model.encode(list(sentences), lang=lang, progress=False))
                progress(1)
    matches = match_documents(*vectors)
    if not matches:
        raise DataError(f"{src} and {tgt}: no two documents are versions of each other; expected translations")
    return _named([(files[0][match.src], files[1][match.tgt]) for match in matches], out, ending)


def _readable(folder: Path) -> dict[Path, Text]:
    """The texts of a folder's documents; those that cannot be read are warned of and left out."""
    found = dict[Path, Text]()
    for path in documents_of(folder):
        try:
            found[path] = read_text(path)
        except DataError as error:
            logger.warning("left out: %s", error)
    if not found:
        raise DataError(f"{folder}: no document in it can be read; expected text, Markdown, HTML, DOCX or EPUB files")
    return found


def documents_of(folder: Path) -> list[Path]:
    """The files of a folder and those below it, hidden ones aside; DataError if there are none."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise DataError(f"{folder}: no document in it; expected text, Markdown, HTML, DOCX or EPUB files")
    return found


def _same_names(src: Path, tgt: Path, langs: tuple[str, str]) -> list[tuple[Path, Path]]:
    sides = _by_name(src, langs[0], langs[1]), _by_name(tgt, langs[1], langs[0])
    found = [(sides[0][name], sides[1][name]) for name in sorted(sides[0].keys() & sides[1].keys())]
    return [(first, second) for first, second in found if not first.samefile(second)]


def _by_name(folder: Path, lang: str, other: str) -> dict[str, Path]:
    """Documents by what their names have besides language and ending; those of the other language left out."""
    found = dict[str, Path]()
    for path in documents_of(folder):
        name, marked = _bare(path.relative_to(folder), (lang, other))
        if marked != other:
            found.setdefault(name, path)
    return found


def _bare(path: Path, langs: Sequence[str]) -> tuple[str, str]:
    """A name without its ending and its language, and that language if it has one."""
    codes = "|".join(map(re.escape, langs))
    name = path.as_posix()
    match = re.fullmatch(rf"(.*?)[._-]({codes})(\.[^./]*)*", name, re.IGNORECASE)
    if match:
        return match[1], match[2].lower()
    return name.removesuffix("".join(path.suffixes)) if path.suffixes else name, ""


def _named(pairs: Sequence[tuple[Path, Path]], out: Path, ending: str) -> list[DocumentPair]:
    """Pairs with outputs named after the sources, numbered where names repeat."""
    taken, named = set[str](), []
    for src, tgt in pairs:
        stem = src.name.split(".")[0]
        name = next(name for number in count(1) if (name := stem if number == 1 else f"{stem}-{number}") not in taken)
        taken.add(name)
        named.append(DocumentPair(src, tgt, out / f"{name}{ending}"))
    return named

"""Pairs the documents of two folders: by a list, by file name, or by content.

Each pair gets the path of its output. By content, sentences that translate each other vote for their documents.
Shapes: n sentences of a document, D dimension.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from dualmoco.alignment.anchors import MIN_ANCHOR_SHARE, anchor_share, find_anchors
from dualmoco.alignment.documents import Text, read_text, split_text
from dualmoco.alignment.pipeline import AlignSettings, resolve_languages
from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.mining.margins import Margin, ScoredPairs, one_to_one, select_pairs
from dualmoco.models.model import Model
from dualmoco.search.exact import nearest_both_ways
from dualmoco.text.files import read_cells

VOTING_NEIGHBORS = 3
MIN_VOTE_SHARE = 0.2  # share of the shorter document's sentences that must have their partner in the other document

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentPair:
    """Two documents to align, and the output file."""

    src: Path
    tgt: Path
    out: Path

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.out.with_suffix(".html")

    @property
    def names(self) -> tuple[str, str, str]:
        """All three paths as strings."""
        return str(self.src), str(self.tgt), str(self.out)


def _name_outputs(pairs: Sequence[tuple[Path, Path]], out: Path, ending: str) -> list[DocumentPair]:
    """Pairs with outputs named after the sources, numbered where names repeat."""
    taken, named = set[str](), []
    for src, tgt in pairs:
        stem = src.name.split(".")[0]
        name = next(name for number in count(1) if (name := stem if number == 1 else f"{stem}-{number}") not in taken)
        taken.add(name)
        named.append(DocumentPair(src, tgt, out / f"{name}{ending}"))
    return named


def pairs_of_list(path: Path, out: Path, ending: str) -> list[DocumentPair]:
    """Reads pairs of documents from lines of source, tab, target; relative paths start from the folder of the list."""
    found = []
    for number, cells in read_cells(path):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}:{number}: {len(cells)} columns; expected source<TAB>target")
        src, tgt = (path.parent / cell.strip() for cell in cells)
        for file in (src, tgt):
            if not file.is_file():
                raise DataError(f"{path}:{number}: {file}: no such file; relative paths start from {path.parent}")
        found.append((src, tgt))
    if not found:
        raise DataError(f"{path}: no pairs of documents; expected lines of source<TAB>target")
    return _name_outputs(found, out, ending)


def pairs_by_name(src: Path, tgt: Path, langs: Sequence[tuple[str, str]], out: Path, ending: str) -> list[DocumentPair]:
    """Pairs documents of two folders, or of one, whose names differ only in language and extension.

    Of the codes `langs`, as in `chapter1.en.txt` and `chapter1_zh.txt`, those that pair most documents are used.
    """
    found = max((_same_names(src, tgt, codes) for codes in langs), key=len)
    if not found:
        raise DataError(
            f"{src} and {tgt}: no two documents have the same name apart from the language; expected names such as "
            "1.en.txt and 1.zh.txt; use --match or --list for other names"
        )
    return _name_outputs(found, out, ending)


def _same_names(src: Path, tgt: Path, langs: tuple[str, str]) -> list[tuple[Path, Path]]:
    sides = _by_name(src, langs[0], langs[1]), _by_name(tgt, langs[1], langs[0])
    found = [(sides[0][name], sides[1][name]) for name in sorted(sides[0].keys() & sides[1].keys())]
    return [(first, second) for first, second in found if not first.samefile(second)]


def _by_name(folder: Path, lang: str, other: str) -> dict[str, Path]:
    """Documents by name without language and extension, except those in the other language."""
    ending = re.compile(rf"(.*?)[._-]({re.escape(lang)}|{re.escape(other)})(\.[^./]*)*", re.IGNORECASE)
    found = dict[str, Path]()
    for path in documents_of(folder):
        name = path.relative_to(folder).as_posix()
        if match := ending.fullmatch(name):
            if match[2].lower() != other:
                found.setdefault(match[1], path)
        else:
            found.setdefault(name.removesuffix("".join(path.suffixes)), path)
    return found


def documents_of(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders that are not hidden; DataError if there are none."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise DataError(f"{folder}: contains no documents; expected text, Markdown, HTML, DOCX or EPUB files")
    return found


def pairs_by_content(
    src: Path,
    tgt: Path,
    langs: tuple[str | None, str | None],
    model: Model,
    settings: AlignSettings,
    out: Path,
    ending: str,
) -> list[DocumentPair]:
    """Pairs documents that are translations of each other; a language that is None is guessed from the first one."""
    texts = _readable_texts(src), _readable_texts(tgt)
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
        raise DataError(f"{src} and {tgt}: no two documents match; expected documents and their translations")
    return _name_outputs([(files[0][one], files[1][other]) for one, other in matches], out, ending)


def _readable_texts(folder: Path) -> dict[Path, Text]:
    """The texts of a folder's documents; logs a warning for those that cannot be read."""
    found = dict[Path, Text]()
    for path in documents_of(folder):
        try:
            found[path] = read_text(path)
        except DataError as error:
            logger.warning("skipped: %s", error)
    if not found:
        raise DataError(f"{folder}: no readable documents; expected text, Markdown, HTML, DOCX or EPUB files")
    return found


def match_documents(src: Sequence[Vectors], tgt: Sequence[Vectors]) -> list[tuple[int, int]]:
    """Numbers of the documents that are translations of each other, one to one, given their unit vectors (n, D)."""
    near = nearest_both_ways(np.concatenate(src), np.concatenate(tgt), VOTING_NEIGHBORS)
    pairs = select_pairs(*near, Margin.distance)
    pairs = pairs.take(pairs.scores > 0)
    votes = np.zeros((len(src), len(tgt)))
    np.add.at(votes, (_owners(src)[pairs.src], _owners(tgt)[pairs.tgt]), 1.0)
    sizes = np.minimum.outer([len(side) for side in src], [len(side) for side in tgt])
    shares = np.round(votes / sizes, 6)
    rows, columns = np.nonzero(shares >= MIN_VOTE_SHARE)
    order = np.lexsort((columns, rows, -shares[rows, columns]))
    chosen = one_to_one(ScoredPairs(rows[order], columns[order], shares[rows[order], columns[order]]))
    matches = []
    for one, other in zip(chosen.src.tolist(), chosen.tgt.tolist(), strict=True):
        anchors = find_anchors(src[one], tgt[other])  # with few documents, even unrelated ones get votes
        if anchor_share(anchors, len(src[one]), len(tgt[other])) >= MIN_ANCHOR_SHARE:
            matches.append((one, other))
    return sorted(matches)


def _owners(documents: Sequence[Vectors]) -> Ids:
    """Number of the document that each sentence belongs to."""
    return np.repeat(np.arange(len(documents)), [len(document) for document in documents])

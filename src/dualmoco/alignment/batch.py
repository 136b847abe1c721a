"""Finds which documents of two folders belong together, and aligns many pairs of documents.

A pair whose output was made from the same texts with the same model and settings is not aligned again, so an
interrupted batch resumes. A pair that cannot be aligned is reported, and the others are still aligned.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from dualmoco.alignment.anchors import MIN_ANCHOR_SHARE, anchor_share, find_anchors
from dualmoco.alignment.documents import Text, read_text, split_text
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, aligned_pairs, count_links
from dualmoco.alignment.pipeline import (
    AlignOptions,
    AlignSettings,
    align_settings,
    align_texts,
    check_outputs,
    keep_confident,
    resolve_languages,
    write_outputs,
)
from dualmoco.core import VERSION
from dualmoco.core.config_loader import check_options
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.storage import file_sha256, locked, write_json
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.embeddings.encode import model_opener
from dualmoco.embeddings.engine import Engine, open_engine
from dualmoco.mining.margins import Margin, ScoredPairs, one_to_one, select_pairs
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, TORCH, Model
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


SUMMARY = "documents.json"


@dataclass(frozen=True)
class BatchSettings:
    """Settings of all alignments of a batch."""

    langs: tuple[str | None, str | None]
    align: AlignSettings
    min_confidence: float = 0.0
    page: bool = False  # whether to write an HTML page for each pair, next to its output


@dataclass(frozen=True)
class Outcome:
    """The result for one pair of documents."""

    src: str
    tgt: str
    out: str
    links: int = 0
    linked: int = 0
    mean_score: float | None = None
    error: str = ""  # why there is no output


class BatchOptions(AlignOptions, total=False):
    """Options of `align_folders` and `align_list`: those of `align`, and these."""

    model: Model | str | Path  # a model, or its name; en-zh
    src_lang: str | None  # language of the source documents; guessed if None
    tgt_lang: str | None  # language of the target documents; guessed if None
    to: str  # format of the outputs: tsv (default), tmx, parquet or xml
    pages: bool  # write an HTML page next to each output; False
    engine: str | Engine  # local (default), ray, or an engine that is already open
    address: str | None  # address of a running Ray cluster; None starts a local one


def align_folders(
    src: str | Path, tgt: str | Path, out: str | Path, *, match: bool = False, **options: Unpack[BatchOptions]
) -> list[Outcome]:
    """Aligns the documents of two folders, with one output file per pair of documents; resumes if interrupted.

    Args:
        src: Folder of source documents.
        tgt: Folder of their translations.
        out: Folder for the outputs and their summary, `documents.json`.
        match: Pair documents by their content instead of their names.
        **options: See `BatchOptions`.

    Returns:
        One outcome per pair; a pair that cannot be aligned has its `error`.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: A folder has no documents, or none of them have a partner.
        ModelError: The model cannot be opened, or lacks a language.
    """

    def find_pairs(batch: BatchSettings, model: Model, ending: str) -> list[DocumentPair]:
        if match:
            return pairs_by_content(Path(src), Path(tgt), batch.langs, model, batch.align, Path(out), ending)
        known = model.languages or ["en", "zh"]
        sides = [[lang] if lang else known for lang in batch.langs]
        names = [(one, other) for one in sides[0] for other in sides[1] if one != other]
        return pairs_by_name(Path(src), Path(tgt), names or [(sides[0][0], sides[1][0])], Path(out), ending)

    return _align_pairs(find_pairs, Path(out), options)


def align_list(pairs: str | Path, out: str | Path, **options: Unpack[BatchOptions]) -> list[Outcome]:
    """Aligns the documents that a tab-separated list names: source, target and, optionally, output name.

    Args:
        pairs: File with one pair of documents per line.
        out: Folder for the outputs and their summary, `documents.json`.
        **options: See `BatchOptions`.

    Returns:
        One outcome per pair; a pair that cannot be aligned has its `error`.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: The list cannot be read.
        ModelError: The model cannot be opened, or lacks a language.
    """
    return _align_pairs(lambda batch, model, ending: pairs_of_list(Path(pairs), Path(out), ending), Path(out), options)


def _align_pairs(
    find_pairs: Callable[[BatchSettings, Model, str], list[DocumentPair]], out: Path, options: BatchOptions
) -> list[Outcome]:
    check_options(options, BatchOptions)
    ending = f".{options.get('to', 'tsv')}"
    if out.is_file() or out.suffix in ALIGNMENT_ENDINGS:
        raise ConfigError(f"{out}: a file; expected a folder for several documents")
    check_outputs(out / f"name{ending}", None)
    own = cast(AlignOptions, {name: value for name, value in options.items() if name in AlignOptions.__annotations__})
    langs = options.get("src_lang"), options.get("tgt_lang")
    settings = align_settings(own)
    batch = BatchSettings(langs, settings, options.get("min_confidence", 0.0), options.get("pages", False))
    given = options.get("model", DEFAULT_MODEL)
    model = given if isinstance(given, Model) else open_model(given, options.get("backend", AUTO))
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with showing(options.get("progress", True)):
        return align_batch(find_pairs(batch, model, ending), out, model, batch, engine)


def align_batch(
    pairs: Sequence[DocumentPair], out: Path, model: Model, settings: BatchSettings, engine: Engine
) -> list[Outcome]:
    """Aligns pairs of documents and writes `documents.json` to the folder `out`, which is locked meanwhile."""
    work = Aligning(model, settings)
    with locked(out), counting("aligning", len(pairs), " documents") as progress:
        done = {number: outcome for number, pair in enumerate(pairs) if (outcome := work.finished(pair))}
        progress(len(done))
        left = [(number, pair) for number, pair in enumerate(pairs) if number not in done]
        done.update(engine.run(work, left, progress))
        outcomes = [done[number] for number in range(len(pairs))]
        write_json(out / SUMMARY, [asdict(outcome) for outcome in outcomes])
    return outcomes


@dataclass(frozen=True)
class Aligning:
    """The work of an engine: aligns two documents and writes their links."""

    model: Model
    settings: BatchSettings

    @property
    def wants_gpu(self) -> bool:
        """Whether a model runs in PyTorch, the only back-end that uses GPUs."""
        languages = self.model.languages or [lang for lang in self.settings.langs if lang]
        return any(self.model.backend(lang).name == TORCH for lang in languages)

    def open(self) -> Callable[[DocumentPair, Progress], Outcome]:
        """The function that aligns one pair."""
        return self._align

    def size(self, piece: DocumentPair) -> int:
        """Each pair counts as one."""
        return 1

    def opener(self) -> Callable[[], Callable[[DocumentPair, Progress], Outcome]]:
        """Opens the model by name in another process."""
        return partial(_open_aligning, model_opener(self.model), self.settings)

    def key(self, pair: DocumentPair) -> str:
        """Hash of everything that the output of a pair depends on."""
        checksums = file_sha256(pair.src), file_sha256(pair.tgt)
        inputs = [VERSION, self.model.identity.sha256, asdict(self.settings), *checksums]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()

    def finished(self, pair: DocumentPair) -> Outcome | None:
        """The outcome of a pair whose outputs exist and are up to date; None otherwise."""
        note = pair.out.with_name(f"{pair.out.name}.json")
        try:
            made = json.loads(note.read_text(encoding="utf-8"))
            is_complete = pair.out.is_file() and (not self.settings.page or pair.page.is_file())
            if not is_complete or made["key"] != self.key(pair):
                return None
            return Outcome(*pair.names, made["links"], made["linked"], made["mean_score"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _align(self, pair: DocumentPair, progress: Progress) -> Outcome:
        try:
            with showing(False):
                texts = read_text(pair.src), read_text(pair.tgt)
                made = align_texts(*texts, self.settings.langs, self.model, self.settings.align)
        except (ConfigError, DataError, ModelError) as error:
            progress(1)
            return Outcome(*pair.names, error=str(error))
        kept = keep_confident(made, self.settings.min_confidence)
        kept = replace(kept, origin={**kept.origin, "key": self.key(pair)})
        write_outputs(kept, pair.out, pair.page if self.settings.page else None)
        counts = count_links(aligned_pairs(kept))
        progress(1)
        return Outcome(*pair.names, counts.links, counts.linked, counts.mean_score)


def _open_aligning(
    open_model: Callable[[], Model], settings: BatchSettings
) -> Callable[[DocumentPair, Progress], Outcome]:
    return Aligning(open_model(), settings).open()

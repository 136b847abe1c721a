"""Pairs the documents of two folders, and aligns many pairs of documents.

A pair is not aligned again if its output was made from the same texts with the same model and settings, so an
interrupted batch resumes. A pair that cannot be aligned is reported, and the others are still aligned.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from dualmoco.alignment.anchors import MIN_ANCHOR_SHARE, anchor_share, find_anchors
from dualmoco.alignment.documents import DOCUMENT_SUFFIXES, EXPECTED_FORMATS, read_text
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, aligned_pairs, count_links, link_files
from dualmoco.alignment.pipeline import (
    AlignOptions,
    AlignSettings,
    align_settings,
    align_texts,
    check_alignment_files,
    check_outputs,
    keep_confident,
    model_for_texts,
    resolve_languages,
    write_outputs,
)
from dualmoco.alignment.splitting import Text, split_text
from dualmoco.core import VERSION
from dualmoco.core.config_loader import check_options
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.storage import check_distinct, file_sha256, locked, read_record, write_json
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.embeddings.encode import model_opener
from dualmoco.embeddings.engine import Engine, open_engine
from dualmoco.mining.margins import Margin, ScoredPairs, one_to_one, select_pairs
from dualmoco.models.embedded import all_languages
from dualmoco.models.load import as_model
from dualmoco.models.model import AUTO, TORCH, Model
from dualmoco.search.exact import nearest_both_ways
from dualmoco.text.files import DECOMPRESSORS, read_cells
from dualmoco.text.languages import SCRIPTS, base_language

VOTING_NEIGHBORS = 3
LANGUAGE_MARK = re.compile("[._-]")  # separates a name from the language at its end
LANGUAGE_TAG = re.compile(r"[a-z]{2,3}(?:[_-](?:[a-z]{4}|[a-z]{2}|\d{3}))*", re.IGNORECASE)  # en, zh_CN, zh-Hans-HK
MIN_VOTE_SHARE = 0.2  # minimum share of the shorter document's sentences with a partner in the other document

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


@dataclass(frozen=True)
class Pairing:
    """Pairs of documents, and the documents that have no partner."""

    pairs: Sequence[DocumentPair]
    unpaired: Sequence[tuple[Path | None, Path | None]] = ()  # the missing side is None


def document_stem(name: str) -> str:
    """A file name without the endings of a compression and of a document type; other dots belong to the name."""
    for endings in (DECOMPRESSORS, DOCUMENT_SUFFIXES):
        ending = Path(name).suffix
        if ending.lower() in endings and Path(name).name != ending:
            name = name.removesuffix(ending)
    return name


def split_language(stem: str, known: Container[str]) -> tuple[str, str]:
    """A name and the language that it ends with: `guide` and `zh` for `guide_zh_CN`; an empty code if there is none."""
    for mark in reversed([*LANGUAGE_MARK.finditer(stem)]):
        tail = stem[mark.end() :]
        if LANGUAGE_TAG.fullmatch(tail) and base_language(tail) in known:
            return stem[: mark.start()], base_language(tail)
    return stem, ""


def _common_name(src: Path, tgt: Path) -> str:
    """The name that two documents share apart from the language, or that of the source if they share none."""
    stems = document_stem(src.name), document_stem(tgt.name)
    names = [split_language(stem, SCRIPTS)[0] for stem in stems]
    return names[0] if stems[0] != stems[1] and names[0] == names[1] else stems[0]


def _name_outputs(pairs: Sequence[tuple[Path, Path]], out: Path, ending: str) -> list[DocumentPair]:
    """Pairs with outputs named after the documents, numbered where names repeat."""
    taken, named = set[str](), []
    for src, tgt in pairs:
        stem = _common_name(src, tgt)
        names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        # the texts of an XML alignment are written to NAME.src.xml and NAME.tgt.xml
        files = next(files for name in names if taken.isdisjoint(files := (name, f"{name}.src", f"{name}.tgt")))
        taken.update(files)
        named.append(DocumentPair(src, tgt, out / f"{files[0]}{ending}"))
    return named


def pairs_of_list(path: Path, out: Path, ending: str) -> Pairing:
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
    return Pairing(_name_outputs(found, out, ending))


def pairs_by_name(src: Path, tgt: Path, langs: Sequence[tuple[str, str]], out: Path, ending: str) -> Pairing:
    """Pairs documents of two folders, or of one, by their names.

    Equal names are paired first, then equal names without the document type, then names that differ only in the
    language at their end, as in `guide.en.txt` and `guide_zh_CN.txt`. Of the codes `langs`, those that pair most
    documents are used.
    """
    known = {base_language(code) for codes in langs for code in codes}
    sides = _named_documents(src, known), _named_documents(tgt, known)
    keys = () if src.samefile(tgt) else (_full_name, _stem_name)
    found = [_match_names(*sides, keys, codes) for codes in langs]
    pairs, ambiguous = max(found, key=lambda matches: len(matches[0]) + len(matches[1]))
    if ambiguous:
        names = " and ".join(", ".join(map(str, side)) for side in ambiguous[0])
        raise DataError(
            f"{names}: several documents with the same name; expected one per folder: remove some, or use --list"
        )
    if not pairs:
        raise DataError(
            f"{src} and {tgt}: no two documents have the same name apart from the language; expected names such as "
            "1.en.txt and 1.zh.txt; use --match or --list for other names"
        )
    return Pairing(_name_outputs(pairs, out, ending), _unpaired(src, tgt, pairs))


def _unpaired(src: Path, tgt: Path, pairs: Sequence[tuple[Path, Path]]) -> list[tuple[Path | None, Path | None]]:
    """The documents of two folders that are in no pair; those of a single folder are listed once."""
    taken = {path for pair in pairs for path in pair}
    left = [(path, None) for path in documents_of(src) if path not in taken]
    if src.samefile(tgt):
        return [*left]
    return [*left, *((None, path) for path in documents_of(tgt) if path not in taken)]


@dataclass(frozen=True)
class _Named:
    """A document and the parts of its name."""

    path: Path
    name: str  # relative to its folder
    stem: str  # without the document type
    base: str  # without the language
    lang: str  # empty if the name has none


def _named_documents(folder: Path, known: Container[str]) -> list[_Named]:
    names = [(path, path.relative_to(folder).as_posix()) for path in documents_of(folder)]
    stems = [(path, name, document_stem(name)) for path, name in names]
    return [_Named(path, name, stem, *split_language(stem, known)) for path, name, stem in stems]


NameKey = Callable[[_Named], str]  # key to compare names by; documents with an empty key are not paired
NameMatches = tuple[list[tuple[Path, Path]], list[tuple[list[Path], list[Path]]]]


def _full_name(document: _Named) -> str:
    return document.name


def _stem_name(document: _Named) -> str:
    return document.stem


def _name_in(lang: str) -> NameKey:
    """The key of documents whose names end with a language; without one, `lang` is empty."""
    return lambda document: document.base if document.lang == lang else ""


def _match_names(
    src: Sequence[_Named], tgt: Sequence[_Named], keys: Sequence[NameKey], langs: tuple[str, str]
) -> NameMatches:
    """Pairs of documents, and groups of documents with the same name that can be paired in several ways."""
    one, other, none = _name_in(base_language(langs[0])), _name_in(base_language(langs[1])), _name_in("")
    pairs: list[tuple[Path, Path]] = []
    ambiguous: list[tuple[list[Path], list[Path]]] = []
    done: set[Path] = set()
    for src_key, tgt_key in [*((key, key) for key in keys), (one, other), (one, none), (none, other)]:
        groups = [_by_key(side, key, done) for side, key in ((src, src_key), (tgt, tgt_key))]
        for name in sorted(groups[0].keys() & groups[1].keys()):
            sources, targets = groups[0][name], groups[1][name]
            done.update(sources, targets)
            if len(sources) + len(targets) > 2:
                ambiguous.append((sources, targets))
            elif not sources[0].samefile(targets[0]):
                pairs.append((sources[0], targets[0]))
    return sorted(pairs), ambiguous


def _by_key(documents: Sequence[_Named], key: NameKey, done: Container[Path]) -> dict[str, list[Path]]:
    found = defaultdict[str, list[Path]](list)
    for document in documents:
        if (name := key(document)) and document.path not in done:
            found[name].append(document.path)
    return found


def documents_of(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders that are not hidden; DataError if there are none."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise DataError(f"{folder}: contains no documents; expected {EXPECTED_FORMATS}")
    return found


def pairs_by_content(
    src: Path,
    tgt: Path,
    langs: tuple[str | None, str | None],
    model: Model,
    settings: AlignSettings,
    out: Path,
    ending: str,
) -> Pairing:
    """Pairs documents that are translations of each other; a language that is None is guessed from the first one."""
    texts = _readable_texts(src), _readable_texts(tgt)
    files = [list(side) for side in texts]
    found = resolve_languages((texts[0][files[0][0]], texts[1][files[1][0]]), langs, model, force=settings.force)
    vectors: tuple[list[Vectors], list[Vectors]] = ([], [])
    with counting("matching", sum(map(len, files)), " documents") as progress:
        for side, lang, made in zip(texts, found, vectors, strict=True):
            for text in side.values():
                sentences = split_text(text, lang, settings.split).sentences
                made.append(model.encode_as(list(sentences), lang, progress=False))
                progress(1)
    matches = match_documents(*vectors)
    if not matches:
        raise DataError(f"{src} and {tgt}: no two documents match; expected documents and their translations")
    pairs = [(files[0][one], files[1][other]) for one, other in matches]
    return Pairing(_name_outputs(pairs, out, ending), _unpaired(src, tgt, pairs))


def _readable_texts(folder: Path) -> dict[Path, Text]:
    """The texts of a folder's documents; logs a warning for those that cannot be read."""
    found = dict[Path, Text]()
    for path in documents_of(folder):
        try:
            found[path] = read_text(path)
        except DataError as error:
            logger.warning("skipped: %s", error)
    if not found:
        raise DataError(f"{folder}: no readable documents; expected {EXPECTED_FORMATS}")
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
        anchors = find_anchors(src[one], tgt[other])  # with few documents, even unrelated documents get votes
        if anchor_share(anchors, len(src[one]), len(tgt[other])) >= MIN_ANCHOR_SHARE:
            matches.append((one, other))
    return sorted(matches)


def _owners(documents: Sequence[Vectors]) -> Ids:
    """Number of the document that each sentence belongs to."""
    return np.repeat(np.arange(len(documents)), [len(document) for document in documents])


SUMMARY = "documents.json"
NO_PARTNER = "no partner"
LISTED_NAMES = 20  # maximum names in one warning


@dataclass(frozen=True)
class BatchSettings:
    """Settings of all alignments of a batch."""

    langs: tuple[str | None, str | None]
    align: AlignSettings
    min_confidence: float = 0.0
    page: bool = False  # whether to write an HTML page for each pair, next to its output


@dataclass(frozen=True)
class Outcome:
    """The result for one pair of documents, or for a document without a partner, where the other side is empty."""

    src: str
    tgt: str
    out: str
    links: int = 0
    linked: int = 0
    mean_score: float | None = None
    error: str = ""  # reason why there is no output

    @property
    def is_paired(self) -> bool:
        """Whether there are two documents."""
        return bool(self.src and self.tgt)


class BatchOptions(AlignOptions, total=False):
    """Options of `align_folders` and `align_list`, in addition to those of `align`."""

    model: Model | str | Path | None  # a model, or its name; chosen by the languages of the first pair if None
    src_lang: str | None  # language of the source documents; recognised if None
    tgt_lang: str | None  # language of the target documents; recognised if None
    to: str  # format of the outputs: tsv (default), tmx, parquet or xml
    pages: bool  # write an HTML page next to each output; False
    engine: str | Engine  # local (default), ray, or an open engine
    address: str | None  # address of a running Ray cluster; None starts a local one


def align_folders(
    src: str | Path, tgt: str | Path, out: str | Path, *, match: bool = False, **options: Unpack[BatchOptions]
) -> list[Outcome]:
    """Aligns the documents of two folders, with one output file per pair of documents; resumes if interrupted.

    Args:
        src: Folder of source documents.
        tgt: Folder of their translations.
        out: Folder for the outputs and their summary, `documents.json`.
        match: Whether to pair documents by content instead of by name.
        **options: See `BatchOptions`.

    Returns:
        One outcome per pair and per document without a partner. If a pair was not aligned, its `error` says why.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: A folder has no documents, or a document has several partners, or no document has a partner.
        ModelError: The model cannot be opened, or lacks a language.
    """
    run = _run_options(options)

    def find_pairs(batch: BatchSettings, given: Model | None, ending: str) -> Pairing:
        if match:
            model = given or _default_for(
                zip(documents_of(Path(src)), documents_of(Path(tgt)), strict=False), batch, run
            )
            return pairs_by_content(Path(src), Path(tgt), batch.langs, model, batch.align, Path(out), ending)
        known = (given.languages if given else None) or all_languages()
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
        One outcome per pair. If a pair was not aligned, its `error` says why.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: The list cannot be read.
        ModelError: The model cannot be opened, or lacks a language.
    """
    return _align_pairs(lambda batch, model, ending: pairs_of_list(Path(pairs), Path(out), ending), Path(out), options)


def _align_pairs(
    find_pairs: Callable[[BatchSettings, Model | None, str], Pairing], out: Path, options: BatchOptions
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
    name, run = options.get("model"), _run_options(options)
    model = None if name is None else as_model(name, *run)
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with showing(options.get("progress", True)):
        found, overwrite = find_pairs(batch, model, ending), options.get("overwrite", False)
        opened = model or _default_for(((pair.src, pair.tgt) for pair in found.pairs), batch, run)
        return align_batch(found, out, opened, batch, engine, overwrite=overwrite)


def _run_options(options: BatchOptions) -> tuple[str, int | None]:
    """The back-end and dimension of a model given by name."""
    return options.get("backend", AUTO), options.get("dimension")


def _default_for(pairs: Iterable[tuple[Path, Path]], batch: BatchSettings, run: tuple[str, int | None]) -> Model:
    """The default model for the languages of the first pair of documents whose languages are recognised."""
    errors: list[Exception] = []
    for src, tgt in pairs:
        try:
            return model_for_texts((read_text(src), read_text(tgt)), batch.langs, *run)
        except (ConfigError, DataError, ModelError) as error:
            errors.append(error)
    raise errors[0] if errors else DataError("no two documents; expected one folder per language")


def align_batch(
    pairing: Pairing,
    out: Path,
    model: Model,
    settings: BatchSettings,
    engine: Engine,
    *,
    overwrite: bool = False,
) -> list[Outcome]:
    """Aligns pairs of documents and writes `documents.json` to the folder `out`, which is locked meanwhile."""
    work, pairs = Aligning(model, settings), pairing.pairs
    files = [file for pair in pairs for file in [*link_files(pair.out), *([pair.page] if settings.page else [])]]
    check_distinct([*files, out / SUMMARY], {file for pair in pairs for file in (pair.src, pair.tgt)})
    alone = [Outcome(str(src or ""), str(tgt or ""), "", error=NO_PARTNER) for src, tgt in pairing.unpaired]
    if alone:
        names = [outcome.src or outcome.tgt for outcome in alone]
        more = f" and {len(names) - LISTED_NAMES:,} more, see {out / SUMMARY}" if len(names) > LISTED_NAMES else ""
        logger.warning("not aligned, %s: %s%s", NO_PARTNER, ", ".join(names[:LISTED_NAMES]), more)
    with locked(out), counting("aligning", len(pairs), " documents") as progress:
        found = {number: work.finished(pair, overwrite=overwrite) for number, pair in enumerate(pairs)}
        done = {number: outcome for number, outcome in found.items() if outcome}
        progress(len(done))
        left = [(number, pair) for number, pair in enumerate(pairs) if number not in done]
        done.update(engine.run(work, left, progress))
        outcomes = [*(done[number] for number in range(len(pairs))), *alone]
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
        """One unit per pair."""
        return 1

    def opener(self) -> Callable[[], Callable[[DocumentPair, Progress], Outcome]]:
        """Opens the model by name in another process."""
        return partial(_open_aligning, model_opener(self.model), self.settings)

    def key(self, pair: DocumentPair) -> str:
        """Hash of everything that the output of a pair depends on."""
        checksums = file_sha256(pair.src), file_sha256(pair.tgt)
        inputs = [VERSION, self.model.identity.sha256, asdict(self.settings), *checksums]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()

    def finished(self, pair: DocumentPair, *, overwrite: bool = False) -> Outcome | None:
        """The outcome of a pair whose outputs are up to date or must not be replaced; None if it must be aligned."""
        try:
            made = read_record(pair.out) or {}
            is_complete = pair.out.is_file() and (not self.settings.page or pair.page.is_file())
            if is_complete and made.get("key") == self.key(pair) and self._is_kept(pair.out, made, overwrite=overwrite):
                return Outcome(*pair.names, made["links"], made["linked"], made["mean_score"])
            page = pair.page if self.settings.page else None
            check_alignment_files(pair.out, page, (), overwrite=overwrite)
        except ConfigError as error:
            return Outcome(*pair.names, error=str(error))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None

    def _is_kept(self, out: Path, made: dict[str, Any], *, overwrite: bool) -> bool:
        """Whether to keep an output of the same texts and settings: it is unchanged, or was corrected since."""
        checksum = file_sha256(out)
        if checksum in made["written"]:
            return "replaced" not in made  # only in the record of an interrupted alignment
        if overwrite or checksum in made.get("replaced", []):
            return False
        logger.warning("%s: was changed after it was written, so it is kept; --overwrite replaces it", out)
        return True

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

"""The alignment editor: its pages and its API.

An alignment is a folder `alignments/NAME`: `alignment.json` is its state when it was opened, and `journal.jsonl` has
all later operations. The folder may instead contain a file of links, such as `links.parquet`, which is opened on first
use.
"""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dualmoco.alignment.editing import (
    SIDES,
    EditedAlignment,
    EditError,
    LinkRow,
    SideName,
    Splices,
    as_aligned,
    rows_of_aligned,
)
from dualmoco.alignment.lexical import translated_words
from dualmoco.alignment.link_readers import LINK_FILE_SUFFIXES, read_alignment
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, alignment_contents
from dualmoco.alignment.realign import Realigner
from dualmoco.alignment.search_text import TextSearch, find_text, replace_operation
from dualmoco.core.errors import ConfigError, DataError, DualmocoError
from dualmoco.core.storage import read_json, write_bytes
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.model import Model
from dualmoco.server.handlers import json_route
from dualmoco.server.journal import ConflictError, Journal
from dualmoco.server.project import NotFoundError
from dualmoco.server.studio import Studio
from dualmoco.text.languages import find_language, recognize_language

ALIGNMENT_FILE, EDITS_FILE, VECTORS_FILE, LINKS_STEM = (
    "alignment.json",
    "journal.jsonl",
    "vectors.safetensors",
    "links",
)
MAX_DOCUMENT_BYTES = 50_000_000  # maximum size of a document to align here
MAX_FOUND = 10_000  # maximum sentences that a search returns
CONTEXT_LINKS = 60  # links before and after a link from which its words are learned
USER_OPERATIONS = "confirm unconfirm merge split move split_sentence join edit delete insert bookmark undo redo".split()
UNNAMED = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')
MEDIA_TYPES = {".html": "text/html", ".epub": "application/epub+zip", ".tsv": "text/tab-separated-values"}


class OpenAlignment:
    """An alignment of the project in memory.

    Args:
        folder: Folder of the alignment.
        find_model: Function that finds the model to re-align two languages.
    """

    def __init__(self, folder: Path, find_model: Callable[[tuple[str, str]], Model]) -> None:
        self.folder, self._find_model = folder, find_model
        self.lock = threading.RLock()
        stored = _read_stored(folder)
        self.names: tuple[str, str] = (stored["names"][0], stored["names"][1])
        self.origin: dict[str, Any] = stored["origin"]
        rows = [LinkRow.from_json(row) for row in stored["rows"]]
        self.edited = EditedAlignment((stored["langs"][0], stored["langs"][1]), rows)
        self.journal = Journal(folder / EDITS_FILE)
        for number, event in enumerate(self.journal.events(), start=1):
            try:
                self.edited.apply(event)
            except (EditError, TypeError, ValueError) as error:
                raise DataError(f"{self.journal.path}: event {number} cannot be repeated: {error}") from None
        self._realigner: Realigner | None = None

    def apply(self, operation: dict[str, Any], revision: object) -> dict[str, Any]:
        """Runs an operation and saves it; ConflictError if it was made for another revision."""
        with self.lock:
            self.check_revision(revision)
            splices = self.edited.apply(operation, lambda: self.journal.append(operation, self.edited.revision))
            return self.answer(splices)

    def check_revision(self, revision: object) -> None:
        """ConflictError if the alignment has another revision."""
        if revision != self.edited.revision:
            raise ConflictError(
                f"{self.folder.name} was changed in another window (revision {self.edited.revision}, expected "
                f"{revision}); the page shows its present state"
            )

    def answer(self, splices: Splices) -> dict[str, Any]:
        """The data that a page needs after a change."""
        changed = [[part.start, len(part.old), [row.as_json() for row in part.new]] for part in splices]
        return {**self.state(), "splices": changed}

    def state(self) -> dict[str, Any]:
        """Everything except for the rows."""
        return {
            "revision": self.edited.revision,
            "undo": len(self.edited.done),
            "redo": len(self.edited.undone),
        }

    def realigner(self) -> Realigner:
        """Re-aligns this alignment; made at the first call."""
        if self._realigner is None:
            longest = self.origin.get("longest")
            options = {"longest": longest} if isinstance(longest, int) else {}
            model = self._find_model(self.edited.langs)
            self._realigner = Realigner(self.folder / VECTORS_FILE, model, self.edited.langs, **options)
        return self._realigner


def _read_stored(folder: Path) -> dict[str, Any]:
    """The content that `store` wrote; DataError if it is damaged."""
    path = folder / ALIGNMENT_FILE
    try:
        stored = read_json(path)
        if not {"names", "langs", "origin", "rows"} <= stored.keys():
            raise ValueError("incomplete")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}); expected an alignment that was opened here") from None
    return dict(stored)


def store_alignment(folder: Path, links: Path, langs: tuple[str | None, str | None] = (None, None)) -> None:
    """Reads a file of links and writes `alignment.json`; DataError if it cannot be read."""

    def recognise(sentences: Sequence[str], name: str) -> str:
        found = recognize_language(sentences, None)
        if not found:
            raise ConfigError(f"{name}: no letters to recognise the language by; expected the name of the language")
        return found

    aligned = read_alignment(links, langs, recognise)
    write_json_line(
        folder / ALIGNMENT_FILE,
        {
            "names": [Path(aligned.src.name).name, Path(aligned.tgt.name).name],
            "langs": [aligned.src.lang, aligned.tgt.lang],
            "origin": dict(aligned.origin),
            "rows": [row.as_json() for row in rows_of_aligned(aligned)],
        },
    )


class Alignments:
    """The alignments of a project, opened when they are needed."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.project = studio, studio.project
        self._open: dict[str, tuple[object, OpenAlignment]] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> OpenAlignment:
        """An alignment by name; NotFoundError if it does not exist or was deleted."""
        folder = self.project.existing("alignments", name)
        path = folder / ALIGNMENT_FILE
        with self._lock:
            if not path.exists():
                self._open.pop(name, None)
                links = _links_file(folder)
                if links is None:
                    raise NotFoundError(f"alignments/{name}: no alignment; it is not finished, or was deleted")
                store_alignment(folder, links)
            status = path.stat()
            identity = status.st_ino, status.st_mtime_ns
            known = self._open.get(name)
            if known is None or known[0] != identity:
                self._open[name] = known = identity, OpenAlignment(folder, self.find_model)
            return known[1]

    def find_model(self, langs: tuple[str, str]) -> Model:
        """The fast embedded model if it has both languages, otherwise the server's model."""
        for name in (FAST_MODEL, None):
            model = self.studio.model(name)
            if all(model.languages is None or find_language(lang, model.languages) for lang in langs):
                return model
        raise ConfigError(
            f"no model for {langs[0]} and {langs[1]}; start the server with a --model that has both languages"
        )

    def summaries(self) -> list[dict[str, Any]]:
        """Names and progress of all alignments."""
        found: list[dict[str, Any]] = []
        for name in self.project.names("alignments"):
            folder = self.project.path("alignments", name)
            if not (folder / ALIGNMENT_FILE).exists() and _links_file(folder) is None:
                continue
            try:
                opened = self.get(name)
            except DualmocoError as error:
                found.append({"name": name, "error": str(error)})
                continue
            edited = opened.edited
            counts = {"rows": len(edited.rows), "confirmed": edited.confirmed}
            found.append({"name": name, "documents": opened.names, "langs": edited.langs, **counts})
        return found

    def free_name(self, wanted: str) -> str:
        """A name for a new alignment."""
        stem = UNNAMED.sub(" ", wanted).strip(" .~-")[:60] or "alignment"
        taken, number, name = set(self.project.names("alignments")), 2, stem
        while name in taken:
            name, number = f"{stem} {number}", number + 1
        return name


def _links_file(folder: Path) -> Path | None:
    """The file of links that a folder was created with."""
    files = sorted(folder.glob(f"{LINKS_STEM}.*"))
    return next((file for file in files if file.suffix in LINK_FILE_SUFFIXES), None)


def write_json_line(path: Path, content: Any) -> None:
    """Writes JSON without line breaks, which is many times faster for long lists."""
    write_bytes(path, json.dumps(content, ensure_ascii=False).encode())


class EditorApi:
    """Handles the requests of the pages."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.alignments = studio, Alignments(studio)

    def _opened(self, request: Request) -> OpenAlignment:
        return self.alignments.get(request.path_params["name"])

    def start_page(self, request: Request) -> HTMLResponse:
        """The list of alignments, and forms for new ones."""
        return self.studio.render(request, "align.html.j2", page="align", suffixes=",".join(LINK_FILE_SUFFIXES))

    def editor_page(self, request: Request) -> HTMLResponse:
        """The editor of one alignment."""
        name = request.path_params["name"]
        self.studio.project.existing("alignments", name)
        endings = [ending[1:] for ending in ALIGNMENT_ENDINGS]
        return self.studio.render(request, "editor.html.j2", page="align", name=name, endings=endings)

    def show(self, request: Request, body: dict[str, Any]) -> Any:
        """The whole alignment."""
        found = self._opened(request)
        with found.lock:
            rows = [row.as_json() for row in found.edited.rows]
            return {**found.state(), "names": found.names, "langs": found.edited.langs, "rows": rows}

    def edit(self, request: Request, body: dict[str, Any]) -> Any:
        """Runs an operation."""
        operation = body.get("operation")
        if not isinstance(operation, dict) or operation.get("type") not in USER_OPERATIONS:
            raise EditError(f"operation {str(operation)[:60]}; expected one of {', '.join(USER_OPERATIONS)}")
        return self._opened(request).apply(operation, body.get("revision"))

    def realign(self, request: Request, body: dict[str, Any]) -> Any:
        """Re-aligns everything that is not confirmed."""
        found = self._opened(request)
        with found.lock:
            found.check_revision(body.get("revision"))
            return found.apply(found.realigner().plan(found.edited), found.edited.revision)

    def prepare(self, request: Request, body: dict[str, Any]) -> Any:
        """Computes the vectors in advance, so that re-aligning is quick."""
        found = self._opened(request)
        with found.lock:
            found.realigner().vectors.both(found.edited)
        return {}

    def find(self, request: Request, body: dict[str, Any]) -> Any:
        """The sentences that have a match."""
        found = self._opened(request)
        with found.lock:
            places = find_text(found.edited, _search(body))
            return {"found": places[:MAX_FOUND], "count": len(places), "revision": found.edited.revision}

    def replace(self, request: Request, body: dict[str, Any]) -> Any:
        """Replaces all matches."""
        found, replacement = self._opened(request), body.get("replacement")
        if not isinstance(replacement, str):
            raise EditError("no replacement; expected a text")
        with found.lock:
            found.check_revision(body.get("revision"))
            operation = replace_operation(found.edited, _search(body), replacement)
            return {**found.apply(operation, found.edited.revision), "count": len(operation["edits"])}

    def words(self, request: Request, body: dict[str, Any]) -> Any:
        """See `linked_words`."""
        return linked_words(self._opened(request), request.query_params.get("row", ""))

    def export(self, request: Request, body: dict[str, Any]) -> Response:
        """See `export_alignment`."""
        given = request.query_params
        only = given.get("confirmed") == "1"
        return export_alignment(self._opened(request), given.get("format", ""), only_confirmed=only)


def routes(studio: Studio) -> list[Route]:
    """The pages and their API."""
    api = EditorApi(studio)
    place = "/api/alignments/{name}"
    return [
        Route("/align", api.start_page),
        Route("/align/{name}", api.editor_page),
        json_route("/api/alignments", lambda request, body: {"alignments": api.alignments.summaries()}),
        json_route("/api/alignments", lambda request, body: start_alignment(api.alignments, body), "POST"),
        json_route("/api/alignments/open", lambda request, body: open_file(api.alignments, body), "POST"),
        json_route(place, api.show),
        json_route(f"{place}/edit", api.edit, "POST"),
        json_route(f"{place}/realign", api.realign, "POST"),
        json_route(f"{place}/prepare", api.prepare, "POST"),
        json_route(f"{place}/find", api.find, "POST"),
        json_route(f"{place}/replace", api.replace, "POST"),
        json_route(f"{place}/words", api.words),
        json_route(f"{place}/export", api.export),
    ]


def start_alignment(alignments: Alignments, body: dict[str, Any]) -> dict[str, Any]:
    """Starts the job that aligns two documents of the project; the alignment appears when the job has ended."""
    project = alignments.project
    paths = [project.existing("documents", _text(body, side)) for side in SIDES]
    for path in paths:
        if (size := path.stat().st_size) > MAX_DOCUMENT_BYTES:
            limit = f"expected at most {MAX_DOCUMENT_BYTES:,}; split it, or use dualmoco align"
            raise DataError(f"{path.name}: {size:,} bytes; {limit}")
    stems = [path.name.partition(".")[0] for path in paths]
    name = alignments.free_name(stems[0] if stems[0] == stems[1] else " – ".join(stems))
    words = ["align", *(f"documents/{path.name}" for path in paths)]
    words += ["--out", f"alignments/{name}/{LINKS_STEM}.parquet", "--json", *alignments.studio.model_words]
    for side in SIDES:
        if lang := body.get(f"{side}_lang"):
            words += [f"--{side}", str(lang)]
    if body.get("force") is True:
        words.append("--force")
    job = alignments.studio.jobs.start("align", f"Align {paths[0].name} and {paths[1].name}", words)
    return {"job": job.id, "name": name}


def open_file(alignments: Alignments, body: dict[str, Any]) -> dict[str, Any]:
    """Makes an alignment from a file of links among the project's documents; removes it again if it cannot be read."""
    project = alignments.project
    path = project.existing("documents", _text(body, "file"))
    langs = tuple(str(body[f"{side}_lang"]) if body.get(f"{side}_lang") else None for side in SIDES)
    name = alignments.free_name(path.name.partition(".")[0])
    folder = project.path("alignments", name)
    try:
        store_alignment(folder, path, (langs[0], langs[1]))
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return {"name": name}


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise DataError(f"{name} is missing; expected the name of a document")
    return value


def _search(body: dict[str, Any]) -> TextSearch:
    query, sides = body.get("query"), body.get("sides", SIDES)
    if not isinstance(query, str):
        raise EditError("no query; expected a text to search for")
    chosen: list[SideName] = [side for side in SIDES if side in sides]
    return TextSearch(query, body.get("regex") is True, body.get("case") is True, chosen or SIDES)


def linked_words(found: OpenAlignment, row: str) -> dict[str, Any]:
    """The words of a row that translate each other, as spans of characters; sentences are joined by line breaks."""
    with found.lock:
        rows = found.edited.rows
        if not row.isdecimal() or int(row) >= len(rows):
            raise EditError(f"row {row[:20]!r}; expected a number below {len(rows):,}")
        number = int(row)
        start = max(0, number - CONTEXT_LINKS)
        near = rows[start : number + CONTEXT_LINKS + 1]
    linked = [place for place, one in enumerate(near, start) if one.src and one.tgt]
    if number not in linked:
        return {"pairs": []}
    texts = [
        ("\n".join(part.text for part in one.src), "\n".join(part.text for part in one.tgt))
        for one in near
        if one.src and one.tgt
    ]
    return {"pairs": translated_words(texts, found.edited.langs, linked.index(number))}


def export_alignment(found: OpenAlignment, form: str, *, only_confirmed: bool) -> Response:
    """The alignment as a file to download; formats of several files are packed into one zip."""
    ending = f".{form}"
    if ending not in ALIGNMENT_ENDINGS:
        known = ", ".join(one[1:] for one in ALIGNMENT_ENDINGS)
        raise ConfigError(f"format {form[:40]!r}; expected one of {known}")
    with found.lock:
        aligned = as_aligned(found.edited, found.names, found.origin, only_confirmed=only_confirmed)
    if not len(aligned.links):
        raise DataError("no links to export; confirm some, or export all of them")
    files = alignment_contents(Path(f"{found.folder.name}{ending}"), aligned)
    name, content = next(iter(files.items()))
    if len(files) > 1:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
            for file, part in files.items():
                packed.writestr(file.name, part)
        name, content = Path(f"{found.folder.name}{ending}.zip"), stream.getvalue()
    media = MEDIA_TYPES.get(name.suffix, "application/zip" if name.suffix == ".zip" else "application/octet-stream")
    return Response(content, media_type=media, headers={"Content-Disposition": content_disposition(name.name)})


def content_disposition(name: str) -> str:
    """The header that saves a response under a name in any script."""
    return f"attachment; filename*=UTF-8''{quote(name)}"

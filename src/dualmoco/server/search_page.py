"""The page for building and searching indexes, and its API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dualmoco.core.errors import ConfigError, DataError, DualmocoError
from dualmoco.search.document_reader import is_document_file
from dualmoco.server.handlers import json_route
from dualmoco.server.studio import Studio
from dualmoco.text.files import is_plain_text

if TYPE_CHECKING:  # imported on first use, so that the server starts quickly
    from dualmoco.models.model import Model
    from dualmoco.search.index import Hit, Index
    from dualmoco.search.word_matches import SplitSentence, WordMatcher

MAX_INDEXED_BYTES = 100_000_000  # maximum size of a file; use the command line for larger files
MOST_HITS = 100  # per language and page
MOST_CHOICES = 50  # values of a metadata field that the page offers
MAX_QUERY_CHARACTERS = 10_000


def routes(studio: Studio) -> list[Route]:
    """The page and its API."""
    api, one = SearchApi(studio), "/api/indexes/{name}"
    return [
        Route("/search", api.page),
        json_route("/api/indexes", api.listed),
        json_route("/api/indexes", api.build, "POST"),
        json_route(one, api.show),
        json_route(f"{one}/add", api.add, "POST"),
        json_route(f"{one}/delete", api.delete, "POST"),
        json_route(f"{one}/search", api.search, "POST"),
    ]


class SearchApi:
    """Handles the requests of the page.

    Args:
        studio: The project, its jobs and models.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self._matchers: dict[str, WordMatcher] = {}

    def page(self, request: Request) -> HTMLResponse:
        """The page."""
        return self.studio.render(request, "search.html.j2", page="search", most_bytes=MAX_INDEXED_BYTES)

    def listed(self, request: Request, body: dict[str, Any]) -> Any:
        """All indexes; for those that cannot be opened, the reason."""
        return {
            "indexes": [self._described(name) for name in self.studio.project.names("indexes")],
            "languages": self.studio.languages,
        }

    def _described(self, name: str) -> dict[str, Any]:
        try:
            return describe_index(name, self.studio.index(name))
        except DualmocoError as error:
            return {"name": name, "error": str(error)}

    def show(self, request: Request, body: dict[str, Any]) -> Any:
        """An index."""
        name = request.path_params["name"]
        return describe_index(name, self.studio.index(name))

    def build(self, request: Request, body: dict[str, Any]) -> Any:
        """Starts a job that builds the index `name` of the documents `files`: `[{"name": ..., "lang": ...}]`."""
        name = body.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name {name!r:.40}; expected a name for the index")
        if self.studio.project.path("indexes", name).exists():
            raise DataError(f"{name}: an index with this name exists; expected another name, or add the files to it")
        kind = body.get("kind") or "exact"
        if kind not in ("exact", "ivf"):
            raise ConfigError(f"kind {kind!r:.40}; expected exact or ivf")
        words = ["search", "build", f"indexes/{name}", *self._files(body), *self.studio.model_words]
        job = self.studio.jobs.start("index", f"Build the index {name}", [*words, "--index", kind, "--json"])
        return {"job": job.id}

    def add(self, request: Request, body: dict[str, Any]) -> Any:
        """Starts a job that adds documents to an index, replacing those with the same name or id."""
        name = request.path_params["name"]
        self.studio.project.existing("indexes", name)
        words = ["search", "add", f"indexes/{name}", *self._files(body), "--json"]
        return {"job": self.studio.jobs.start("index", f"Add to the index {name}", words).id}

    def _files(self, body: Mapping[str, Any]) -> list[str]:
        """Arguments of the command for the files of a request; DataError if one cannot be indexed."""
        given = body.get("files")
        if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
            raise ConfigError('files: expected a list such as [{"name": "news.jsonl", "lang": "en"}]')
        words = []
        for one in given:
            name, lang = str(one.get("name", "")), one.get("lang") or ""
            path = self.studio.project.existing("documents", name)
            if not is_document_file(path) and not is_plain_text(path):
                raise DataError(f"{name}: cannot be indexed; expected text, JSONL, CSV, TSV or Parquet")
            if (size := path.stat().st_size) > MAX_INDEXED_BYTES:
                megabytes = f"{size / 1e6:,.0f} MB; expected at most {MAX_INDEXED_BYTES / 1e6:,.0f} MB"
                raise DataError(f"{name}: {megabytes}: split it, or run dualmoco search build")
            if lang:
                self.studio.model().language(str(lang))
            if "=" in name and not lang:
                raise DataError(f"{name}: has a = in its name; expected a name without it: rename the file")
            words.append(f"{lang}=documents/{name}" if lang else f"documents/{name}")
        return words

    def delete(self, request: Request, body: dict[str, Any]) -> Any:
        """Deletes the documents `ids`, the documents that match a `filter`, or whole `files`."""
        name = request.path_params["name"]
        index = self.studio.index(name)
        index.delete(_texts(body, "ids"), files=_texts(body, "files"), filter=body.get("filter"))
        return describe_index(name, index)

    def search(self, request: Request, body: dict[str, Any]) -> Any:
        """Finds the sentences nearest to `text` in each language of the index.

        Also takes `lang` of the text, `within`: languages to search, `offset` by language, `k`, `files`, and `filter`.
        """
        index = self.studio.index(request.path_params["name"])
        text = str(body.get("text") or "").strip()
        if not text:
            raise ConfigError("the query has no text; expected a sentence")
        if len(text) > MAX_QUERY_CHARACTERS:
            raise ConfigError(f"a query of {len(text):,} characters; expected at most {MAX_QUERY_CHARACTERS:,}")
        model, k = index.model, _count(body, "k", 10, MOST_HITS)
        lang = model.language(str(body["lang"])) if body.get("lang") else model.recognize_each([text])[0]
        vectors = model.encode_as([text], lang, progress=False)
        offsets = body.get("offset") or {}
        if not isinstance(offsets, dict):
            raise ConfigError(f"offset {offsets!r:.40}; expected a number by language")
        query, matcher = None, self._matcher(model)
        if matcher:
            query = matcher.split(text, lang)
        found = {}
        for within in _texts(body, "within") or index.manifest.languages:
            offset = _count(offsets, within, 0, 1 << 31)
            hits = index.search(
                vectors=vectors,
                k=k + 1,
                offset=offset,
                within=within,
                files=_texts(body, "files"),
                filter=body.get("filter") or None,
            )[0]
            shown = [_shown(hit, query, matcher) for hit in hits[:k]]
            found[within] = {"hits": shown, "offset": offset, "more": len(hits) > k}
        return {"text": text, "lang": lang, "recognized": not body.get("lang"), "languages": found}

    def _matcher(self, model: Model) -> WordMatcher | None:
        """The function that marks the words that translate each other; None if there are no word vectors."""
        from dualmoco.search.word_matches import WordMatcher

        name = model.identity.name
        if name not in self._matchers:
            try:
                self._matchers[name] = WordMatcher(model)
            except DualmocoError:
                return None
        return self._matchers[name]


def _shown(hit: Hit, query: SplitSentence | None, matcher: WordMatcher | None) -> dict[str, Any]:
    """A hit with the words that match the query."""
    from dualmoco.search.word_matches import match_words

    own = matcher.split(hit.text, hit.lang) if matcher and query else None
    matches = match_words(query, own) if query and own else []
    return {**asdict(hit), "marks": [asdict(match) for match in matches]}


def describe_index(name: str, index: Index) -> dict[str, Any]:
    """The contents of an index, as shown on the page."""
    manifest = index.manifest
    files: dict[str, dict[str, Any]] = {}
    values: dict[str, set[str]] = {}
    for part in index.parts:
        record = part.record
        file = files.setdefault(f"{record.lang} {record.name}", {"name": record.name, "lang": record.lang, "count": 0})
        file["count"] += record.sentences
        file["documents"] = record.has_documents
        for field, kind in record.fields.items():
            if part.table and kind == "text":
                values.setdefault(field, set()).update(part.table.distinct(field, MOST_CHOICES + 1))
    lists = manifest.lists
    return {
        "name": name,
        "sentences": len(index),
        "languages": manifest.languages,
        "model": manifest.model,
        "kind": manifest.kind.value,
        "lists": lists and {"lists": lists.lists, "probes": lists.probes, "recall": lists.recall},
        "files": list(files.values()),
        "fields": manifest.fields,
        "values": {field: sorted(found) for field, found in values.items() if len(found) <= MOST_CHOICES},
    }


def _texts(body: Mapping[str, Any], name: str) -> Sequence[str]:
    given = body.get(name) or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{name} {json.dumps(given)[:60]}; expected a list of texts")
    return given


def _count(body: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigError(f"{name} {value!r:.40}; expected a whole number from 0 to {most:,}")
    return value

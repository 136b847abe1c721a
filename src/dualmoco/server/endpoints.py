"""Endpoints for other programs: OpenAI's embeddings API, and our own functions as JSON. `openapi.py` describes them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.load import GivenText
from dualmoco.models.model import Model
from dualmoco.server.coalescing import BusyError, languages_of
from dualmoco.server.handlers import json_route, read_body
from dualmoco.server.openapi import BODIES, READ_PATHS, describe_endpoints
from dualmoco.server.request_metrics import resident_memory
from dualmoco.server.studio import Studio

ENCODE_SECONDS = 120  # maximum time that a request waits for its vectors
INLINE_NUMBERS = 16_384  # vectors are written in blocks of this size, so that other requests do not wait
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def routes(studio: Studio) -> list[Route]:
    """All endpoints, and the page that describes them."""

    async def embeddings(request: Request) -> Response:
        return await embed(studio, request)

    def models(request: Request, body: dict[str, Any]) -> Any:
        return {"object": "list", "data": [describe_model(name) for name in studio.model_names()]}

    def model(request: Request, body: dict[str, Any]) -> Any:
        studio.named_model(request.path_params["name"])
        return describe_model(request.path_params["name"])

    def metrics(request: Request, body: dict[str, Any]) -> Response:
        return PlainTextResponse(studio.counts.text(gauges(studio)), media_type="text/plain; version=0.0.4")

    def show(request: Request) -> HTMLResponse:
        document = describe_endpoints()
        examples = {path: json.dumps(parts[-1], ensure_ascii=False) for path, parts in BODIES.items()}
        return studio.render(
            request, "endpoints.html.j2", page="", document=document, examples=examples, base=request.base_url
        )

    read = {
        "/v1/models": models,
        "/health": lambda request, body: {"status": "ok"},
        "/metrics": metrics,
        "/openapi.json": lambda request, body: describe_endpoints(),
    }
    return [
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        *(json_route(path, read[path]) for path in READ_PATHS),
        json_route("/v1/models/{name:path}", model),
        json_route("/similarity", lambda request, body: compare_texts(studio, body), "POST"),
        json_route("/search", lambda request, body: search_texts(studio, body), "POST"),
        json_route("/mine", lambda request, body: mine_texts(studio, body), "POST", is_heavy=True),
        json_route("/align", lambda request, body: align_versions(studio, body), "POST", is_heavy=True),
        Route("/endpoints", show),
    ]


async def embed(studio: Studio, request: Request) -> Response:
    """`/v1/embeddings`."""
    body = check_fields("/v1/embeddings", await read_body(request))
    name, texts = body.get("model") or studio.default_model, as_texts(body["input"])
    if not studio.is_open(name):
        await run_in_threadpool(studio.named_model, name)
    model, lang = studio.named_model(name, body.get("input_type"))
    pending = asyncio.wrap_future(studio.coalescer.submit(model, texts, lang))
    try:
        vectors = await asyncio.wait_for(pending, ENCODE_SECONDS)
    except TimeoutError:
        raise BusyError(f"no vectors after {ENCODE_SECONDS} seconds; try again later, or send fewer") from None
    characters = sum(map(len, texts))
    if vectors.size <= INLINE_NUMBERS:
        content = render_vectors(vectors, body, name, characters)
    else:
        content = await run_in_threadpool(render_vectors, vectors, body, name, characters)
    return Response(content, media_type="application/json")


def check_fields(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a request without null values; ConfigError if it does not match the description of the endpoint."""
    required, fields = BODIES[path][2:4]
    given = {name: value for name, value in body.items() if value is not None}
    for name in required:
        if name not in given:
            raise ConfigError(f"{name} is missing; expected at least {', '.join(required)}")
    for name, value in given.items():
        if name not in fields:
            close = get_close_matches(name, fields, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(fields)}"
            raise ConfigError(f"unknown field {name!r:.100}; {hint}")
        _check_value(name, value, fields[name])
    return given


def _check_value(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    if "oneOf" in schema:
        schema = schema["oneOf"][isinstance(value, list)]
    kind = schema["type"]
    is_right = isinstance(value, JSON_TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")
    if not is_right:
        raise ConfigError(f"{name}: of JSON type {type(value).__name__}; expected {kind}")
    if "enum" in schema and value not in schema["enum"]:
        raise ConfigError(f"{name} {value!r:.100}; expected one of {', '.join(schema['enum'])}")
    low, high = schema.get("minimum", -np.inf), schema.get("maximum", np.inf)
    if kind in ("number", "integer") and not low <= value <= high:
        raise ConfigError(f"{name} {value}; expected a number from {low:g} to {high:g}")
    if kind == "array":
        _check_items(name, value, schema)


def _check_items(name: str, values: list[Any], schema: Mapping[str, Any]) -> None:
    if not 1 <= len(values) <= schema["maxItems"]:
        raise ConfigError(f"{name}: {len(values):,} items; expected from 1 to {schema['maxItems']:,}")
    for value in values:
        if not isinstance(value, str):
            hint = ""
            if isinstance(value, int | list):
                hint = "; if these are tokens, turn them off (LangChain: check_embedding_ctx_length=False)"
            raise ConfigError(f"{name}: an item of JSON type {type(value).__name__}; expected sentences{hint}")


def as_texts(given: str | list[str]) -> list[str]:
    """One sentence or several, as a list."""
    return [given] if isinstance(given, str) else given


def describe_model(name: str) -> dict[str, Any]:
    """A model in the format of OpenAI's API."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "dualmoco"}


def render_vectors(vectors: Vectors, body: Mapping[str, Any], name: str, characters: int) -> bytes:
    """The response of `/v1/embeddings`."""
    if (kept := body.get("dimensions")) is not None:
        if kept > vectors.shape[1]:
            raise ConfigError(f"dimensions {kept}; expected from 1 to {vectors.shape[1]}, the dimension of {name}")
        vectors = unit_vectors(vectors[:, :kept])
    rows: list[Any] = (
        vectors.astype("<f4", copy=False).tolist()
        if body.get("encoding_format") != "base64"
        else [base64.b64encode(row.tobytes()).decode("ascii") for row in vectors.astype("<f4", copy=False)]
    )
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    usage = {"prompt_tokens": characters, "total_tokens": characters}
    return json.dumps({"object": "list", "data": data, "model": name, "usage": usage}).encode()


def gauges(studio: Studio) -> Mapping[str, tuple[str, str, float]]:
    """Metrics of the server itself, in addition to those of its requests."""
    found = {
        "dualmoco_sentences_total": ("Sentences encoded for /v1/embeddings.", "counter", studio.coalescer.sentences),
        "dualmoco_batches_total": ("Batches of these sentences.", "counter", studio.coalescer.batches),
        "dualmoco_waiting_sentences": ("Waiting sentences.", "gauge", studio.coalescer.waiting),
        "dualmoco_open_models": ("Models in memory.", "gauge", len(studio.open_models)),
    }
    memory = resident_memory()
    return found if memory is None else found | {"process_resident_memory_bytes": ("Memory.", "gauge", memory)}


def compare_texts(studio: Studio, body: dict[str, Any]) -> Any:
    """`/similarity`."""
    given = check_fields("/similarity", body)
    texts = {side: (given.get(f"{side}_lang"), as_texts(given[side])) for side in ("a", "b")}
    model = studio.model_for(given.get("model"), *(GivenText(lang, own, side) for side, (lang, own) in texts.items()))
    sides = [studio.coalescer.submit(model, own, lang).result(ENCODE_SECONDS) for lang, own in texts.values()]
    return {"similarities": (sides[0] @ sides[1].T).astype(float).round(6).tolist()}


def encode_texts(studio: Studio, given: Mapping[str, Any], texts: list[str], lang: str | None) -> Vectors:
    """Vectors of the sentences of a request, which may name a model."""
    model, lang = studio.named_model(given.get("model"), lang)
    return studio.coalescer.submit(model, texts, lang).result(ENCODE_SECONDS)


def search_texts(studio: Studio, body: dict[str, Any]) -> Any:
    """`/search`."""
    given = check_fields("/search", body)
    queries, lang = as_texts(given["query"]), given.get("lang")
    if ("index" in given) == ("texts" in given):
        raise ConfigError("expected either an index or texts")
    if "texts" in given:
        if others := sorted({"within", "files", "filter"} & given.keys()):
            raise ConfigError(f"{others[0]}: limits the search of an index; remove it for texts")
        return {"results": _nearest_texts(studio, given, queries, lang)}
    if "model" in given:
        raise ConfigError("model: an index is searched with the model that built it; remove it")
    names = ("k", "offset", "within", "files", "filter", "min_score")
    limits = {name: given[name] for name in names if name in given}
    found = studio.index(given["index"]).search(queries, lang=lang, **limits)
    results = zip(queries, found, strict=True)
    return {"results": [{"query": query, "hits": [asdict(hit) for hit in hits]} for query, hits in results]}


def _nearest_texts(studio: Studio, given: Mapping[str, Any], queries: list[str], lang: str | None) -> list[Any]:
    texts = given["texts"]
    model, _ = studio.named_model(given.get("model"))
    langs = languages_of(model, texts, None)
    scores = encode_texts(studio, given, queries, lang) @ encode_texts(studio, given, texts, None).T
    first = given.get("offset", 0)
    results = []
    for query, row in zip(queries, scores, strict=True):
        order = np.argsort(-row, kind="stable")[first : first + given.get("k", 5)].tolist()
        hits = [
            {"score": round(float(row[at]), 6), "text": texts[at], "lang": langs[at], "line": at + 1}
            for at in order
            if row[at] >= given.get("min_score", -1.0)
        ]
        results.append({"query": query, "hits": hits})
    return results


def mine_texts(studio: Studio, body: dict[str, Any]) -> Any:
    """`/mine`."""
    from dualmoco.mining.mine import mine

    given = check_fields("/mine", body)
    model = model_of_sides(studio, given)
    found = mine(**given, model=model, progress=False)
    return {"pairs": [pair._asdict() for pair in found], "threshold": found.threshold}


def model_of_sides(studio: Studio, given: dict[str, Any]) -> Model:
    """The model for `src` and `tgt` of a request; removes its name from the request."""
    sides = [GivenText(given.get(f"{side}_lang"), given[side], side) for side in ("src", "tgt")]
    return studio.model_for(given.pop("model", None), *sides)


def align_versions(studio: Studio, body: dict[str, Any]) -> Any:
    """`/align`."""
    from dualmoco.alignment.pipeline import align

    given = check_fields("/align", body)
    model = model_of_sides(studio, given)
    found = align(**given, model=model, progress=False)
    names = ("type", "src", "tgt", "score", "confidence", "src_places", "tgt_places")
    return {"links": [{name: getattr(pair, name) for name in names} for pair in found]}

"""The description of the endpoints, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from dualmoco.core import VERSION

JsonSchema = dict[str, Any]


def text(description: str, **more: Any) -> JsonSchema:
    """A string."""
    return {"type": "string", "description": description, **more}


def number(description: str, kind: str = "number", **more: Any) -> JsonSchema:
    """A number."""
    return {"type": kind, "description": description, **more}


def texts(description: str, most: int) -> JsonSchema:
    """A list of sentences."""
    return {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": most, "description": description}


def one_or_more(description: str, most: int) -> JsonSchema:
    """A sentence, or a list of them."""
    return {"description": description, "oneOf": [{"type": "string"}, texts("Several.", most)]}


MOST_TEXTS = 2048  # sentences of one request
MOST_MINED = 10_000  # sentences of a side that are mined or aligned
MODEL = text("A name from `/v1/models`, optionally with a language, such as `en-zh:zh`; by default the server's model.")
LANG = "Language, such as `en`; recognised by default."
OBJECT_LIST: JsonSchema = {"type": "array", "items": {"type": "object"}}

BODIES: dict[str, tuple[str, str, tuple[str, ...], JsonSchema, JsonSchema, JsonSchema]] = {
    "/v1/embeddings": (
        "Vectors of sentences, in the format of OpenAI's API",
        "The vectors have unit length; the vector of an empty sentence is zero. `usage` counts characters.",
        ("input",),
        {
            "input": one_or_more("The sentences. Tokens are refused.", MOST_TEXTS),
            "model": MODEL,
            "input_type": text(f"{LANG} Each sentence is recognised separately."),
            "encoding_format": text("Format of the vectors.", enum=["float", "base64"], default="float"),
            "dimensions": number("Leading components to keep, scaled to unit length again.", "integer", minimum=1),
            "user": text("Ignored."),
        },
        {
            "object": text("`list`"),
            "data": OBJECT_LIST,
            "model": text("Model that made the vectors."),
            "usage": {"type": "object"},
        },
        {"model": "en-zh-static", "input": ["Where is the station?", "车站在哪里？"]},
    ),
    "/similarity": (
        "Cosine similarities of sentences",
        "Similarities of all sentences in `a` to all sentences in `b`.",
        ("a", "b"),
        {
            "a": one_or_more("Sentences.", MOST_TEXTS),
            "b": one_or_more("Sentences.", MOST_TEXTS),
            "a_lang": text(LANG),
            "b_lang": text(LANG),
            "model": MODEL,
        },
        {"similarities": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}},
        {"a": "Where is the station?", "b": ["车站在哪里？", "我喜欢苹果。"]},
    ),
    "/search": (
        "The nearest sentences of an index of the project, or of a list",
        "Give `index` or `texts`.",
        ("query",),
        {
            "query": one_or_more("Queries.", MOST_TEXTS),
            "index": text("Name of an index of the project."),
            "texts": texts("Sentences to search in place of an index.", MOST_TEXTS),
            "lang": text(f"Language of the queries. {LANG}"),
            "k": number("Hits per query.", "integer", minimum=1, maximum=1000, default=5),
            "offset": number("Number of nearest hits to skip, for the next page.", "integer", minimum=0, default=0),
            "within": text("Language of the hits; by default any."),
            "files": texts("Names of the files to search.", MOST_TEXTS),
            "filter": {"type": "object", "description": 'Conditions on metadata, such as `{"year": {">=": 2000}}`.'},
            "min_score": number("Minimum cosine of a hit.", default=-1),
            "model": MODEL,
        },
        {"results": OBJECT_LIST},
        {"query": "Where is the station?", "texts": ["我喜欢苹果。", "车站在哪里？"], "k": 1},
    ),
    "/mine": (
        "The parallel sentences of two texts",
        "For longer texts, use `dualmoco mine` or the page Review.",
        ("src", "tgt"),
        {
            "src": texts("Sentences.", MOST_MINED),
            "tgt": texts("Sentences of the other language.", MOST_MINED),
            "src_lang": text(LANG),
            "tgt_lang": text(LANG),
            "threshold": number("Lowest score; by default the model's own threshold, if it is calibrated."),
            "margin": text("Margin type.", enum=["distance", "ratio", "absolute"], default="distance"),
            "model": MODEL,
        },
        {"pairs": OBJECT_LIST, "threshold": {"type": ["number", "null"]}},
        {"src": ["Hello.", "Where is the station?"], "tgt": ["车站在哪里？", "你好。", "我喜欢苹果。"]},
    ),
    "/align": (
        "The links between the sentences of two versions of a document",
        "In order; a link has zero or more sentences of each side. Places count from 1.",
        ("src", "tgt"),
        {
            "src": texts("Source document, as lines.", MOST_MINED),
            "tgt": texts("Target document, as lines.", MOST_MINED),
            "src_lang": text(LANG),
            "tgt_lang": text(LANG),
            "split": text("Whether to split lines into sentences.", enum=["auto", "yes", "no"], default="auto"),
            "model": MODEL,
        },
        {"links": OBJECT_LIST},
        {"src": ["How are you?", "I am fine. Thanks."], "tgt": ["你好吗？", "我很好，", "谢谢。"], "split": "no"},
    ),
}
"""Summary, notes, required fields, all fields, response fields and example of each POST endpoint."""
READ_PATHS = {
    "/v1/models": "The available models",
    "/health": "Whether the server is running; needs no token",
    "/metrics": "Counts and durations, for Prometheus",
    "/openapi.json": "This description",
}
ENDPOINT_PATHS = frozenset([*BODIES, *READ_PATHS])


def describe_endpoints() -> JsonSchema:
    """The OpenAPI document."""
    paths: JsonSchema = {
        path: {"get": {"summary": what, "responses": answers("Done.")}} for path, what in READ_PATHS.items()
    }
    for path, (summary, notes, required, fields, answer, example) in BODIES.items():
        schema = {"type": "object", "required": list(required), "additionalProperties": False, "properties": fields}
        paths[path] = {
            "post": {
                "summary": summary,
                "description": notes,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema, "example": example}},
                },
                "responses": answers(summary, {"type": "object", "properties": answer}),
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "dualmoco", "version": VERSION, "description": "Cross-lingual sentence encoders."},
        "paths": paths,
        "components": {
            "schemas": {"Error": error_schema()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def answers(description: str, schema: JsonSchema | None = None) -> JsonSchema:
    """The responses of an operation."""
    content = {"content": {"application/json": {"schema": schema}}} if schema else {}
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {"200": {"description": description, **content}, "default": {"description": "The error.", **error}}


def error_schema() -> JsonSchema:
    """The body of an error."""
    fields = {"message": text("What was given, and what was expected."), "type": text("Kind of error.")}
    return {"type": "object", "properties": {"error": {"type": "object", "properties": fields}}}

"""The pages for reviewing mined sentence pairs, and their API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.mining.judgements import VERDICTS
from dualmoco.mining.margins import Margin
from dualmoco.mining.review_export import SELECTIONS, export_pairs
from dualmoco.mining.threshold import calibrate_by_judgements, write_calibrations
from dualmoco.server.handlers import json_route
from dualmoco.server.journal import REDO, UNDO
from dualmoco.server.open_review import JUDGE, SET_THRESHOLD, SHOWN, OpenReview, Reviews
from dualmoco.server.studio import Studio

PAGE_ROWS = 200  # maximum rows of a response
ORDERS = ("random", "near", "score")
EXPORT_FORMATS = ("tsv", "tmx", "xlsx", "jsonl", "csv", "parquet")


def routes(studio: Studio) -> list[Route]:
    """The pages and their API."""
    api, one = ReviewApi(studio), "/api/reviews/{name}"
    return [
        Route("/review", api.list_page),
        Route("/review/{name}", api.page),
        json_route("/api/reviews", api.listed),
        json_route("/api/reviews", api.create, "POST"),
        json_route("/api/mined-reviews", api.mine, "POST"),
        json_route(one, api.show),
        json_route(f"{one}/histogram", api.histogram),
        json_route(f"{one}/rows", api.rows),
        json_route(f"{one}/words", api.words),
        json_route(f"{one}/events", api.change, "POST"),
        json_route(f"{one}/threshold", api.wished_threshold),
        json_route(f"{one}/export", api.export, "POST"),
        json_route(f"{one}/calibrate", api.calibrate, "POST"),
        Route(f"{one}/exports/{{file}}", api.download),
    ]


class ReviewApi:
    """Handles the requests of the pages.

    Args:
        studio: The project, its jobs and models.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio, self.reviews = studio, Reviews(studio)

    def _review(self, request: Request) -> OpenReview:
        return self.reviews.get(request.path_params["name"])

    def list_page(self, request: Request) -> Response:
        """The page with all reviews."""
        return self.studio.render(request, "reviews.html.j2", page="review")

    def page(self, request: Request) -> Response:
        """The page of a review."""
        about = self.reviews.about(request.path_params["name"])
        return self.studio.render(request, "review.html.j2", page="review", review=about)

    def listed(self, request: Request, body: dict[str, Any]) -> Any:
        """All reviews."""
        return {"reviews": self.reviews.list()}

    def create(self, request: Request, body: dict[str, Any]) -> Any:
        """Makes a review of `file`."""
        return {"name": self.reviews.create(_text(body, "file"))}

    def mine(self, request: Request, body: dict[str, Any]) -> Any:
        """Mines the documents `src` and `tgt`, with `model`; `everything` keeps all candidates."""
        return self.reviews.about(self.reviews.mine(_text(body, "src"), _text(body, "tgt"), body))

    def show(self, request: Request, body: dict[str, Any]) -> Any:
        """A review and its state."""
        review = self._review(request)
        with review.lock:
            pairs = {"pairs": len(review.pairs), "langs": review.pairs.langs, "origin": review.pairs.origin}
            return {**self.reviews.about(request.path_params["name"]), **pairs, **review.state()}

    def histogram(self, request: Request, body: dict[str, Any]) -> Any:
        """The scores in bins, with an estimate for each."""
        review = self._review(request)
        with review.lock:
            return {"revision": review.journal.revision, **review.histogram()}

    def rows(self, request: Request, body: dict[str, Any]) -> Any:
        """Some rows of an existing `view`, or of a new one by `order`, `show`, `band` and `text`."""
        review, asked = self._review(request), request.query_params
        start, count = _number(asked, "start", 0), min(PAGE_ROWS, _number(asked, "count", 50))
        with review.lock:
            if view := asked.get("view"):
                found = review.known_view(view)
            else:
                band = _number(asked, "band", 0) if asked.get("band") else None
                order, show = asked.get("order") or ORDERS[0], asked.get("show") or "all"
                order, show = _choice(order, ORDERS), _choice(show, ("all", *SHOWN))
                view, found = review.view(order, show, band, asked.get("text", ""))
            return {"view": view, "total": len(found), "rows": review.shown(found[start : start + count])}

    def words(self, request: Request, body: dict[str, Any]) -> Any:
        """The words of a `row` that translate each other, as spans of characters of both sides."""
        review = self._review(request)
        row = _number(request.query_params, "row", 0)
        if row >= len(review.pairs):
            raise ConfigError(f"row {row}; expected a number below {len(review.pairs):,}")
        from dualmoco.alignment.lexical import translated_words  # importing takes a second

        with review.lock:
            texts = [*review.examples, review.sentences(row)]
        return {"pairs": translated_words(texts, review.pairs.langs, len(texts) - 1)}

    def change(self, request: Request, body: dict[str, Any]) -> Any:
        """Judges a pair, sets the threshold, undoes or redoes, if the review still has the given `revision`."""
        review = self._review(request)
        with review.lock:
            changed = review.append(_event(review, body), _revision(body))
            return {**changed, **review.state()}

    def wished_threshold(self, request: Request, body: dict[str, Any]) -> Any:
        """The lowest threshold with a `precision`; with `sure=1` by the lower end of its interval."""
        review, asked = self._review(request), request.query_params
        with review.lock:
            precision = _precision(asked.get("precision"))
            found = review.judgements.threshold_for(precision, is_sure=asked.get("sure") == "1")
        return {"estimate": asdict(found) if found else None}

    def export(self, request: Request, body: dict[str, Any]) -> Any:
        """Writes a `selection` of pairs in a `format` into the project."""
        name, review = request.path_params["name"], self._review(request)
        selection, ending = _choice(body.get("selection"), SELECTIONS), _choice(body.get("format"), EXPORT_FORMATS)
        path = self.studio.project.path("exports", f"{name}.{selection}.{ending}")
        with review.lock:
            count = export_pairs(path, review.judgements, selection, review.threshold)
        return {"pairs": count, **_as_download(name, path.name)}

    def calibrate(self, request: Request, body: dict[str, Any]) -> Any:
        """Writes a calibration with a `precision` into the project; the model itself is not changed."""
        name, review = request.path_params["name"], self._review(request)
        precision = _precision(body.get("precision"))
        path = self.studio.project.path("exports", f"{name}.calibration.json")
        with review.lock:
            try:
                model = self.studio.model(self.studio.model_name(review.pairs.origin.get("model")))
            except ModelError as error:
                raise DataError(f"the model that scored these pairs cannot be opened: {error}") from None
            found = calibrate_by_judgements(model, review.judgements, precision)
        write_calibrations(path, model, [found])
        by_cosine = found.judged_margin == Margin.absolute
        command, text = ("score", found.describe_cosine()) if by_cosine else ("mine", found.describe())
        use = f"dualmoco {command} ... --model {model.identity.name} --calibration {path}"
        return {"calibration": asdict(found), "text": text, "use": use, **_as_download(name, path.name)}

    def download(self, request: Request) -> Response:
        """A file that was exported."""
        file = request.path_params["file"]
        if not file.startswith(f"{request.path_params['name']}."):
            raise HTTPException(404, f"{file}: not an export of this review")
        return FileResponse(self.studio.project.existing("exports", file), filename=file)


def _as_download(name: str, file: str) -> dict[str, str]:
    return {"file": f"exports/{file}", "url": f"/api/reviews/{quote(name)}/exports/{quote(file)}"}


def _event(review: OpenReview, body: Mapping[str, Any]) -> dict[str, Any]:
    """The event of a request; ConfigError if it is invalid."""
    kind = _choice(body.get("type"), (JUDGE, SET_THRESHOLD, UNDO, REDO))
    if kind in (UNDO, REDO):
        return {"type": kind}
    if kind == SET_THRESHOLD:
        value = body.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise ConfigError(f"threshold {value!r:.40}; expected a number")
        return {"type": kind, "value": float(value)}
    row, verdict = body.get("row"), _choice(body.get("verdict"), tuple(VERDICTS))
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < len(review.pairs):
        raise ConfigError(f"row {row!r:.40}; expected a number below {len(review.pairs):,}: reload the page")
    return review.judgements.event(row, verdict, is_drawn=body.get("drawn") is True)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} {value!r:.40}; expected a text")
    return value


def _revision(body: Mapping[str, Any]) -> int:
    value = body.get("revision")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"revision {value!r:.40}; expected the revision number of the review")
    return value


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigError(f"{value!r:.40}; expected one of {', '.join(choices)}")
    return str(value)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    value = asked.get(name, str(default))
    if not value.isdecimal():
        raise ConfigError(f"{name} {value!r:.40}; expected a number from 0")
    return int(value)


def _precision(value: Any) -> float:
    try:
        precision = float(value)
    except (TypeError, ValueError):
        precision = 0.0
    if not 0 < precision <= 1:
        raise ConfigError(f"precision {value!r:.40}; expected more than 0 and at most 1")
    return precision

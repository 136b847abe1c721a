"""JSON requests and responses, and the format of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dualmoco.core.errors import DualmocoError
from dualmoco.server.coalescing import BusyError
from dualmoco.server.journal import ConflictError
from dualmoco.server.project import NotFoundError

MAX_JSON_BYTES = 32 << 20  # maximum size of the body of a request
HEAVY = CapacityLimiter(1)
JsonHandler = Callable[[Request, dict[str, Any]], Any]


def json_route(path: str, handler: JsonHandler, method: str = "GET", *, is_heavy: bool = False) -> Route:
    """A route with a JSON request and response.

    Args:
        path: Path such as `/api/alignments/{name}`.
        handler: Function of the request and its body, an object that is empty for GET; it returns the content of the
            response, or a Response. It runs in a thread, so it may take a while. A DualmocoError becomes a response.
        method: GET, POST, PUT or DELETE.
        is_heavy: Whether it keeps the processor busy for seconds; such requests are handled one after another.
    """

    async def endpoint(request: Request) -> Response:
        body = {} if method == "GET" else await read_body(request)
        answer = await to_thread.run_sync(handler, request, body, limiter=HEAVY if is_heavy else None)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return Route(path, endpoint, methods=[method])


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request, empty if there is no body; HTTPException for other content."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_JSON_BYTES:
            raise HTTPException(413, f"a request of more than {MAX_JSON_BYTES >> 20} MiB; send it in parts")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts) or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the request is not JSON ({error}); expected a JSON object") from None
    if not isinstance(body, dict):
        raise HTTPException(400, f"the request is a JSON {type(body).__name__}; expected an object")
    return body


def http_status(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, HTTPException):
        return error.status_code
    kinds = {ConflictError: 409, NotFoundError: 404, BusyError: 503, DualmocoError: 400, ClientDisconnect: 400}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), 500)


def error_message(error: Exception) -> str:
    """The message of a response about an error; the details of internal errors are only shown in the terminal."""
    if isinstance(error, HTTPException):
        return error.detail
    if isinstance(error, OSError) and error.strerror:
        return ": ".join([*([Path(error.filename).name] if error.filename else []), error.strerror])
    if http_status(error) == 500:
        return "internal error; see the server's terminal"
    return str(error)


def error_answer(error: Exception) -> JSONResponse:
    """The response to a failed request: `{"error": {"message": ..., "type": ...}}`, never a traceback."""
    status = http_status(error)
    kind = "InternalError" if status == 500 else type(error).__name__
    return JSONResponse({"error": {"message": error_message(error), "type": kind, "param": None, "code": None}}, status)

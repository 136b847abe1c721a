"""The web application of a project: pages for people and endpoints for programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dualmoco.core.errors import DualmocoError
from dualmoco.server import editor, endpoints, review, search_page
from dualmoco.server.handlers import error_answer, error_message, http_status
from dualmoco.server.jobs import Jobs, job_routes
from dualmoco.server.openapi import ENDPOINT_PATHS
from dualmoco.server.project import Project
from dualmoco.server.request_metrics import RequestMetrics
from dualmoco.server.safety import SECURITY_HEADERS, Safety
from dualmoco.server.studio import STATIC_FILES, Studio
from dualmoco.server.uploads import document_routes

PAGES = (search_page, review, editor, endpoints)
"""The modules that add routes; each has `routes(studio)`."""


def create_app(project: Project, *, model: str | None = None, token: str | None = None) -> Starlette:
    """The application.

    Args:
        project: Project to serve.
        model: Name of the default model; None to choose it by the languages of the texts.
        token: Token that every request must carry; None if no token is needed.
    """
    studio = Studio(project, model, Jobs(project))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        studio.jobs.resume()
        yield
        await run_in_threadpool(studio.coalescer.close)
        await run_in_threadpool(studio.jobs.stop)

    async def failed(request: Request, error: Exception) -> Response:
        answer: Response = error_answer(error)
        if "text/html" in request.headers.get("accept", ""):
            answer = studio.render(request, "error.html.j2", message=error_message(error), page="")
            answer.status_code = http_status(error)
        answer.headers.update(SECURITY_HEADERS)  # the response to an internal error bypasses the middleware
        return answer

    routes: list[Route | Mount] = [
        Route("/", lambda request: RedirectResponse("/search")),
        Mount("/static", StaticFiles(directory=STATIC_FILES)),
        *document_routes(project),
        *job_routes(studio.jobs),
    ]
    for page in PAGES:
        routes += page.routes(studio)
    kinds = (DualmocoError, HTTPException, OSError, ClientDisconnect, Exception)
    middleware = [
        Middleware(RequestMetrics, paths=ENDPOINT_PATHS, recorded=studio.counts),
        Middleware(Safety, token=token),
    ]
    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers=dict.fromkeys(kinds, failed), middleware=middleware
    )
    app.state.studio = studio
    return app

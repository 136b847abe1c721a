"""Review mined sentence pairs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dualmoco.server.studio import Studio


def routes(studio: Studio) -> list[Route]:
    """The page and its API."""

    def show(request: Request) -> HTMLResponse:
        return studio.render(request, "review.html.j2", page="review")

    return [Route("/review", show)]

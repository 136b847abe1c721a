"""Endpoints for other programs, above all those of the OpenAI embeddings API."""

from __future__ import annotations

from starlette.routing import Route

from dualmoco.server.handlers import json_route
from dualmoco.server.studio import Studio


def routes(studio: Studio) -> list[Route]:
    """`/health`."""
    return [json_route("/health", lambda request, body: {"status": "ok"})]

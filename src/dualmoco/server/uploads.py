"""The documents of a project: files that users dropped into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dualmoco.core.storage import new_file
from dualmoco.server.handlers import json_route
from dualmoco.server.project import Project

MAX_UPLOAD_BYTES = 256 << 20


def document_routes(project: Project) -> list[Route]:
    """`/api/documents`: list them, and PUT or DELETE one by its name."""

    def listed(request: Request, body: dict[str, Any]) -> Any:
        names = project.names("documents")
        return {
            "documents": [
                {"name": name, "bytes": (project.folder / "documents" / name).stat().st_size} for name in names
            ]
        }

    def remove(request: Request, body: dict[str, Any]) -> Any:
        name = request.path_params["name"]
        project.existing("documents", name).unlink()
        return {"name": name}

    async def put(request: Request) -> JSONResponse:
        path, size = project.path("documents", request.path_params["name"]), 0
        with new_file(path) as stream:
            async for part in limited(request.stream()):
                size += stream.write(part)
        return JSONResponse({"name": path.name, "bytes": size}, 201)

    return [
        json_route("/api/documents", listed),
        Route("/api/documents/{name}", put, methods=["PUT"]),
        json_route("/api/documents/{name}", remove, "DELETE"),
    ]


async def limited(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The parts of an upload; HTTPException after MAX_UPLOAD_BYTES."""
    size = 0
    async for part in stream:
        size += len(part)
        if size > MAX_UPLOAD_BYTES:
            raise HTTPException(413, f"a file of more than {MAX_UPLOAD_BYTES >> 20} MiB; split it")
        yield part

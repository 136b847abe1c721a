"""Runs the studio: `dualmoco serve`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.server.app import create_app
from dualmoco.server.project import open_project

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8477


def serve(
    folder: str | Path,
    *,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    model: str = DEFAULT_MODEL,
    browser: bool = True,
) -> None:
    """Serves a project until it is interrupted."""
    with open_project(folder) as project, open_socket(host, port) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}/"
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        config = uvicorn.Config(create_app(project, model=model), log_level="warning", access_log=False)
        uvicorn.Server(config).run([listening])


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket, at a free port if that one is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.bind((host, 0))
    listening.listen()
    return listening

"""Runs the studio: `dualmoco serve`."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path

import uvicorn

from dualmoco.core.errors import ConfigError, DualmocoError
from dualmoco.core.signals import Terminated
from dualmoco.models.embedded import EMBEDDED
from dualmoco.server.app import create_app
from dualmoco.server.project import open_project
from dualmoco.server.safety import LOOPBACK_NAMES

logger = logging.getLogger(__name__)
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8477
TOKEN_VARIABLE = "DUALMOCO_TOKEN"
LAST_REQUESTS_SECONDS = 30  # time for running requests to finish after the server is told to stop


def serve(
    folder: str | Path,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    model: str | None = None,
    browser: bool = True,
) -> None:
    """Serves a project as a web app, with endpoints for other programs, until Ctrl-C or SIGTERM.

    Args:
        folder: The project; a new or empty folder becomes one.
        host: Address to listen on. Unless it is a loopback address, every request needs a token. The token is printed
            with the address, and is new at every start unless the environment variable DUALMOCO_TOKEN sets it.
        port: Port to listen on; if it is in use or 0, a free port is chosen.
        model: Name of the default model; None to choose it by the languages of the texts.
        browser: Whether to open the pages in a browser.

    Raises:
        ConfigError: The address cannot be used.
        ModelError: The model cannot be opened.
        DataError: The folder is not a project.
        RunError: Another server has opened the project.
    """
    if model and model not in EMBEDDED and Path(model).exists():
        model = str(Path(model).resolve())  # jobs run in the folder of the project
    token = None if host in LOOPBACK_NAMES else os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    with open_project(folder) as project, open_socket(host, port) as listening:
        address = server_address(host, listening.getsockname()[1], token)
        app = create_app(project, model=model, token=token)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=LAST_REQUESTS_SECONDS
        )
        server, failures = uvicorn.Server(config), list[DualmocoError]()

        def fail(error: DualmocoError) -> None:
            failures.append(error)
            server.should_exit = True

        app.state.studio.warm(fail)
        sys.stdout.write(f"{address}  (Ctrl-C stops the server)\n")
        sys.stdout.flush()
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt, Terminated):  # raised again after the server has stopped properly
            server.run([listening])
    if failures:
        raise failures[0]
    logger.info("stopped; all data are in %s", project.folder)


def server_address(host: str, port: int, token: str | None) -> str:
    """The address to open in a browser."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket, on a free port if `port` is taken; ConfigError if the address does not exist."""
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"port {port}; expected a number from 0 to {(1 << 16) - 1}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (port, 0):
        try:
            listening = socket.create_server((host, number), family=family, backlog=2048)
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        if number != port:
            logger.info("port %d cannot be used (%s); using a free port", port, reason)
        return listening
    raise ConfigError(
        f"{host}: cannot listen on this address ({reason}); expected an address of this machine, or 0.0.0.0"
    )

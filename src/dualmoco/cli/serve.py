"""`dualmoco serve`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import DEFAULT_MODEL_HELP, MODEL_HELP, add_command


def add(commands: Any) -> None:
    """Declares the command."""
    parser = add_command(
        commands,
        "serve",
        run,
        "serve a web app for search, mining review and alignment editing, and endpoints",
        "examples:\n  dualmoco serve my-project\n  dualmoco serve my-project --no-browser --port 9000",
    )
    parser.add_argument(
        "folder", nargs="?", default="dualmoco-project", metavar="FOLDER", help="project, created if necessary"
    )
    server = parser.add_argument_group("server")
    server.add_argument(
        "--port", type=int, default=8477, metavar="N", help="port; if it is in use, a free port is chosen"
    )
    server.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address; if other machines can reach it, clients need a token",
    )
    server.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument_group("model").add_argument(
        "--model", metavar="MODEL", help=f"{MODEL_HELP} {DEFAULT_MODEL_HELP}"
    )


def run(parsed: argparse.Namespace) -> int:
    """Serves until it is interrupted."""
    from dualmoco.server.serve import serve

    serve(parsed.folder, host=parsed.host, port=parsed.port, model=parsed.model, browser=not parsed.no_browser)
    return 0

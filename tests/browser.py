"""A studio that runs as users run it, and a real browser that looks at it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

OPTIONS = ("--no-browser", "--port", "0", "--model", "en-zh-static")
START_SECONDS = 60


@dataclass
class Server:
    """`dualmoco serve` as a process."""

    folder: Path
    words: tuple[str, ...] = ()
    """More options of the command."""
    url: str = field(default="", init=False)
    """Its address, without a slash at the end."""
    token: str = field(default="", init=False)
    process: subprocess.Popen[str] = field(init=False, repr=False)

    def start(self) -> None:
        """Starts it, or starts it again on the same project, and waits for its address."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dualmoco", "serve", str(self.folder), *OPTIONS, *self.words],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("http"), f"no address but {line!r}"
        address, _, self.token = line.split()[0].partition("?token=")
        self.url = address.rstrip("/")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stops it by a signal; gives its exit status."""
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)

    def get(self, path: str) -> Any:
        """The JSON at a path such as `/api/jobs`."""
        with urllib.request.urlopen(self.url + path, timeout=START_SECONDS) as answer:
            return json.load(answer)


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[Server]:
    """A running server for a project; killed at the end if it still runs."""
    server = Server(folder, words)
    server.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGTERM)
        if server.process.stdout:
            server.process.stdout.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The Chromium of this machine, without a window; the test is skipped if there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def serious_faults(page: Page) -> list[str]:
    """The accessibility faults of a page that axe-core calls serious or critical, with the elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {', '.join(str(node['target']) for node in fault['nodes'])}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


@contextmanager
def browsing(browser: Browser, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """A page of a new browser profile; fails at the end if a script failed or the content policy blocked something."""
    context = browser.new_context(
        viewport={"width": width, "height": 844 if width < 600 else 800},
        color_scheme="dark" if dark else "light",
        accept_downloads=True,
    )
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Content Security" in message.text else None)
    try:
        yield page
        assert not faults, faults
    finally:
        context.close()

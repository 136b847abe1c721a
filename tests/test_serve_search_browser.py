"""The search page in a real browser."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Server, browsing

pytestmark = pytest.mark.browser
expect.set_options(timeout=60_000)  # a loaded machine takes long to open a model
ENGLISH = "We need rain.\nHeavy snow delayed the trains.\nThe museum is closed on Mondays.\n"
DOCUMENTS = [
    {"id": "n1", "text": "火车因为大雪晚点了。", "source": "news", "year": 2019},
    {"id": "n2", "text": "我们需要下雨。", "source": "talks", "year": 1998},
    {"id": "n3", "text": "博物馆星期一不开门。", "source": "news", "year": 2011},
    {"id": "n4", "text": "<b>It rained</b> all night.", "source": "talks", "year": 2001},
]


def drop_files(page: Page, folder: Path) -> None:
    """Chooses two files, and builds an index of them."""
    (folder / "lines.txt").write_text(ENGLISH, encoding="utf-8")
    (folder / "docs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in DOCUMENTS), encoding="utf-8")
    page.locator("#files").set_input_files([folder / "lines.txt", folder / "docs.jsonl"])
    page.get_by_label("Name", exact=True).fill("weather")
    page.get_by_role("button", name="Build", exact=True).click()
    expect(page.get_by_label("Progress")).to_be_visible()
    expect(page.get_by_role("heading", name="weather")).to_be_visible(timeout=120_000)


def test_a_developer_builds_an_index_and_finds_a_sentence_and_its_translation(
    page: Page, server: Server, browser: Browser, tmp_path: Path
) -> None:
    """From dropped files, with filters; no serious accessibility fault, and a broken file is one line."""
    page.goto(f"{server.url}/search")
    expect(page.locator("#status")).to_contain_text("There is no index yet")
    drop_files(page, tmp_path)
    expect(page.locator("#status")).to_contain_text("Exact search: every sentence is compared")
    page.get_by_label("Sentence to search for").fill("snow stopped the trains")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("recognised as English")
    chinese = page.get_by_role("region", name="Chinese")
    expect(chinese.locator("li").first.locator(".hit-text")).to_have_text("火车因为大雪晚点了。")
    expect(chinese.locator("li").first.locator("mark").first).to_have_text("火车")
    english = page.get_by_role("region", name="English")
    expect(english.get_by_text("<b>It rained</b> all night.")).to_be_visible()
    chinese.get_by_role("button", name="Find its translation").first.click()
    expect(page.locator("#status")).to_contain_text("Query: Chinese")
    expect(english.locator("li").first.locator(".hit-text")).to_have_text("Heavy snow delayed the trains.")
    _look(page, browser, server, tmp_path)
    page.get_by_label("year from").fill("2015")
    page.get_by_label("year from").press("Enter")
    expect(page.get_by_role("region", name="English").get_by_text("Nothing found.")).to_be_visible()
    expect(page.get_by_role("region", name="Chinese").locator("li")).to_have_count(1)
    page.get_by_role("button", name="Delete document n1").click()
    page.get_by_role("button", name="Delete document n1").click()
    expect(page.get_by_role("region", name="Chinese").get_by_text("Nothing found.")).to_be_visible()
    (tmp_path / "bad.jsonl").write_text('{"text": "One."}\n{"words": 2}\n', encoding="utf-8")
    page.locator("#files").set_input_files([tmp_path / "bad.jsonl"])
    page.get_by_role("button", name="Build", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("bad.jsonl:2: found words; expected text", timeout=120_000)


def _look(page: Page, browser: Browser, server: Server, tmp_path: Path) -> None:
    """Checks the page with axe-core, and saves screenshots if DUALMOCO_SCREENSHOTS names a folder."""
    script = _axe(tmp_path)
    folder = os.environ.get("DUALMOCO_SCREENSHOTS")
    for width in (1280, 390):
        for dark in (False, True):
            with browsing(browser, width=width, dark=dark) as other:
                other.goto(f"{server.url}/search")
                other.get_by_label("Sentence to search for").fill("snow stopped the trains")
                other.keyboard.press("Enter")
                expect(other.locator("mark").first).to_be_visible()
                assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
                if folder:
                    name = f"search-{width}-{'dark' if dark else 'light'}.png"
                    other.screenshot(path=Path(folder) / name, full_page=True)
                if script:
                    other.evaluate(script)
                    found = other.evaluate("axe.run().then((result) => result.violations)")
                    assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]


def _axe(folder: Path) -> str:
    """The source of axe-core; empty if npm cannot install it."""
    try:
        subprocess.run(
            ["npm", "install", "--silent", "--no-save", "--prefix", str(folder), "axe-core"],
            check=True,
            capture_output=True,
            timeout=120,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")

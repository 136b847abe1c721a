"""The studio in a real browser: what all pages share."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Server, browsing, serious_faults

pytestmark = pytest.mark.browser
PAGES = ("/search", "/review", "/align", "/endpoints", "/nothing")


def test_pages_are_reached_and_named(page: Page, server: Server) -> None:
    """By the links at the top, and by keyboard: the first stop leads to the content."""
    page.goto(server.url)
    for name in ("Search", "Review", "Align"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
        expect(page).to_have_title(f"{name} · project · dualmoco")
    page.get_by_role("link", name="Endpoints").click()
    page.wait_for_url("**/endpoints")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_pages_are_accessible_and_fit(browser: Browser, server: Server) -> None:
    """No serious fault, in dark and light; nothing to scroll sideways on a telephone."""
    for width, dark in ((1280, True), (390, False)):
        with browsing(browser, width=width, dark=dark) as page:
            for path in PAGES:
                page.goto(server.url + path)
                expect(page.get_by_role("heading").first).to_be_visible()
                assert serious_faults(page) == [], path
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_stopped_server_is_named(page: Page, server: Server) -> None:
    """In place of an answer, and the message can be closed."""
    page.goto(f"{server.url}/endpoints")
    page.evaluate("async () => { window.api = await import('/static/api.js'); }")
    server.stop()
    page.evaluate("() => api.getJson('/api/jobs').catch(api.showError)")
    expect(page.get_by_role("alert")).to_contain_text("Is dualmoco serve still running?")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("alert")).to_be_empty()

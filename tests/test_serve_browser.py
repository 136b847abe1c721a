"""The studio in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from browser import Server

pytestmark = pytest.mark.browser


def test_every_page_opens(page: Page, server: Server) -> None:
    """By the links at the top, and each says which one it is."""
    page.goto(server.url)
    for name in ("Search", "Review", "Align"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
        expect(page).to_have_title(f"{name} · project · dualmoco")

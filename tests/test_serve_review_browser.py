"""The mining review in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Server, browsing, serious_faults
from dualmoco.mining.io import read_mined
from dualmoco.models.load import open_model
from test_judgements import draw, write_file

pytestmark = pytest.mark.browser
expect.set_options(timeout=60_000)  # milliseconds; a busy machine takes long


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A file of 3,000 mined pairs, and which of them are right."""
    scores, right = draw("mined", 3000, np.random.default_rng(9))
    sha256 = open_model("en-zh-static").identity.sha256
    path = tmp_path_factory.mktemp("mined") / "news.tsv"
    return write_file(path, scores, right, model="en-zh-static", model_sha256=sha256, threshold=0.11), right


def open_review(page: Page, server: Server, path: Path) -> None:
    """Uploads a file with its record, as a user does."""
    page.goto(f"{server.url}/review")
    page.get_by_label("Or a file from this computer").set_input_files([path, path.with_name(f"{path.name}.json")])
    page.get_by_role("button", name="Review", exact=True).click()
    page.wait_for_url("**/review/*")
    expect(page.locator("#current strong")).to_contain_text("score")


def judge_by_keys(page: Page, count: int) -> None:
    """Accepts what says yes, rejects what says no."""
    judged = 3000 - int(re.sub(r".*?([\d,]+) unjudged.*", r"\1", page.locator("#count").inner_text()).replace(",", ""))
    for _ in range(count):
        before = page.locator("[aria-selected=true]").get_attribute("id")
        is_right = page.locator("#current .sides").inner_text().split("\n")[-1].startswith("yes")
        page.keyboard.press("a" if is_right else "r")
        expect(page.locator("[aria-selected=true]")).not_to_have_attribute("id", before or "")
    expect(page.locator("#count")).to_contain_text(f"{3000 - judged - count:,} unjudged")


def test_an_engineer_reviews_pairs_and_gets_a_threshold(
    page: Page, server: Server, mined: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    """By keys; after a restart the judgements are there, and the exported pairs are the accepted ones."""
    path, right = mined
    open_review(page, server, path)
    expect(page.locator("#precision")).to_have_text("not known yet")
    judge_by_keys(page, 50)
    expect(page.locator("#count")).to_contain_text("2,950 unjudged")
    expect(page.locator("#precision")).to_contain_text("%")
    page.keyboard.press("u")
    expect(page.locator("#count")).to_contain_text("2,951 unjudged")
    expect(page.locator("#row-49")).to_have_attribute("aria-selected", "true")
    judge_by_keys(page, 1)
    page.keyboard.press("k")
    expect(page.locator("#row-49")).to_have_class(
        "accept" if "yes" in page.locator("#row-49").inner_text() else "reject"
    )
    page.keyboard.press("j")
    expect(page.locator("#row-50")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#wished").fill("95")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#threshold")).not_to_have_value("0.11")
    chosen = float(page.locator("#threshold").input_value())
    scores = np.array([pair.score for pair in read_mined(path)])
    assert abs(right[scores >= chosen].mean() - 0.95) < 0.06
    handle = page.get_by_role("slider", name="Threshold")
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.locator("#text").focus()
    expect(page.locator("#threshold")).not_to_have_value(str(chosen))

    server.stop()
    server.start()
    page.goto(f"{server.url}/review")
    expect(page.get_by_role("row", name="news documents/news.tsv 50")).to_be_visible()
    page.get_by_role("link", name="news", exact=True).click()
    expect(page.locator("#count")).to_contain_text("2,950 unjudged")
    accepted = re.search(r"(\d+) accepted", page.locator("#count").inner_text())
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as download:
        page.locator("#done a").click()
    download.value.save_as(tmp_path / "accepted.tsv")
    pairs = list(read_mined(tmp_path / "accepted.tsv"))
    assert accepted and len(pairs) == int(accepted[1]) and all(pair.tgt.startswith("yes") for pair in pairs)
    page.get_by_role("button", name="Calibrate the model").click()
    expect(page.locator("#done")).to_contain_text("was chosen by 50 judged pairs")


def test_two_windows_of_one_review(browser: Browser, server: Server, mined: tuple[Path, np.ndarray]) -> None:
    """The second one is told, shows what the first one did, and can go on."""
    with browsing(browser) as first, browsing(browser) as second:
        open_review(first, server, mined[0])
        second.goto(first.url)
        expect(second.locator("#current strong")).to_contain_text("score")
        first.keyboard.press("a")
        expect(first.locator("#count")).to_contain_text("1 accepted")
        second.keyboard.press("r")
        expect(second.locator("#messages")).to_contain_text("changed in another window")
        expect(second.locator("#count")).to_contain_text("1 accepted, 0 rejected")
        second.keyboard.press("r")
        expect(second.locator("#count")).to_contain_text("1 rejected")


def test_the_list_is_filtered_and_the_threshold_dragged(
    page: Page, server: Server, mined: tuple[Path, np.ndarray]
) -> None:
    """By the mouse; a list of 3,000 rows has few elements."""
    open_review(page, server, mined[0])
    assert page.locator("[role=option]").count() < 40
    page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    expect(page.locator("#row-2999 p").first).to_be_visible()
    box = page.locator("#histogram").bounding_box()
    assert box
    page.mouse.move(box["x"] + 5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.up()
    expect(page.locator("#threshold")).not_to_have_value("0.11")
    page.locator("#text").fill("source 123")
    page.locator("#text").press("Enter")
    expect(page.locator("#count")).to_contain_text("11 pairs in this list")
    page.locator("#order").select_option("score")
    page.locator("#show").select_option("rejected")
    expect(page.locator("#current")).to_contain_text("No pair matches")


def test_texts_are_mined_from_the_page(page: Page, server: Server) -> None:
    """The page shows the review when the job is done; a broken file is refused in words."""
    examples = Path(__file__).parents[1] / "examples"
    page.goto(f"{server.url}/review")
    page.get_by_label("Or a file from this computer").set_input_files(
        {"name": "broken.tmx", "mimeType": "text/xml", "buffer": b"<tmx>\n"}
    )
    page.get_by_role("button", name="Review", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("cut off")
    page.get_by_label("Or add texts from this computer").set_input_files([examples / "en.txt", examples / "zh.txt"])
    expect(page.get_by_label("Second text")).to_have_value("zh.txt")
    page.get_by_role("button", name="Mine", exact=True).click()
    expect(page.locator("#current strong")).to_contain_text("score", timeout=120_000)


def test_pages_have_no_serious_fault(browser: Browser, server: Server, mined: tuple[Path, np.ndarray]) -> None:
    """By axe-core, on both pages, and with the keys shown; nothing is wider than the window."""
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        with browsing(browser, width=width, dark=dark) as page:
            open_review(page, server, mined[0])
            judge_by_keys(page, 3)
            check(page)
            page.keyboard.press("?")
            check(page)
            page.goto(f"{server.url}/review")
            expect(page.get_by_role("row").nth(1)).to_be_visible()
            check(page)


def check(page: Page) -> None:
    assert serious_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

"""A translator's journey through the alignment editor, how fast keys show, and whether everybody can use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Server, browsing
from dualmoco.alignment.link_readers import read_alignment

pytestmark = pytest.mark.browser
STORY = Path(__file__).parents[1] / "examples"
WAIT = 90_000  # milliseconds, on a machine that has other things to do
SENTENCES = 20_000


def open_editor(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#editor[data-ready]")).to_be_attached(timeout=WAIT)


def counts(page: Page, text: str) -> None:
    expect(page.locator("#counts")).to_contain_text(text, timeout=WAIT)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_translator_aligns_two_chapters(page: Page, server: Server, tmp_path: Path) -> None:
    """Uploads, aligns, corrects five links by keyboard, restarts the server, exports TMX, and reads it."""
    page.goto(f"{server.url}/align")
    page.set_input_files("#src-file", STORY / "story.en.txt")
    page.set_input_files("#tgt-file", STORY / "story.zh.txt")
    expect(page.locator("#tgt")).to_have_value("story.zh.txt", timeout=WAIT)
    page.get_by_role("button", name="Align", exact=True).click()
    expect(page.locator("#editor[data-ready]")).to_be_attached(timeout=2 * WAIT)
    counts(page, "0 of 13 confirmed")
    press(page, "Enter", "m")  # confirms the first link, merges the second with the third
    counts(page, "1 of 12 confirmed")
    press(page, ".", "s")  # splits them again
    counts(page, "1 of 13 confirmed")
    press(page, "e")
    expect(page.locator("textarea")).to_be_focused(timeout=WAIT)
    press(page, "Home")
    page.keyboard.type("New: ")
    press(page, "Enter")
    press(page, "Alt+ArrowDown")
    expect(page.locator('[data-row="1"] .badge')).to_contain_text("0-1", timeout=WAIT)
    press(page, "Control+z")
    expect(page.locator('[data-row="1"] .badge')).to_contain_text("1-1", timeout=WAIT)
    press(page, "i", "b", "Control+z", "Control+z", "Enter")
    counts(page, "2 of 13 confirmed")
    page.wait_for_timeout(500)
    address = page.url
    assert server.stop() in (0, 130, -signal.SIGINT)
    server.start()
    open_editor(page, server.url + address[address.index("/align") :])
    counts(page, "2 of 13 confirmed")
    press(page, "Control+z")
    counts(page, "1 of 13 confirmed")
    press(page, "Control+y")
    counts(page, "2 of 13 confirmed")
    page.select_option("#format", "tmx")
    with page.expect_download(timeout=WAIT) as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(tmp_path / "story.tmx")
    found = read_alignment(tmp_path / "story.tmx", (None, None), lambda sentences, name: "")
    assert (found.src.lang, found.tgt.lang) == ("en", "zh") and len(found.links) == 13
    assert any("New: " in sentence for sentence in found.src.sentences)
    assert download.value.suggested_filename == "story.tmx"


def write_book(server: Server, count: int = SENTENCES) -> str:
    """A project with a large alignment; the address of its editor."""
    folder = server.folder / "documents"
    folder.mkdir(exist_ok=True)
    lines = [f"This is sentence number {n} of a long book.\t这是一本长书的第{n}句话。\n" for n in range(count)]
    (folder / "book.tsv").write_text("".join(lines), encoding="utf-8")
    body = b'{"file": "book.tsv", "src_lang": "en", "tgt_lang": "zh"}'
    urlopen(Request(f"{server.url}/api/alignments/open", body, {"Content-Type": "application/json"}), timeout=90).read()
    return f"{server.url}/align/book"


TIME_OF_KEY = """async (key) => {
  const start = performance.now();
  document.getElementById("scroller").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""


FRAMES = """async (pixels) => {
  const scroller = document.getElementById("scroller"), times = [];
  for (let frame = 0, last = performance.now(); frame < 120; frame++) {
    scroller.scrollTop += pixels;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
  }
  return times;
}"""


def test_keys_show_at_once_in_a_book_of_20000_sentences(page: Page, server: Server) -> None:
    """Only the rows on the screen exist; the median of some keys is well below what a person notices."""
    open_editor(page, write_book(server))
    counts(page, "0 of 20,000 confirmed")
    assert page.locator(".row").count() < 60
    times = [page.evaluate(TIME_OF_KEY, key) for key in ["ArrowDown", "c"] * 10]
    counts(page, "10 of 20,000 confirmed")
    page.keyboard.press("End")
    expect(page.locator(".row.current")).to_contain_text("number 19999")
    print(f"median {sorted(times)[10]:.1f} ms, longest {max(times):.1f} ms")  # noqa: T201
    assert sorted(times)[10] < 500, times  # 50 ms on an idle machine
    page.keyboard.press("Home")
    frames = page.evaluate(FRAMES, 400)  # half a screen in each frame
    assert "number 0 " not in page.locator(".row").first.inner_text()
    print(f"frame: median {sorted(frames)[60]:.1f} ms, longest {max(frames):.1f} ms")  # noqa: T201
    assert sorted(frames)[60] < 250, frames  # 17 ms on an idle machine


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which installs axe-core")
    folder = tmp_path_factory.mktemp("axe")
    words = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=120, env=os.environ)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"axe-core cannot be installed: {error}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def test_axe_finds_no_serious_fault(browser: Browser, server: Server, axe: str) -> None:
    """On the start page and in the editor, wide and narrow, light and dark."""
    address = write_book(server, 30)
    for width, dark in ((1280, False), (390, True)):
        with browsing(browser, width=width, dark=dark) as page:
            for url in (f"{server.url}/align", address):
                page.goto(url)
                if url == address:
                    expect(page.locator("#editor[data-ready]")).to_be_attached(timeout=WAIT)
                    press(page, "Enter", "/")
                page.evaluate(axe)
                found = page.evaluate("axe.run().then((result) => result.violations)")
                serious = [
                    (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
                    for one in found
                    if one["impact"] in ("serious", "critical")
                ]
                assert not serious, (url, width, serious)

"""Damaged documents of every format: whatever bytes are changed, the error is ours, on one line.

DUALMOCO_FUZZ sets the number of damaged files per format.
"""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path

import docx
import pytest

from document_files import RTF, SRT, VTT, XHTML, XLIFF, XLIFF2, epub, odt, pdf
from dualmoco.alignment.documents import read_text
from dualmoco.alignment.splitting import SplitMode, split_text
from dualmoco.core.errors import DataError
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs

DAMAGED_FILES = int(os.environ.get("DUALMOCO_FUZZ", "30"))
CHINESE = "他昨天来了，我们谈了很久，直到半夜才睡。\n“你走吗？”她问。\n——————\n他说不走，然后看了看天上的云。\n"
PAGE = f"""<?xml version="1.0"?><html {XHTML}><head><title>x</title></head><body><h1>One</h1><p hidden>no</p>
<p>A <b>bold</b> word.<br/>More &amp; more.</p><pre>code</pre><table><tr><td>a</td></tr></table></body></html>"""
MARKDOWN = "---\ntitle: x\n---\n# A *title*\n\n- item `code`\n\n| a | b |\n|---|---|\n| c | d |\n\n```\ncode\n```\n"


def sample(form: str, folder: Path) -> bytes:
    """A sound file."""
    texts = {".srt": SRT, ".vtt": VTT, ".html": PAGE, ".md": MARKDOWN, ".rtf": RTF, ".xlf": XLIFF, ".xliff": XLIFF2}
    if form in texts:
        return texts[form].encode()
    if form == ".txt":
        return CHINESE.encode("gb18030")
    path = folder / f"sound{form}"
    if form == ".docx":
        document = docx.Document()
        document.add_heading("Title", 0)
        document.add_paragraph("One. Two.", style="Quote")
        document.save(str(path))
    elif form == ".odt":
        odt(path, "<office:text><text:h>Title</text:h><text:p>One.<text:s/>Two.</text:p></office:text>", styles="")
    elif form == ".epub":
        epub(path)
    else:
        pdf(path, [["Head", "One line of text", "ends here."], ["Head", "Two."]])
    return path.read_bytes()


def damage(content: bytes, draw: random.Random) -> bytes:
    """Changes, removes or doubles a few bytes."""
    damaged = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(damaged) + 1)
        end = place + draw.choice([0, 1, 1, 1, 4, 100])
        new = draw.choice([b"", bytes([draw.randrange(256)]), b"\0", b"<", b"\xff", damaged[place:end] * 2])
        damaged[place:end] = new
    return bytes(damaged)


def damage_member(content: bytes, draw: random.Random) -> bytes:
    """Damages one file of a zip archive, and packs it again."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(stream, "w") as copy:
        chosen = draw.choice(archive.namelist())
        for name in archive.namelist():
            data = archive.read(name)
            copy.writestr(name, damage(data, draw) if name == chosen else data)
    return stream.getvalue()


def read(path: Path) -> None:
    """Reads a document and splits it, or reads sentence pairs."""
    if path.suffix in (".xlf", ".xliff"):
        list(read_pairs(Source(path, "en", "zh"), report=lambda line, what: None))
    else:
        for lang in ("en", "zh"):
            split_text(read_text(path), lang, SplitMode.auto)


FORMS = [".txt", ".srt", ".vtt", ".html", ".md", ".rtf", ".docx", ".odt", ".epub", ".pdf", ".xlf", ".xliff"]


@pytest.mark.parametrize("form", FORMS)
def test_damaged_documents_are_read_or_refused(tmp_path: Path, form: str) -> None:
    sound, draw = sample(form, tmp_path), random.Random(form)
    path = tmp_path / f"a{form}"
    path.write_bytes(sound)
    read(path)
    for number in range(DAMAGED_FILES):
        is_member = zipfile.is_zipfile(io.BytesIO(sound)) and number % 2
        path.write_bytes(damage_member(sound, draw) if is_member else damage(sound, draw))
        try:
            read(path)
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)

"""The API of the alignment editor: journals on the disk, conflicts, bad input, exports."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dualmoco.alignment.output import ALIGNMENT_ENDINGS
from dualmoco.server import editor
from dualmoco.server.app import create_app
from dualmoco.server.project import Project

EN = ["The crow was thirsty.", "It saw a pitcher.", "There was little water in it.", "It had an idea.", "It flew away."]
ZH = ["乌鸦渴了。", "它看见一个水罐。", "里面的水很少。", "它有了一个主意。", "它飞走了。"]
API = "/api/alignments/story"


@pytest.fixture
def story(client: TestClient, tmp_path: Path) -> Path:
    """An alignment `story` of five links, opened from a TSV file; its folder."""
    upload(client, "story.tsv", "".join(f"{a}\t{b}\n" for a, b in zip(EN, ZH, strict=True)))
    assert post(client, "/api/alignments/open", file="story.tsv", src_lang="en", tgt_lang="zh") == {"name": "story"}
    return tmp_path / "project" / "alignments" / "story"


def upload(client: TestClient, name: str, content: str | bytes) -> None:
    assert client.put(f"/api/documents/{name}", content=content).status_code in (200, 201)


def post(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]["message"]


def edit(client: TestClient, revision: int, kind: str, status: int = 200, **more: Any) -> Any:
    return post(client, f"{API}/edit", status, revision=revision, operation={"type": kind, **more})


def show(client: TestClient) -> Any:
    answer = client.get(API)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_only_changed_rows_are_answered(client: TestClient, story: Path) -> None:
    """Following the answers, a page has the rows that the server has."""
    rows, revision = show(client)["rows"], 0
    more: dict[str, Any]
    for kind, more in (
        ("merge", {"row": 1}),
        ("confirm", {"row": 0}),
        ("undo", {}),
        ("redo", {}),
        ("insert", {"row": 4}),
    ):
        answer = edit(client, revision, kind, **more)
        for start, count, new in answer["splices"]:
            assert count + len(new) <= 3
            rows[start : start + count] = new
        revision = answer["revision"]
        assert rows == show(client)["rows"] and revision == show(client)["revision"]
    assert (answer["undo"], answer["redo"]) == (3, 0)


def test_everything_is_as_it_was_after_a_restart(client: TestClient, story: Path) -> None:
    """Also what can be undone and redone; the journal has a line for each operation."""
    for revision, operation in enumerate(
        [{"type": "merge", "row": 1}, {"type": "confirm", "row": 0}, {"type": "undo"}]
    ):
        post(client, f"{API}/edit", revision=revision, operation=operation)
    before = show(client)
    with TestClient(
        create_app(Project(story.parents[1]), model="en-zh-static"), base_url="http://127.0.0.1:8477"
    ) as again:
        assert show(again) == before
        assert edit(again, 3, "redo")["redo"] == 0
        edit(again, 4, "undo")
        edit(again, 5, "undo")
        assert [row[:2] for row in show(again)["rows"]] == [
            [[[a, str(n)]], [[b, str(n)]]] for n, (a, b) in enumerate(zip(EN, ZH, strict=True), 1)
        ]
    events = [json.loads(line)["type"] for line in (story / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    assert events == ["merge", "confirm", "undo", "redo", "undo", "undo"]


def test_two_pages_cannot_overwrite_each_other(client: TestClient, story: Path) -> None:
    """The second one hears that it is late, and nothing is changed."""
    edit(client, 0, "confirm", row=0)
    for path, body in (
        ("edit", {"operation": {"type": "confirm", "row": 1}}),
        ("realign", {}),
        ("replace", {"query": "It", "replacement": "She"}),
    ):
        message = post(client, f"{API}/{path}", 409, revision=0, **body)
        assert "was changed in another window" in message
    assert show(client)["revision"] == 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "edit": ({"revision": 0, "operation": {"type": "realign", "stretches": []}}, "expected one of confirm, unconfirm"),
    "edit ": ({"revision": 0, "operation": {"type": "merge", "row": 4}}, "merge: count 2"),
    "edit  ": ({"revision": 0}, "operation None; expected one of"),
    "find": ({"query": ""}, "a search text of 0 characters"),
    "find ": ({"query": "(", "regex": True}, "'(' is not a regular expression"),
    "find  ": ({}, "no query"),
    "replace": ({"revision": 0, "query": "zebra", "replacement": "x"}, "'zebra': no match to replace"),
    "replace ": ({"revision": 0, "query": "It", "replacement": r"\9", "regex": True}, "the replacement is invalid"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_in_one_line(client: TestClient, story: Path, case: str) -> None:
    """And change nothing."""
    body, message = BAD[case]
    assert message in post(client, f"{API}/{case.strip()}", 400, **body)
    assert show(client)["revision"] == 0


def test_text_is_found_and_replaced(client: TestClient, story: Path) -> None:
    """Plain text is taken as it is; groups of regular expressions can be used; all is undone at once."""
    assert post(client, f"{API}/find", query="it ", sides=["src"])["count"] == 3
    assert post(client, f"{API}/find", query="it ", case=True)["count"] == 0
    assert post(client, f"{API}/find", query="^It (saw|had)", regex=True)["found"] == [[1, "src", 0], [3, "src", 0]]
    answer = post(client, f"{API}/replace", revision=0, query="^It (saw|had)", regex=True, replacement=r"She \1")
    assert answer["count"] == 2 and show(client)["rows"][3][0][0][0] == "She had an idea."
    edit(client, 1, "undo")
    assert show(client)["rows"][3][0][0][0] == EN[3]


def test_a_search_that_would_never_end_is_given_up(
    client: TestClient, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds."""
    monkeypatch.setattr("dualmoco.alignment.search_text.MAX_SEARCH_SECONDS", 0.2)
    edit(client, 0, "edit", row=0, side="src", position=0, text="a" * 60 + "b")
    message = post(client, f"{API}/find", 400, query="(a|aa)+$", regex=True)
    assert "the search took more than 0.2 s" in message


def test_the_rest_is_aligned_again(client: TestClient, story: Path) -> None:
    """Confirmed rows stay; vectors are kept in the folder."""
    edit(client, 0, "confirm", row=0)
    edit(client, 1, "merge", row=1, count=4)
    answer = post(client, f"{API}/realign", revision=2)
    rows = show(client)["rows"]
    assert answer["revision"] == 3 and len(rows) == 5 and rows[0][4] == "confirmed"
    assert all(row[3] is not None for row in rows[1:])
    assert (story / "vectors.safetensors").is_file()
    assert "changes nothing" in post(client, f"{API}/realign", 400, revision=3)


def test_words_of_a_row_are_linked(client: TestClient, story: Path) -> None:
    """As spans of characters; a row with one side has none."""
    spans = client.get(f"{API}/words?row=2").json()["pairs"]
    assert ("water", "水") in {(EN[2][slice(*src)], ZH[2][slice(*tgt)]) for src, tgt in spans}
    edit(client, 0, "delete", row=0, side="tgt", position=0)
    assert client.get(f"{API}/words?row=0").json() == {"pairs": []}
    assert client.get(f"{API}/words?row=99").status_code == 400


@pytest.mark.parametrize("ending", ALIGNMENT_ENDINGS)
def test_every_format_is_exported(client: TestClient, story: Path, ending: str) -> None:
    """Under a name with its ending; several files are packed; only confirmed links if wished."""
    url = f"{API}/export?format={ending[1:]}"
    assert client.get(f"{url}&confirmed=1").status_code == 400
    edit(client, 0, "confirm", row=1)
    for query, shown in (("", True), ("&confirmed=1", False)):
        answer = client.get(url + query)
        assert answer.status_code == 200
        content = answer.content
        packed = ending in (".xml", ".intertext.xml")
        assert answer.headers["content-disposition"].endswith(f"story{ending}{'.zip' if packed else ''}")
        if packed:
            with zipfile.ZipFile(io.BytesIO(content)) as files:
                assert len(files.namelist()) == 3
        elif ending in (".tsv", ".tmx", ".xlf", ".html"):
            assert ZH[1] in content.decode() and (ZH[0] in content.decode()) is shown
    assert "expected one of tsv" in client.get(f"{API}/export?format=doc").json()["error"]["message"]


def test_broken_files_leave_nothing(client: TestClient, tmp_path: Path) -> None:
    """A broken TMX, an EPUB opened as an alignment, no file at all."""
    upload(client, "broken.tmx", "<tmx><body><tu>")
    upload(client, "book.epub", b"PK")
    assert "malformed XML" in post(client, "/api/alignments/open", 400, file="broken.tmx")
    assert "expected an alignment" in post(client, "/api/alignments/open", 400, file="book.epub")
    assert "no such file" in post(client, "/api/alignments/open", 404, file="none.tmx")
    assert "file is missing" in post(client, "/api/alignments/open", 400)
    assert "not a file name" in post(client, "/api/alignments/open", 400, file="../x.tmx")
    assert client.get("/api/alignments").json() == {"alignments": []}
    assert not [*(tmp_path / "project").glob("alignments/*")]


def test_large_documents_are_refused_before_any_work(client: TestClient, tmp_path: Path) -> None:
    """Of 100 MB, as a text and as an alignment."""
    folder = tmp_path / "project" / "documents"
    folder.mkdir(exist_ok=True)
    for name in ("large.txt", "large.tmx"):
        with (folder / name).open("wb") as stream:
            stream.truncate(100_000_001)  # takes no room on the disk
    (folder / "small.txt").write_text("Hello.")
    message = post(client, "/api/alignments", 400, src="large.txt", tgt="small.txt")
    assert message.startswith("large.txt: 100,000,001 bytes; expected at most 50,000,000")
    message = post(client, "/api/alignments/open", 400, file="large.tmx")
    assert message.startswith("large.tmx: 100,000,001 bytes; expected at most 100,000,000")
    assert client.get("/api/jobs").json() == {"jobs": []}


def test_a_deleted_alignment_is_gone_and_a_new_one_of_its_name_is_read(client: TestClient, story: Path) -> None:
    """Neither comes from memory."""
    edit(client, 0, "confirm", row=0)
    shutil.rmtree(story)
    assert client.get(API).status_code == 404 and client.get("/align/story").status_code == 404
    assert post(client, "/api/alignments/open", file="story.tsv", src_lang="en", tgt_lang="zh") == {"name": "story"}
    assert show(client)["revision"] == 0
    shutil.rmtree(story.parents[1])
    assert "was moved or deleted" in edit(client, 0, "confirm", 400, row=0)


@contextmanager
def file_limit(count: int) -> Iterator[None]:
    """No file of this process can have more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_changes_nothing(client: TestClient, story: Path) -> None:
    """The page hears of it, the journal stays whole, and the next operation works."""
    edit(client, 0, "confirm", row=0)
    before, size = show(client), (story / "journal.jsonl").stat().st_size
    with file_limit(size + 10):
        assert "cannot be written" in edit(client, 1, "confirm", 400, row=1)
    assert show(client) == before and (story / "journal.jsonl").stat().st_size == size
    edit(client, 1, "confirm", row=1)
    assert show(client)["revision"] == 2


def test_a_damaged_alignment_is_listed_with_its_error(client: TestClient, story: Path) -> None:
    """Others can still be opened."""
    upload(client, "other.tsv", "Hello.\t你好。\n")
    post(client, "/api/alignments/open", file="other.tsv", src_lang="en", tgt_lang="zh")
    (story / "journal.jsonl").write_text('{"type": "merge", "row": 77}\n')
    os.utime(story / "alignment.json", (1, 1))
    listed = {one["name"]: one for one in client.get("/api/alignments").json()["alignments"]}
    assert "event 1 cannot be repeated" in listed["story"]["error"] and listed["other"]["rows"] == 1
    assert client.get(API).status_code == 400


def test_languages_without_a_model_can_be_edited_but_not_aligned_again(client: TestClient) -> None:
    """The error says what to do."""
    upload(client, "fr.tsv", "Bonjour.\tGuten Tag.\n")
    post(client, "/api/alignments/open", file="fr.tsv", src_lang="fr", tgt_lang="de")
    operation = {"type": "confirm", "row": 0}
    post(client, "/api/alignments/fr/edit", revision=0, operation=operation)
    assert "no model for fr and de" in post(client, "/api/alignments/fr/realign", 400, revision=1)


def test_names_are_not_taken_twice(client: TestClient, story: Path) -> None:
    """A second file of that name gets a number."""
    assert post(client, "/api/alignments/open", file="story.tsv", src_lang="en", tgt_lang="zh") == {"name": "story 2"}
    assert editor.content_disposition("故事.tsv").isascii()

"""The API of the search page: indexes are built by jobs, searched, changed, and never by broken input."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dualmoco.models.load import open_model
from dualmoco.search.word_matches import WordMatcher, match_words
from dualmoco.server.search_page import MAX_INDEXED_BYTES

ENGLISH = "We need rain.\nThe train is late because of heavy snow.\nThe museum is closed.\n"
DOCUMENTS = [
    {"id": "a", "text": "火车因为大雪晚点了。", "source": "news", "year": 2019},
    {"id": "b", "text": "我们需要下雨。", "source": "talk", "year": 1998},
    {"id": "c", "text": "The museum opens at nine.", "source": "talk", "year": 2011},
]


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, status: int = 400, **body: Any) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def upload(client: TestClient, name: str, content: str | bytes) -> None:
    assert client.put(f"/api/documents/{name}", content=content).status_code == 201


def ended(client: TestClient, job: str) -> Any:
    """A job when it has ended."""
    for _ in range(600):
        state = client.get(f"/api/jobs/{job}").json()
        if state["state"] not in ("waiting", "running"):
            return state
        time.sleep(0.1)
    raise AssertionError("the job did not end")


@pytest.fixture
def index(client: TestClient) -> str:
    """The path of an index of two files."""
    upload(client, "lines.txt", ENGLISH)
    upload(client, "docs.jsonl", "".join(f"{json.dumps(one)}\n" for one in DOCUMENTS))
    files = [{"name": "lines.txt", "lang": "en"}, {"name": "docs.jsonl"}]
    job = ended(client, post(client, "/api/indexes", name="notes", files=files)["job"])
    assert job["state"] == "done" and job["result"]["sentences"] == 6
    return "/api/indexes/notes"


def test_an_index_is_built_searched_and_changed(client: TestClient, index: str) -> None:
    """Languages are recognised, hits come by language, words are marked, and documents can be deleted and added."""
    (listed,) = client.get("/api/indexes").json()["indexes"]
    assert listed == client.get(index).json()
    assert listed["languages"] == ["en", "zh"] and listed["fields"] == {"source": "text", "year": "number"}
    assert listed["values"] == {"source": ["news", "talk"]}
    found = post(client, f"{index}/search", text="The train is late because of heavy snow.", k=2)
    assert found["lang"] == "en" and found["recognized"]
    best = found["languages"]["zh"]["hits"][0]
    assert best["id"] == "a" and best["metadata"] == {"source": "news", "year": 2019}
    marked = {best["text"][slice(*mark["other"])]: found["text"][slice(*mark["word"])] for mark in best["marks"]}
    assert marked["火车"] == "train" and marked["雪"] == "snow"
    assert found["languages"]["en"]["more"] and not found["languages"]["zh"]["more"]
    more = post(client, f"{index}/search", text=found["text"], k=2, offset={"en": 2}, within=["en"])
    assert list(more["languages"]) == ["en"] and len(more["languages"]["en"]["hits"]) == 2
    old = post(client, f"{index}/search", text="rain", filter={"year": {"<": 2000}})
    assert [hit["id"] for one in old["languages"].values() for hit in one["hits"]] == ["b"]
    assert post(client, f"{index}/delete", ids=["a"])["sentences"] == 5
    upload(client, "docs.jsonl", json.dumps({**DOCUMENTS[1], "year": 2000}))
    assert ended(client, post(client, f"{index}/add", files=[{"name": "docs.jsonl"}])["job"])["state"] == "done"
    found = post(client, f"{index}/search", text="rain", within=["zh"])
    assert [(hit["id"], hit["metadata"]["year"]) for hit in found["languages"]["zh"]["hits"]] == [("b", 2000)]
    assert post(client, f"{index}/delete", files=["lines.txt"])["sentences"] == 2


def test_requests_that_cannot_be_are_refused(client: TestClient, index: str, tmp_path: Path) -> None:
    """One line each, that says what was expected."""
    search, project = f"{index}/search", tmp_path / "project"
    for message, path, body in (
        ("the query has no text; expected a sentence", search, {"text": " "}),
        ("a query of 20,000 characters; expected at most 10,000", search, {"text": "a" * 20_000}),
        ("filter 'yeer': no document of the index has this field; expected one of source, year", search, _by("yeer")),
        ("'fr'", search, {"text": "a", "lang": "fr"}),
        ("k 7000; expected a whole number from 0 to 100", search, {"text": "a", "k": 7000}),
        ("x.txt: not a file of the index", search, {"text": "a", "files": ["x.txt"]}),
        ("offset 3; expected a number by language", search, {"text": "a", "offset": 3}),
        ("within 7; expected a list of texts", search, {"text": "a", "within": 7}),
        ("id 'z': not in the index", f"{index}/delete", {"ids": ["z"]}),
        ("nothing to delete", f"{index}/delete", {}),
        ("name None; expected a name", "/api/indexes", {"files": [{"name": "lines.txt"}]}),
        ("an index with this name exists", "/api/indexes", {"name": "notes", "files": [{"name": "lines.txt"}]}),
        ("files: expected a list", "/api/indexes", {"name": "new"}),
        ("kind 'tree'", "/api/indexes", {"name": "new", "kind": "tree"}),
        ("'fr'", "/api/indexes", {"name": "new", "files": [{"name": "lines.txt", "lang": "fr"}]}),
        ("not a file name", "/api/indexes", {"name": "../new", "files": [{"name": "lines.txt"}]}),
    ):
        assert message in refused(client, path, **body)
    assert "no such file" in refused(client, "/api/indexes", 404, name="new", files=[{"name": "absent.txt"}])
    assert "no such file" in refused(client, "/api/indexes/absent/search", 404, text="a")
    upload(client, "photo.png", b"\x89PNG")
    assert "photo.png: cannot be indexed; expected text" in refused(
        client, "/api/indexes", name="new", files=[{"name": "photo.png"}]
    )
    with (project / "documents" / "big.txt").open("wb") as stream:
        stream.truncate(MAX_INDEXED_BYTES + 1)
    assert "big.txt: 100 MB; expected at most 100 MB: split it" in refused(
        client, "/api/indexes", name="new", files=[{"name": "big.txt"}]
    )
    assert not (project / "indexes" / "new").exists()


def _by(field: str) -> dict[str, Any]:
    return {"text": "a", "filter": {field: 1}}


def test_broken_files_fail_with_their_line(client: TestClient, tmp_path: Path) -> None:
    """The job says what is wrong, and no index appears."""
    jobs = []
    for name, content, message in (
        ("same.jsonl", b'{"id": 1, "text": "One."}\n{"id": 1, "text": "Two."}\n', "same.jsonl:2: the id '1' is also"),
        ("mixed.jsonl", b'{"text": "One.", "n": 1}\n{"text": "Two.", "n": "x"}\n', "mixed.jsonl:2: n is 'x', text"),
        ("latin.txt", b"caf\xe9\n" * 3, "latin.txt:1: not UTF-8"),
    ):
        upload(client, name, content)
        jobs.append((post(client, "/api/indexes", name=name, files=[{"name": name}])["job"], message))
    for job, message in jobs:
        state = ended(client, job)
        assert state["state"] == "failed" and message in state["message"]
    assert client.get("/api/indexes").json()["indexes"] == []


def test_an_index_of_a_model_that_is_gone(client: TestClient, index: str, tmp_path: Path) -> None:
    """It is listed, and a search names the model."""
    manifest = tmp_path / "project" / "indexes" / "notes" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**content, "model": "/gone/model"}), encoding="utf-8")
    assert client.get("/api/indexes").json()["indexes"][0]["model"] == "/gone/model"
    assert "/gone/model: the model of" in refused(client, f"{index}/search", text="rain")
    manifest.write_text("{}", encoding="utf-8")
    assert "has no readable manifest.json" in client.get("/api/indexes").json()["indexes"][0]["error"]


def test_words_that_translate_each_other() -> None:
    """Each is the best of the other; sentences about other things share none; punctuation and case do not count."""
    matcher = WordMatcher(open_model("en-zh-static"))

    def matched(one: tuple[str, str], other: tuple[str, str]) -> set[tuple[str, str]]:
        splits = matcher.split(*one), matcher.split(*other)
        assert splits[0] and splits[1]
        return {
            (one[0][slice(*match.word)], other[0][slice(*match.other)]) for match in match_words(splits[0], splits[1])
        }

    snow = ("Heavy snow delayed the TRAINS.", "en")
    assert {("snow", "雪"), ("TRAINS", "火车")} <= matched(snow, ("火车因为大雪晚点了。", "zh"))
    assert {("snow", "雪"), ("TRAINS", "火車")} <= matched(snow, ("火車因為大雪晚點了。", "zh"))
    assert matched(("The museum is closed.", "en"), ("火车晚点了。", "zh")) == set()
    assert matched(("Unbelievably good.", "en"), ("unbelievably bad", "en")) >= {("Unbelievably", "unbelievably")}
    assert matched(("...", "en"), ("。", "zh")) == set()
    assert matcher.split("Guten Tag", "de") is None

"""What the server refuses, and the headers it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dualmoco.server.app import create_app
from dualmoco.server.project import Project

HERE = "http://127.0.0.1:8477"
TOKEN = "the-token"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TestClient]:
    """A server that others can reach."""
    app = create_app(Project(tmp_path / "project"), model="en-zh-static", token=TOKEN)
    with TestClient(app, base_url="http://work.example:8477") as opened:
        yield opened


@pytest.mark.parametrize("host", ["127.0.0.1:8477", "localhost:1", "[::1]:8477", "localhost"])
def test_this_machine_is_answered(client: TestClient, host: str) -> None:
    """By each of its names, with any port."""
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8477", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::2]", "[::1"]
)
def test_other_host_names_are_refused(client: TestClient, host: str) -> None:
    """A site whose name was made to mean 127.0.0.1 still sends its own name."""
    answer = client.get("/search", headers={"Host": host})
    assert answer.status_code == 403 and "expected 127.0.0.1" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": HERE, "Sec-Fetch-Site": "same-origin"}, 201),
        ({}, 201),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "https://127.0.0.1:8477"}, 201),  # as behind a proxy with TLS
        ({"Origin": "http://127.0.0.1:8477.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_only_own_pages_write(client: TestClient, tmp_path: Path, headers: dict[str, str], status: int) -> None:
    """A page of another site, or of another port, changes nothing."""
    assert client.put("/api/documents/a.txt", content=b"Hello.", headers=headers).status_code == status
    assert (tmp_path / "project" / "documents" / "a.txt").exists() == (status == 201)


def test_no_other_site_may_read(client: TestClient) -> None:
    """No answer allows another origin."""
    answer = client.get("/api/documents", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/search", "/review", "/align", "/static/api.js", "/nothing", "/health"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    """Also errors and files."""
    headers = client.get(path, headers={"Accept": "text/html"}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_internal_errors_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, no message of Python, but the headers."""
    project = Project(tmp_path / "project")
    client = TestClient(create_app(project), base_url=HERE, raise_server_exceptions=False)
    monkeypatch.setattr(project, "names", lambda *parts: 1 / 0)
    answer = client.get("/api/documents")
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "InternalError"
    assert "ZeroDivision" not in answer.text and "default-src" in answer.headers["content-security-policy"]


def test_errors_of_the_system_are_named(client: TestClient, tmp_path: Path) -> None:
    """A folder in place of a document."""
    (tmp_path / "project" / "documents" / "a.txt").mkdir(parents=True)
    answer = client.delete("/api/documents/a.txt")
    assert answer.status_code == 500 and answer.json()["error"]["message"].startswith("a.txt: ")


def test_pages_have_no_inline_scripts_or_styles(client: TestClient) -> None:
    """The policy would block them."""
    for path in ("/search", "/review", "/align", "/nothing"):
        text = client.get(path, headers={"Accept": "text/html"}).text.lower()
        assert "<style" not in text and "style=" not in text and " onclick=" not in text
        assert all("src=" in tag.split(">")[0] for tag in text.split("<script")[1:])


def test_names_are_text(tmp_path: Path) -> None:
    """The name of a project is escaped."""
    client = TestClient(create_app(Project(tmp_path / "<img src=x onerror=alert(1)>")), base_url=HERE)
    text = client.get("/search", headers={"Accept": "text/html"}).text
    assert "<img" not in text and "&lt;img" in text


def test_a_token_is_needed(guarded: TestClient) -> None:
    """Everywhere but for the health check; a wrong one is as good as none."""
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": "a=b; c"}):
        for path in ("/search", "/api/documents", "/static/api.js", "/?token=wrong"):
            answer = guarded.get(path, headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "AuthenticationError"
    assert guarded.get("/health").status_code == 200


def test_a_program_sends_the_token(guarded: TestClient) -> None:
    """As OpenAI's clients send their key."""
    assert guarded.get("/api/documents", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_browser_keeps_the_token(guarded: TestClient) -> None:
    """The address with the token sets a cookie that scripts cannot read, and leads to the address without it."""
    answer = guarded.get(f"/search?token={TOKEN}&q=a+b", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/search?q=a+b"
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=strict" in answer.headers["set-cookie"]
    assert guarded.get("/search").status_code == 200
    assert (
        guarded.put("/api/documents/a.txt", content=b"A", headers={"Origin": "http://evil.example"}).status_code == 403
    )


@pytest.mark.parametrize(
    "name", ["..%2f..%2fout.txt", "%2e%2e", "a%00b", "con.txt", ".hidden", "a%5cb", "~root", "x" * 300]
)
def test_paths_stay_inside(client: TestClient, tmp_path: Path, name: str) -> None:
    """No name leads out of the folder of documents."""
    before = sorted(tmp_path.rglob("*"))
    for method in ("PUT", "DELETE"):
        assert client.request(method, f"/api/documents/{name}").status_code in (400, 404, 405)
    assert sorted(tmp_path.rglob("*")) == before


def test_large_bodies_are_refused(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and JSON, while they arrive; nothing is left of them."""
    monkeypatch.setattr("dualmoco.server.uploads.MAX_UPLOAD_BYTES", 1000)
    monkeypatch.setattr("dualmoco.server.handlers.MAX_JSON_BYTES", 1000)
    answer = client.put("/api/documents/a.txt", content=(b"x" * 100 for _ in range(20)))
    assert answer.status_code == 413 and not list((tmp_path / "project").rglob("*a.txt*"))
    assert client.post("/api/jobs/a-1/cancel", content=b" " * 1001).status_code == 413


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b"\xff", b'"a"', b"[" * 100_000])
def test_bodies_must_be_objects(client: TestClient, body: bytes) -> None:
    """Anything else is an error of the request."""
    assert client.post("/api/jobs/a-1/cancel", content=body).status_code == 400

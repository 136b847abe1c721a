"""A small Hugging Face Hub on this machine: creates repositories, takes commits and LFS objects, and serves files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "x" * 30
COMMIT = "c" * 40
LFS_BYTES = 10_000  # from this size on, a file is a large one


class Hub(ThreadingHTTPServer):
    """What was uploaded."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}  # of each repository, by path
        self.objects: dict[str, bytes] = {}  # large files by checksum
        self.refuse = 0  # status of every answer, to test errors
        self.posts: list[str] = []
        self.cards: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of huggingface_hub."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Is silent."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        body, path, hub = self._body(), self.path.partition("?")[0], self.server
        hub.posts.append(path)
        if hub.refuse or self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "no"}, hub.refuse or 401)
        if path == "/api/validate-yaml":  # the real Hub checks the front matter of the card here
            hub.cards.append(json.loads(body)["content"])
            return self._answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            if repo in hub.files:
                return self._answer({"url": f"{hub.url}/{repo}"}, 409)
            hub.private[repo], hub.files[repo] = asked.get("visibility") == "private", {}
            return self._answer({"url": f"{hub.url}/{repo}"})
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "lfs" if file["size"] >= LFS_BYTES else "regular"}
                for file in files
            ]
            return self._answer({"files": [mode | {"shouldIgnore": False} for mode in modes]})
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._answer({"transfer": "basic", "objects": list(map(self._upload, json.loads(body)["objects"]))})
        if found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
            url = f"{hub.url}/{found[1]}/commit/{COMMIT}"
            return self._answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self._answer({"error": path}, 404)

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {"actions": {"upload": {"href": f"{self.server.url}/objects/{asked['oid']}"}}}

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[repo][value["path"]] = base64.b64decode(value["content"])
            else:
                self.server.files[repo][value["path"]] = self.server.objects[value["oid"]]

    def do_PUT(self) -> None:
        body, oid = self._body(), self.path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != oid:
            return self._answer({"error": "checksum"}, 400)
        self.server.objects[oid] = body
        return self._answer({})

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        if hub.refuse:
            return self._answer({"error": "no"}, hub.refuse)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", path):
            if found[1] not in hub.files:
                return self._answer({"error": "no"}, 404, {"X-Error-Code": "RepoNotFound"})
            names = [{"rfilename": name} for name in hub.files[found[1]]]
            return self._answer(
                {"id": found[1], "sha": COMMIT, "private": hub.private[found[1]], "siblings": names, "tags": []}
            )
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.*", path):
            sizes = {name: len(data) for name, data in hub.files[found[1]].items()}
            return self._answer(
                [{"type": "file", "path": name, "size": size, "oid": "o"} for name, size in sizes.items()]
            )
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            data = hub.files[found[1]][found[2]]
            checksum = hashlib.sha256(data).hexdigest()
            return self._answer(data, headers={"ETag": f'"{checksum}"', "X-Repo-Commit": COMMIT})
        return self._answer({"error": path}, 404)

    do_HEAD = do_GET


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yields a hub that answers until the block ends."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()

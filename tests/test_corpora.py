from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import DataError
from dualmoco.data import corpora
from dualmoco.data.corpora import download, get_corpus, load_catalogue

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """Serves CONTENT, and drops the connection after `limit` bytes of an answer."""

    limit = 10**9
    ranges = True
    seen: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if "absent" in self.path:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.server.seen.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : start + self.server.limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def address(server: Server, name: str = "file.bin") -> str:
    return f"http://127.0.0.1:{server.server_port}/{name}"


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_resumes(server: Server, tmp_path: Path, ranges: bool) -> None:
    path = tmp_path / "sub" / "file.bin"
    server.limit, server.ranges = 100_000, ranges
    with pytest.raises(DataError, match=r"cannot be reached .*run again to resume"):
        download(address(server), path)
    assert not path.exists()
    server.limit = 10**9
    download(address(server), path, hashlib.sha256(CONTENT).hexdigest())
    assert path.read_bytes() == CONTENT
    assert server.seen == [None, "bytes=100000-"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["file.bin"]


def test_a_whole_partial_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.partial").write_bytes(CONTENT)
    download(address(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 00"):
        download(address(server), tmp_path / "file.bin", "00")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_file_and_an_absent_network(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the server answered 404"):
        download(address(server, "absent"), tmp_path / "file.bin")
    with pytest.raises(DataError, match="--from DIR"):
        download("http://127.0.0.1:9/file", tmp_path / "file.bin")


def test_entries_are_whole() -> None:
    for name, entry in load_catalogue().items():
        assert name == entry.name
        assert entry.kind in ("parallel", "test", "nli"), name
        assert entry.languages and entry.licence and entry.pairs, name
        assert entry.files or entry.download or entry.page, name
        assert bool(entry.download) == bool(entry.address) == bool(entry.into), name
        assert "{file}" in entry.address or not entry.address, name
        assert len(entry.sha256) in (0, len(entry.download)), name


def test_the_papers_corpora_and_test_sets_are_there() -> None:
    names = set(load_catalogue())
    assert {"tatoeba", "news-commentary", "un", "cwmt-neu2017", "cwmt-casia2015", "cwmt-casict2015"} <= names
    assert {"tatoeba-test", "bucc2018-zh-en", "sts", "sick", "snli", "multinli"} <= names


def test_getting_from_a_mirror(tmp_path: Path) -> None:
    mirror, into = tmp_path / "mirror", tmp_path / "data"
    (mirror / "eval" / "STS" / "deep").mkdir(parents=True)
    (mirror / "eval" / "STS" / "deep" / "a.txt").write_text("a")
    assert get_corpus("sts", into, mirror) == [into / "eval/STS/deep/a.txt"]
    assert (into / "eval/STS/deep/a.txt").read_text() == "a"
    assert get_corpus("sts", into, mirror) == [into / "eval/STS/deep/a.txt"]
    with pytest.raises(DataError, match="no files of sick; expected eval/SICK"):
        get_corpus("sick", into, mirror)
    with pytest.raises(DataError, match="no such folder"):
        get_corpus("sts", into, tmp_path / "nowhere")
    with pytest.raises(DataError, match="not in the catalogue"):
        get_corpus("nothing", into, mirror)


def test_downloading_an_entry(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    entry = replace(
        load_catalogue()["sick"],
        address=address(server, "{file}"),
        download=("a.zip",),
        into="eval/e",
        sha256=(digest,),
    )
    monkeypatch.setattr(corpora, "load_catalogue", lambda: {"e": entry})
    assert get_corpus("e", tmp_path, None) == [tmp_path / "eval/e/a.zip"]
    assert get_corpus("e", tmp_path, None) == [tmp_path / "eval/e/a.zip"]
    assert len(server.seen) == 1
    (tmp_path / "eval/e/a.zip").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"sha256 \w+; expected \w+"):
        get_corpus("e", tmp_path, None)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "| cwmt-neu2017" in capsys.readouterr().out
    assert main(["data", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(load_catalogue())
    assert main(["data", "get", "cwmt-neu2017", "--data", str(tmp_path)]) == 2
    assert "cannot be downloaded automatically; see http" in capsys.readouterr().err


@pytest.mark.data
def test_the_mirror_of_this_machine(tmp_path: Path, data_folder: Path) -> None:
    files = get_corpus("sick", tmp_path, data_folder)
    assert files and all(file.stat().st_size for file in files)

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, get_args

import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import DataError
from dualmoco.data import archives, corpora
from dualmoco.data.archives import unpack_archive
from dualmoco.data.corpora import download, get_corpus, load_catalogue
from testsets import write_bucc, write_lines, write_sts, write_tatoeba

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """Serves CONTENT, or the files that it has, and drops the connection after `limit` bytes of an answer."""

    limit = 10**9
    ranges = True
    seen: list[str | None]
    files: dict[str, bytes] | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        files = self.server.files
        content = CONTENT if files is None else files.get(self.path.rpartition("/")[2], b"")
        if "absent" in self.path or not content:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.server.seen.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + self.server.limit])

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
        assert entry.files or entry.download or entry.page or entry.parts, name
        assert bool(entry.download) == bool(entry.address) == bool(entry.into), name
        assert "{file}" in entry.address or not entry.address, name
        assert set(entry.sha256) <= set(entry.download), name
        assert bool(entry.root) == bool(entry.members) and (not entry.members or len(entry.download) == 1), name
        assert not any(load_catalogue()[part].parts for part in entry.parts), name


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
        members=(),
        sha256={"a.zip": digest},
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


Compression = Literal["w", "w:gz", "w:bz2", "w:xz"]


def write_archive(path: Path, mode: Compression, folders: dict[str, Path], *more: tarfile.TarInfo) -> None:
    """A tar archive of some folders under the given names, and of other members without content."""
    with tarfile.open(path, mode) as tar:
        for member in more:
            tar.addfile(member)
        for name, folder in folders.items():
            tar.add(folder, name)


def link(name: str, target: str) -> tarfile.TarInfo:
    """A symbolic link as a member of an archive."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.fixture
def origins(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Serves test sets in the layout of the real ones; the archives also have members that nobody asks for."""
    catalogue, source = load_catalogue(), tmp_path / "source"
    write_bucc(source / "bucc", "sample")
    write_sts(source)
    write_lines(source / "STS" / "STSBenchmark" / "sts-train.csv", ["unused"])
    write_archive(
        source / "bucc2018-zh-en.sample-gold.tar.bz2",
        "w:bz2",
        {"bucc2018/zh-en": source / "bucc"},
        link("bucc2018", "/"),
    )
    others = tarfile.TarInfo("../../outside.txt"), tarfile.TarInfo("/absolute.txt"), tarfile.TarInfo("STS/SICK.txt")
    write_archive(source / "senteval.tar", "w", {name: source / name for name in ("STS", "SICK")}, *others)
    texts = dict.fromkeys(catalogue["tatoeba-test"].download, b"One.\nTwo.\n")
    write_tatoeba(source)
    server.files = texts | {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    here = {name: replace(entry, address=address(server, "{file}"), sha256={}) for name, entry in catalogue.items()}
    monkeypatch.setattr(corpora, "load_catalogue", lambda: here)
    return server


def test_eval_is_a_folder_that_evaluate_reads(
    origins: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command fetches and unpacks the test sets, and the paper's tasks are scored on them."""
    data = tmp_path / "new" / "data"
    assert main(["data", "get", "eval", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "tatoeba-test: 224 files" in shown and "licence: CC BY-NC-SA 3.0" in shown
    digest = hashlib.sha256((data / "downloads" / "senteval.tar").read_bytes()).hexdigest()
    assert f"sha256 {digest} (not in the catalogue)" in shown
    names = {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()}
    assert len(names) == 224 + 3 + 51 + 3 + 2 and not list(tmp_path.rglob("outside.txt"))
    assert not any(path.is_symlink() or "partial" in path.name for path in data.rglob("*"))

    scores = tmp_path / "scores.json"
    assert main(["--quiet", "evaluate", "en-zh-static", "--data", str(data), "--out", str(scores)]) == 0
    subsets = {score["subset"] for score in json.loads(scores.read_text(encoding="utf-8"))}
    assert {"cmn-eng", "zh-en sample", "average of 7"} <= subsets

    requests = len(origins.seen)
    (data / "eval" / "SICK" / "SICK_trial.txt").unlink()
    assert get_corpus("eval", data) == get_corpus("eval", data)
    assert (data / "eval" / "SICK" / "SICK_trial.txt").is_file() and len(origins.seen) == requests


def test_what_cannot_be_fetched_is_named_and_the_rest_is_there(
    origins: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead server of one archive costs only its test sets; a copy saved by hand completes the folder."""
    assert origins.files
    archive = origins.files.pop("senteval.tar")
    assert main(["data", "get", "eval", "--data", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "bucc2018-zh-en: 3 files" in output.out and "not fetched: sts, sick" in output.err
    assert f"save it yourself as {tmp_path / 'downloads' / 'senteval.tar'}: see http" in output.err
    with pytest.raises(DataError, match="404"):
        get_corpus("eval", tmp_path)
    (tmp_path / "downloads" / "senteval.tar").write_bytes(archive)
    assert main(["data", "get", "eval", "--data", str(tmp_path)]) == 0
    assert main(["data", "get", "eval", "nothing", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("dualmoco: 'nothing': not in the catalogue; expected one of eval")


def test_bad_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written from an archive that is damaged, lacks a file, has a link in its place or is too large."""
    write_lines(tmp_path / "set" / "a.txt", ["a" * 5000])
    archive, into = tmp_path / "set.tar", tmp_path / "into"

    def refused(reason: str, *members: str) -> None:
        with pytest.raises(DataError, match=reason):
            unpack_archive(archive, "set", members or ("a.txt",), into)
        assert not into.exists()

    write_archive(archive, "w", {"set": tmp_path / "set"}, link("set/b.txt", "/etc/hostname"))
    refused("has no set/c.txt", "a.txt", "c.txt")
    refused("set/b.txt is a link or a folder", "a.txt", "b.txt")
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 1000)
    refused("more than 1,000 bytes")
    monkeypatch.undo()
    for mode in get_args(Compression):
        write_archive(archive, mode, {"set": tmp_path / "set"})
        whole = archive.read_bytes()
        archive.write_bytes(whole[: len(whole) // 3])
        refused("cannot be unpacked .*delete it and run again")
    archive.write_text("<html>not found</html>")
    refused("cannot be unpacked")


@pytest.mark.data
def test_the_mirror_of_this_machine(tmp_path: Path, data_folder: Path) -> None:
    files = get_corpus("sick", tmp_path, data_folder)
    assert files and all(file.stat().st_size for file in files)

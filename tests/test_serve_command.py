"""`dualmoco serve` as a process, its jobs, and the clients that people use."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmoco
from browser import OPTIONS, Server, serving
from dualmoco.core.errors import ConfigError
from dualmoco.server.jobs import Jobs
from dualmoco.server.project import Project
from dualmoco.server.serve import open_socket, server_address

EXAMPLES = Path(__file__).parents[1] / "examples"
SENTENCES = ["Where is the station?", "车站在哪里？"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that several tests ask."""
    with serving(tmp_path_factory.mktemp("serve") / "project") as started:
        yield started


@pytest.fixture(scope="module")
def expected() -> np.ndarray[Any, Any]:
    """The vectors of SENTENCES."""
    return dualmoco.load("en-zh-static").encode_each(SENTENCES)


def test_openai_client(running: Server, expected: np.ndarray[Any, Any]) -> None:
    """OpenAI's own, which asks for base64."""
    openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="en-zh-static", input=SENTENCES)
        assert np.allclose([row.embedding for row in answer.data], expected, atol=1e-6)
        one = client.embeddings.create(model="en-zh-static:en", input="12:30", dimensions=16, encoding_format="float")
        assert len(one.data[0].embedding) == 16
        assert [model.id for model in client.models.list()] == ["en-zh-static", "en-zh", "many-static"]
        with pytest.raises(openai.BadRequestError, match="no letters"):
            client.embeddings.create(model="en-zh-static", input="12:30")
        with pytest.raises(openai.NotFoundError, match="expected one of"):
            client.embeddings.create(model="other", input="Hello.")


def test_langchain_client(running: Server, expected: np.ndarray[Any, Any]) -> None:
    """With the option that makes it send text and not tokens."""
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai: pip install langchain-openai")
    embeddings = langchain.OpenAIEmbeddings(
        model="en-zh-static", base_url=f"{running.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    assert np.allclose(embeddings.embed_documents(SENTENCES), expected, atol=1e-6)
    assert np.allclose(embeddings.embed_query(SENTENCES[1]), expected[1], atol=1e-6)


def test_llama_index_client(running: Server, expected: np.ndarray[Any, Any]) -> None:
    """Its class for servers like OpenAI's."""
    package = "llama-index-embeddings-openai-like"
    llama_index = pytest.importorskip(
        "llama_index.embeddings.openai_like", reason=f"needs {package}: pip install {package}"
    )
    embeddings = llama_index.OpenAILikeEmbedding(
        model_name="en-zh-static", api_base=f"{running.url}/v1", api_key="none"
    )
    assert np.allclose(embeddings.get_text_embedding_batch(SENTENCES), expected, atol=1e-6)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_documented_requests_are_answered(running: Server) -> None:
    """Every request of the page, as printed."""
    page = (EXAMPLES.parent / "docs" / "guides" / "endpoints.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    script = script.replace("http://127.0.0.1:8477", running.url).replace(
        "curl ", "curl -sS --fail-with-body -w '\\n' "
    )
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(answers) == 5, done
    assert answers[2]["results"][0]["hits"][0]["text"] == "车站在哪里？"
    assert [link["type"] for link in answers[4]["links"]] == ["1-1", "1-2"]


def test_a_second_server_is_refused(running: Server) -> None:
    """In one line, with status 2."""
    done = run_serve(running.folder)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "in use by another process" in done.stderr


def test_a_wrong_model_ends_it(tmp_path: Path) -> None:
    """In one line, with status 2, although the pages are served before the model is open."""
    done = run_serve(tmp_path / "project", "--model", f"words:en={tmp_path}/none.txt")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "none.txt" in done.stderr


def run_serve(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`dualmoco serve`, which ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "dualmoco", "serve", str(folder), *OPTIONS, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """With status 0; the project can be opened at once again."""
    with serving(tmp_path / "project") as server:
        assert server.get("/health") == {"status": "ok"}
        assert server.stop(number) == 0
        server.start()
        assert server.get("/health") == {"status": "ok"}


def test_another_host_needs_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is printed with the address, and may be chosen."""
    monkeypatch.setenv("DUALMOCO_TOKEN", "chosen")
    with serving(tmp_path / "project", "--host", "0.0.0.0") as server:
        port = server.url.rpartition(":")[2]
        assert server.token == "chosen"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/documents")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/documents", headers={"Authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer) == {"documents": []}


def test_a_taken_port_is_replaced() -> None:
    """By a free one; an address of another machine is an error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with open_socket("127.0.0.1", number) as found:
            assert found.getsockname()[1] != number
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1: cannot listen"):
        open_socket("192.0.2.1", 0)
    with pytest.raises(ConfigError, match="port 70000"):
        open_socket("127.0.0.1", 70000)


def test_addresses_are_for_browsers() -> None:
    """With the name of the machine in place of "every address"."""
    assert server_address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert server_address("::1", 80, "t") == "http://[::1]:80/?token=t"
    assert server_address("0.0.0.0", 80, "t") == f"http://{socket.gethostname()}:80/?token=t"


def wait_for(jobs: Jobs, name: str, *states: str) -> Any:
    """The job when it has one of some states."""
    for _ in range(1200):
        job = jobs.get(name)
        if job.state in states:
            return job
        time.sleep(0.1)
    raise AssertionError(f"{name} is {job}")


def test_jobs_run_one_after_the_other(tmp_path: Path) -> None:
    """And keep what they printed, or why they failed; one that waits can be cancelled."""
    jobs = Jobs(Project(tmp_path / "p"))
    good = jobs.start("score", "Hello", ["similarity", "Hello.", "你好。", "--model", "en-zh-static", "--json"])
    bad = jobs.start("score", "Nothing", ["encode", "documents/none.txt", "--out", "exports/v"])
    late = jobs.start("score", "Late", ["similarity", "a", "b"])
    assert [job.id for job in jobs.all()] == ["score-3", "score-2", "score-1"]
    assert jobs.cancel(late.id).state == "cancelled"
    done = wait_for(jobs, good.id, "done", "failed")
    assert done.state == "done" and done.progress == 1.0 and done.ended >= done.created
    assert isinstance(done.result, dict | list), done
    failed = wait_for(jobs, bad.id, "done", "failed")
    assert failed.state == "failed" and "documents/none.txt: no such file" in failed.message
    jobs.stop()


def test_an_interrupted_job_resumes(tmp_path: Path) -> None:
    """When its server is killed, it ends as well; the next server runs it again."""
    (tmp_path / "project" / "documents").mkdir(parents=True)
    server = Server(tmp_path / "project")
    Project(tmp_path / "other")
    (tmp_path / "other" / "project.json").rename(tmp_path / "project" / "project.json")
    (tmp_path / "project" / "documents" / "en.txt").write_text((EXAMPLES / "en.txt").read_text("utf-8"), "utf-8")
    jobs = Jobs(Project(tmp_path / "project"))
    jobs.stop()  # so that only the server runs it
    words = ["encode", "documents/en.txt", "--out", "exports/vectors", "--model", "en-zh-static"]
    job = jobs.start("encode", "Encode", words)
    server.start()
    while server.get(f"/api/jobs/{job.id}")["state"] == "waiting":
        time.sleep(0.02)
    server.stop(signal.SIGKILL)
    server.start()
    wait_for(jobs, job.id, "done")
    assert server.stop() == 0
    assert (tmp_path / "project" / "exports" / "vectors").is_dir()

"""The endpoints for other programs, compared with the functions of the package."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import dualmoco
from dualmoco.models.model import Model
from dualmoco.server.coalescing import BusyError, Coalescer
from dualmoco.server.openapi import BODIES, ENDPOINT_PATHS, READ_PATHS

SENTENCES = ["Where is the station?", "车站在哪里？", "I like apples.", "", "12:30"]


@pytest.fixture(scope="module")
def model() -> Model:
    """The model of the server."""
    return dualmoco.load("en-zh-static")


def vectors(answer: Any) -> np.ndarray[Any, Any]:
    """The vectors of an answer, in order."""
    data = answer.json()["data"]
    assert [row["index"] for row in data] == list(range(len(data)))
    rows = [row["embedding"] for row in data]
    if isinstance(rows[0], str):
        return np.stack([np.frombuffer(base64.b64decode(row), dtype="<f4") for row in rows])
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_embeddings_equal_encode(client: TestClient, model: Model, form: str | None) -> None:
    """Of each sentence in its own language, in order, in both forms."""
    body = {"model": "en-zh-static", "input": SENTENCES, "encoding_format": form, "user": "me"}
    answer = client.post("/v1/embeddings", json=body)
    langs = ["en", "zh", "en", "en", "en"]
    expected = np.concatenate([model.encode([text], lang=lang) for text, lang in zip(SENTENCES, langs, strict=True)])
    assert np.allclose(vectors(answer), expected, atol=1e-6) and not expected[3].any()
    assert answer.json()["object"] == "list" and answer.json()["model"] == "en-zh-static"
    assert answer.json()["usage"]["total_tokens"] == sum(map(len, SENTENCES))


@pytest.mark.parametrize(
    "extra", [{"model": "en-zh-static:zh"}, {"input_type": "zh"}, {"model": "en-zh-static:zh", "input_type": "zh-CN"}]
)
def test_the_language_can_be_named(client: TestClient, model: Model, extra: dict[str, str]) -> None:
    """By the model or by the type of the input; then nothing is recognised."""
    answer = client.post("/v1/embeddings", json={"input": "12:30", **extra})
    assert np.allclose(vectors(answer), model.encode(["12:30"], lang="zh"), atol=1e-6)


def test_dimensions_are_cut_and_scaled(client: TestClient, model: Model) -> None:
    """As `encode` does it."""
    answer = client.post("/v1/embeddings", json={"input": SENTENCES[:2], "dimensions": 32})
    expected = [model.encode([text], dimension=32)[0] for text in SENTENCES[:2]]
    assert np.allclose(vectors(answer), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "input is missing"),
        ({"input": []}, 400, "0 items"),
        ({"input": ["a"] * 2049}, 400, "2,049 items; expected from 1 to 2,048"),
        ({"input": [1, 2]}, 400, "check_embedding_ctx_length=False"),
        ({"input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
        ({"input": {"a": 1}}, 400, "expected string"),
        ({"input": [None]}, 400, "expected sentences"),
        ({"input": "12:30"}, 400, "no letters to recognise the language by"),
        ({"input": "Это русский текст"}, 400, "looks like"),
        ({"input": "Hello.", "model": "text-embedding-ada-002"}, 404, "expected one of en-zh-static, en-zh"),
        ({"input": "Hello.", "model": "/etc/passwd"}, 404, "expected one of"),
        ({"input": "Hello.", "model": "en-zh-static:fr"}, 400, "has no language 'fr'"),
        ({"input": "Hello.", "model": "en-zh-static:en", "input_type": "zh"}, 400, "expected one language"),
        ({"input": "Hello.", "encoding_format": "hex"}, 400, "expected one of float, base64"),
        ({"input": "Hello.", "dimensions": 0}, 400, "dimensions 0"),
        ({"input": "Hello.", "dimensions": 1 << 20}, 400, "expected from 1 to"),
        ({"input": "Hello.", "dimensions": True}, 400, "expected integer"),
        ({"input": "Hello.", "dimension": 3}, 400, "did you mean 'dimensions'?"),
        ({"input": "half \ud83d of it"}, 400, ""),
    ],
)
def test_bad_requests_are_answered(client: TestClient, body: dict[str, Any], status: int, message: str) -> None:
    """With one line in the form of OpenAI's errors."""
    answer = client.post("/v1/embeddings", content=json.dumps(body))
    error = answer.json()["error"]
    assert answer.status_code == status and message in error["message"] and "\n" not in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


def test_models_are_listed(client: TestClient) -> None:
    """The server's own first."""
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["en-zh-static", "en-zh", "many-static", "many"]
    assert client.get("/v1/models/en-zh-static").json()["id"] == "en-zh-static"
    assert client.get("/v1/models/gpt").status_code == 404


def test_similarity_equals_the_function(client: TestClient) -> None:
    """One sentence or several on a side."""
    answer = client.post("/similarity", json={"a": SENTENCES[0], "b": [SENTENCES[1], SENTENCES[2]]}).json()
    expected = [dualmoco.similarity(SENTENCES[0], other, model="en-zh-static").item() for other in SENTENCES[1:3]]
    assert np.allclose(answer["similarities"], [expected], atol=1e-5)


def test_search_in_texts(client: TestClient) -> None:
    """The nearest first, with pages and a lowest score."""
    body = {"query": "Where is the station?", "texts": ["我喜欢苹果。", "车站在哪里？", "I like apples."]}
    hits = client.post("/search", json=body).json()["results"][0]["hits"]
    assert (hits[0]["text"], hits[0]["lang"], hits[0]["line"]) == ("车站在哪里？", "zh", 2) and len(hits) == 3
    assert client.post("/search", json={**body, "k": 1, "offset": 1}).json()["results"][0]["hits"] == hits[1:2]
    assert len(client.post("/search", json={**body, "min_score": 0.5}).json()["results"][0]["hits"]) == 1
    for extra in ({"texts": None}, {"index": "a"}, {"within": "zh"}):
        assert client.post("/search", json={**body, **extra}).status_code == 400


def test_search_in_an_index(client: TestClient, tmp_path: Path) -> None:
    """Equals the index's own search; an index that is not there is a 404."""
    text = tmp_path / "zh.txt"
    text.write_text("我喜欢苹果。\n车站在哪里？\n", encoding="utf-8")
    folder = tmp_path / "project" / "indexes" / "small"
    dualmoco.build_index(folder, {"zh": text}, "en-zh-static")
    answer = client.post("/search", json={"index": "small", "query": ["Where is the station?"], "k": 1}).json()
    expected = dualmoco.open_index(folder).search("Where is the station?", k=1)[0][0]
    hit = answer["results"][0]["hits"][0]
    assert (hit["text"], hit["line"], round(hit["score"], 5)) == (expected.text, 2, round(expected.score, 5))
    for name, status in (("other", 404), ("../documents", 400)):
        assert client.post("/search", json={"index": name, "query": "a"}).status_code == status


def test_mine_and_align_equal_the_functions(client: TestClient) -> None:
    """The examples of the description."""
    given = BODIES["/mine"][-1]
    found = client.post("/mine", json=given).json()["pairs"]
    expected = dualmoco.mine(**given, model="en-zh-static", progress=False)
    assert [(pair["src"], pair["tgt"]) for pair in found] == [(pair.src, pair.tgt) for pair in expected]
    given = BODIES["/align"][-1]
    links = client.post("/align", json=given).json()["links"]
    assert [link["type"] for link in links] == [link.type for link in dualmoco.align(**given, model="en-zh-static")]


def test_health_and_metrics(client: TestClient) -> None:
    """Counts by path and status; unknown paths are one."""
    for path in ("/health", "/health", "/x1", "/x2"):
        client.get(path)
    client.post("/v1/embeddings", json={"input": ["a", "b", "c"], "input_type": "en"})
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['dualmoco_requests_total{path="/health",method="GET",status="200"}'] == "2"
    assert lines['dualmoco_requests_total{path="other",method="GET",status="404"}'] == "2"
    assert lines['dualmoco_request_seconds_count{path="/v1/embeddings"}'] == "1"
    assert lines['dualmoco_request_seconds_bucket{path="/health",le="+Inf"}'] == "2"
    assert (lines["dualmoco_sentences_total"], lines["dualmoco_batches_total"]) == ("3", "1")


def test_everything_described_is_there(client: TestClient) -> None:
    """Every path of the OpenAPI document, and every example works; the page shows them."""
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0" and set(document["paths"]) == ENDPOINT_PATHS
    for path in READ_PATHS:
        assert client.get(path).status_code == 200
    for path in BODIES:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert set(content["schema"]["required"]) <= set(content["schema"]["properties"])
        answer = client.post(path, json=content["example"])
        assert answer.status_code == 200, answer.text
        described = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert answer.json().keys() == described["properties"].keys()
    page = client.get("/endpoints", headers={"Accept": "text/html"}).text
    assert all(path in page for path in ENDPOINT_PATHS) and "http://127.0.0.1:8477/similarity" in page


class SlowModel:
    """A model whose first batch waits until it is let go, and which counts its batches."""

    def __init__(self, model: Model) -> None:
        self.model, self.languages, self.dimension = model, model.languages, model.dimension
        self.language, self.recognize_each, self.resolve = model.language, model.recognize_each, model.resolve
        self.batches: list[list[str]] = []
        self.started, self.free = threading.Event(), threading.Event()

    def encode_as(self, texts: list[str], lang: str, *, progress: bool) -> Any:
        """As the model does it, later."""
        self.started.set()
        assert self.free.wait(60)
        self.batches.append(texts)
        return self.model.encode_as(texts, lang, progress=progress)


def test_requests_that_wait_become_one_batch(model: Model) -> None:
    """While one is encoded, the others gather; each gets its own vectors, and a wrong one harms only itself."""
    slow: Any = SlowModel(model)
    coalescer = Coalescer()
    first = coalescer.submit(slow, ["First."], "en")
    assert slow.started.wait(60)
    texts = [[f"Sentence {n}.", f"Another {n}."] for n in range(20)]
    later = [coalescer.submit(slow, pair, "en") for pair in texts]
    gone = coalescer.submit(slow, ["Never."], "en")
    assert gone.cancel() and coalescer.waiting == 41
    slow.free.set()
    for pair, future in zip(texts, later, strict=True):
        assert np.allclose(future.result(60), model.encode(pair, lang="en"), atol=1e-6)
    assert first.result(60).shape == (1, model.dimension) and [len(batch) for batch in slow.batches] == [1, 40]
    wrong = [coalescer.submit(slow, given) for given in (["Hello."], ["12:30"], ["你好。"])]
    assert wrong[0].result(60).any() and wrong[2].result(60).any()
    with pytest.raises(dualmoco.ConfigError, match="no letters"):
        wrong[1].result(60)
    coalescer.close()
    with pytest.raises(BusyError):
        coalescer.submit(slow, ["Late."], "en")


def test_closing_finishes_what_waits(model: Model) -> None:
    """Nothing that was taken is lost."""
    slow: Any = SlowModel(model)
    coalescer = Coalescer()
    futures = [coalescer.submit(slow, [f"Sentence {n}."], "en") for n in range(5)]
    assert slow.started.wait(60)
    threading.Timer(0.1, slow.free.set).start()
    coalescer.close()
    assert all(isinstance(future, Future) and future.done() for future in futures)


def test_too_much_is_refused(client: TestClient, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 503, when more than some sentences wait; a single large request is taken."""
    monkeypatch.setattr("dualmoco.server.coalescing.WAITING_SENTENCES", 3)
    slow: Any = SlowModel(model)
    client.app.state.studio._models["en-zh-static"] = slow  # type: ignore[attr-defined]
    body = {"input": ["Hello."] * 3, "input_type": "en"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, "/v1/embeddings", json=body)
        assert slow.started.wait(60)
        second = pool.submit(client.post, "/v1/embeddings", json=body)
        while client.app.state.studio.coalescer.waiting < 3:  # type: ignore[attr-defined]
            threading.Event().wait(0.01)
        refused = client.post("/v1/embeddings", json=body)
        slow.free.set()
        assert refused.status_code == 503 and "try again later" in refused.json()["error"]["message"]
        assert first.result(60).status_code == second.result(60).status_code == 200

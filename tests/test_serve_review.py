"""The API of the mining review, over files and journals as they are on the disk."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from dualmoco.data.grammar import generate_pairs
from dualmoco.mining.io import PairTable, read_mined, write_pairs
from dualmoco.models.load import open_model
from test_judgements import ORIGIN, draw, write_file


@pytest.fixture
def right(client: TestClient, tmp_path: Path) -> np.ndarray:
    """A review `news` of 1,000 mined pairs; which of them are right."""
    scores, right = draw("mined", 1000, np.random.default_rng(9))
    (tmp_path / "project" / "documents").mkdir()
    sha256 = open_model("en-zh-static").identity.sha256
    write_file(
        tmp_path / "project" / "documents" / "news.tsv",
        scores,
        right,
        model="en-zh-static",
        model_sha256=sha256,
        threshold=0.12,
    )
    answer = client.post("/api/reviews", json={"file": "documents/news.tsv"})
    assert answer.status_code == 200 and answer.json() == {"name": "news"}
    return right


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, status: int, **body: Any) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def judge(client: TestClient, row: int, verdict: str, revision: int, *, drawn: bool = True) -> Any:
    body = {"type": "judge", "row": row, "verdict": verdict, "revision": revision, "drawn": drawn}
    return post(client, "/api/reviews/news/events", **body)


def judge_drawn(client: TestClient, right: np.ndarray, count: int) -> Any:
    """Judges the first pairs of the random order; returns the last answer."""
    rows = get(client, "/api/reviews/news/rows", count=count)["rows"]
    state = {"revision": get(client, "/api/reviews/news")["revision"]}
    for row in rows:
        state = judge(client, row["row"], "accept" if right[row["row"]] else "reject", state["revision"])
    return state


def test_a_review_is_judged_and_remembered(client: TestClient, right: np.ndarray, tmp_path: Path) -> None:
    """The journal has every judgement, the estimate moves, and undo takes one back."""
    before = get(client, "/api/reviews/news")
    assert before["pairs"] == 1000 and before["langs"] == ["en", "zh"] and before["threshold"] == 0.12
    assert before["revision"] == 0 and before["estimate"]["precision"]["value"] is None
    assert sum(band["pairs"] for band in before["bands"]) == 1000
    state = judge_drawn(client, right, 50)
    assert state["revision"] == 50 and state["counts"]["unjudged"] == 950
    found = state["estimate"]["precision"]
    scores = [row["score"] for row in get(client, "/api/reviews/news/rows", order="score", count=200)["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert found["low"] < found["value"] < found["high"]
    last = json.loads((tmp_path / "project/reviews/news/journal.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["type"] == "judge" and {"row", "id", "score", "src", "tgt", "verdict", "band"} <= last.keys()
    undone = post(client, "/api/reviews/news/events", type="undo", revision=50)
    assert undone["row"] == last["row"] and undone["verdict"] is None and undone["counts"]["unjudged"] == 951
    again = post(client, "/api/reviews/news/events", type="redo", revision=51)
    assert again["counts"]["unjudged"] == 950
    moved = post(client, "/api/reviews/news/events", type="threshold", value=0.2, revision=52)
    assert moved["threshold"] == 0.2 and moved["estimate"]["kept"] < state["estimate"]["kept"]
    back = post(client, "/api/reviews/news/events", type="undo", revision=53)
    assert back["threshold"] == 0.12 and back["row"] is None
    listed = get(client, "/api/reviews")["reviews"]
    assert listed == [{"name": "news", "file": "documents/news.tsv", "job": None, "ready": True, "judged": 50}]


def test_lists_are_ordered_and_filtered(client: TestClient, right: np.ndarray) -> None:
    """A list stays as it was while pairs are judged; a new one shows what is so now."""
    rows = "/api/reviews/news/rows"
    near = get(client, rows, order="near", count=5)
    distances = [abs(row["score"] - 0.12) for row in near["rows"]]
    assert distances == sorted(distances) and near["total"] == 1000
    judge(client, near["rows"][0]["row"], "reject", 0, drawn=False)
    judge(client, near["rows"][1]["row"], "accept", 1, drawn=False)
    same = get(client, rows, view=near["view"], count=2)["rows"]
    assert [row["verdict"] for row in same] == ["reject", "accept"]
    assert get(client, rows, show="rejected")["rows"][0]["row"] == near["rows"][0]["row"]
    assert [get(client, rows, show=show)["total"] for show in ("unjudged", "accepted", "rejected")] == [998, 1, 1]
    band = get(client, rows, band=2, count=200)["rows"]
    assert band and {row["band"] for row in band} == {2}
    found = get(client, rows, text="SOURCE 77", count=20)["rows"]
    assert len(found) == 11 and all("source 77" in row["src"] for row in found)  # 77 and 770 to 779
    assert get(client, rows, text="(nothing").get("total") == 0
    assert get(client, rows, start=998)["rows"] and len(get(client, rows, start=998)["rows"]) == 2
    assert client.get(rows, params={"view": "gone"}).status_code == 404
    for query in ({"order": "odd"}, {"show": "odd"}, {"start": "-1"}, {"band": "x"}):
        assert client.get(rows, params=query).status_code == 400


def test_words_that_translate_each_other_are_found(client: TestClient, tmp_path: Path) -> None:
    """As spans of characters in both sentences."""
    examples = generate_pairs(300, seed=3)
    lines = np.arange(1, len(examples) + 1)
    scores = np.linspace(0.9, 0.5, len(examples))
    (tmp_path / "project" / "documents").mkdir()
    sides = [src for src, _ in examples], [tgt for _, tgt in examples]
    path = tmp_path / "project/documents/demo.tsv"
    write_pairs(path, PairTable(scores, scores, scores, lines, lines), sides, ("en", "zh"), ORIGIN)
    post(client, "/api/reviews", file="documents/demo.tsv")
    found = get(client, "/api/reviews/demo/words", row=3)["pairs"]
    words = {(sides[0][3][a:b], sides[1][3][c:d]) for (a, b), (c, d) in found}
    assert words and len(words) == len(found)
    assert client.get("/api/reviews/demo/words", params={"row": 10**9}).status_code == 400


def test_two_windows_cannot_overwrite_each_other(client: TestClient, right: np.ndarray) -> None:
    """The second one gets 409, and nothing of it is written."""
    judge(client, 3, "accept", 0)
    message = refused(client, "/api/reviews/news/events", 409, type="judge", row=3, verdict="reject", revision=0)
    assert "changed in another window" in message
    assert get(client, "/api/reviews/news")["counts"]["accepted"] == 1


def test_wrong_requests_change_nothing(client: TestClient, right: np.ndarray) -> None:
    """Each names what is wrong."""
    events = "/api/reviews/news/events"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"type": "judge", "row": 1000, "verdict": "accept"}, "row 1000; expected a number below 1,000"),
        ({"type": "judge", "row": "3", "verdict": "accept"}, "row '3'"),
        ({"type": "judge", "row": 3, "verdict": "maybe"}, "'maybe'; expected one of accept, reject"),
        ({"type": "threshold", "value": "high"}, "threshold 'high'; expected a number"),
        ({"type": "delete"}, "'delete'; expected one of judge"),
    ]
    for body, expected in wrong:
        assert expected in refused(client, events, 400, **body, revision=0)
    assert "revision None" in refused(client, events, 400, type="undo")
    assert get(client, "/api/reviews/news")["revision"] == 0
    for precision in ("0", "1.5", "x"):
        assert client.get("/api/reviews/news/threshold", params={"precision": precision}).status_code == 400
    assert "no accepted pairs" in refused(client, "/api/reviews/news/export", 400, selection="accepted", format="tsv")
    assert "expected one of tsv" in refused(client, "/api/reviews/news/export", 400, selection="kept", format="exe")
    assert client.get("/api/reviews/news/exports/other.tsv").status_code == 404
    assert client.get("/api/reviews/no").status_code == 404
    assert client.get("/review/no").status_code == 404


def test_a_threshold_is_found_and_used(client: TestClient, right: np.ndarray, tmp_path: Path) -> None:
    """The histogram counts every pair, the found threshold has the wished precision, and the model takes it."""
    judge_drawn(client, right, 150)
    histogram = get(client, "/api/reviews/news/histogram")
    assert sum(histogram["counts"]) == 1000 and histogram["estimates"][0]["kept"] == 1000
    kept = [estimate["kept"] for estimate in histogram["estimates"]]
    assert kept == sorted(kept, reverse=True)
    found = get(client, "/api/reviews/news/threshold", precision=0.95)["estimate"]
    assert found["precision"]["value"] >= 0.95
    sure = get(client, "/api/reviews/news/threshold", precision=0.8, sure=1)["estimate"]
    assert sure["precision"]["low"] >= 0.8
    assert get(client, "/api/reviews/news/threshold", precision=1, sure=1)["estimate"] is None
    made = post(client, "/api/reviews/news/calibrate", precision=0.95)
    assert made["calibration"]["threshold"] == found["threshold"] and "150 judged pairs" in made["text"]
    assert (tmp_path / "project" / made["file"]).is_file() and "--calibration" in made["use"]
    assert client.get(made["url"]).json()["calibrations"][0]["judged"] == 150


def test_exports_are_downloaded(client: TestClient, right: np.ndarray, tmp_path: Path) -> None:
    """All above the threshold without the rejected ones."""
    judge_drawn(client, right, 50)
    made = post(client, "/api/reviews/news/export", selection="kept", format="tmx")
    answer = client.get(made["url"])
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    (tmp_path / "back.tmx").write_bytes(answer.content)
    assert len(list(read_mined(tmp_path / "back.tmx"))) == made["pairs"] > 500


def test_files_that_cannot_be_reviewed_leave_nothing_behind(client: TestClient, tmp_path: Path) -> None:
    """Broken ones, and names that lead out of the project."""
    documents = tmp_path / "project" / "documents"
    documents.mkdir()
    (documents / "broken.tmx").write_text("<tmx>\n", encoding="utf-8")
    (documents / "plain.tsv").write_text("src\ttgt\na\tb\n", encoding="utf-8")
    assert "cut off" in refused(client, "/api/reviews", 400, file="documents/broken.tmx")
    assert "dualmoco score" in refused(client, "/api/reviews", 400, file="documents/plain.tsv")
    assert "no such file" in refused(client, "/api/reviews", 404, file="documents/none.tsv")
    refused(client, "/api/reviews", 400, file="documents/../project.json")
    refused(client, "/api/reviews", 400, file="../project.json")
    refused(client, "/api/reviews", 400, file=["documents"])
    assert not (tmp_path / "project" / "reviews").exists()
    assert get(client, "/api/reviews") == {"reviews": []}


def test_a_file_that_changes_under_a_review_is_read_again(
    client: TestClient, right: np.ndarray, tmp_path: Path
) -> None:
    """Judgements of pairs that are gone are counted; a file that is gone is named; a damaged review is listed."""
    judge_drawn(client, right, 20)
    path = tmp_path / "project" / "documents" / "news.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()
    judged = [json.loads(line) for line in (path.parents[1] / "reviews/news/journal.jsonl").open(encoding="utf-8")]
    gone = {event["src"] for event in judged[:5]}
    path.write_text("".join(f"{line}\n" for line in lines if line.split("\t")[1] not in gone), encoding="utf-8")
    state = get(client, "/api/reviews/news")
    assert state["pairs"] == 995 and state["gone"] == 5 and state["counts"]["unjudged"] == 980
    path.unlink()
    assert client.get("/api/reviews/news").status_code == 404
    assert not get(client, "/api/reviews")["reviews"][0]["ready"]
    assert "Waiting for documents/news.tsv" in client.get("/review/news").text
    (tmp_path / "project/reviews/news/review.json").write_text("{}", encoding="utf-8")
    assert "damaged" in get(client, "/api/reviews")["reviews"][0]["error"]


def test_two_texts_are_mined_and_reviewed(client: TestClient, tmp_path: Path) -> None:
    """As a job; the review opens when it is done."""
    examples = Path(__file__).parents[1] / "examples"
    for name in ("en.txt", "zh.txt"):
        assert client.put(f"/api/documents/{name}", content=(examples / name).read_bytes()).status_code == 201
    made = post(client, "/api/mined-reviews", src="en.txt", tgt="zh.txt", model="en-zh-static", everything=True)
    assert made["name"] == "en-zh" and made["job"] and not made["ready"]
    ends = time.monotonic() + 200
    while (job := get(client, f"/api/jobs/{made['job']}"))["state"] in ("waiting", "running"):
        assert time.monotonic() < ends
        time.sleep(0.2)
    assert job["state"] == "done", job
    state = get(client, "/api/reviews/en-zh")
    assert state["pairs"] > 10 and state["origin"]["model"] == "en-zh-static" and state["ready"]
    assert "no such file" in refused(client, "/api/mined-reviews", 404, src="en.txt", tgt="none.txt")

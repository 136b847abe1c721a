"""Tables of an evaluation: beside the paper's rows where the test set is the same, and never otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.metrics import Score
from dualmoco.evaluation.report import PAPER, Table, evaluation_tables, markdown_report
from dualmoco.evaluation.sts import STS_SETS
from dualmoco.evaluation.task import EvaluationResult, Sentences
from dualmoco.models.model import Identity
from testsets import TrigramEncoder, write_tatoeba


def search(pair: str, n: int) -> list[Score]:
    """Scores of similarity search."""
    first, second = ("zh", "en") if pair == "cmn-eng" else tuple(pair.split("-"))
    ways = (f"{first}-{second}", f"{second}-{first}")
    metrics = {"accuracy": (90.0, 80.0), "xsim-ratio-error": (5.0, 6.0)}
    return [
        Score("tatoeba", pair, way, metric, values[side], n, "task:tatoeba", values[side] - 1, values[side] + 1)
        for side, way in enumerate(ways)
        for metric, values in metrics.items()
    ]


def mining(split: str, size: str) -> list[Score]:
    """Scores of mining a Chinese-English corpus."""
    values = {"precision": 70.0, "recall": 60.0, "f1": 64.6}
    signature = f"task:bucc|split:{split}|size:{size}"
    return [
        Score("bucc", f"zh-en {split}", "gold-optimal threshold", metric, value, 50, signature)
        for metric, value in values.items()
    ]


def sts(sizes: dict[str, int]) -> list[Score]:
    """Scores of STS sets of given sizes."""
    return [Score("sts", name, "wmean", "spearman", 50.0, n, "task:sts") for name, n in sizes.items()]


def tables_of(scores: list[Score], about: str = "") -> list[Table]:
    """The tables of a model called ours."""
    return evaluation_tables(EvaluationResult(Identity("ours", "00" * 32), scores, Sentences({}, {}), about=about))


def names(table: Table) -> list[str]:
    """The first column."""
    return [row[0] for row in table.rows]


def test_the_same_test_set_stands_beside_the_paper() -> None:
    """Our row is the last, the only one highlighted, and has the directions of the columns."""
    (table,) = tables_of(search("cmn-eng", 1000))
    assert names(table) == [*PAPER["table 1"], "ours"]
    assert table.columns == ["model", "accuracy zh-en", "accuracy en-zh", "xSIM error zh-en", "xSIM error en-zh"]
    assert table.rows[-1] == ["ours", "90.00 [89.0, 91.0]", "80.00 [79.0, 81.0]", "5.00", "6.00"]
    assert [number for number in range(len(table.rows)) if table.is_highlighted(number)] == [len(PAPER["table 1"])]
    assert "> ours" in table.as_text() and "> MoCo" not in table.as_text() and "| **ours** " in table.as_markdown()


@pytest.mark.parametrize(
    ("scores", "about"),
    [
        (search("cmn-eng", 999), ""),
        (search("deu-eng", 1000), ""),
        (search("cmn-eng", 1000), "sentences of a grammar"),
        (mining("test", "90x60"), ""),
        (mining("test", "90000x95000"), "sentences of a grammar"),
        (sts({**PAPER["sts pairs"], "STS14": 3749}), ""),
        (sts({name: PAPER["sts pairs"][name] for name in STS_SETS[:-1]}), ""),
        (sts(PAPER["sts pairs"]), "sentences of a grammar"),
    ],
)
def test_other_data_stand_alone(scores: list[Score], about: str) -> None:
    """Another number of pairs, another pair, a missing set, or data that are said to be something else."""
    (table,) = tables_of(scores, about)
    assert not table.paper_rows and all(name.startswith("ours") for name in names(table))
    assert ">" not in table.as_text() and "**" not in table.as_markdown()
    assert about in table.title and ("Tatoeba" in table.title or "BUCC" in table.title) <= (not about)
    assert "EMNLP" not in markdown_report(
        EvaluationResult(Identity("ours", "0"), scores, Sentences({}, {}), about=about)
    )


def test_pairs_of_other_languages_have_a_table_of_their_own() -> None:
    """The paper's pair is compared with the paper, and all pairs together have their own table with a mean."""
    beside, others = tables_of([*search("afr-eng", 1000), *search("cmn-eng", 1000), *search("deu-eng", 1000)])
    assert names(beside)[-1] == "ours" and len(beside.rows) == len(PAPER["table 1"]) + 1
    assert names(others) == ["ours, afr-eng", "ours, cmn-eng", "ours, deu-eng", "ours, mean of 3"]
    assert not others.paper_rows


def test_mining_shares_a_table_with_the_paper_on_the_official_test_set_alone() -> None:
    """The sample of the shared task is followed by the paper's rows, in a table that says what they are of."""
    (shared,) = tables_of(mining("test", "91824x90037"))
    assert names(shared) == [*PAPER["table 2"], "ours, gold-optimal threshold"]
    ours, theirs = tables_of(mining("dev", "8624x13589"))
    assert names(ours) == ["ours, gold-optimal threshold"] and "8624 x 13589 sentences, 50 gold pairs" in ours.note
    assert names(theirs) == list(PAPER["table 2"]) and "official test set" in theirs.note


def test_whole_sts_stands_beside_the_paper() -> None:
    """All seven sets in full size; the average is missing here."""
    (table,) = tables_of(sts(PAPER["sts pairs"]))
    assert names(table) == [*PAPER["table 3"], "ours"] and table.rows[-1][1:] == ["50.00"] * 7 + ["–"]


def test_small_set_in_the_layout_of_tatoeba(tmp_path: Path) -> None:
    """A real evaluation of forty made-up pairs under the name of the paper's pair is not put beside the paper."""
    write_tatoeba(tmp_path / "tatoeba")
    (table,) = evaluate(TrigramEncoder(), "tatoeba", data=tmp_path).tables()
    assert names(table) == ["trigrams"]


@pytest.mark.data
def test_the_real_sets_are_known(data_folder: Path) -> None:
    """The files of LASER and SentEval have the sizes by which the paper's test sets are known."""
    evaluation = evaluate(TrigramEncoder(), "tatoeba,sts", data=data_folder)
    assert [bool(table.paper_rows) for table in evaluation.tables()] == [True, True, True]
    assert np.isfinite([score.value for score in evaluation.scores]).all()

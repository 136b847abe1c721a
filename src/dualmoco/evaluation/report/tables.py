"""The tables of an evaluation: the paper's, with our row among its rows, and one for everything else."""

from __future__ import annotations

from collections.abc import Sequence

from dualmoco.evaluation.paper import BUCC, STS_ALL, STS_WMEAN, TATOEBA, Row
from dualmoco.evaluation.report.table import Table
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sts import SEVEN

MISSING = "–"
PAPER_PAIR = {"zh", "en"}


def evaluation_tables(scores: Sequence[Score], name: str) -> list[Table]:
    """The tables that some scores fill.

    Args:
        scores: Of one evaluation.
        name: The model's, for its row.

    Returns:
        The paper's tables first.
    """
    makers = (_tatoeba, _bucc, _sts_wmean, _sts_all, _others)
    return [table for maker in makers if (table := maker(scores, name))]


def _tatoeba(scores: Sequence[Score], name: str) -> Table | None:
    found = {score.key[1:]: score for score in scores if score.task == "tatoeba"}
    pairs = list(dict.fromkeys(subset for subset, _, _ in found))
    if not pairs:
        return None
    rows, ours = [], []
    for pair in pairs:
        forward, backward = dict.fromkeys(direction for subset, direction, _ in found if subset == pair)
        if set(forward.split("-")) == PAPER_PAIR:
            rows += [[row, _figure(values[0]), _figure(values[1]), "", ""] for row, values in TATOEBA.items()]
        errors = [score for (subset, _, metric), score in found.items() if subset == pair and "xsim" in metric]
        accuracies = [found[pair, direction, "accuracy"] for direction in (forward, backward)]
        ours.append(len(rows))
        label = f"{name}, {pair}" if len(pairs) > 1 else name
        rows.append([label, *map(_with_interval, accuracies), *(_figure(error.value) for error in errors)])
    directions = "zh-en" if pairs == ["cmn-eng"] else "forward"
    other = "en-zh" if pairs == ["cmn-eng"] else "backward"
    return Table(
        "Tatoeba similarity search, accuracy", ["model", directions, other, "xSIM error", "backward"], rows,
        frozenset(ours), "The paper gives one figure for each of its first rows and does not say in which direction.",
    )  # fmt: skip


def _bucc(scores: Sequence[Score], name: str) -> Table | None:
    found = [score for score in scores if score.task == "bucc"]
    if not found:
        return None
    rows = [[row, "", "", _figure(f1)] for row, f1 in BUCC.items()]
    ours = []
    for subset, protocol in dict.fromkeys((score.subset, score.protocol) for score in found):
        values = {score.metric: score for score in found if (score.subset, score.protocol) == (subset, protocol)}
        ours.append(len(rows))
        figures = [_figure(values["precision"].value), _figure(values["recall"].value), _with_interval(values["f1"])]
        rows.append([f"{name}, {subset}, {protocol}", *figures])
    signed = dict(part.partition(":")[::2] for part in found[0].signature.split("|"))
    size = signed["size"].replace("x", " x ")
    return Table(
        "BUCC 2018 bitext mining, the shared task", ["model", "precision", "recall", "F1"], rows, frozenset(ours),
        f"The paper's rows are of the official test set; ours of {found[0].subset}, {size} sentences. "
        "A gold-optimal threshold has seen the answers.",
    )  # fmt: skip


def _sts_wmean(scores: Sequence[Score], name: str) -> Table | None:
    return _sts(scores, name, "wmean", STS_WMEAN, "STS, Spearman, weighted mean of subsets (table 3)")


def _sts_all(scores: Sequence[Score], name: str) -> Table | None:
    return _sts(scores, name, "all", STS_ALL, "STS, Spearman, all pairs of a year together (table 9)")


def _sts(scores: Sequence[Score], name: str, protocol: str, paper: dict[str, Row], title: str) -> Table | None:
    values = {
        score.subset: score.value
        for score in scores
        if score.task == "sts" and score.metric == "spearman" and score.protocol == protocol
    }
    if not values:
        return None
    rows = [[row, *map(_figure, figures)] for row, figures in paper.items()]
    mine = [name, *(_figure(values.get(subset)) for subset in (*SEVEN, "average of 7"))]
    return Table(title, ["model", *SEVEN, "average"], [*rows, mine], frozenset([len(rows)]))


def _others(scores: Sequence[Score], name: str) -> Table | None:
    left = [score for score in scores if score.task not in ("tatoeba", "bucc", "sts")]
    if not left:
        return None
    rows = [
        [f"{score.task}, {score.subset}", score.protocol, score.metric, _with_interval(score), f"{score.n:,}"]
        for score in left
    ]
    return Table(f"More tasks, {name}", ["task", "protocol", "metric", "value", "n"], rows, frozenset(range(len(rows))))


def _figure(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _with_interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return _figure(score.value)
    return f"{score.value:.2f} [{score.low:.1f}, {score.high:.1f}]"

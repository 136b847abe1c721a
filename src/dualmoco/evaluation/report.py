"""Tables of an evaluation, as text and as Markdown, next to the paper's own rows.

The paper's rows (tables 1, 2, 3 and 9 of Wang et al., EMNLP 2021) are in `paper.json`. They share a table with a model
only if both were scored on the same test set, which is recognized by its name and its number of pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any

from dualmoco.core.display import markdown_table
from dualmoco.evaluation.metrics import Score
from dualmoco.evaluation.retrieval import SHARED_TATOEBA
from dualmoco.evaluation.sts import STS_AVERAGE, STS_SETS
from dualmoco.evaluation.task import EvaluationResult
from dualmoco.text.languages import base_language

PAPER: dict[str, Any] = json.loads((files("dualmoco.evaluation") / "paper.json").read_text(encoding="utf-8"))
"""Rows by table. `table 1` is Tatoeba accuracy zh-en and en-zh; its first four rows are one number each, whose
direction the paper does not give. `table 2` is F1 on the official BUCC test set zh-en. `table 3` and `table 9` are
STS12 to STS16, STS-B, SICK-R and their average, as the weighted mean of subsets and over all pairs of a year; rows with
NLI used labelled NLI data. `sts pairs` has the sizes of the STS sets.
"""
BUCC_SAMPLE_SIZE = "8624x13589"
BUCC_MIN_SENTENCES = 50_000  # per side; the official training and test sets have about 90,000
PAPER_TATOEBA = ("cmn-eng", 1000)  # the language pair and the number of pairs of table 1
MISSING_VALUE = "–"
MAIN_SCORES = (  # task, subset, protocol, metric (regular expressions), name
    ("tatoeba", ".*", ".*", "accuracy", "Tatoeba {protocol}"),
    ("bucc", "(?P<pair>[^ ]+) .*", "threshold .*", "f1", "BUCC {pair} F1"),
    ("sts", STS_AVERAGE, "wmean|all", "spearman", "STS {protocol}"),
    ("xsts", ".*", ".*", "spearman", "XSTS {subset}"),
    ("nli", ".*", ".*", "accuracy", "NLI {subset}"),
    ("lexicon", ".*", "(?P<pair>[^ ]+) csls", "p@1", "lexicon {pair} P@1"),
    ("paraphrase", ".*", "detection|mining", "average precision", "paraphrase {protocol}"),
    ("clustering", ".*", ".*", "v-measure", "clustering {subset}"),
    ("align", ".*", "strict", "f1", "align {subset} F1"),
    ("mteb-bitext-retrieval", ".*", "(?P<pair>[^ ]+) all .*", "accuracy", "MTEB retrieval {pair}"),
)
"""The scores of each task in the table of a study and the log of a run; for STS, the average of the seven sets."""


def main_scores(scores: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The main scores of an evaluation by name, in percent, given all of them as in its JSON file."""
    shown: dict[str, float] = {}
    for score in scores:
        for task, subset, protocol, metric, name in MAIN_SCORES:
            if (score["task"], score["metric"]) == (task, metric):
                matches = re.fullmatch(subset, score["subset"]), re.fullmatch(protocol, score["protocol"])
                if matches[0] and matches[1]:
                    shown[name.format(**score, **matches[0].groupdict(), **matches[1].groupdict())] = score["value"]
    return shown


def is_bucc_part(score: Score) -> bool:
    """Whether a score of the task `bucc` is over a Chinese-English split of the shared task."""
    size = score.settings["size"]
    large = all(int(count) >= BUCC_MIN_SENTENCES for count in size.split("x"))
    return score.subset.startswith("zh-en ") and (large or size == BUCC_SAMPLE_SIZE)


def is_paper_sts(scores: Mapping[str, Score]) -> bool:
    """Whether scores of the task `sts`, by set, are over the seven complete sets of tables 3 and 9."""
    return all(name in scores and scores[name].n == pairs for name, pairs in PAPER["sts pairs"].items())


@dataclass(frozen=True)
class Table:
    """Rows under a title; the first column has names, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    paper_rows: int = 0  # number of rows from the paper, at the top; the others were measured now
    note: str = ""

    def is_highlighted(self, number: int) -> bool:
        """Whether a row was measured now and shares the table with the paper's rows."""
        return 0 < self.paper_rows <= number

    def as_text(self) -> str:
        """For a terminal: aligned columns; `>` marks highlighted rows."""
        cells = [list(self.columns), *(list(row) for row in self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = [self.title, ""]
        for number, row in enumerate(cells, start=-1):
            mark = ">" if number >= 0 and self.is_highlighted(number) else " "
            rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append(f"{mark} {'  '.join([row[0].ljust(widths[0]), *rest])}".rstrip())
            if number < 0:
                lines.append("  " + "-" * (sum(widths) + 2 * (len(widths) - 1)))
        return "\n".join([*lines, *(["", f"  {self.note}"] if self.note else [])]) + "\n"

    def as_markdown(self) -> str:
        """A heading and a table; highlighted rows are bold."""
        rows = [
            [f"**{cell}**" if cell and self.is_highlighted(number) else cell for cell in row]
            for number, row in enumerate(self.rows)
        ]
        lines = [f"### {self.title}", "", *markdown_table(self.columns, rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def evaluation_tables(evaluation: EvaluationResult) -> list[Table]:
    """The tables of an evaluation, those of the paper first; models that are compared share the tables of Tatoeba."""
    return [
        *_tatoeba_tables(evaluation),
        *_comparisons([evaluation, *evaluation.peers]),
        *(table for one in (evaluation, *evaluation.peers) for table in _task_tables(one)),
    ]


def _task_tables(evaluation: EvaluationResult) -> list[Table]:
    """The tables of all tasks but Tatoeba."""
    return [
        *_bucc_tables(evaluation),
        *_sts_tables(evaluation, "wmean", "STS, Spearman, weighted mean of subsets", "table 3"),
        *_sts_tables(evaluation, "all", "STS, Spearman, all pairs of a year together", "table 9"),
        *_other_tables(evaluation),
    ]


def markdown_report(evaluation: EvaluationResult) -> str:
    """The tables and signatures of an evaluation as Markdown."""
    tables = evaluation_tables(evaluation)
    lines = [f"# Evaluation of {evaluation.identity.name}", ""]
    if any(table.paper_rows for table in tables):
        lines += [f"Rows that are not bold: {PAPER['source']}.", ""]
    lines += [table.as_markdown() for table in tables]
    lines += ["### Signatures", ""]
    for one in (evaluation, *evaluation.peers):
        lines += [f"- {' '.join(score.key)}: {score.value:.2f} `{score.signature}`" for score in one.scores]
    return "\n".join(lines) + "\n"


def _tatoeba_tables(evaluation: EvaluationResult) -> list[Table]:
    """The paper's language pair next to the paper's rows; all pairs, if there are others, in a separate table."""
    found = [score for score in evaluation.scores if score.task == "tatoeba"]
    shared = {score.subset for score in found if (score.subset, score.n) == PAPER_TATOEBA and not evaluation.about}
    own = [score for score in found if score.subset in shared]
    tables = [_tatoeba_table(evaluation, own, paper=True)] if own else []
    return (
        tables
        if len(own) == len(found) or evaluation.peers
        else [*tables, _tatoeba_table(evaluation, found, paper=False)]
    )


def _comparisons(evaluations: Sequence[EvaluationResult]) -> list[Table]:
    """Pairs of languages by row and models by column: of Tatoeba if there are several models, and without English."""
    with_english = "Tatoeba similarity search"
    shared = "Tatoeba without English, through the English sentences that two sets share"
    wanted = [("tatoeba", "accuracy", with_english), ("tatoeba", "xsim-ratio-error", f"{with_english}, xSIM error")]
    wanted = [*(wanted if len(evaluations) > 1 else []), (SHARED_TATOEBA, "accuracy", shared)]
    tables = (_comparison(evaluations, task, metric, title) for task, metric, title in wanted)
    return [table for table in tables if table.rows]


def _comparison(evaluations: Sequence[EvaluationResult], task: str, metric: str, title: str) -> Table:
    """Both directions of every pair of languages by each model, and the means over the pairs that all models have."""
    found = [_both_directions(evaluation.scores, task, metric) for evaluation in evaluations]
    pairs = {score.subset: score for score in evaluations[0].scores if (score.task, score.metric) == (task, metric)}
    names = {subset: "-".join(reversed(score.protocol.split("-"))) for subset, score in pairs.items()}
    rows = [
        [
            names[pair],
            f"{score.n:,}",
            *(" / ".join(map(_number, values.get(pair, []))) or MISSING_VALUE for values in found),
        ]
        for pair, score in pairs.items()
    ]
    common = [pair for pair in pairs if all(pair in values for values in found)]
    if len(common) > 1:
        means = [[fmean(values[pair][side] for pair in common) for side in (0, 1)] for values in found]
        rows.append([f"mean of {len(common)}", "", *(" / ".join(map(_number, both)) for both in means)])
    note = "From the first language to the second, and back; the mean is over the pairs that all models have."
    return Table(title, ["languages", "n", *(evaluation.identity.name for evaluation in evaluations)], rows, note=note)


def _both_directions(scores: Iterable[Score], task: str, metric: str) -> dict[str, list[float]]:
    """The values of both directions by pair of languages."""
    found: dict[str, list[float]] = {}
    for score in scores:
        if (score.task, score.metric) == (task, metric):
            found.setdefault(score.subset, []).append(score.value)
    return found


def language_scores(evaluation: EvaluationResult) -> dict[str, float]:
    """Accuracy of similarity search by language, mean of both directions, the best first."""
    found = _both_directions(evaluation.scores, "tatoeba", "accuracy")
    means = {base_language(pair.split("-")[0]): fmean(values) for pair, values in found.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _tatoeba_table(evaluation: EvaluationResult, scores: Sequence[Score], *, paper: bool) -> Table:
    pairs = list(dict.fromkeys(score.subset for score in scores))
    rows = [[row, *map(_number, values), "", ""] for row, values in PAPER["table 1"].items()] if paper else []
    paper_rows = len(rows)
    values = []
    for pair in pairs:
        own = sorted((s for s in scores if s.subset == pair), key=lambda score: score.metric != "accuracy")
        cells = [_with_interval(score) if score.metric == "accuracy" else _number(score.value) for score in own]
        rows.append([evaluation.identity.name + (f", {pair}" if len(pairs) > 1 else ""), *cells])
        values.append([score.value for score in own])
    if len(pairs) > 1:
        means = [sum(column) / len(pairs) for column in zip(*values, strict=True)]
        rows.append([f"{evaluation.identity.name}, mean of {len(pairs)}", *map(_number, means)])
    directions = dict.fromkeys(score.protocol for score in scores) if len(pairs) == 1 else ("forward", "backward")
    columns = ["model", *(f"{metric} {way}" for metric in ("accuracy", "xSIM error") for way in directions)]
    note = "The paper gives one number for each of its first rows and does not say in which direction."
    title = f"Similarity search, {evaluation.about}" if evaluation.about else "Tatoeba similarity search"
    return Table(title, columns, rows, paper_rows, note if paper else "")


def _bucc_tables(evaluation: EvaluationResult) -> list[Table]:
    """One table per corpus; the paper's rows are in it for the official test set, otherwise in a table that follows."""
    found = [score for score in evaluation.scores if score.task == "bucc"]
    corpora = list(dict.fromkeys(score.subset for score in found))
    tables = [_bucc_table(evaluation, [score for score in found if score.subset == name]) for name in corpora]
    shared = any(table.paper_rows for table in tables)
    if not evaluation.about and not shared and any(map(is_bucc_part, found)):
        note = "As the paper prints them, of the official test set zh-en, which is not one of the corpora above."
        rows = [[row, _number(f1)] for row, f1 in PAPER["table 2"].items()]
        tables.append(Table("BUCC 2018, the paper's rows", ["model", "F1"], rows, len(rows), note))
    return tables


def _bucc_table(evaluation: EvaluationResult, scores: Sequence[Score]) -> Table:
    first = scores[0]
    paper = is_bucc_part(first) and first.subset == "zh-en test" and not evaluation.about
    rows = [[row, "", "", _number(f1)] for row, f1 in PAPER["table 2"].items()] if paper else []
    paper_rows = len(rows)
    for protocol in dict.fromkeys(score.protocol for score in scores):
        values = {score.metric: score for score in scores if score.protocol == protocol}
        cells = [_number(values["precision"].value), _number(values["recall"].value), _with_interval(values["f1"])]
        rows.append([f"{evaluation.identity.name}, {protocol}", *cells])
    about = evaluation.about
    title = f"Bitext mining, {about}" if about else f"BUCC 2018 bitext mining, {first.subset}"
    size = first.settings["size"].replace("x", " x ")
    note = f"{size} sentences, {first.n:,} gold pairs. A gold-optimal threshold was chosen with the answers."
    return Table(title, ["model", "precision", "recall", "F1"], rows, paper_rows, note)


def _sts_tables(evaluation: EvaluationResult, protocol: str, title: str, paper_table: str) -> list[Table]:
    found = {
        score.subset: score
        for score in evaluation.scores
        if score.task == "sts" and score.metric == "spearman" and score.protocol == protocol
    }
    if not found:
        return []
    shared = is_paper_sts(found) and not evaluation.about
    paper = [[row, *map(_number, values)] for row, values in PAPER[paper_table].items()] if shared else []
    values = [found[subset].value if subset in found else None for subset in (*STS_SETS, STS_AVERAGE)]
    heading = f"{title} ({paper_table} of the paper)" if shared else ", ".join(filter(None, (title, evaluation.about)))
    rows = [*paper, [evaluation.identity.name, *map(_number, values)]]
    return [Table(heading, ["model", *STS_SETS, "average"], rows, len(paper))]


def _other_tables(evaluation: EvaluationResult) -> list[Table]:
    rows = [
        [f"{score.task}, {score.subset}", score.protocol, score.metric, _with_interval(score), f"{score.n:,}"]
        for score in evaluation.scores
        if score.task not in ("tatoeba", SHARED_TATOEBA, "bucc", "sts")
    ]
    columns = ["task", "protocol", "metric", "value", "n"]
    return [Table(f"More tasks, {evaluation.identity.name}", columns, rows)] if rows else []


def _number(value: float | None) -> str:
    return MISSING_VALUE if value is None else f"{value:.2f}"


def _with_interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return _number(score.value)
    return f"{score.value:.2f} [{score.low:.1f}, {score.high:.1f}]"

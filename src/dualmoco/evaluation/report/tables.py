"""The tables of an evaluation as text and Markdown.

Takes `Findings`, gives a `Table` for each of the paper's tables and one for everything else. The paper's rows stand in
a table only where the row measured now is of the same test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualmoco.core.markdown import markdown_table
from dualmoco.evaluation.paper import (
    BUCC,
    SOURCE,
    STS_ALL,
    STS_WMEAN,
    TATOEBA,
    PaperRow,
    is_bucc_part,
    is_paper_bucc,
    is_paper_sts,
    is_paper_tatoeba,
)
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sts import SEVEN
from dualmoco.evaluation.task import Findings

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """Rows under a title; the first column names them, the others hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    paper: frozenset[int] = frozenset()
    """Numbers of the rows that are the paper's; the others were measured now."""
    note: str = ""

    def is_highlighted(self, number: int) -> bool:
        """Whether a row must stand out from the paper's rows in the same table."""
        return bool(self.paper) and number not in self.paper

    def as_text(self) -> str:
        """For a terminal: aligned; among the paper's rows those measured now are marked."""
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
        """A heading and a table; among the paper's rows those measured now are bold."""
        rows = [
            [f"**{cell}**" if cell and self.is_highlighted(number) else cell for cell in row]
            for number, row in enumerate(self.rows)
        ]
        lines = [f"### {self.title}", "", *markdown_table(self.columns, rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def evaluation_tables(findings: Findings) -> list[Table]:
    """The tables that the scores of an evaluation fill, those of the paper first."""
    return [
        *_similarity_search(findings),
        *_mining(findings),
        *_sts(findings, "wmean", STS_WMEAN, "STS, Spearman, weighted mean of subsets", "table 3"),
        *_sts(findings, "all", STS_ALL, "STS, Spearman, all pairs of a year together", "table 9"),
        *_others(findings),
    ]


def markdown_report(findings: Findings) -> str:
    """The tables and signatures of an evaluation as Markdown."""
    tables = evaluation_tables(findings)
    lines = [f"# Evaluation of {findings.identity.name}", ""]
    if any(table.paper for table in tables):
        lines += [f"Rows that are not bold: {SOURCE}.", ""]
    lines += [table.as_markdown() for table in tables]
    lines += ["### Signatures", ""]
    lines += [f"- {' '.join(score.key)}: {score.value:.2f} `{score.signature}`" for score in findings.scores]
    return "\n".join(lines) + "\n"


def _similarity_search(findings: Findings) -> list[Table]:
    """Tatoeba: the paper's pair beside the paper's rows, other pairs and other data in a table of their own."""
    found = [score for score in findings.scores if score.task == "tatoeba"]
    shared = {score.subset for score in found if is_paper_tatoeba(score) and not findings.about}
    beside = [score for score in found if score.subset in shared]
    others = [score for score in found if score.subset not in shared]
    tables = [_search_table(findings, beside, paper=True)] if beside else []
    return [*tables, *([_search_table(findings, others, paper=False)] if others else [])]


def _search_table(findings: Findings, scores: Sequence[Score], *, paper: bool) -> Table:
    pairs = list(dict.fromkeys(score.subset for score in scores))
    rows = [[row, *map(_number, values), "", ""] for row, values in TATOEBA.items()] if paper else []
    theirs = frozenset(range(len(rows)))
    for pair in pairs:
        own = sorted((s for s in scores if s.subset == pair), key=lambda score: score.metric != "accuracy")
        cells = [_with_interval(score) if score.metric == "accuracy" else _number(score.value) for score in own]
        rows.append([findings.identity.name + (f", {pair}" if len(pairs) > 1 else ""), *cells])
    ways = dict.fromkeys(score.protocol for score in scores) if len(pairs) == 1 else ("forward", "backward")
    columns = ["model", *(f"{metric} {way}" for metric in ("accuracy", "xSIM error") for way in ways)]
    note = "The paper gives one number for each of its first rows and does not say in which direction."
    title = f"Similarity search, {findings.about}" if findings.about else "Tatoeba similarity search"
    return Table(title, columns, rows, theirs, note if paper else "")


def _mining(findings: Findings) -> list[Table]:
    """BUCC, a table for every corpus: beside the paper's rows if it is the official test set, else before them."""
    found = [score for score in findings.scores if score.task == "bucc"]
    corpora = list(dict.fromkeys(score.subset for score in found))
    tables = [_mining_table(findings, [score for score in found if score.subset == name]) for name in corpora]
    apart = not findings.about and not any(table.paper for table in tables) and any(map(is_bucc_part, found))
    if apart:
        note = "As the paper prints them, of the official test set zh-en, which is none of the corpora above."
        rows = [[row, _number(f1)] for row, f1 in BUCC.items()]
        tables.append(Table("BUCC 2018, the paper's rows", ["model", "F1"], rows, frozenset(range(len(rows))), note))
    return tables


def _mining_table(findings: Findings, scores: Sequence[Score]) -> Table:
    first = scores[0]
    paper = is_paper_bucc(first) and not findings.about
    rows = [[row, "", "", _number(f1)] for row, f1 in BUCC.items()] if paper else []
    theirs = frozenset(range(len(rows)))
    for protocol in dict.fromkeys(score.protocol for score in scores):
        values = {score.metric: score for score in scores if score.protocol == protocol}
        cells = [_number(values["precision"].value), _number(values["recall"].value), _with_interval(values["f1"])]
        rows.append([f"{findings.identity.name}, {protocol}", *cells])
    title = f"Bitext mining, {findings.about}" if findings.about else f"BUCC 2018 bitext mining, {first.subset}"
    size = first.settings["size"].replace("x", " x ")
    note = f"{size} sentences, {first.n:,} gold pairs. A gold-optimal threshold has seen the answers."
    return Table(title, ["model", "precision", "recall", "F1"], rows, theirs, note)


def _sts(findings: Findings, protocol: str, paper: dict[str, PaperRow], title: str, place: str) -> list[Table]:
    found = {
        score.subset: score
        for score in findings.scores
        if score.task == "sts" and score.metric == "spearman" and score.protocol == protocol
    }
    if not found:
        return []
    shared = is_paper_sts(found) and not findings.about
    theirs = [[row, *map(_number, values)] for row, values in paper.items()] if shared else []
    values = [found[subset].value if subset in found else None for subset in (*SEVEN, "average of 7")]
    heading = f"{title} ({place} of the paper)" if shared else ", ".join(filter(None, (title, findings.about)))
    rows = [*theirs, [findings.identity.name, *map(_number, values)]]
    return [Table(heading, ["model", *SEVEN, "average"], rows, frozenset(range(len(theirs))))]


def _others(findings: Findings) -> list[Table]:
    rows = [
        [f"{score.task}, {score.subset}", score.protocol, score.metric, _with_interval(score), f"{score.n:,}"]
        for score in findings.scores
        if score.task not in ("tatoeba", "bucc", "sts")
    ]
    columns = ["task", "protocol", "metric", "value", "n"]
    return [Table(f"More tasks, {findings.identity.name}", columns, rows)] if rows else []


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _with_interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return _number(score.value)
    return f"{score.value:.2f} [{score.low:.1f}, {score.high:.1f}]"

"""The paper's own rows: tables 1, 2, 3 and 9 of Wang et al. (EMNLP 2021), as printed there.

Also which scores are of the same test sets, so that only those stand beside them. A test set is known by its name and
its number of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dualmoco.core.markdown import markdown_table
from dualmoco.core.version import VERSION
from dualmoco.evaluation.canvas import to_svg
from dualmoco.evaluation.figures import (
    draw_margins,
    draw_parallel,
    draw_precision_recall,
    draw_similarities,
    draw_sts,
    draw_subsets,
)
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sts import SEVEN
from dualmoco.evaluation.task import EvaluationResult, Parallel, Sentences
from dualmoco.search.exact import nearest

SOURCE = "Wang, Zhao and Liu, Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast, EMNLP 2021"

TATOEBA: dict[str, tuple[float | None, float | None]] = {  # accuracy zh-en, en-zh
    "mBERT base": (71.6, None),
    "LASER": (95.9, None),
    "VECO": (82.7, None),
    "SBERT base-p": (95.0, None),
    "MoCo-BERT base": (97.4, 96.6),
}
"""Table 1. The first four rows are one number each, whose direction the paper does not say."""

BUCC: dict[str, float] = {  # F1
    "mBERT base": 50.0,
    "LASER": 92.27,
    "VECO": 78.5,
    "SBERT base-p": 87.8,
    "LaBSE": 89.0,
    "MoCo-BERT base": 93.66,
}
"""Table 2: the official zh-en test set."""

PaperRow = tuple[float, float, float, float, float, float, float, float]
"""STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R, average."""

STS_WMEAN: dict[str, PaperRow] = {
    "Avg. GloVe": (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76, 61.32),
    "BERT base [CLS]": (20.16, 30.01, 20.09, 36.88, 38.08, 16.05, 42.63, 29.19),
    "BERT base-flow": (59.54, 64.69, 64.66, 72.92, 71.84, 58.56, 65.44, 65.38),
    "IS-BERT base": (56.77, 69.24, 61.21, 75.23, 70.16, 69.21, 64.25, 66.58),
    "BERT base-whitening": (61.46, 66.71, 66.17, 74.82, 72.10, 67.51, 64.90, 67.67),
    "MoCo-BERT base": (68.85, 77.52, 75.85, 83.14, 80.15, 77.50, 72.48, 76.50),
    "InferSent, NLI": (52.86, 66.75, 62.15, 72.77, 66.87, 68.03, 65.65, 65.01),
    "SBERT base-NLI": (68.70, 74.37, 74.73, 79.65, 75.21, 77.63, 74.84, 75.02),
    "BERT base-flow, NLI": (67.75, 76.73, 75.53, 80.63, 77.58, 79.10, 78.03, 76.48),
    "BERT base-whitening, NLI": (69.87, 77.11, 76.13, 82.73, 78.08, 79.16, 76.44, 77.07),
    "MoCo-BERT base+NLI": (71.66, 79.42, 76.37, 84.08, 80.81, 82.15, 78.19, 78.95),
}
"""Table 3, weighted mean of the subsets' Spearman correlations; rows with NLI used labelled NLI data."""

STS_ALL: dict[str, PaperRow] = {
    "BERT base-flow": (58.40, 67.10, 60.85, 75.16, 71.22, 68.66, 64.47, 66.55),
    "BERT base-whitening": (57.83, 66.90, 60.90, 75.08, 71.31, 68.24, 63.73, 66.28),
    "MoCo-BERT base": (70.99, 76.51, 73.17, 82.09, 78.32, 77.50, 72.48, 75.87),
    "SBERT base-NLI": (70.97, 76.53, 73.19, 79.09, 74.30, 77.03, 72.91, 74.89),
    "BERT base-flow, NLI": (69.78, 77.27, 74.35, 82.01, 77.46, 79.12, 76.21, 76.60),
    "BERT base-whitening, NLI": (69.65, 77.57, 74.66, 82.27, 78.39, 79.52, 76.91, 77.00),
    "MoCo-BERT base+NLI": (76.07, 78.33, 74.51, 84.19, 78.74, 82.15, 78.19, 78.88),
}
"""Table 9, Spearman over all pairs of a year together."""

TATOEBA_SET = ("cmn-eng", 1000)
BUCC_SAMPLE = "8624x13589"
BUCC_LEAST = 50_000  # sentences of a side; the official training and test sets have some 90,000
STS_PAIRS = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STS-B": 1379,
    "SICK-R": 4927,
}


def is_paper_tatoeba(score: Score) -> bool:
    """Whether a score of the task `tatoeba` is of the 1,000 Chinese-English pairs of table 1."""
    return (score.subset, score.n) == TATOEBA_SET


def is_bucc_part(score: Score) -> bool:
    """Whether a score of the task `bucc` is of a Chinese-English part of the shared task, whichever."""
    size = score.settings["size"]
    large = all(int(count) >= BUCC_LEAST for count in size.split("x"))
    return score.subset.startswith("zh-en ") and (large or size == BUCC_SAMPLE)


def is_paper_bucc(score: Score) -> bool:
    """Whether a score of the task `bucc` is of the official test set, as in table 2."""
    return is_bucc_part(score) and score.subset == "zh-en test"


def is_paper_sts(scores: Mapping[str, Score]) -> bool:
    """Whether scores of the task `sts`, by set, are of the seven whole sets of tables 3 and 9."""
    return all(name in scores and scores[name].n == pairs for name, pairs in STS_PAIRS.items())


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


def evaluation_tables(findings: EvaluationResult) -> list[Table]:
    """The tables that the scores of an evaluation fill, those of the paper first."""
    return [
        *_similarity_search(findings),
        *_mining(findings),
        *_sts(findings, "wmean", STS_WMEAN, "STS, Spearman, weighted mean of subsets", "table 3"),
        *_sts(findings, "all", STS_ALL, "STS, Spearman, all pairs of a year together", "table 9"),
        *_others(findings),
    ]


def markdown_report(findings: EvaluationResult) -> str:
    """The tables and signatures of an evaluation as Markdown."""
    tables = evaluation_tables(findings)
    lines = [f"# Evaluation of {findings.identity.name}", ""]
    if any(table.paper for table in tables):
        lines += [f"Rows that are not bold: {SOURCE}.", ""]
    lines += [table.as_markdown() for table in tables]
    lines += ["### Signatures", ""]
    lines += [f"- {' '.join(score.key)}: {score.value:.2f} `{score.signature}`" for score in findings.scores]
    return "\n".join(lines) + "\n"


def _similarity_search(findings: EvaluationResult) -> list[Table]:
    """Tatoeba: the paper's pair beside the paper's rows, other pairs and other data in a table of their own."""
    found = [score for score in findings.scores if score.task == "tatoeba"]
    shared = {score.subset for score in found if is_paper_tatoeba(score) and not findings.about}
    beside = [score for score in found if score.subset in shared]
    others = [score for score in found if score.subset not in shared]
    tables = [_search_table(findings, beside, paper=True)] if beside else []
    return [*tables, *([_search_table(findings, others, paper=False)] if others else [])]


def _search_table(findings: EvaluationResult, scores: Sequence[Score], *, paper: bool) -> Table:
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


def _mining(findings: EvaluationResult) -> list[Table]:
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


def _mining_table(findings: EvaluationResult, scores: Sequence[Score]) -> Table:
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


def _sts(findings: EvaluationResult, protocol: str, paper: dict[str, PaperRow], title: str, place: str) -> list[Table]:
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


def _others(findings: EvaluationResult) -> list[Table]:
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


SHOWN_PAIRS = 15
MATRIX_PAIRS = 10
COMPARED = ("Avg. GloVe", "BERT base-whitening", "SBERT base-NLI", "MoCo-BERT base", "MoCo-BERT base+NLI")
QUERIES = 5
SHOWN_NEIGHBORS = 3


@dataclass(frozen=True)
class Picture:
    """A plot with what it shows."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Example:
    """A query and its neighbours, the nearest first."""

    query: str
    neighbors: Sequence[tuple[float, str]]
    corpus: int
    """How many sentences were searched."""


def as_page(findings: EvaluationResult) -> str:
    """One self-contained HTML page of an evaluation."""
    environment = Environment(
        loader=PackageLoader("dualmoco.evaluation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        findings=findings,
        identity=findings.identity,
        tables=evaluation_tables(findings),
        pictures=_pictures(findings),
        examples=_examples(findings),
        source=SOURCE,
        version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _pictures(findings: EvaluationResult) -> list[Picture]:
    pictures = []
    for parallel in findings.parallel[:1]:
        pictures += _parallel_pictures(findings, parallel)
    for mined in findings.mined[:1]:
        figure = draw_margins(mined.scores, mined.correct, mined.threshold)
        caption = "Scores of mined pairs: true ones are in the gold, false ones are not. The line is the threshold."
        pictures.append(Picture("Margin scores", caption, to_svg(figure)))
        figure = draw_precision_recall(mined.scores, mined.correct, len(mined.gold), mined.threshold)
        caption = "Precision and recall of every threshold, from the highest down."
        pictures.append(Picture("Precision and recall of mining", caption, to_svg(figure)))
    return [*pictures, *_sts_pictures(findings)]


def _parallel_pictures(findings: EvaluationResult, parallel: Parallel) -> list[Picture]:
    rows = np.random.default_rng(0).permutation(len(parallel.src))[:SHOWN_PAIRS].tolist()
    src, tgt = [parallel.src[row] for row in rows], [parallel.tgt[row] for row in rows]
    vectors = findings.sentences.vectors(src, parallel.src_lang), findings.sentences.vectors(tgt, parallel.tgt_lang)
    figure = draw_parallel(src, tgt, *vectors, languages=(parallel.src_lang, parallel.tgt_lang))
    of = findings.about or parallel.name
    caption = f"t-SNE of {len(rows)} random pairs ({of}); lines join translations, close points are moved apart."
    few = slice(0, MATRIX_PAIRS)
    matrix = draw_similarities(src[few], tgt[few], (vectors[0][few] @ vectors[1][few].T).astype(np.float64))
    return [
        Picture("Parallel sentences", caption, to_svg(figure)),
        Picture("Similarities", "Cosines of some pairs; translations are on the diagonal.", to_svg(matrix)),
    ]


def _sts_pictures(findings: EvaluationResult) -> list[Picture]:
    found = [score for score in findings.scores if score.task == "sts" and score.metric == "spearman"]
    if not found:
        return []
    sets = {score.subset: score for score in found if score.protocol == "wmean" and score.subset in SEVEN}
    rows = {findings.identity.name: {name: score.value for name, score in sets.items()}}
    shared = is_paper_sts(sets) and not findings.about
    if shared:
        rows |= {name: dict(zip(SEVEN, STS_WMEAN[name][:-1], strict=True)) for name in COMPARED}
    subsets: dict[str, dict[str, float]] = {}
    for score in found:
        if score.protocol == "subset":
            year, _, part = score.subset.partition("/")
            subsets.setdefault(year, {})[part] = score.value
    title = "STS beside the paper" if shared else "STS"
    return [
        Picture(title, "Spearman, weighted mean of subsets.", to_svg(draw_sts(rows, "STS, weighted mean of subsets"))),
        Picture("STS by subset", "Spearman of every subset.", to_svg(draw_subsets(subsets))),
    ]


def _examples(findings: EvaluationResult) -> list[Example]:
    """Neighbours within the target language and across, among everything that was encoded."""
    examples: list[Example] = []
    for parallel in findings.parallel[:1]:
        for queries, lang in ((parallel.tgt, parallel.tgt_lang), (parallel.src, parallel.src_lang)):
            examples += nearest_examples(findings.sentences, queries, lang, parallel.tgt_lang)
    return examples


def nearest_examples(sentences: Sentences, queries: Sequence[str], query_lang: str, lang: str) -> list[Example]:
    """Nearest sentences of random queries among all that were encoded, exact matches excluded.

    Args:
        sentences: Encoded sentences, which are the corpus.
        queries: Sentences to choose from.
        query_lang: Their language.
        lang: The language to search in.

    Returns:
        One example a query.
    """
    corpus = sentences.texts(lang)
    rows = np.random.default_rng(0).choice(len(queries), size=min(QUERIES, len(queries)), replace=False)
    chosen = [queries[row] for row in sorted(rows.tolist())]
    near = nearest(sentences.vectors(chosen, query_lang), sentences.vectors(corpus, lang), 4 * SHOWN_NEIGHBORS)
    examples = []
    for row, query in enumerate(chosen):
        found = [(float(near.scores[row, place]), corpus[key]) for place, key in enumerate(near.ids[row].tolist())]
        apart = [(score, text) for score, text in found if _folded(text) != _folded(query)]
        examples.append(Example(query, apart[:SHOWN_NEIGHBORS], len(corpus)))
    return examples


def _folded(text: str) -> str:
    return " ".join(text.lower().split())

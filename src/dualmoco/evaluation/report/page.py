"""The report of an evaluation as one HTML page that needs nothing else.

Takes `Findings`; gives tables, plots, sentences with their nearest neighbours as in the paper's last table, signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dualmoco.core.version import VERSION
from dualmoco.evaluation.figures.canvas import to_svg
from dualmoco.evaluation.figures.mining import draw_margins, draw_precision_recall
from dualmoco.evaluation.figures.parallel import draw_parallel
from dualmoco.evaluation.figures.similarity import draw_similarities
from dualmoco.evaluation.figures.sts import draw_sts, draw_subsets
from dualmoco.evaluation.paper import SOURCE, STS_WMEAN, is_paper_sts
from dualmoco.evaluation.report.tables import evaluation_tables
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.sts import SEVEN
from dualmoco.evaluation.task import Findings, Parallel
from dualmoco.search.neighbors import nearest

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


def as_page(findings: Findings) -> str:
    """One self-contained HTML page of an evaluation."""
    environment = Environment(
        loader=PackageLoader("dualmoco.evaluation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        findings=findings, identity=findings.identity, tables=evaluation_tables(findings),
        pictures=_pictures(findings), examples=_examples(findings), source=SOURCE, version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )  # fmt: skip


def _pictures(findings: Findings) -> list[Picture]:
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


def _parallel_pictures(findings: Findings, parallel: Parallel) -> list[Picture]:
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


def _sts_pictures(findings: Findings) -> list[Picture]:
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


def _examples(findings: Findings) -> list[Example]:
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

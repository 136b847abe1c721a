"""The report of an evaluation as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dualmoco.core.version import VERSION
from dualmoco.evaluation.evaluate import Evaluation
from dualmoco.evaluation.examples import Example, retrieval_examples
from dualmoco.evaluation.figures.canvas import to_svg
from dualmoco.evaluation.figures.mining import draw_margins, draw_precision_recall
from dualmoco.evaluation.figures.parallel import draw_parallel
from dualmoco.evaluation.figures.similarity import draw_similarities
from dualmoco.evaluation.figures.sts import draw_sts, draw_subsets
from dualmoco.evaluation.paper import SOURCE, STS_WMEAN
from dualmoco.evaluation.report.table import Table
from dualmoco.evaluation.report.tables import evaluation_tables
from dualmoco.evaluation.sts import SEVEN
from dualmoco.evaluation.task import Parallel

SHOWN_PAIRS = 15
MATRIX_PAIRS = 10
COMPARED = ("Avg. GloVe", "BERT base-whitening", "SBERT base-NLI", "MoCo-BERT base", "MoCo-BERT base+NLI")


@dataclass(frozen=True)
class Picture:
    """A plot with what it shows."""

    title: str
    caption: str
    svg: str


def as_markdown(evaluation: Evaluation) -> str:
    """The tables and signatures as Markdown."""
    identity = evaluation.identity
    tables = evaluation_tables(evaluation.scores, identity.name)
    lines = [f"# Evaluation of {identity.name}", "", f"Paper's rows: {SOURCE}.", ""]
    lines += [table.as_markdown() for table in tables]
    lines += ["### Signatures", ""]
    lines += [f"- {' '.join(score.key)}: {score.value:.2f} `{score.signature}`" for score in evaluation.scores]
    return "\n".join(lines) + "\n"


def as_page(evaluation: Evaluation) -> str:
    """One self-contained HTML page: tables beside the paper's, plots, retrieval examples, signatures."""
    identity = evaluation.identity
    environment = Environment(
        loader=PackageLoader("dualmoco.evaluation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    tables: list[Table] = evaluation_tables(evaluation.scores, identity.name)
    return environment.get_template("page.html.j2").render(
        identity=identity, tables=tables, pictures=_pictures(evaluation), examples=_examples(evaluation),
        scores=evaluation.scores, source=SOURCE, version=VERSION, date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )  # fmt: skip


def _pictures(evaluation: Evaluation) -> list[Picture]:
    pictures = []
    for parallel in evaluation.parallel[:1]:
        pictures += _parallel_pictures(evaluation, parallel)
    for mined in evaluation.mined[:1]:
        figure = draw_margins(mined.scores, mined.correct, mined.threshold)
        caption = "Scores of mined pairs: true ones are in the gold, false ones are not. The line is the threshold."
        pictures.append(Picture("Margin scores", caption, to_svg(figure)))
        figure = draw_precision_recall(mined.scores, mined.correct, len(mined.gold), mined.threshold)
        caption = "Precision and recall as the threshold falls."
        pictures.append(Picture("Precision and recall of mining", caption, to_svg(figure)))
    return [*pictures, *_sts_pictures(evaluation)]


def _parallel_pictures(evaluation: Evaluation, parallel: Parallel) -> list[Picture]:
    rows = np.random.default_rng(0).permutation(len(parallel.src))[:SHOWN_PAIRS].tolist()
    src, tgt = [parallel.src[row] for row in rows], [parallel.tgt[row] for row in rows]
    vectors = evaluation.sentences.vectors(src, parallel.src_lang), evaluation.sentences.vectors(tgt, parallel.tgt_lang)
    figure = draw_parallel(src, tgt, *vectors, languages=(parallel.src_lang, parallel.tgt_lang))
    caption = f"t-SNE of {len(rows)} random pairs of Tatoeba; lines join translations, close points are moved apart."
    few = slice(0, MATRIX_PAIRS)
    matrix = draw_similarities(src[few], tgt[few], (vectors[0][few] @ vectors[1][few].T).astype(np.float64))
    return [
        Picture("Parallel sentences", caption, to_svg(figure)),
        Picture("Similarities", "Cosines of some pairs; translations are on the diagonal.", to_svg(matrix)),
    ]


def _sts_pictures(evaluation: Evaluation) -> list[Picture]:
    found = [score for score in evaluation.scores if score.task == "sts" and score.metric == "spearman"]
    if not found:
        return []
    mine = {score.subset: score.value for score in found if score.protocol == "wmean" and score.subset in SEVEN}
    paper = {name: dict(zip(SEVEN, STS_WMEAN[name][:-1], strict=True)) for name in COMPARED}
    subsets: dict[str, dict[str, float]] = {}
    for score in found:
        if score.protocol == "subset":
            year, _, part = score.subset.partition("/")
            subsets.setdefault(year, {})[part] = score.value
    return [
        Picture("STS beside the paper", "Spearman, weighted mean of subsets.",
                to_svg(draw_sts({evaluation.identity.name: mine, **paper}, "STS, weighted mean of subsets"))),
        Picture("STS by subset", "Spearman of every subset.", to_svg(draw_subsets(subsets))),
    ]  # fmt: skip


def _examples(evaluation: Evaluation) -> list[Example]:
    """Neighbours within the target language and across, among everything that was encoded."""
    examples: list[Example] = []
    for parallel in evaluation.parallel[:1]:
        sides: Sequence[tuple[Sequence[str], str, str]] = (
            (parallel.tgt, parallel.tgt_lang, parallel.tgt_lang),
            (parallel.src, parallel.src_lang, parallel.tgt_lang),
        )
        for queries, query_lang, lang in sides:
            examples += retrieval_examples(evaluation.sentences, queries, query_lang, lang)
    return examples

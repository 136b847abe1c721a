"""The HTML page of an evaluation: tables, plots, retrieval examples and signatures in one file.

Needs the `eval` extra (jinja2, matplotlib, scikit-learn); scores and tables do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dualmoco.core import VERSION
from dualmoco.evaluation.canvas import to_svg
from dualmoco.evaluation.figures import (
    draw_languages,
    draw_margins,
    draw_parallel,
    draw_precision_recall,
    draw_similarities,
    draw_sts,
    draw_subsets,
)
from dualmoco.evaluation.report import PAPER, evaluation_tables, is_paper_sts, language_scores
from dualmoco.evaluation.retrieval import SHARED_TATOEBA
from dualmoco.evaluation.sts import STS_SETS
from dualmoco.evaluation.task import EvaluationResult, ParallelText, Sentences
from dualmoco.search.exact import nearest

PLOTTED_PAIRS = 15
MATRIX_PAIRS = 10
PLOTTED_PAPER_ROWS = ("Avg. GloVe", "BERT base-whitening", "SBERT base-NLI", "MoCo-BERT base", "MoCo-BERT base+NLI")
EXAMPLE_QUERIES = 5
SHOWN_NEIGHBORS = 3


@dataclass(frozen=True)
class Picture:
    """A plot and its caption."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Example:
    """A query and its neighbors, the nearest first."""

    query: str
    neighbors: Sequence[tuple[float, str]]
    corpus: int  # number of sentences searched


def evaluation_page(evaluation: EvaluationResult) -> str:
    """One self-contained HTML page of an evaluation."""
    environment = Environment(
        loader=PackageLoader("dualmoco.evaluation", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        evaluation=evaluation,
        identity=evaluation.identity,
        tables=evaluation_tables(evaluation),
        pictures=_pictures(evaluation),
        examples=_examples(evaluation),
        source=PAPER["source"],
        version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _pictures(evaluation: EvaluationResult) -> list[Picture]:
    pictures = []
    for parallel in evaluation.parallel[:1]:
        pictures += _parallel_pictures(evaluation, parallel)
    for mined in evaluation.mined[:1]:
        figure = draw_margins(mined.scores, mined.correct, mined.threshold)
        caption = "Scores of mined pairs: true ones are in the gold, false ones are not. The line is the threshold."
        pictures.append(Picture("Margin scores", caption, to_svg(figure)))
        figure = draw_precision_recall(mined.scores, mined.correct, len(mined.gold), mined.threshold)
        caption = "Precision and recall of every threshold, from the highest down."
        pictures.append(Picture("Precision and recall of mining", caption, to_svg(figure)))
    return [*pictures, *_language_pictures(evaluation), *_sts_pictures(evaluation)]


def _language_pictures(evaluation: EvaluationResult) -> list[Picture]:
    """Accuracy of similarity search by language, if there are several, the best first."""
    values: dict[str, dict[str, list[float]]] = {}
    for score in evaluation.scores:
        if score.task in ("tatoeba", SHARED_TATOEBA) and score.metric == "accuracy":
            values.setdefault(score.task, {}).setdefault(score.subset, []).append(score.value)
    means = {
        group: {pair: sum(both) / len(both) for pair, both in sorted(pairs.items(), key=lambda item: -sum(item[1]))}
        for group, pairs in values.items()
    }
    if len(means.get("tatoeba", {})) < 2:
        return []
    if evaluation.peers:
        rows = {one.identity.name: language_scores(one) for one in (evaluation, *evaluation.peers)}
        figure = draw_languages(rows, "Similarity search by language")
        return [Picture("Languages", "Accuracy on Tatoeba, mean of both directions.", to_svg(figure))]
    figure = draw_subsets(means, "Similarity search by language", "accuracy x 100")
    return [Picture("Languages", "Accuracy of similarity search, mean of both directions.", to_svg(figure))]


def _parallel_pictures(evaluation: EvaluationResult, parallel: ParallelText) -> list[Picture]:
    rows = np.random.default_rng(0).permutation(len(parallel.src))[:PLOTTED_PAIRS].tolist()
    src, tgt = [parallel.src[row] for row in rows], [parallel.tgt[row] for row in rows]
    sentences = evaluation.sentences
    vectors = sentences.vectors(src, parallel.src_lang), sentences.vectors(tgt, parallel.tgt_lang)
    figure = draw_parallel(src, tgt, *vectors, languages=(parallel.src_lang, parallel.tgt_lang))
    data = evaluation.about or parallel.name
    caption = f"t-SNE of {len(rows)} random pairs ({data}); lines join translations, close points are moved apart."
    few = slice(0, MATRIX_PAIRS)
    matrix = draw_similarities(src[few], tgt[few], (vectors[0][few] @ vectors[1][few].T).astype(np.float64))
    return [
        Picture("Parallel sentences", caption, to_svg(figure)),
        Picture("Similarities", "Cosines of some pairs; translations are on the diagonal.", to_svg(matrix)),
    ]


def _sts_pictures(evaluation: EvaluationResult) -> list[Picture]:
    found = [score for score in evaluation.scores if score.task == "sts" and score.metric == "spearman"]
    if not found:
        return []
    sets = {score.subset: score for score in found if score.protocol == "wmean" and score.subset in STS_SETS}
    rows = {evaluation.identity.name: {name: score.value for name, score in sets.items()}}
    shared = is_paper_sts(sets) and not evaluation.about
    if shared:
        paper = PAPER["table 3"]
        rows |= {name: dict(zip(STS_SETS, paper[name][:-1], strict=True)) for name in PLOTTED_PAPER_ROWS}
    subsets: dict[str, dict[str, float]] = {}
    for score in found:
        if score.protocol == "subset":
            year, _, part = score.subset.partition("/")
            subsets.setdefault(year, {})[part] = score.value
    title = "STS compared with the paper" if shared else "STS"
    return [
        Picture(title, "Spearman, weighted mean of subsets.", to_svg(draw_sts(rows, "STS, weighted mean of subsets"))),
        Picture("STS by subset", "Spearman of every subset.", to_svg(draw_subsets(subsets))),
    ]


def _examples(evaluation: EvaluationResult) -> list[Example]:
    """Neighbors within the target language and across languages, among all encoded sentences."""
    examples: list[Example] = []
    for parallel in evaluation.parallel[:1]:
        for queries, lang in ((parallel.tgt, parallel.tgt_lang), (parallel.src, parallel.src_lang)):
            examples += nearest_examples(evaluation.sentences, queries, lang, parallel.tgt_lang)
    return examples


def nearest_examples(sentences: Sentences, queries: Sequence[str], query_lang: str, lang: str) -> list[Example]:
    """Nearest sentences of some random queries among all encoded sentences of `lang`, without exact matches."""
    corpus = sentences.texts(lang)
    rows = np.random.default_rng(0).choice(len(queries), size=min(EXAMPLE_QUERIES, len(queries)), replace=False)
    chosen = [queries[row] for row in sorted(rows.tolist())]
    near = nearest(sentences.vectors(chosen, query_lang), sentences.vectors(corpus, lang), 4 * SHOWN_NEIGHBORS)
    examples = []
    for row, query in enumerate(chosen):
        found = [(float(near.scores[row, place]), corpus[key]) for place, key in enumerate(near.ids[row].tolist())]
        others = [(score, text) for score, text in found if _folded(text) != _folded(query)]
        examples.append(Example(query, others[:SHOWN_NEIGHBORS], len(corpus)))
    return examples


def _folded(text: str) -> str:
    return " ".join(text.lower().split())

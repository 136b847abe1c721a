"""Clustering, the paper's future work: does k-means recover the classes that sentences belong to?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.evaluation.score import Signer
from dualmoco.evaluation.task import Sentences, TaskResult, require_path
from dualmoco.models.model import Identity
from dualmoco.text.files import read_table
from dualmoco.text.languages import base_language

KMEANS_STARTS = 10
STS_B_SOURCES = "STS-B sources"


class Clustering:
    """Labelled sentences: `NAME.LANG.tsv` files of `label<TAB>sentence`, and the sources of STS-B's test sentences."""

    def __init__(self, folder: Path) -> None:
        self.sets: dict[str, tuple[str, list[str], list[str], Path]] = {}  # language, labels, sentences, file
        benchmark = folder / "STS" / "STSBenchmark" / "sts-test.csv"
        if benchmark.is_file():
            self.sets[STS_B_SOURCES] = ("en", *_read_sources(benchmark), benchmark)
        for path in sorted((folder / "clustering").glob("*.*.tsv")):
            rows = read_table(path, [0, 1])
            lang = base_language(path.name.split(".")[-2])
            self.sets[path.stem] = (lang, [cells[0] for _, cells in rows], [cells[1] for _, cells in rows], path)
        if not self.sets:
            require_path(folder / "clustering", "NAME.LANG.tsv files of labelled sentences")
            raise DataError(f"{folder / 'clustering'}: no NAME.LANG.tsv; expected files of label<TAB>sentence")
        for name, (_, labels, _, _) in self.sets.items():
            if len(set(labels)) < 2:
                raise DataError(f"{name}: only one label; expected at least two")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All sentences."""
        wanted: dict[str, list[str]] = {}
        for lang, _, texts, _ in self.sets.values():
            wanted.setdefault(lang, []).extend(texts)
        return wanted

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """V-measure averaged over several starts of k-means, with the interval of that mean."""
        scores = []
        with counting("clustering", KMEANS_STARTS * len(self.sets), " runs") as progress:
            for name, (lang, labels, texts, path) in self.sets.items():
                vectors, classes = sentences.vectors(texts, lang), len(set(labels))
                values = []
                for seed in range(KMEANS_STARTS):
                    found = KMeans(classes, n_init=1, random_state=seed).fit_predict(vectors)
                    values.append(100 * float(v_measure_score(labels, found)))
                    progress(1)
                mean, spread = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / KMEANS_STARTS**0.5
                signer = Signer(identity, "clustering", [path])
                protocol = f"k-means, {classes} clusters, {KMEANS_STARTS} starts"
                ends = mean - spread, mean + spread
                scores.append(signer.score(name, protocol, "v-measure", mean, len(texts), ends, subset=name))
        return TaskResult(scores)


def _read_sources(path: Path) -> tuple[list[str], list[str]]:
    """The source (genre and file) of each distinct sentence of STS-B, and the sentences."""
    sources: dict[str, str] = {}
    for _, (genre, file, a, b) in read_table(path, [0, 1, 5, 6]):
        for text in (a, b):
            sources.setdefault(text, f"{genre}/{file}")
    return list(sources.values()), list(sources)

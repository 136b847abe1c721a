"""Clustering, the paper's future work: does k-means find the classes that sentences come from?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.evaluation.data_files import existing
from dualmoco.evaluation.score import Score, Signer, data_sha256
from dualmoco.evaluation.task import Result, Sentences
from dualmoco.models.model import Identity
from dualmoco.text.files import read_table
from dualmoco.text.languages import base_language

RUNS = 10
BENCHMARK = "STS-B sources"


class Clustering:
    """Labelled sentences: `NAME.LANG.tsv` files of `label<TAB>sentence`, and the sources of STS-B's test sentences."""

    def __init__(self, folder: Path) -> None:
        self.sets: dict[str, tuple[str, list[str], list[str], Path]] = {}
        benchmark = folder / "STS" / "STSBenchmark" / "sts-test.csv"
        if benchmark.is_file():
            self.sets[BENCHMARK] = ("en", *_read_sources(benchmark), benchmark)
        for path in sorted((folder / "clustering").glob("*.*.tsv")):
            rows = read_table(path, [0, 1])
            lang = base_language(path.name.split(".")[-2])
            self.sets[path.stem] = (lang, [cells[0] for _, cells in rows], [cells[1] for _, cells in rows], path)
        if not self.sets:
            existing(folder / "clustering", "NAME.LANG.tsv files of labelled sentences")
            raise DataError(f"{folder / 'clustering'}: no NAME.LANG.tsv; expected files of label<TAB>sentence")
        for name, (_, labels, _, _) in self.sets.items():
            if len(set(labels)) < 2:
                raise DataError(f"{name}: one class only; expected at least two labels")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All sentences."""
        wanted: dict[str, list[str]] = {}
        for lang, _, texts, _ in self.sets.values():
            wanted.setdefault(lang, []).extend(texts)
        return wanted

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """V-measure, averaged over k-means from several starts; the interval is that of their mean."""
        scores = []
        with counting("clustering", RUNS * len(self.sets), " runs") as progress:
            for name, (lang, labels, texts, path) in self.sets.items():
                vectors, classes = sentences.vectors(texts, lang), len(set(labels))
                values = []
                for seed in range(RUNS):
                    found = KMeans(classes, n_init=1, random_state=seed).fit_predict(vectors)
                    values.append(100 * float(v_measure_score(labels, found)))
                    progress(1)
                mean, spread = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / RUNS**0.5
                signer = Signer(identity, "clustering", data_sha256([path]))
                protocol = f"k-means, {classes} clusters, {RUNS} starts"
                signature = signer.sign(protocol, "v-measure", subset=name)
                scores.append(
                    Score(
                        "clustering",
                        name,
                        protocol,
                        "v-measure",
                        mean,
                        len(texts),
                        signature,
                        mean - spread,
                        mean + spread,
                    )
                )
        return Result(scores)


def _read_sources(path: Path) -> tuple[list[str], list[str]]:
    """Where each distinct sentence of STS-B comes from: its genre and file."""
    sources: dict[str, str] = {}
    for _, (genre, file, a, b) in read_table(path, [0, 1, 5, 6]):
        for text in (a, b):
            sources.setdefault(text, f"{genre}/{file}")
    return list(sources.values()), list(sources)

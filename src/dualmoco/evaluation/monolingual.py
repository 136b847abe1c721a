"""Tasks within one language besides STS: natural language inference, clustering and paraphrases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.data.nli_examples import read_nli
from dualmoco.evaluation.metrics import MeanSample, Ranking, Score, Signer, interval, value_of
from dualmoco.evaluation.task import Sentences, TaskResult, require_path
from dualmoco.mining.threshold import best_threshold
from dualmoco.models.model import Identity
from dualmoco.search.exact import nearest
from dualmoco.text.files import read_table
from dualmoco.text.languages import base_language

NLI_ROWS = 4096  # pairs classified at once


class Inference:
    """A file of premises, hypotheses and labels, judged by the classifier in a model's folder."""

    def __init__(self, path: Path, model: Path) -> None:
        from dualmoco.training.nli import load_classifier

        self.path = require_path(path, "labelled NLI pairs")
        self.classifier, self.lang = load_classifier(model)
        self.examples = list(read_nli(path))
        if not self.examples:
            raise DataError(f"{path}: no labelled examples; expected premise, hypothesis and label")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Premises and hypotheses."""
        return {self.lang: [text for example in self.examples for text in (example.premise, example.hypothesis)]}

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Accuracy over the three labels."""
        import torch

        premises = torch.from_numpy(sentences.vectors([example.premise for example in self.examples], self.lang))
        hypotheses = torch.from_numpy(sentences.vectors([example.hypothesis for example in self.examples], self.lang))
        if premises.shape[1] != self.classifier.dimension:
            raise DataError(
                f"vectors of dimension {premises.shape[1]} for an NLI head of dimension {self.classifier.dimension}: "
                "use no post-processing and no --dimension that changes the dimension"
            )
        with torch.inference_mode():
            batches = zip(premises.split(NLI_ROWS), hypotheses.split(NLI_ROWS), strict=True)
            found = torch.cat([self.classifier.compare(u, v).argmax(dim=1) for u, v in batches]).numpy()
        sample = MeanSample((found == np.array([example.label for example in self.examples])).astype(np.float64))
        signer, ends = Signer(identity, "nli", [self.path]), interval(sample, 200)
        return TaskResult([signer.score(self.path.name, "trained head", "accuracy", sample, len(found), ends)])


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
        from sklearn.cluster import KMeans
        from sklearn.metrics import v_measure_score

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


PARAPHRASE_NEIGHBORS = 20
DETECTION = "detection, threshold from dev.tsv"
IdPair = tuple[int, int]


class Paraphrases:
    """Files of `label<TAB>sentence<TAB>sentence`: dev.tsv chooses the threshold, test.tsv is scored."""

    def __init__(self, folder: Path, lang: str = "en") -> None:
        self.lang = lang
        self.paths = [require_path(folder / name, "labelled pairs") for name in ("dev.tsv", "test.tsv")]
        self.dev, self.test = (_read_pairs(path) for path in self.paths)

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All questions."""
        return {self.lang: [text for rows in (self.dev, self.test) for _, a, b in rows for text in (a, b)]}

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Average precision, F1 and accuracy of classifying pairs; average precision of mining them."""
        signer = Signer(identity, "paraphrase", self.paths)
        dev, test = self._cosines(self.dev, sentences), self._cosines(self.test, sentences)
        labels = [np.array([label for label, _, _ in rows], dtype=np.int64) for rows in (self.dev, self.test)]
        order = np.argsort(-dev, kind="stable")
        chosen = best_threshold(dev[order], labels[0][order] == 1, int(labels[0].sum()))
        accepted, positive = test >= chosen.value, labels[1] == 1
        f1 = 200 * float((accepted & positive).sum()) / max(1, accepted.sum() + positive.sum())
        accuracy = 100 * float((accepted == positive).mean())
        ranking, n = Ranking(test, labels[1]), len(test)
        return TaskResult(
            [
                signer.score("test.tsv", "detection", "average precision", ranking, n, interval(ranking, 200)),
                signer.score("test.tsv", DETECTION, "f1", float(f1), n),
                signer.score("test.tsv", DETECTION, "accuracy", accuracy, n),
                self._mining_score(sentences, signer),
            ]
        )

    def _cosines(self, rows: Sequence[tuple[int, str, str]], sentences: Sentences) -> np.ndarray:
        return sentences.cosines([a for _, a, _ in rows], [b for _, _, b in rows], self.lang, self.lang)

    def _mining_score(self, sentences: Sentences, signer: Signer) -> Score:
        """Average precision of the true paraphrases among all pairs of neighbors; unlabelled pairs count as wrong."""
        texts = list(dict.fromkeys(text for _, a, b in self.test for text in (a, b)))
        rows = {text: row for row, text in enumerate(texts)}
        gold = closure((rows[a], rows[b]) for label, a, b in self.test if label == 1)
        vectors = sentences.vectors(texts, self.lang)
        with counting("paraphrases", len(texts)) as progress:
            near = nearest(vectors, vectors, PARAPHRASE_NEIGHBORS + 1, progress=progress)
        a, b = np.repeat(np.arange(len(texts)), near.ids.shape[1]), near.ids.ravel()
        low, high = np.minimum(a, b), np.maximum(a, b)
        keys, first = np.unique(low * len(texts) + high, return_index=True)
        apart = (low != high)[first]
        keys, scores = keys[apart], near.scores.ravel()[first][apart]
        pairs = zip((keys // len(texts)).tolist(), (keys % len(texts)).tolist(), strict=True)
        labels = np.array([pair in gold for pair in pairs], dtype=np.int64)
        found = float(value_of(Ranking(scores, labels)) * labels.sum() / max(1, len(gold)))  # missed pairs count too
        settings = {"k": PARAPHRASE_NEIGHBORS, "sentences": len(texts)}
        return signer.score("test.tsv", "mining", "average precision", found, len(gold), **settings)


def closure(pairs: Iterable[IdPair]) -> set[IdPair]:
    """All pairs of the transitive closure, the lower number first."""
    group: dict[int, set[int]] = {}
    for a, b in pairs:
        joined = group.get(a, {a}) | group.get(b, {b})
        for member in joined:
            group[member] = joined
    return {(a, b) for a, members in group.items() for b in members if a < b}


def _read_pairs(path: Path) -> list[tuple[int, str, str]]:
    rows = []  # Quora's own files contain some bytes that are not UTF-8
    for number, (label, a, b) in read_table(path, [0, 1, 2], errors="replace"):
        if label not in ("0", "1"):
            raise DataError(f"{path}:{number}: label {label!r}; expected 1 for a paraphrase or 0")
        rows.append((int(label), a, b))
    if len({label for label, _, _ in rows}) < 2:
        raise DataError(f"{path}: all labels are {rows[0][0]}; expected both 0 and 1")
    return rows

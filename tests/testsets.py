"""Small test sets in the layouts of the real ones, and an encoder that needs no training."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.evaluation.sts import SICK_FILES, STS_YEARS
from dualmoco.models.model import Identity, Model

DIMENSION = 64


def mirrored(text: str) -> str:
    """A sentence of the made-up language `zh`: English read from its end."""
    return text[::-1]


class TrigramBackend:
    """Counts hashed character trigrams; text in `zh` is read from its end. A real encoder, though a modest one."""

    name, dimension, is_unit = "trigrams", DIMENSION, False

    def __init__(self, lang: str, encoded: list[str]) -> None:
        self.lang, self.encoded = lang, encoded

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Counts (n, 64)."""
        self.encoded += [f"{self.lang} {text}" for text in texts]
        vectors: Vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            plain = mirrored(text) if self.lang == "zh" else text
            for start in range(max(1, len(plain) - 2)):
                vectors[row, zlib.crc32(plain[start : start + 3].encode()) % DIMENSION] += 1
        return vectors


class TrigramEncoder(Model):
    """A model of trigram counts that remembers what it was asked to encode."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        super().__init__(Identity("trigrams", "ab" * 32), ["en", "zh"], lambda lang: TrigramBackend(lang, self.encoded))


def sentences(count: int, seed: int) -> list[str]:
    """Distinct English sentences."""
    found = dict.fromkeys(src for src, _ in generate_pairs(20 * count, seed=seed))
    return list(found)[:count]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes a text file and the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_tatoeba(folder: Path, count: int = 40, pair: str = "cmn-eng") -> None:
    """Translations of each other."""
    english = sentences(count, 1)
    first, second = pair.split("-")
    write_lines(folder / f"tatoeba.{pair}.{second}", english)
    write_lines(folder / f"tatoeba.{pair}.{first}", [mirrored(text) for text in english])


def write_bucc(folder: Path, split: str = "dev", *, gold: int = 30, noise: int = 60, seed: int = 2) -> None:
    """True pairs among sentences that have none."""
    english = sentences(gold + 2 * noise, seed)
    tgt = [f"en-{row}\t{text}" for row, text in enumerate(english[: gold + noise])]
    others = [*english[:gold], *english[gold + noise :]]
    src = [f"zh-{row}\t{mirrored(text)}" for row, text in enumerate(others)]
    write_lines(folder / f"zh-en.{split}.en", tgt)
    write_lines(folder / f"zh-en.{split}.zh", src)
    write_lines(folder / f"zh-en.{split}.gold", [f"zh-{row}\ten-{row}" for row in range(gold)])


def write_sts(folder: Path, pairs: int = 12) -> None:
    """STS12-16, STS-B and SICK; every third pair of STS16 is not judged."""
    generator = np.random.default_rng(5)
    texts = sentences(200, 3)

    def row(number: int) -> tuple[str, str, float]:
        a = texts[generator.integers(len(texts))]
        words = a.split()
        kept = words[: 1 + number % len(words)]
        return (
            a,
            " ".join([*kept, *texts[number % len(texts)].split()[: len(words) - len(kept)]]),
            round(5 * len(kept) / len(words), 2),
        )

    for year, subsets in STS_YEARS.items():
        for name in subsets:
            rows = [row(number) for number in range(pairs)]
            write_lines(folder / "STS" / f"{year}-en-test" / f"STS.input.{name}.txt", [f"{a}\t{b}" for a, b, _ in rows])
            gold = ["" if year == "STS16" and number % 3 == 0 else str(s) for number, (_, _, s) in enumerate(rows)]
            write_lines(folder / "STS" / f"{year}-en-test" / f"STS.gs.{name}.txt", gold)
    for part in ("dev", "test"):
        rows = [row(number) for number in range(pairs)]
        lines = [f"main-{n % 2}\tfile\t2012\t{n}\t{s}\t{a}\t{b}" for n, (a, b, s) in enumerate(rows)]
        write_lines(folder / "STS" / "STSBenchmark" / f"sts-{part}.csv", lines)
    for name in SICK_FILES:
        rows = [row(number) for number in range(pairs)]
        lines = [f"{n}\t{a}\t{b}\t{1 + 4 * s / 5:.2f}\tNEUTRAL" for n, (a, b, s) in enumerate(rows)]
        write_lines(folder / "SICK" / name, ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tjudgment", *lines])


def write_more(folder: Path) -> None:
    """A lexicon, labelled paraphrases, cross-lingual STS and labelled sentences to cluster."""
    words = sorted({word for text in sentences(60, 7) for word in text.lower().strip(".?!").split()})
    write_lines(folder / "lexicon" / "en-zh.txt", [f"{word} {mirrored(word)}" for word in words])
    texts = sentences(60, 8)
    for name in ("dev", "test"):
        rows = [f"1\t{text}\t{text.rstrip('.')} , too\t{n}" for n, text in enumerate(texts[:20])]
        rows += [f"0\t{a}\t{b}\tx" for a, b in zip(texts[20:40], texts[40:], strict=True)]
        write_lines(folder / "quora" / f"{name}.tsv", rows)
    pairs = [(a, b, score) for a, b in zip(texts[:20], texts[20:40], strict=True) for score in (0,)]
    pairs += [(text, text, 5) for text in texts[:20]]
    write_lines(folder / "XSTS" / "STS.input.track4.en-zh.txt", [f"{a}\t{mirrored(b)}" for a, b, _ in pairs])
    write_lines(folder / "XSTS" / "STS.gs.track4.en-zh.txt", [str(score) for _, _, score in pairs])
    rows = [f"shouting\t{text.upper()}" for text in texts[:20]] + [f"quiet\t{text.lower()}" for text in texts[20:40]]
    write_lines(folder / "clustering" / "voices.en.tsv", rows)


def write_all(folder: Path) -> Path:
    """A data folder with eval/ in it."""
    write_tatoeba(folder / "eval" / "tatoeba")
    write_bucc(folder / "eval" / "bucc2018")
    write_sts(folder / "eval")
    write_more(folder / "eval")
    return folder

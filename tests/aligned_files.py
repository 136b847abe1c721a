"""What the tests of `align` share: the demo's sentences as documents, and what was written of them."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path

from dualmoco.alignment.pipeline import Alignment
from dualmoco.cli.main import main
from dualmoco.models.embedded import FAST_MODEL

DEMO = importlib.resources.files("dualmoco") / "data" / "demo" / "sentences.tsv"
ROWS = [line.split("\t") for line in DEMO.read_text(encoding="utf-8").splitlines()[1:]]
EN, ZH = [row[1] for row in ROWS], [row[2] for row in ROWS]
FRENCH = [
    "Le chat dort sur la table de la cuisine.",
    "Nous allons à la mer demain avec les enfants.",
    "Mon père travaille dans une petite boulangerie.",
    "Il pleuvait quand le train est enfin arrivé.",
] * 10
HEADER = "score\tconfidence\tsrc\ttgt\tsrc_places\ttgt_places"


def write(path: Path, lines: Sequence[str]) -> Path:
    """Writes a text file and the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def pair_of(folder: Path, first: int = 0, last: int = 40, name: str = "") -> tuple[Path, Path]:
    """Two files of the same sentences."""
    return write(folder / f"{name}en.txt", EN[first:last]), write(folder / f"{name}zh.txt", ZH[first:last])


def run(*words: str | Path) -> int:
    """Runs `dualmoco align` with the fast model."""
    return main(["align", *map(str, words), "--model", FAST_MODEL, "--quiet"])


def rows_of(path: Path) -> list[list[str]]:
    """Rows of a TSV of links."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == HEADER
    return [line.split("\t") for line in lines[1:]]


def texts_of(found: Alignment) -> list[tuple[str, str]]:
    """Both sides of each link."""
    return [(pair.src, pair.tgt) for pair in found.pairs]


def merged(first: int, last: int) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Sides of a document where every sixth line of one or the other side holds two sentences, and its links."""
    sides: tuple[list[str], list[str]] = ([], [])
    links, at = [], first
    while at < last:
        step = 2 if (at - first) % 6 == 2 and at + 1 < last else 1
        src, tgt = EN[at : at + step], ZH[at : at + step]
        if step == 2 and (at // 6) % 2:
            src = [" ".join(src)]
        elif step == 2:
            tgt = ["".join(tgt)]
        sides[0].extend(src)
        sides[1].extend(tgt)
        links.append((" ".join(src), "".join(tgt)))
        at += step
    return *sides, links

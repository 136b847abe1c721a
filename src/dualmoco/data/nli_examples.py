"""Examples of natural language inference (appendix B of the paper), read from JSON lines or tab-separated files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.text.files import find_files, read_cells, read_lines

LABELS = ("entailment", "neutral", "contradiction")
UNDECIDED = "-"  # SNLI's label if the annotators disagree


@dataclass(frozen=True)
class NliExample:
    """A premise, a hypothesis, and an index into `LABELS`."""

    premise: str
    hypothesis: str
    label: int


def load_nli(
    names: Sequence[str], *, root: str, heldout: int, batch_size: int, seed: int
) -> tuple[list[NliExample], list[NliExample]]:
    """Training and held-out examples, which share no premise; DataError if there are too few."""
    examples = [example for path in find_files(names, root) for example in read_nli(path)]
    premises = sorted({example.premise for example in examples})
    order = np.random.default_rng([seed, 2]).permutation(len(premises))
    rank = {premises[index]: place for place, index in enumerate(order.tolist())}
    examples.sort(key=lambda example: rank[example.premise])
    cut = next((i for i in range(heldout, len(examples)) if examples[i].premise != examples[i - 1].premise), 0)
    if not cut or len(examples) - cut < batch_size:
        raise DataError(
            f"{len(examples)} NLI examples; expected more than nli.heldout={heldout} plus one batch of "
            f"nli.batch_size={batch_size}"
        )
    return examples[cut:], examples[:cut]


def read_nli(path: Path) -> Iterator[NliExample]:
    """Yields the labelled examples of a file: JSON lines, or tab-separated premise, hypothesis and label."""
    is_json = ".jsonl" in path.suffixes or ".json" in path.suffixes
    for number, (premise, hypothesis, label) in _read_json(path) if is_json else _read_tsv(path):
        if label == UNDECIDED:
            continue
        if label not in LABELS:
            raise DataError(f"{path}:{number}: label {label!r}; expected one of {', '.join(LABELS)} or {UNDECIDED}")
        yield NliExample(premise, hypothesis, LABELS.index(label))


def _read_json(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            is_snli = "sentence1" in record
            names = ("sentence1", "sentence2", "gold_label") if is_snli else ("premise", "hypothesis", "label")
            premise, hypothesis, label = (record[name] for name in names)
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}:{number}: expected a JSON object with sentence1, sentence2 and gold_label, "
                "or premise, hypothesis and label"
            ) from None
        if isinstance(label, int):
            label = LABELS[label] if 0 <= label < len(LABELS) else UNDECIDED
        yield number, (str(premise), str(hypothesis), str(label))


def _read_tsv(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, cells in read_cells(path):
        if len(cells) >= 3:
            yield number, (cells[0], cells[1], cells[2])
        elif any(map(str.strip, cells)):
            raise DataError(
                f"{path}:{number}: {len(cells)} columns; expected premise, hypothesis and label, tab-separated"
            )

"""Tests of reading NLI examples and of splitting them by premise."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dualmoco.core.errors import DataError
from dualmoco.data.nli_examples import LABELS, NliExample, load_nli, read_nli
from dualmoco.training.config import NliConfig

EXAMPLES = [
    NliExample("A man sleeps.", "A person rests.", 0),
    NliExample("A man sleeps.", "He dreams.", 1),
    NliExample("A dog runs.", "The dog sleeps.", 2),
]


def load(config: NliConfig, root: Path, seed: int) -> tuple[list[NliExample], list[NliExample]]:
    """Reads what a recipe names, as training does."""
    return load_nli(config.train, root=str(root), heldout=config.heldout, batch_size=config.batch_size, seed=seed)


def _write_json(path: Path, records: list[dict[str, Any]]) -> Path:
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _records(premise: str, hypothesis: str, label: str) -> list[dict[str, Any]]:
    return [
        {premise: example.premise, hypothesis: example.hypothesis, label: LABELS[example.label], "pairID": "7"}
        for example in EXAMPLES
    ]


def test_labels_have_the_order_of_the_data_sets() -> None:
    """Integer labels of the usual distributions mean these names."""
    assert LABELS == ("entailment", "neutral", "contradiction")


def test_read_tsv(tmp_path: Path) -> None:
    """Premise, hypothesis and label; undecided and blank lines are passed over, further columns ignored."""
    path = tmp_path / "nli.tsv"
    path.write_text(
        "A man sleeps.\tA person rests.\tentailment\n\nA man sleeps.\tHe dreams.\tneutral\tmore\n"
        "A cat.\tA pet.\t-\nA dog runs.\tThe dog sleeps.\tcontradiction\n",
        encoding="utf-8",
    )
    assert list(read_nli(path)) == EXAMPLES


@pytest.mark.parametrize("name", ["nli.jsonl", "nli.jsonl.gz", "nli.json"])
@pytest.mark.parametrize(
    "names", [("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label")], ids=["snli", "plain"]
)
def test_read_json_lines(tmp_path: Path, name: str, names: tuple[str, str, str]) -> None:
    """The names of SNLI and the plain ones, packed or not; undecided examples are passed over."""
    undecided = dict(zip(names, ("A cat.", "A pet.", "-"), strict=True))
    records = _records(*names)
    path = _write_json(tmp_path / name, [records[0], undecided, *records[1:]])
    assert list(read_nli(path)) == EXAMPLES


def test_integer_labels(tmp_path: Path) -> None:
    """0, 1 and 2 are the labels in order; -1 is how the hub writes undecided."""
    rows = [{"premise": e.premise, "hypothesis": e.hypothesis, "label": e.label} for e in EXAMPLES]
    rows.insert(1, {"premise": "A cat.", "hypothesis": "A pet.", "label": -1})
    assert list(read_nli(_write_json(tmp_path / "nli.jsonl", rows))) == EXAMPLES


def test_chinese_is_kept(tmp_path: Path) -> None:
    """Sentences come out as they were written, escaped or not."""
    path = tmp_path / "nli.jsonl"
    path.write_text('{"premise": "\\u4f60好", "hypothesis": "再见。", "label": "neutral"}\n', encoding="utf-8")
    assert list(read_nli(path)) == [NliExample("你好", "再见。", 1)]


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("nli.tsv", "a\tb\tperhaps", "label 'perhaps'; expected one of entailment, neutral, contradiction or -"),
        ("nli.tsv", "a\tb\tEntailment", "label 'Entailment'; expected one of entailment, neutral, contradiction or -"),
        ("nli.tsv", "a\tb\t", "label ''; expected one of entailment, neutral, contradiction or -"),
        ("nli.tsv", "a\tb", "2 columns; expected premise, hypothesis and label, tab-separated"),
        ("nli.tsv", "just text", "1 columns; expected premise, hypothesis and label, tab-separated"),
        ("nli.jsonl", '{"premise": "a", "hypothesis": "b", "label": "x"}', "label 'x'; expected one of entailment,"),
        ("nli.jsonl", '{"premise": "a", "hypothesis": ', "expected a JSON object with sentence1, sentence2 and gold_"),
        ("nli.jsonl", '{"premise": "a", "label": "neutral"}', "expected a JSON object with sentence1, sentence2 and "),
        ("nli.jsonl", '{"sentence1": "a", "sentence2": "b", "label": "neutral"}', "expected a JSON object with sente"),
        ("nli.jsonl", '["a", "b", "neutral"]', "expected a JSON object with sentence1, sentence2 and gold_label, or "),
        ("nli.jsonl", "12", "expected a JSON object with sentence1, sentence2 and gold_label, or premise, hypothesis"),
    ],
)
def test_line_of_another_form_is_refused(tmp_path: Path, name: str, line: str, expected: str) -> None:
    """The error names file and line, what was found and what was expected."""
    good = "a\tb\tneutral" if name.endswith("tsv") else '{"premise": "a", "hypothesis": "b", "label": "neutral"}'
    path = tmp_path / name
    path.write_text(f"{good}\n\n{line}\n{good}\n", encoding="utf-8")
    examples = read_nli(path)
    assert next(examples) == NliExample("a", "b", 1)
    with pytest.raises(DataError) as caught:
        next(examples)
    assert str(caught.value).startswith(f"{path}:3: {expected}")


@pytest.fixture
def config(tmp_path: Path) -> NliConfig:
    """Two files with 100 examples of 40 premises, some of which stand in both."""
    for name, first in (("a.tsv", 0), ("b.tsv", 50)):
        rows = (f"Premise {n * 7 % 40}.\tHypothesis {n}.\t{LABELS[n % 3]}\n" for n in range(first, first + 50))
        (tmp_path / name).write_text("".join(rows), encoding="utf-8")
    return NliConfig(train=["*.tsv"], heldout=20, batch_size=16)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_split_shares_no_premise(config: NliConfig, tmp_path: Path, seed: int) -> None:
    """No premise is on both sides, nothing is lost, and hardly more than asked is held out."""
    train, heldout = load(config, tmp_path, seed)
    assert {example.premise for example in train} & {example.premise for example in heldout} == set()
    assert sorted(example.hypothesis for example in train + heldout) == sorted(f"Hypothesis {n}." for n in range(100))
    assert 20 <= len(heldout) <= 22
    assert all(LABELS[e.label] == LABELS[int(e.hypothesis.split()[1][:-1]) % 3] for e in train + heldout)


def test_seed_decides_the_split(config: NliConfig, tmp_path: Path) -> None:
    """The same seed holds out the same examples, another seed others."""
    first, again, other = (load(config, tmp_path, seed)[1] for seed in (3, 3, 4))
    assert first == again
    assert {example.premise for example in first} != {example.premise for example in other}


@pytest.mark.parametrize(("heldout", "batch_size"), [(100, 1), (99, 16), (20, 90), (500, 16)])
def test_too_few_examples_are_refused(config: NliConfig, tmp_path: Path, heldout: int, batch_size: int) -> None:
    """Held-out examples and one batch must fit; the error gives all three numbers."""
    small = NliConfig(train=config.train, heldout=heldout, batch_size=batch_size)
    with pytest.raises(DataError) as caught:
        load(small, tmp_path, 0)
    assert str(caught.value) == (
        f"100 NLI examples; expected more than nli.heldout={heldout} plus one batch of nli.batch_size={batch_size}"
    )


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """The place that was looked at is in the error."""
    with pytest.raises(DataError, match=r"snli\.jsonl: no such file; expected a file or a glob"):
        load(NliConfig(train=["snli.jsonl"]), tmp_path, 0)

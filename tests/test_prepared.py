from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dualmoco.core.errors import DataError
from dualmoco.data.block import sentence_ids
from dualmoco.data.demo.grammar import generate_pairs
from dualmoco.data.pairs import load_pairs
from dualmoco.data.prepare import prepare
from dualmoco.data.prepared import open_prepared
from dualmoco.data.recipe import CorpusConfig, DataConfig, PrepareConfig
from dualmoco.training.config import load_config
from dualmoco.training.run import train

PAIRS = generate_pairs(700, seed=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    config = PrepareConfig(out=str(tmp_path / "out"), corpora=[CorpusConfig(files=[str(tmp_path / "a.tsv")])])
    prepare(replace(config, heldout=40, shard_pairs=300, workers=1))
    return tmp_path / "out"


def test_mapped_pairs_are_those_prepared(folder: Path) -> None:
    corpus, heldout = open_prepared(folder)
    assert (len(corpus), len(heldout)) == (len(PAIRS) - 40 - _shared(PAIRS, heldout.texts()), 40)
    src, tgt = corpus.texts()
    assert set(zip(src, tgt, strict=True)) <= set(PAIRS)
    assert corpus.src_ids.tolist() == sentence_ids(src).tolist()
    assert corpus.tgt_ids.tolist() == sentence_ids(tgt).tolist()
    rows = np.array([5, 0, 300, 5])
    assert corpus.texts(rows)[0] == [src[row] for row in rows]


def _shared(pairs: list[tuple[str, str]], heldout: tuple[list[str], list[str]]) -> int:
    held = set(zip(*heldout, strict=True))
    return sum((src in heldout[0] or tgt in heldout[1]) and (src, tgt) not in held for src, tgt in pairs)


def test_the_second_opening_unpacks_nothing(folder: Path) -> None:
    open_prepared(folder)
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "mapped").iterdir()}
    open_prepared(folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "mapped").iterdir()} == stamps


def test_unpacked_pairs_of_another_preparation_are_not_used(folder: Path, tmp_path: Path) -> None:
    open_prepared(folder)
    keep = folder / "mapped"
    keep.rename(tmp_path / "keep")
    config = PrepareConfig(out=str(folder), corpora=[CorpusConfig(files=[str(tmp_path / "a.tsv")], max_pairs=100)])
    prepare(replace(config, workers=1))
    (tmp_path / "keep").rename(keep)
    corpus, heldout = open_prepared(folder)
    assert (len(corpus), len(heldout)) == (100, 0)
    assert corpus.texts()[0] == [src for src, _ in PAIRS if src in set(corpus.texts()[0])]


def test_a_missing_or_changed_shard_is_named(folder: Path) -> None:
    (folder / "train-00001.parquet").write_bytes(b"short")
    with pytest.raises(DataError, match=r"train-00001\.parquet: missing or not as the manifest says"):
        open_prepared(folder)
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_prepared(folder.parent)


def test_training_uses_the_split_of_prepare(folder: Path) -> None:
    split = load_pairs(DataConfig(prepared=str(folder)), seed=0)
    assert len(split.heldout) == 40
    assert split.counts["train"] == len(split.train)


def test_test_sentences_in_prepared_pairs_are_refused(folder: Path, tmp_path: Path) -> None:
    corpus, _ = open_prepared(folder)
    (tmp_path / "test.txt").write_text(corpus.texts()[0][3].upper() + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"1 pairs hold a sentence of data\.exclude"):
        load_pairs(DataConfig(root=str(tmp_path), prepared=str(folder), exclude=["test.txt"]), seed=0)


def test_without_held_out_pairs_training_holds_some_out(folder: Path, tmp_path: Path) -> None:
    config = PrepareConfig(out=str(folder), corpora=[CorpusConfig(files=[str(tmp_path / "a.tsv")])], workers=1)
    prepare(config)
    split = load_pairs(DataConfig(root=str(tmp_path), prepared=str(folder), heldout=25), seed=0)
    assert len(split.heldout) == 25
    assert not set(split.train.texts()[0]) & set(split.heldout.texts()[0])


def test_a_run_trains_on_prepared_pairs(folder: Path, recipe: Path, tmp_path: Path) -> None:
    result = train(load_config(recipe, ["data.train=[]", f"data.prepared={folder}", f"out={tmp_path / 'run'}"]))
    assert (result.step, result.stop) == (12, "finished")


def test_max_pairs_samples_prepared_pairs(folder: Path) -> None:
    whole, part = (load_pairs(DataConfig(prepared=str(folder), max_pairs=count), seed=0) for count in (0, 100))
    assert len(part.train) == 100 and part.counts["not sampled"] == len(whole.train) - 100
    assert part.heldout.texts() == whole.heldout.texts()


def test_opening_takes_no_memory(tmp_path: Path) -> None:
    pairs = [(f"{src} {number}", f"{tgt}{number}") for number in range(40) for src, tgt in generate_pairs(2000, seed=1)]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    prepare(
        PrepareConfig(out=str(tmp_path / "out"), corpora=[CorpusConfig(files=[str(tmp_path / "a.tsv")])], workers=1)
    )
    open_prepared(tmp_path / "out")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    corpus, _ = open_prepared(tmp_path / "out")
    assert corpus.texts(np.array([len(corpus) - 1]))[0][0].endswith(" 39")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2000  # KiB; the texts alone are larger
    assert (tmp_path / "out" / "mapped" / "train.src.text").stat().st_size > 2_000_000

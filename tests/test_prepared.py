from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from dualmoco.core.errors import DataError
from dualmoco.data.config import CleanConfig, CorpusConfig, DataConfig, PrepareConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.pairs import load_pairs, open_prepared
from dualmoco.data.prepare import prepare
from dualmoco.data.text_column import sentence_ids
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train

PAIRS = generate_pairs(700, seed=9)
LANGS = ("en", "zh")


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


def test_runs_that_start_at_once_wait_for_the_one_that_unpacks(folder: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder / ".unpacking.lock"):
            second = pool.submit(open_prepared, folder)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
        assert second.result()[0].texts() == open_prepared(folder)[0].texts()


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
    with pytest.raises(DataError, match=r"train-00001\.parquet: missing"):
        open_prepared(folder)
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_prepared(folder.parent)


def test_training_uses_the_split_of_prepare(folder: Path) -> None:
    split = load_pairs(DataConfig(prepared=str(folder)), langs=LANGS, seed=0)
    assert len(split.heldout) == 40
    assert split.counts["train"] == len(split.train)


@pytest.mark.parametrize("wanted", [2, 15, 39])
def test_at_most_the_asked_number_of_held_out_pairs_is_used(folder: Path, wanted: int) -> None:
    """A random choice of those that prepare held out, by seed; the others are not trained on either."""
    everything = load_pairs(DataConfig(prepared=str(folder), heldout=40), langs=LANGS, seed=0)
    chosen = [load_pairs(DataConfig(prepared=str(folder), heldout=wanted), langs=LANGS, seed=s) for s in (0, 0, 1)]
    held = [set(zip(*split.heldout.texts(), strict=True)) for split in chosen]
    assert len(held[0]) == wanted and held[0] < set(zip(*everything.heldout.texts(), strict=True))
    assert held[0] == held[1] != held[2]
    assert chosen[0].train.texts() == everything.train.texts()
    assert chosen[0].counts["held out"] == wanted and chosen[0].counts["held out, not used"] == 40 - wanted
    counts = dict(chosen[0].counts)
    assert counts.pop("read") == sum(counts.values())


def test_shards_of_a_prepared_folder_are_training_files(folder: Path) -> None:
    """Named in data.train, a prepared folder gives its training pairs, and its files can be named one by one."""
    corpus, heldout = open_prepared(folder)
    expected = set(zip(*corpus.texts(), strict=True))
    for names in ([str(folder)], [str(folder / "train-*.parquet")]):
        split = load_pairs(DataConfig(train=names, heldout=20), langs=LANGS, seed=0)
        assert split.counts["read"] == len(corpus)
        found = set(zip(*split.train.texts(), strict=True)) | set(zip(*split.heldout.texts(), strict=True))
        assert found <= expected and not found & set(zip(*heldout.texts(), strict=True))


def test_test_sentences_in_prepared_pairs_are_refused(folder: Path, tmp_path: Path) -> None:
    corpus, _ = open_prepared(folder)
    (tmp_path / "test.txt").write_text(corpus.texts()[0][3].upper() + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs with a sentence of data\.exclude: 1; expected none"):
        load_pairs(DataConfig(root=str(tmp_path), prepared=str(folder), exclude=["test.txt"]), langs=LANGS, seed=0)


def test_without_held_out_pairs_training_holds_some_out(folder: Path, tmp_path: Path) -> None:
    config = PrepareConfig(out=str(folder), corpora=[CorpusConfig(files=[str(tmp_path / "a.tsv")])], workers=1)
    prepare(config)
    split = load_pairs(DataConfig(root=str(tmp_path), prepared=str(folder), heldout=25), langs=LANGS, seed=0)
    assert len(split.heldout) == 25
    assert not set(split.train.texts()[0]) & set(split.heldout.texts()[0])


def test_a_run_trains_on_prepared_pairs(folder: Path, recipe: Path, tmp_path: Path) -> None:
    result = train(load_config(recipe, ["data.train=[]", f"data.prepared={folder}", f"out={tmp_path / 'run'}"]))
    assert (result.step, result.stop) == (12, "finished")


def test_max_pairs_samples_prepared_pairs(folder: Path) -> None:
    whole, part = (
        load_pairs(DataConfig(prepared=str(folder), max_pairs=count), langs=LANGS, seed=0) for count in (0, 100)
    )
    assert len(part.train) == 100 and part.counts["not sampled"] == len(whole.train) - 100
    assert part.heldout.texts() == whole.heldout.texts()


MEASURED = """
import sys
from pathlib import Path
import numpy as np
from dualmoco.core.progress import peak_memory
from dualmoco.data.pairs import open_prepared

before = peak_memory()
corpus, _ = open_prepared(Path(sys.argv[1]))
print(peak_memory() - before, corpus.texts(np.array([len(corpus) - 1]))[0][0][-4:])
"""


def test_opening_takes_no_memory(tmp_path: Path) -> None:
    """A process that opens unpacked pairs and reads one of them holds far less than their size."""
    filler = "many words and nothing else " * 25
    lines = (f"{filler}{number}\t{'许多词' * 50}{number}\n" for number in range(1000, 9000))
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    clean = CleanConfig(max_ratio=0, max_tokens=0)
    corpora = [CorpusConfig(files=[str(tmp_path / "a.tsv")])]
    prepare(PrepareConfig(out=str(tmp_path / "out"), corpora=corpora, clean=clean, workers=1))
    open_prepared(tmp_path / "out")
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "out")]
    peak, last = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert last == "8999"
    size = sum(path.stat().st_size for path in (tmp_path / "out" / "mapped").iterdir())
    assert size > 8_000_000 and int(peak) < size / 4

"""Mining, scoring and paraphrases of files: exact, resumable, the same however the work is cut."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dualmoco.cli.main import main
from dualmoco.core.errors import DataError
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.mining.margins import ScoredPairs
from dualmoco.mining.mine import Planting, mine, without_self
from dualmoco.mining.threshold import distinct_pairs, judge_by_gold
from dualmoco.models.load import open_model
from dualmoco.search.exact import nearest


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """English and Chinese text; the first forty lines of one are translations of the last forty of the other."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = list(dict.fromkeys(generate_pairs(400, seed=11)))[:200]
    english = [src for src, _ in pairs[:120]] + ["", pairs[0][0]]
    chinese = [tgt for _, tgt in pairs[120:]] + [tgt for _, tgt in pairs[:40]]
    paths = folder / "a.txt", folder / "b.txt"
    for path, lines in zip(paths, (english, chinese), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def mined(files: tuple[Path, Path], model: Path, out: Path, *words: str) -> Path:
    """Runs the command."""
    options = ["--model", str(model), "--out", str(out), "--quiet", *words]
    assert main(["mine", str(files[0]), str(files[1]), *options]) == 0
    return out


def test_output_is_the_same_however_the_work_is_cut(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte: other memory, blocks, shards and threads."""
    whole = mined(files, tiny_model, tmp_path / "whole.tsv").read_bytes()
    assert whole.count(b"\n") > 40
    model = open_model(tiny_model)
    monkeypatch.setattr("dualmoco.mining.knn.LEAST_ROWS", 16)
    for name, memory, threads, shard_rows in (("one", 1, 1, 7), ("two", 8_000, 2, 50)):
        torch.set_num_threads(threads)
        mine(*files, model=model, out=tmp_path / f"{name}.tsv", memory=memory, shard_rows=shard_rows)
        assert (tmp_path / f"{name}.tsv").read_bytes() == whole
    torch.set_num_threads(2)


def test_table_is_what_the_formula_says(files: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """Scores, means and lines of every pair are worked out again from the sentences."""
    out = mined(files, tiny_model, tmp_path / "pairs.tsv")
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files]
    distinct = [list(dict.fromkeys(line for line in side if line)) for side in texts]
    model = open_model(tiny_model)
    vectors = [
        model.encode(side, lang=lang).astype(np.float64) for side, lang in zip(distinct, ("en", "zh"), strict=True)
    ]
    cosines = vectors[0] @ vectors[1].T
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["score", "src", "tgt", "src_mean", "tgt_mean", "src_line", "tgt_line"]
    assert [float(row[0]) for row in rows[1:]] == sorted((float(row[0]) for row in rows[1:]), reverse=True)
    for score, src, tgt, src_mean, tgt_mean, src_line, tgt_line in rows[1:]:
        i, j = distinct[0].index(src), distinct[1].index(tgt)
        means = np.sort(cosines[i])[-3:].mean(), np.sort(cosines[:, j])[-3:].mean()
        assert float(src_mean) == pytest.approx(means[0], abs=3e-6)
        assert float(tgt_mean) == pytest.approx(means[1], abs=3e-6)
        assert float(score) == pytest.approx(cosines[i, j] - sum(means) / 2, abs=5e-6)
        assert texts[0].index(src) == int(src_line) - 1 and texts[1].index(tgt) == int(tgt_line) - 1
    origin = json.loads((tmp_path / "pairs.tsv.json").read_text(encoding="utf-8"))
    assert len(origin["model_sha256"]) == len(origin["src_text_sha256"]) == 64 and origin["pairs"] == len(rows) - 1


def test_every_format_holds_the_same_pairs(files: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """Parquet and TMX, read by their own readers, give the pairs of the TSV; provenance is inside."""
    tsv = mined(files, tiny_model, tmp_path / "p.tsv").read_text(encoding="utf-8").splitlines()[1:]
    expected = [tuple(line.split("\t")[1:3]) for line in tsv]
    table = pq.read_table(mined(files, tiny_model, tmp_path / "p.parquet"))
    assert list(zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)) == expected
    assert b"model_sha256" in table.schema.metadata
    tmx = mined(files, tiny_model, tmp_path / "p.tmx")
    problems: list[tuple[int, str]] = []
    rows = read_pairs(Source(tmx, "en", "zh"), report=lambda line, what: problems.append((line, what)))
    assert [(row.src, row.tgt) for row in rows] == expected and not problems


@pytest.mark.parametrize("retrieval", ["forward", "backward", "intersection"])
def test_retrievals(files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, retrieval: str) -> None:
    """Forward has every source, backward every target, intersection fewer than either."""
    counts = {"forward": 120, "backward": 120}
    lines = mined(files, tiny_model, tmp_path / "p.tsv", "--retrieval", retrieval).read_text(encoding="utf-8")
    pairs = len(lines.splitlines()) - 1
    assert pairs == counts[retrieval] if retrieval in counts else pairs < 120


def rows_of(path: Path) -> list[list[str]]:
    """The rows of a TSV of pairs."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def test_threshold_from_planted_pairs(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted sentences choose the threshold, and are not among the pairs written."""
    planted = list(dict.fromkeys(generate_pairs(900, seed=77)))[:200]
    (tmp_path / "known.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in planted), encoding="utf-8")
    out = mined(files, tiny_model, tmp_path / "p.tsv", "--planted", str(tmp_path / "known.tsv"), "--json")
    result = json.loads(capsys.readouterr().out)
    made, threshold = result["calibration"], result["calibration"]["threshold"]
    assert made["basis"] == "planted" and made["known"] == len(distinct_pairs(planted))
    assert 0 <= made["low"] <= threshold["precision"] <= made["high"] + 0.05 <= 1.05
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    rows = rows_of(out)
    assert all(float(row[0]) >= result["threshold"] for row in rows)
    assert all(int(row[5]) <= lengths[0] and int(row[6]) <= lengths[1] for row in rows)
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files]
    assert all(row[1] in texts[0] and row[2] in texts[1] for row in rows)


def test_half_of_the_planted_pairs_lack_their_partners() -> None:
    """Every second pair is whole; of the others one sentence is planted, on either side in turn."""
    pairs = [(f"a{number}", f"b{number}") for number in range(8)]
    planting = Planting(pairs)
    assert planting.src == ["a0", "a1", "a2", "a4", "a5", "a6"] and planting.tgt == ["b0", "b2", "b3", "b4", "b6", "b7"]
    assert planting.whole == pairs[::2] and planting.count == 8
    assert Planting([("a", "b"), ("a", "c"), ("d", "b")]).count == 1


def test_threshold_from_gold(files: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """Line numbers of true pairs; numbers beyond the files are named."""
    gold = tmp_path / "gold.tsv"
    gold.write_text("".join(f"{line}\t{80 + line}\n" for line in range(2, 41)), encoding="utf-8")
    mined(files, tiny_model, tmp_path / "p.tsv", "--gold", str(gold))
    origin = json.loads((tmp_path / "p.tsv.json").read_text(encoding="utf-8"))
    assert origin["calibration"]["known_pairs"] == 39 and origin["threshold"] == origin["calibration"]["value"]


def test_every_mined_pair_is_judged_by_gold() -> None:
    """Pairs between two sentences that no gold pair has are wrong; no gold pair found is an error."""
    pairs = ScoredPairs(np.array([0, 1, 2, 3]), np.array([0, 5, 2, 3]), np.array([0.5, 0.4, 0.3, 0.2]))
    with pytest.raises(DataError, match="none of 2 gold pairs was mined"):
        judge_by_gold(pairs, {(0, 1), (1, 0)}, 9)
    found = judge_by_gold(pairs, {(0, 0), (2, 2)}, 9)
    assert found.threshold.precision == pytest.approx(2 / 3) and found.threshold.recall == 1
    assert found.threshold.value == pytest.approx(0.25) and found.low < 2 / 3 < found.high
    precise = judge_by_gold(pairs, {(0, 0), (2, 2)}, 9, precision=0.9)
    assert precise.threshold.value == pytest.approx(0.45) and precise.threshold.recall == 0.5
    missed = judge_by_gold(pairs, {(0, 0)}, 9, left_out=1)
    assert missed.threshold.recall == 0.5 and missed.known == 2


def test_score_keeps_the_order_of_a_bitext(tiny_model: Path, tmp_path: Path) -> None:
    """Every pair has its cosine; a threshold drops the shuffled ones first."""
    pairs = list(dict.fromkeys(generate_pairs(300, seed=21)))[:60]
    wrong = [(a, pairs[(place + 7) % 60][1]) if place % 3 == 0 else (a, b) for place, (a, b) in enumerate(pairs)]
    path = tmp_path / "bitext.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in wrong), encoding="utf-8")
    words = ["score", str(path), "--model", str(tiny_model), "--out", str(tmp_path / "s.tsv")]
    assert main(words) == 0
    rows = [line.split("\t") for line in (tmp_path / "s.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert [(row[1], row[2]) for row in rows] == wrong
    scores = np.array([float(row[0]) for row in rows])
    assert scores[::3].mean() < np.delete(scores, np.s_[::3]).mean()
    assert main([*words, "--threshold", str(np.median(scores))]) == 0
    assert len((tmp_path / "s.tsv").read_text(encoding="utf-8").splitlines()) == 1 + (scores >= np.median(scores)).sum()


def test_score_never_replaces_its_input(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns and rows of the bitext stay; --overwrite does not allow it either."""
    bitext = tmp_path / "x.tsv"
    rows = "".join(f"{src}\t{tgt}\tid{number}\n" for number, (src, tgt) in enumerate(generate_pairs(20, seed=3)))
    bitext.write_text(rows, encoding="utf-8")
    for words in ([], ["--overwrite"]):
        assert main(["score", str(bitext), "--out", str(bitext), "--model", str(tiny_model), *words]) == 2
        assert "x.tsv: is also an input" in capsys.readouterr().err
    assert bitext.read_text(encoding="utf-8") == rows and list(tmp_path.iterdir()) == [bitext]


def test_corrected_pairs_are_replaced_only_on_request(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command again replaces what it wrote, and refuses before any work what was edited since."""
    out = mined(files, tiny_model, tmp_path / "pairs.tsv")
    mined(files, tiny_model, out, "--retrieval", "forward")
    out.write_text("corrected\n", encoding="utf-8")
    words = ["mine", *map(str, files), "--model", str(tiny_model), "--out", str(out), "--quiet"]
    assert main(words) == 2 and out.read_text(encoding="utf-8") == "corrected\n"
    assert "--overwrite" in capsys.readouterr().err and not (tmp_path / "pairs.tsv.work").exists()
    assert main([*words, "--overwrite"]) == 0 and out.read_text(encoding="utf-8") != "corrected\n"


def test_paraphrases_by_a_plain_loop(tiny_model: Path, tmp_path: Path) -> None:
    """Each neighbour of each sentence once, itself excluded, scored by the margin."""
    texts = list(dict.fromkeys(src for src, _ in generate_pairs(200, seed=31)))[:50]
    path = tmp_path / "t.txt"
    path.write_text("".join(f"{text}\n" for text in [*texts, texts[0]]), encoding="utf-8")
    words = ["paraphrases", str(path), "--lang", "en", "--model", str(tiny_model), "--out", str(tmp_path / "p.tsv")]
    assert main([*words, "--neighbors", "2"]) == 0
    vectors = open_model(tiny_model).encode(texts, lang="en").astype(np.float64)
    cosines = (vectors @ vectors.T).round(6)
    np.fill_diagonal(cosines, -2)
    near = [sorted(range(50), key=lambda j: (-cosines[i, j], j))[:2] for i in range(50)]
    means = [cosines[i, near[i]].mean() for i in range(50)]
    expected = {tuple(sorted((i, j))): cosines[i, j] - (means[i] + means[j]) / 2 for i in range(50) for j in near[i]}
    rows = [line.split("\t") for line in (tmp_path / "p.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    found = {(int(row[5]) - 1, int(row[6]) - 1): float(row[0]) for row in rows}
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=3e-6) for key in found)


def test_self_is_left_out_even_among_equals() -> None:
    """With copies of a vector, the row itself may not be among its nearest; k others remain."""
    vectors = unit_vectors(np.repeat(np.eye(3, dtype=np.float32), 4, axis=0))
    near = without_self(nearest(vectors, vectors, 3), 2)
    assert near.ids.shape == (12, 2) and not (near.ids == np.arange(12)[:, None]).any()


def test_approximate_search_of_all_lists_is_exact(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With every list probed nothing is missed, and the recall says so, for a bitext and within a language too."""
    pytest.importorskip("faiss")
    exact = mined(files, tiny_model, tmp_path / "exact.tsv").read_bytes()
    capsys.readouterr()
    near = mined(files, tiny_model, tmp_path / "near.tsv", "--approximate", "--probes", "1000", "--json").read_bytes()
    assert near == exact and json.loads(capsys.readouterr().out)["recall"] == 1
    words = ["--model", str(tiny_model), "--approximate", "--quiet", "--out"]
    assert main(["paraphrases", str(files[0]), "--lang", "en", *words, str(tmp_path / "same.tsv")]) == 0
    assert json.loads((tmp_path / "same.tsv.json").read_text(encoding="utf-8"))["approximate_recall"] > 0.5


def test_approximate_search_without_faiss_is_refused_before_work(
    files: tuple[Path, Path],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What to install is said, and nothing is encoded."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    out = tmp_path / "near.tsv"
    words = ["mine", *map(str, files), "--model", str(tiny_model), "--out", str(out), "--approximate"]
    assert main(words) == 2
    assert capsys.readouterr().err == "dualmoco: approximate search needs faiss; pip install 'dualmoco[faiss]'\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lines", [1, 2])
def test_tiny_files(tiny_model: Path, tmp_path: Path, lines: int) -> None:
    """One line a side, and more neighbours asked for than there are sentences."""
    pairs = list(generate_pairs(lines, seed=1))
    for name, side in (("a", 0), ("b", 1)):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / name).write_text(text, encoding="utf-8")
    out = mined((tmp_path / "a", tmp_path / "b"), tiny_model, tmp_path / "p.tsv", "--neighbors", "9")
    assert 2 <= len(out.read_text(encoding="utf-8").splitlines()) <= 1 + lines


FAULTS: dict[str, tuple[list[str], str]] = {
    "ending": (
        ["--model", "MODEL", "--out", "x.doc"],
        "x.doc: ends with .doc; expected one of .tsv, .csv, .jsonl, .parquet, .tmx",
    ),
    "language": (["--model", "MODEL", "--tgt", "fr"], "'fr'"),
    "memory": (["--model", "MODEL", "--memory", "lots"], "memory lots; expected a size"),
    "margin": (["--model", "MODEL", "--margin", "wide"], "expected one of distance, ratio, absolute"),
    "precision": (["--model", "MODEL", "--precision", "fp64"], "expected one of fp32, fp16, int8"),
    "neighbours": (["--model", "MODEL", "--neighbors", "0"], "neighbors 0; expected at least 1"),
    "engine": (["--model", "MODEL", "--engine", "abacus"], "expected one of local, ray"),
    "two thresholds": (["--model", "MODEL", "--threshold", "1", "--planted", "PAIRS"], "expected only one of them"),
    "gold": (["--model", "MODEL", "--gold", "PAIRS"], "expected two line numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_input_is_one_line(
    fault: str, files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, and no output file."""
    (tmp_path / "pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    words, said = FAULTS[fault]
    out = [] if "--out" in words else ["--out", str(tmp_path / "p.tsv")]
    filled = [word.replace("MODEL", str(tiny_model)).replace("PAIRS", str(tmp_path / "pairs.tsv")) for word in words]
    assert main(["mine", str(files[0]), str(files[1]), *out, *filled]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1] and not (tmp_path / "p.tsv").exists()


def test_a_work_folder_that_was_named_is_never_removed(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path
) -> None:
    """It may hold other things; the one beside the output goes."""
    work = tmp_path / "mine"
    work.mkdir()
    (work / "thesis.txt").write_text("mine", encoding="utf-8")
    mined(files, tiny_model, tmp_path / "p.tsv", "--work", str(work))
    assert (work / "thesis.txt").read_text(encoding="utf-8") == "mine"
    mined(files, tiny_model, tmp_path / "q.tsv")
    assert not (tmp_path / "q.tsv.work").exists()


def test_work_of_other_texts_is_refused(
    files: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vectors of another text are never silently reused."""
    mined(files, tiny_model, tmp_path / "p.tsv", "--keep", "--work", str(tmp_path / "w"))
    changed = tmp_path / "changed.txt"
    shutil.copy(files[0], changed)
    with changed.open("a", encoding="utf-8") as stream:
        stream.write("One more line.\n")
    words = ["--model", str(tiny_model), "--out", str(tmp_path / "q.tsv"), "--work", str(tmp_path / "w")]
    assert main(["mine", str(changed), str(files[1]), *words]) == 2
    assert "text_sha256" in capsys.readouterr().err and not (tmp_path / "q.tsv").exists()

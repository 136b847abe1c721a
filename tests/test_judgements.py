"""What judgements of some pairs say about all: estimates that hold for known truths, and files of pairs of any kind."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, DualmocoError
from dualmoco.core.vectors import Floats, Ids
from dualmoco.mining.io import PairTable, read_mined, write_pairs
from dualmoco.mining.judgements import Judgements, read_judged
from dualmoco.mining.pair_columns import PairColumns, read_pair_columns
from dualmoco.mining.review_export import export_pairs
from dualmoco.models.load import open_model

ORIGIN = {"tool": "dualmoco mine", "version": "1", "src_lang": "en", "tgt_lang": "zh", "margin": "distance"}


def write_file(path: Path, scores: Floats, right: np.ndarray, **origin: object) -> Path:
    """Pairs whose target says whether they are right."""
    lines = np.arange(1, len(scores) + 1)
    table = PairTable(np.asarray(scores).round(6), scores / 2, scores / 3, lines, lines)
    sides = [f"source {line}" for line in lines], [f"{'yes' if ok else 'no'} 目标 {n}" for n, ok in enumerate(right)]
    write_pairs(path, table, sides, ("en", "zh"), {**ORIGIN, **origin})
    return path


def in_memory(scores: Floats) -> Judgements:
    import pyarrow as pa

    table = pa.table({"score": scores, "src": ["a"] * len(scores), "tgt": ["b"] * len(scores)})
    return Judgements(PairColumns(Path("pairs.tsv"), table, {}))


def judge(judgements: Judgements, rows: Ids, right: np.ndarray, *, is_drawn: bool) -> None:
    """Judges some pairs of `in_memory`, as they are in truth."""
    judgements.verdicts[rows] = np.where(right[rows], 1, 2)
    judgements.is_drawn[rows] |= is_drawn
    judgements._forget()


def draw(kind: str, count: int, generator: np.random.Generator) -> tuple[Floats, np.ndarray]:
    """Scores and truth: errors at low scores, as mining makes them, or among the highest, such as boilerplate."""
    scores = generator.gamma(2, 0.08, count) + 0.09
    chance = 1 / (1 + np.exp(-(scores - 0.12) / 0.03))
    if kind == "boilerplate":
        chance = np.where(scores > np.quantile(scores, 0.9), 0.4, 0.95)
    return scores, generator.random(count) < chance


@pytest.mark.parametrize("kind", ["mined", "boilerplate"])
def test_the_interval_covers_the_true_precision_and_recall(kind: str) -> None:
    """Of 150 simulated files, with pairs next to the threshold judged too; the mean of all judged pairs is far off."""
    generator = np.random.default_rng(5)
    covered, recalled, errors, naive = [], [], [], []
    for _ in range(150):
        scores, right = draw(kind, 1500, generator)
        threshold = float(np.quantile(scores, 0.3))
        judgements = in_memory(scores)
        judge(judgements, np.argsort(np.abs(scores - threshold))[:60], right, is_drawn=False)
        order = judgements.drawing_order
        judge(judgements, order[judgements.verdicts[order] == 0][:60], right, is_drawn=True)
        found, kept = judgements.estimate(threshold), scores >= threshold
        truth, recall = right[kept].mean(), right[kept].sum() / right.sum()
        assert found.kept == kept.sum() and found.precision.value is not None and found.recall.value is not None
        covered.append(found.precision.low <= truth <= found.precision.high)
        recalled.append(found.recall.low <= recall <= found.recall.high)
        errors.append(found.precision.value - truth)
        naive.append(right[kept & (judgements.verdicts > 0)].mean() - truth)
    assert np.mean(covered) >= 0.9 and np.mean(recalled) >= 0.9
    assert abs(np.mean(errors)) < 0.01
    assert kind != "mined" or np.mean(naive) < -0.02


def test_the_lowest_threshold_keeps_its_promise() -> None:
    """By the estimate in about half of the cases, by the lower end of the interval nearly always."""
    generator = np.random.default_rng(6)
    estimated: list[float] = []
    sure: list[float] = []
    for _ in range(30):
        scores, right = draw("mined", 1500, generator)
        judgements = in_memory(scores)
        judge(judgements, judgements.drawing_order[:150], right, is_drawn=True)
        for is_sure, results in ((False, estimated), (True, sure)):
            found = judgements.threshold_for(0.9, is_sure=is_sure)
            assert found is not None and found.precision.value is not None and found.precision.value >= 0.9
            results.append(right[scores >= found.threshold].mean())
    assert abs(np.mean(estimated) - 0.9) < 0.03 and np.mean(np.array(sure) >= 0.9) >= 0.85


def test_pairs_that_nobody_drew_are_unknown() -> None:
    """Pairs next to the threshold tell nothing about the others; if all are judged, the precision is known exactly."""
    scores = np.linspace(0.1, 0.9, 200)
    right = np.arange(200) % 4 > 0
    judgements = in_memory(scores)
    nothing = judgements.estimate(0.1)
    assert nothing.precision.value is None and (nothing.precision.low, nothing.precision.high) == (0, 1)
    assert nothing.unknown == 1 and nothing.drawn == 0
    judge(judgements, np.arange(60), right, is_drawn=False)
    near = judgements.estimate(0.1)
    assert near.precision.value is None and near.judged == 60 and near.drawn == 0
    assert near.precision.low == 45 / 200 and near.precision.high == 185 / 200
    judge(judgements, np.arange(200), right, is_drawn=False)
    exact = judgements.estimate(0.1)
    assert (exact.precision.low, exact.precision.value, exact.precision.high) == (0.75, 0.75, 0.75)
    assert judgements.estimate(2.0).kept == 0 and judgements.estimate(2.0).precision.value is None


def test_a_drawn_pair_counts_by_the_size_of_its_band() -> None:
    """Worked out by hand: 30 pairs of which a third is right above, 90 of which all are right below."""
    scores = np.concatenate([np.full(30, 0.8), np.full(90, 0.2)])
    judgements = in_memory(scores)
    assert judgements.edges.tolist() == [0, 30, 120]
    right = np.array([True, False, False] * 10 + [True] * 90)
    judge(judgements, np.arange(3), right, is_drawn=True)
    judge(judgements, np.arange(30, 33), right, is_drawn=True)
    found = judgements.estimate(0.2).precision
    assert found.value == pytest.approx((30 / 3 + 90) / 120)
    assert judgements.estimate(0.8).precision.value == pytest.approx(1 / 3)
    assert found.value and found.low < 0.6 < found.value < found.high < 1


def test_bands_hold_every_pair_and_equal_scores_together() -> None:
    """Also if one score is far away; the random order takes one pair of each band in turn."""
    generator = np.random.default_rng(1)
    scores = np.concatenate([generator.normal(0, 1, 3000).round(1), [50.0]])
    judgements = in_memory(scores)
    edges = judgements.edges
    assert edges[0] == 0 and edges[-1] == 3001 and (np.diff(edges) > 0).all()
    inner = edges[1:-1]
    assert (judgements.sorted_scores[inner - 1] > judgements.sorted_scores[inner]).all()
    order = judgements.drawing_order
    assert sorted(order.tolist()) == list(range(3001))
    first = judgements.bands_of(order[: judgements.band_count])
    assert first.tolist() == list(range(judgements.band_count))


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".tmx", ".parquet", ".tsv.gz", ".tmx.gz"])
def test_every_format_of_mine_is_read(tmp_path: Path, ending: str) -> None:
    """With the same pairs, languages and threshold; the sentences have all kinds of signs."""
    scores = np.array([0.5, 0.25, -1.0])
    table = PairTable(scores, scores, scores, np.array([1, 2, 3]), np.array([4, 5, 6]))
    sides = ['=1+1 "quoted", <b>', "a & b 'c'", "&amp; 'd'"], ["一,二", "“三”", "\U00020000"]
    path = tmp_path / f"pairs{ending}"
    write_pairs(path, table, sides, ("en", "zh"), {**ORIGIN, "threshold": 0.25}, {"id": ["x", "y", "z"]})
    found = read_pair_columns(path)
    rows = found.rows(np.array([0, 1, 2]))
    assert [(row["score"], row["src"], row["tgt"], row["tgt_line"], row["id"]) for row in rows] == [
        (0.5, sides[0][0], "一,二", 4, "x"),
        (0.25, sides[0][1], "“三”", 5, "y"),
        (-1.0, sides[0][2], "\U00020000", 6, "z"),
    ]
    assert found.langs == ("en", "zh") and found.threshold == 0.25
    if ending in (".parquet", ".tmx", ".tmx.gz"):  # which hold the record themselves
        (tmp_path / f"pairs{ending}.json").unlink()
        again = read_pair_columns(path)
        assert again.langs == ("en", "zh") and again.threshold == 0.25 and again.origin["margin"] == "distance"
    assert found.holds("A & B").tolist() == [False, True, False] and found.holds("一").tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("pairs.tsv", b"", "empty"),
        ("pairs.tsv", b"score\tsrc\ttgt\n", "no pairs"),
        ("pairs.tsv", b"src\ttgt\na\tb\n", "expected score, src and tgt: score such pairs with dualmoco score"),
        ("pairs.tsv", b"one\ttwo\n1\t2\n", "columns one, two; expected score, src and tgt"),
        ("pairs.tsv", b"score\tsrc\ttgt\n0.5\ta\tb\n0.4\ta\n", "Expected 3 columns, got 2"),
        ("pairs.tsv", b"score\tsrc\ttgt\nhigh\ta\tb\n", "invalid value 'high'"),
        ("pairs.tsv", b"score\tsrc\ttgt\nnan\ta\tb\n", "1 scores are not finite"),
        ("pairs.tsv", b"score\tsrc\ttgt\n0.5\t\xff\xfe\xfd\tb\n", "UTF8"),
        ("pairs.tsv.gz", b"\x1f\x8b broken", "cannot be read"),
        ("pairs.csv", b'score,src,tgt\n0.5,"a,b\n', "cannot be read"),
        ("pairs.jsonl", b'{"score": 1, "src": "a"', "cannot be read"),
        ("pairs.jsonl", b'{"score": "x", "src": "a", "tgt": "b"}\n', "cannot be read"),
        ("pairs.jsonl", b'{"score": 0.5, "src": "a"}\n', "expected score, src and tgt"),
        ("pairs.parquet", b"PAR1 broken", "cannot be read"),
        ("pairs.tmx", b"<html></html>\n", "not a TMX file"),
        ("pairs.tmx", b'<tmx version="1.4">\n<body>\n', "cut off"),
        ("pairs.tmx", b"<tmx>\n<tu>\n<tuv>\n</tmx>\n", "not a unit on one line"),
        ("pairs.docx", b"PK", "ends with .docx; expected one of .tsv"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    """In one line that says what was found and what to do."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_pair_columns(tmp_path / name)
    assert expected in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_judgements_outlive_another_order_of_the_file(tmp_path: Path) -> None:
    """They belong to sentences, not to rows; those of pairs that are gone are counted, and mean nothing."""
    scores = np.linspace(0.9, 0.1, 40)
    before = Judgements(read_pair_columns(write_file(tmp_path / "a.tsv", scores, np.ones(40))))
    events = [
        before.event(row, verdict, is_drawn=True) for row, verdict in ((0, "accept"), (7, "reject"), (39, "accept"))
    ]
    lines = (tmp_path / "a.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "b.tsv").write_text("\n".join([lines[0], *lines[8:], *lines[2:7]]) + "\n", encoding="utf-8")
    after = Judgements(read_pair_columns(tmp_path / "b.tsv"))
    after.replay(json.loads(json.dumps(events)))
    assert after.gone == 1 and after.counts() == {"unjudged": 36, "accepted": 1, "rejected": 1}
    assert after.verdicts[0] == 2 and after.verdicts[32] == 1
    before.replay(json.loads(json.dumps(events)))
    assert before.gone == 0 and before.is_drawn.sum() == 3
    assert not after.is_drawn[0]  # its band has other pairs now
    with pytest.raises(DataError, match="not a judgement"):
        after.apply({"type": "judge", "verdict": "maybe", "id": "0"})


def sheet_cells(path: Path) -> list[list[tuple[str, str]]]:
    """The kind and the content of each cell of a spreadsheet, read without the library that wrote it."""
    with zipfile.ZipFile(path) as book:
        strings = ["".join(part.itertext()) for part in ElementTree.fromstring(book.read("xl/sharedStrings.xml"))]
        sheet = book.read("xl/worksheets/sheet1.xml")
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    assert b"<f>" not in sheet and b"hyperlink" not in sheet
    rows = []
    for row in ElementTree.fromstring(sheet).iter(f"{space}row"):
        cells = [(cell.get("t", "n"), cell.findtext(f"{space}v", "")) for cell in row]
        rows.append([(kind, strings[int(value)] if kind == "s" else value) for kind, value in cells])
    return rows


def test_exports_are_read_back(tmp_path: Path) -> None:
    """The accepted ones, or all above the threshold without the rejected ones; formulas stay text."""
    scores = np.array([0.9, 0.8, 0.3, 0.2])
    table = PairTable(scores, scores, scores, np.arange(1, 5), np.arange(1, 5))
    sides = ["=SUM(A1:A9)", "http://example.org", "+c", "@d"], ["=1", "二", "三", "四"]
    write_pairs(tmp_path / "pairs.tsv", table, sides, ("en", "zh"), ORIGIN)
    judgements = Judgements(read_pair_columns(tmp_path / "pairs.tsv"))
    for row, verdict in ((0, "accept"), (1, "reject"), (3, "accept")):
        judgements.apply(judgements.event(row, verdict, is_drawn=row == 0))
    for ending in ("tsv", "csv", "jsonl", "tmx", "parquet"):
        path = tmp_path / f"out.{ending}"
        assert export_pairs(path, judgements, "accepted", 0.3) == 2
        assert [(pair.src, pair.tgt, pair.src_line) for pair in read_mined(path)] == [
            ("=SUM(A1:A9)", "=1", 1),
            ("@d", "四", 4),
        ]
        assert export_pairs(path, judgements, "kept", 0.3) == 3
        assert [pair.src_line for pair in read_mined(path)] == [1, 3, 4]
    assert export_pairs(tmp_path / "out.xlsx", judgements, "judged", 0.3) == 3
    head, first, second, _ = sheet_cells(tmp_path / "out.xlsx")
    assert [name for _, name in head] == [*table_names(), "verdict", "drawn"]
    assert first[:3] == [("n", "0.9"), ("s", "=SUM(A1:A9)"), ("s", "=1")] and first[-2:] == [
        ("s", "accept"),
        ("s", "yes"),
    ]
    assert second[1] == ("s", "http://example.org") and second[-2:] == [("s", "reject"), ("s", "no")]
    export_pairs(tmp_path / "judged.tsv", judgements, "judged", 0.3)
    again = Judgements(judgements.pairs)
    again.replay(read_judged(tmp_path / "judged.tsv"))
    assert (again.verdicts == judgements.verdicts).all() and (again.is_drawn == judgements.is_drawn).all()
    with pytest.raises(ConfigError, match="expected one of accepted, kept, judged"):
        export_pairs(tmp_path / "out.tsv", judgements, "all", 0.3)
    judgements.clear()
    with pytest.raises(DataError, match="no accepted pairs"):
        export_pairs(tmp_path / "out.tsv", judgements, "accepted", 0.3)


def table_names() -> list[str]:
    return ["score", "src", "tgt", "src_mean", "tgt_mean", "src_line", "tgt_line"]


def test_a_sentence_too_long_for_a_spreadsheet_is_named(tmp_path: Path) -> None:
    """Nothing is cut off."""
    (tmp_path / "pairs.tsv").write_text(f"score\tsrc\ttgt\n0.5\t{'a' * 40000}\tb\n", encoding="utf-8")
    judgements = Judgements(read_pair_columns(tmp_path / "pairs.tsv"))
    with pytest.raises(DataError, match="a sentence of 40,000 characters; expected at most 32,767 in a cell"):
        export_pairs(tmp_path / "out.xlsx", judgements, "kept", 0.0)
    assert not (tmp_path / "out.xlsx").exists()


@pytest.fixture
def reviewed(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    """A mined file of en-zh-static, a table of 200 judged pairs of it, and what is right."""
    scores, right = draw("mined", 1000, np.random.default_rng(9))
    sha256 = open_model("en-zh-static").identity.sha256
    mined = write_file(tmp_path / "mined.tsv", scores, right, model="en-zh-static", model_sha256=sha256)
    judgements = Judgements(read_pair_columns(mined))
    for row in judgements.drawing_order[:200].tolist():
        judgements.apply(judgements.event(row, "accept" if right[row] else "reject", is_drawn=True))
    export_pairs(tmp_path / "judged.tsv", judgements, "judged", 0.0)
    return mined, tmp_path / "judged.tsv", right


def test_judged_pairs_calibrate_a_model(reviewed: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """`mine` takes the threshold as it is, and says what it means; the embedded model is not written to."""
    mined, judged, right = reviewed
    out = tmp_path / "news.json"
    made = dualmoco.calibrate("en-zh-static", judged=judged, mined=mined, min_precision=0.95, out=out)
    scores = read_pair_columns(mined).scores
    assert made.judged == 200 and made.judged_precision[0] >= 0.95
    assert abs(right[scores >= made.threshold].mean() - 0.95) < 0.05
    assert made.levels == tuple(sorted(made.levels)) and (0.95, made.threshold) in made.levels
    said = made.describe()
    assert said.startswith(f"threshold {made.threshold:.4f} was chosen by 200 judged pairs: precision ")
    texts = [[f"This is sentence number {n}." for n in range(250)], [f"这是第{n}句话。" for n in range(250)]]
    found = dualmoco.mine(*texts, model="en-zh-static", calibration=out, src_lang="en", tgt_lang="zh")
    assert found.threshold == made.threshold and found.calibration is None and found.model_calibration == made


def test_judged_pairs_of_scores_give_a_cosine(reviewed: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """The threshold of `score`."""
    mined, judged, _ = reviewed
    record = json.loads((tmp_path / "mined.tsv.json").read_text(encoding="utf-8"))
    (tmp_path / "mined.tsv.json").write_text(json.dumps(record | {"margin": "absolute"}), encoding="utf-8")
    made = dualmoco.calibrate("en-zh-static", judged=judged, mined=mined, out=tmp_path / "news.json")
    assert made.judged_margin == "absolute" and "200 judged pairs" in made.describe_cosine()
    pairs = [("It is raining.", "下雨了。")] * 2
    scored = dualmoco.score(pairs, model="en-zh-static", calibration=tmp_path / "news.json")
    assert scored.threshold == made.cosine and "held-out" in made.describe()


def test_calibrate_takes_a_journal(
    reviewed: tuple[Path, Path, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Undone judgements do not count."""
    mined, judged, _ = reviewed
    judgements = Judgements(read_pair_columns(mined))
    events = [
        judgements.event(judgements.pairs.rows_by_id[one["id"]], one["verdict"], is_drawn=True)
        for one in read_judged(judged)
    ]
    lines = [json.dumps(event) for event in [*events, events[0], {"type": "undo"}, {"type": "threshold", "value": 0.1}]]
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for given, out in ((judged, "a.json"), (tmp_path / "journal.jsonl", "b.json")):
        words = ["calibrate", "en-zh-static", "--judged", given, "--mined", mined, "--out", tmp_path / out]
        assert main([*map(str, words)]) == 0
        assert "was chosen by 200 judged pairs" in capsys.readouterr().out
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_calibrate_refuses_judgements_that_do_not_fit(reviewed: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """Before anything is written."""
    mined, judged, _ = reviewed
    out = tmp_path / "news.json"

    def refused(**options: object) -> str:
        given = {"judged": judged, "mined": mined, "out": out, **options}
        with pytest.raises(DualmocoError) as caught:
            dualmoco.calibrate("en-zh-static", **given)  # type: ignore[arg-type]
        assert not out.exists()
        return str(caught.value)

    assert "judged pairs and the mined file" in refused(mined=None)
    assert "judged pairs and the mined file" in refused(pairs=[("a", "b")])
    assert "no column verdict" in refused(judged=mined)
    assert "no threshold reaches a precision of 99.99 %" in refused(min_precision=0.9999, judged=[])
    content = judged.read_text(encoding="utf-8")
    (tmp_path / "odd.tsv").write_text(content.replace("\taccept\t", "\tfine\t"), encoding="utf-8")
    assert "verdict 'fine'; expected accept or reject" in refused(judged=tmp_path / "odd.tsv")
    record = json.loads((tmp_path / "mined.tsv.json").read_text(encoding="utf-8"))
    (tmp_path / "mined.tsv.json").write_text(json.dumps(record | {"model_sha256": "0"}), encoding="utf-8")
    assert "expected pairs of en-zh-static" in refused()
    (tmp_path / "mined.tsv.json").unlink()
    assert "no record of how it was made; expected mined.tsv.json next to it" in refused()

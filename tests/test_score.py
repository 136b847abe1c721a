"""`score`: one score per pair, what is not translated, other columns; and the files and containers of all mining."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.extra_columns import read_extra_columns
from dualmoco.mining.io import read_mined
from dualmoco.mining.knn import make_plan

PAIRS = [
    ("The ferry was cancelled because of the fog.", "因为有雾，渡轮停航了。"),
    ("Tom bought two books.", "汤姆买了两本书。"),
    ("It is raining in Beijing today.", "今天北京下雨。"),
]
COPY = ("Please read the whole licence before you install it.", "Please read the whole licence before you install it.")
STATIC = "en-zh-static"


def test_a_pair_has_one_score() -> None:
    """Alone, among others, twice: the score is its cosine; company counts only on request."""
    alone = [pair.score for pair in dualmoco.score(PAIRS[:1], model=STATIC, threshold=-1.0)]
    among = [pair.score for pair in dualmoco.score([*PAIRS, PAIRS[0]], model=STATIC, threshold=-1.0)]
    model = dualmoco.load(STATIC)
    cosine = model.similarity(model.encode(PAIRS[0][0]), model.encode(PAIRS[0][1]))[0, 0]
    assert alone == [among[0]] == [among[3]] and alone[0] == pytest.approx(float(cosine), abs=1e-5)
    by_margin = dualmoco.score(PAIRS[:1], model=STATIC, margin="distance", threshold=-1.0)
    assert [pair.score for pair in by_margin] == [0.0]
    kept = dualmoco.score(PAIRS[:1], model=STATIC)
    assert len(kept) == 1 and kept.model_calibration is not None and kept.threshold == kept.model_calibration.cosine


def test_untranslated_pairs_are_dropped() -> None:
    """Equal sides, and sides in the script of the other language; names and numbers in a translation are no reason."""
    pairs = [
        *PAIRS,
        COPY,
        (COPY[0], "PLEASE read the whole licence, before you install it"),
        ("This was not translated at all, sorry.", "Another English sentence stands in the Chinese column."),
        ("中国的第一句话没有翻译，还是中文写的，应该删除掉。", "这一句也是中文，所以这一对不是翻译，应该删除掉。"),
        ("OpenOffice 4.1", "OpenOffice 4.1 版"),
    ]
    found = dualmoco.score(pairs, model=STATIC, src_lang="en", tgt_lang="zh", threshold=-0.99)
    assert [pair.src_line for pair in found] == [1, 2, 3, 8] and found.untranslated == 4
    everything = dualmoco.score(pairs, model=STATIC, src_lang="en", tgt_lang="zh", threshold=-1.0)
    assert [pair.score for pair in everything][3:7] == [-1.0] * 4


def test_web_addresses_are_not_sentences(tmp_path: Path) -> None:
    """A crawled table that begins with two addresses; the right columns are named."""
    path = tmp_path / "crawled.tsv"
    rows = [(f"https://example.org/{n}", f"http://example.net/{n}", *pair) for n, pair in enumerate(PAIRS)]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"the source column contains web addresses; expected sentences.*--columns"):
        dualmoco.score(path, model=STATIC)
    found = dualmoco.score(path, model=STATIC, columns=("2", "3"), out=tmp_path / "kept.tsv")
    assert [(pair.src, pair.tgt) for pair in found] == PAIRS
    header, *lines = (tmp_path / "kept.tsv").read_text(encoding="utf-8").splitlines()
    assert header.split("\t")[7:] == ["column_1", "column_2"]
    assert [line.split("\t")[7:] for line in lines] == [list(row[:2]) for row in rows]


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_other_columns_are_kept(tmp_path: Path, ending: str) -> None:
    """Ids and a column whose name is taken, in the order of the accepted pairs."""
    rows = [{"id": f"p{n}", "en": src, "score": f"{n}", "zh": tgt} for n, (src, tgt) in enumerate([*PAIRS, COPY])]
    path = tmp_path / f"given{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="," if ending == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    found = dualmoco.score(
        path, model=STATIC, src_lang="en", tgt_lang="zh", out=tmp_path / f"kept{ending}", threshold=-0.5
    )
    assert [pair.src for pair in found] == [src for src, _ in PAIRS]
    table = {
        ".tsv": lambda file: pd.read_csv(file, sep="\t", quoting=csv.QUOTE_NONE),
        ".csv": pd.read_csv,
        ".jsonl": lambda file: pd.read_json(file, lines=True),
        ".parquet": pd.read_parquet,
    }[ending](tmp_path / f"kept{ending}")
    assert list(table.columns)[7:] == ["id", "score_given"]
    assert list(table["id"]) == ["p0", "p1", "p2"] and [int(value) for value in table["score_given"]] == [0, 1, 2]
    assert not read_extra_columns(Source(tmp_path / "x.tmx", "en", "zh"), "auto", [1])


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet", ".tmx", ".tsv.gz", ".csv.gz", ".jsonl.gz"])
def test_every_output_is_read_back(tmp_path: Path, ending: str) -> None:
    """Quotes, commas, formulas and odd line breaks inside of sentences; compressed files are byte-identical."""
    pairs = [
        ('He said "no", and left.', "他说“不”，然后走了。"),
        ("One\rtwo\u2028three and four.", "一\t二\v三和四。"),
        PAIRS[0],
    ]
    for name in ("a", "b"):
        out = tmp_path / f"{name}{ending}"
        found = dualmoco.score(pairs, model=STATIC, threshold=-1.0, out=out)
        rows = list(read_mined(out))
        assert [row.src for row in rows] == [" ".join(src.split()) for src, _ in pairs] == [pair.src for pair in found]
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()
    if ending == ".tsv.gz":
        lines = gzip.decompress((tmp_path / "a.tsv.gz").read_bytes()).decode().splitlines()
        assert len(lines) == 4 and all(line.count("\t") == 6 for line in lines)
    if ending == ".csv":
        assert list(pd.read_csv(tmp_path / "a.csv")["src"]) == [pair.src for pair in found]


def test_mined_rows_have_no_line_breaks(tmp_path: Path) -> None:
    """A carriage return inside of a line of a text makes no further row."""
    src = tmp_path / "a.txt"
    src.write_bytes(b"Tom bought\rtwo books.\nIt is raining in Beijing today.\n")
    out = tmp_path / "pairs.tsv"
    dualmoco.mine(src, [tgt for _, tgt in PAIRS], model=STATIC, src_lang="en", out=out, threshold=-1.0)
    with out.open(encoding="utf-8", newline="") as stream:
        content = stream.read()
    assert "\r" not in content and content.count("\n") == 3


def test_standard_input_and_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` on either side; the summary goes to standard error."""
    bitext = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bitext.encode()), encoding="utf-8"))
    assert main(["score", "-", "--out", "-", "--model", STATIC, "--quiet"]) == 0
    printed = capsys.readouterr()
    rows = [line.split("\t") for line in printed.out.splitlines()]
    assert rows[0][:3] == ["score", "src", "tgt"] and [(row[1], row[2]) for row in rows[1:]] == PAIRS
    assert "3 pairs kept: -" in printed.err
    assert main(["score", "x.tsv", "--out", "-", "--json"]) == 2
    assert "--out - and --json were both given; expected one of them" in capsys.readouterr().err


def test_unreadable_lines_of_a_text_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that is not UTF-8 stops mining, or is skipped and counted; line numbers stay."""
    src, tgt = tmp_path / "en.txt", tmp_path / "zh.txt"
    texts = [text for text, _ in PAIRS]
    src.write_bytes(b"broken \x81\n" + "".join(f"{text}\n" for text in texts * 20).encode())
    tgt.write_text("".join(f"{text}\n" for _, text in PAIRS), encoding="utf-8")
    words = ["mine", str(src), str(tgt), "--src", "en", "--model", STATIC, "--out", str(tmp_path / "p.tsv"), "--quiet"]
    assert main(words) == 2 and "en.txt:1: not UTF-8" in capsys.readouterr().err
    assert main([*words, "--on-error", "skip", "--threshold", "-1"]) == 0
    assert "1 unreadable line skipped" in capsys.readouterr().out
    lines = {(pair.src_line, pair.tgt_line) for pair in read_mined(tmp_path / "p.tsv")}
    assert lines == {(2, 1), (3, 2), (4, 3)}
    with pytest.raises(ConfigError, match="on_error ignore; expected one of stop, skip"):
        dualmoco.mine(src, tgt, on_error="ignore")


def test_tables_in_memory() -> None:
    """DataFrames, Arrow tables, dicts of lists and Series work; letters of column names are never scored."""
    src, tgt = map(list, zip(*PAIRS, strict=True))
    expected = [pair.score for pair in dualmoco.score(PAIRS, model=STATIC, threshold=-1.0)]
    frame = pd.DataFrame({"id": [1, 2, 3], "zh": tgt, "en": src})
    tables = [frame, frame[["en", "zh"]], pa.Table.from_pandas(frame), {"src": src, "tgt": tgt}, iter(PAIRS)]
    for table in tables:
        found = dualmoco.score(table, model=STATIC, threshold=-1.0)
        assert [pair.score for pair in found] == expected
    mined = dualmoco.mine(pd.Series(src), pa.array(tgt), model=STATIC, threshold=-1.0)
    assert {(pair.src, pair.tgt) for pair in mined} == set(PAIRS)
    with pytest.raises(DataError, match="a table with the columns id, a, b; expected src and tgt"):
        dualmoco.score(pd.DataFrame({"id": [1], "a": ["x"], "b": ["y"]}), model=STATIC)
    with pytest.raises(DataError, match=r"pairs: item 1 is 'ab'; expected pairs of strings"):
        dualmoco.score([("a", "b"), "ab"], model=STATIC)  # type: ignore[list-item]
    for wrong in ({"a": 1}, {"some", "set"}, pd.DataFrame({"text": src})):
        with pytest.raises(DataError, match="expected"):
            dualmoco.mine(wrong, tgt, model=STATIC)  # type: ignore[arg-type]


def test_paraphrases_have_a_threshold() -> None:
    """The model's own, as the help says, unless another one is given."""
    texts = ["Where is the station?", "Where is the train station?", "Tom bought two books.", "It rained all night."]
    found = dualmoco.paraphrases(texts, model=STATIC, lang="en")
    everything = dualmoco.paraphrases(texts, model=STATIC, lang="en", threshold=-1.0)
    assert found.threshold is not None and found.threshold > 0 and len(everything) == 6 == found.candidates
    assert [(pair.src_line, pair.tgt_line) for pair in found] == [(1, 2)]


def test_the_report_shows_scores_and_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A histogram, other thresholds and escaped sentences; the same command replaces it, an edited one is kept."""
    pairs = [*PAIRS, ("<script>alert(1)</script> is no book.", "<b>不是书</b>，是脚本。")]
    bitext, page = tmp_path / "b.tsv", tmp_path / "r.html"
    bitext.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    words = ["score", str(bitext), "--model", STATIC, "--out", str(tmp_path / "o.tsv"), "--report", str(page)]
    for _ in range(2):
        assert main([*words, "--quiet", "--threshold", "-1"]) == 0
    content = page.read_text(encoding="utf-8")
    assert "<script>" not in content and "&lt;script&gt;alert(1)" in content and content.count("<rect") == 60
    assert PAIRS[0][1] in content and "4 reach the threshold" in content
    assert "pairs at 0.3 / 0.4 / 0.5: " in capsys.readouterr().out
    page.write_text(content + "note", encoding="utf-8")
    assert main([*words, "--quiet"]) == 2 and "r.html: was changed after" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "r.pdf")]) == 2
    texts = [[text for pair in PAIRS for text in pair[side : side + 1]] for side in (0, 1)]
    dualmoco.mine(*texts, model=STATIC, report=tmp_path / "m.html", out=tmp_path / "m.tsv")
    assert "dualmoco mine" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_little_is_lost_by_an_interruption() -> None:
    """No block of an exact scan takes more than 2e12 operations, so a resumed scan begins where it stopped."""
    plan = make_plan((100_000, 384), (200_000, 384), 3, 1 << 30)
    sizes = [(rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in plan.blocks()]
    assert sum(sizes) == 100_000 * 200_000 and max(sizes) * 2 * 384 <= 2.1e12
    assert np.ptp(sizes) < max(sizes)

"""The task `align`: counts against numbers worked by hand and a plain loop, its files, its scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.alignment.aligner import Links
from dualmoco.core.errors import DataError
from dualmoco.evaluation.align import (
    Align,
    Link,
    agreement,
    as_sets,
    is_aligned,
    link_f1,
    parse_link,
    read_gold_document,
)
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.metrics import Extraction, Score, interval, sample_from_json, value_of
from dualmoco.evaluation.tasks import read_tasks
from dualmoco.models.embedded import FAST_MODEL
from testsets import TrigramEncoder, mirrored, sentences, write_lines

GOLD: list[Link] = [((0,), (0,)), ((1, 2), (1,)), ((3,), ()), ((4,), (2, 3)), ((), (4,)), ((5,), (5,))]
MADE: list[Link] = [((0,), (0,)), ((1,), (1,)), ((2,), ()), ((3,), ()), ((4,), (2,)), ((), (3,)), ((5,), (4, 5))]


def test_agreement_by_hand() -> None:
    """Seven links made, of which two are gold's; gold has four with both sides, one of them made so.

    Laxly three more that were made share sentences with gold, and all four of gold are found.
    """
    strict = agreement([GOLD], [MADE], lax=False)
    assert [counts.sum() for counts in (strict.extracted, strict.correct, strict.gold)] == [7, 2, 4]
    assert strict.found is not None and strict.found.sum() == 1
    precision, recall = 2 / 7, 1 / 4
    assert link_f1([GOLD], [MADE]) == pytest.approx(100 * 2 * precision * recall / (precision + recall))
    lax = agreement([GOLD], [MADE], lax=True)
    assert [counts.sum() for counts in (lax.extracted, lax.correct, lax.gold)] == [7, 5, 4]
    assert lax.found is not None and lax.found.sum() == 4
    assert link_f1([GOLD], [MADE], lax=True) == pytest.approx(100 * 2 * (5 / 7) / (5 / 7 + 1))
    assert strict.ids == sorted(strict.ids) and set(strict.ids) == {*(f"0:{at}" for at in range(6)), "0:+3"}


def test_perfect_and_empty_links() -> None:
    """Gold itself has 100, nothing has 0, and an empty link is none."""
    assert link_f1([GOLD], [GOLD]) == link_f1([GOLD], [GOLD], lax=True) == 100
    assert link_f1([GOLD], [[]]) == link_f1([[]], [MADE]) == 0
    assert agreement([GOLD], [[*MADE, ((), ())]], lax=True).extracted.sum() == 7


def test_documents_are_counted_apart() -> None:
    """The same sentence numbers in two documents are two units; sums are those of both."""
    both = agreement([GOLD, GOLD], [MADE, GOLD], lax=False)
    assert len(both.ids) == 7 + 6 and both.extracted.sum() == 7 + 6 and both.correct.sum() == 2 + 6
    assert both.found is not None and both.found.sum() == 1 + 4


def random_links(generator: np.random.Generator, rows: int, columns: int) -> list[Link]:
    """Links in order that use every sentence once."""
    links: list[Link] = []
    row = column = 0
    while row < rows or column < columns:
        m, n = (int(number) for number in generator.integers(0, 3, 2))
        m, n = min(m, rows - row), min(n, columns - column)
        if m or n:
            links.append((tuple(range(row, row + m)), tuple(range(column, column + n))))
        row, column = row + m, column + n
    return links


def plain_f1(golds: list[list[Link]], made: list[list[Link]], lax: bool) -> float:
    """From the definitions: every link that was made counts for precision, gold with both sides for recall."""

    def is_right(link: Link, others: list[Link]) -> bool:
        shares = any(set(link[0]) & set(other[0]) and set(link[1]) & set(other[1]) for other in others)
        return link in others or (lax and shares)

    extracted = correct = gold = found = 0
    for one, two in zip(golds, made, strict=True):
        extracted += len(two)
        correct += sum(is_right(link, one) for link in two)
        whole = [link for link in one if link[0] and link[1]]
        gold += len(whole)
        found += sum(is_right(link, two) for link in whole)
    if not correct or not found:
        return 0.0
    precision, recall = correct / extracted, found / gold
    return 100 * 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("lax", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_f1_by_a_plain_loop(seed: int, lax: bool) -> None:
    """Random links of three documents."""
    generator = np.random.default_rng(seed)
    shapes = [(12, 15), (3, 1), (40, 33)]
    golds, made = ([random_links(generator, *shape) for shape in shapes] for _ in range(2))
    made[0][:4] = golds[0][:4]
    sample = agreement(golds, made, lax=lax)
    assert value_of(sample) == link_f1(golds, made, lax=lax) == pytest.approx(plain_f1(golds, made, lax))
    low, high = interval(sample, 200)
    assert 0 <= low <= high <= 100


def test_links_as_sets() -> None:
    """Runs become the sentences in them."""
    nothing = np.zeros(3)
    links = Links(np.array([[0, 2], [2, 2], [2, 3]]), np.array([[0, 1], [1, 2], [2, 2]]), nothing, nothing)
    assert as_sets(links) == [((0, 1), (0,)), ((), (1,)), ((2,), ())]


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("1,2:1", ((0, 1), (0,))),
        ("7:8, 9", ((6,), (7, 8))),
        (" 3 : 4 ", ((2,), (3,))),
        ("5:", ((4,), ())),
        (":5", ((), (4,))),
        ("[0, 1]:[0]", ((0, 1), (0,))),
        ("[]:[3]", ((), (3,))),
        ("[2]:[]:0.000000", ((2,), ())),
        ("[4, 5, 6]:[7]:0.731", ((4, 5, 6), (7,))),
        ("0:1", None),
        ("1:0", None),
        ("1-2", None),
        ("", None),
        ("a:b", None),
        ("1.5:2", None),
        ("zh-000000001\ten-000000002", None),
    ],
)
def test_lines_of_gold(line: str, link: Link | None) -> None:
    """Numbers from 1, or from 0 in brackets, as vecalign writes them; anything else is no link."""
    assert parse_link(line) == link


def test_gold_documents_are_read(tmp_path: Path) -> None:
    """Lines of both texts without white space around them, and the links."""
    write_lines(tmp_path / "a.zh", [" 一 ", "二", "三"])
    write_lines(tmp_path / "a.en", ["one", "two\t"])
    write_lines(tmp_path / "a.gold", ["1,2:1", "3:2"])
    document = read_gold_document(tmp_path / "a.gold", "zh-en")
    assert (document.name, document.src, document.tgt) == ("a", ["一", "二", "三"], ["one", "two"])
    assert document.gold == [((0, 1), (0,)), ((2,), (1,))]
    assert [path.name for path in document.paths] == ["a.zh", "a.en", "a.gold"]
    assert read_gold_document(tmp_path / "a.gold", "zh-en") == document


@pytest.mark.parametrize("line", ["4:1", "1:3", "x", "1,2", "0:1", "[3]:[0]", ""])
def test_wrong_gold_is_named(line: str, tmp_path: Path) -> None:
    """With the file, the line, and how long the texts are."""
    write_lines(tmp_path / "a.zh", ["一", "二", "三"])
    write_lines(tmp_path / "a.en", ["one", "two"])
    write_lines(tmp_path / "a.gold", ["1:1", line])
    with pytest.raises(DataError) as error:
        read_gold_document(tmp_path / "a.gold", "zh-en")
    said = f"{line!r}; expected lines of a.zh (3), a colon, lines of a.en (2): 1,2:1"
    assert str(error.value) == f"{tmp_path / 'a.gold'}:2: {said}"


def test_missing_texts_are_named(tmp_path: Path) -> None:
    """A gold file without one of its texts, and a folder without gold."""
    write_lines(tmp_path / "set" / "a.zh", ["一"])
    write_lines(tmp_path / "set" / "a.gold", ["1:1"])
    assert not is_aligned(tmp_path / "set", "zh-en")
    with pytest.raises(DataError, match=r"a\.en: no such file; expected the text of a\.gold"):
        read_gold_document(tmp_path / "set" / "a.gold", "zh-en")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none: no \*\.gold file; expected documents such as 001\.zh, 001\.en and 001"):
        Align(tmp_path / "none", "zh-en")
    with pytest.raises(DataError, match=r": no aligned documents of zh-en; .*mac-dev/001\.gold"):
        read_tasks("align", tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents of forty mirrored sentences; every eighth line of the second holds two of the other side's."""
    data = tmp_path_factory.mktemp("data")
    texts = sentences(80, seed=3)
    for name, part in (("001", texts[:40]), ("002", texts[40:])):
        english, chinese, gold = [], [], []
        at = 0
        while at < len(part):
            step = 2 if name == "002" and at % 8 == 3 else 1
            english.append(" ".join(part[at : at + step]))
            chinese += [mirrored(text) for text in part[at : at + step]]
            numbers = ",".join(str(len(chinese) - step + 1 + place) for place in range(step))
            gold.append(f"{numbers}:{len(english)}")
            at += step
        path = data / "eval" / "made"
        write_lines(path / f"{name}.en", english)
        write_lines(path / f"{name}.zh", chinese)
        write_lines(path / f"{name}.gold", gold)
    write_lines(data / "eval" / "other" / "zh-en.gold", ["zh-000001\ten-000002"])  # of another task
    return data


def test_task_gives_signed_scores(folder: Path) -> None:
    """Strict and lax precision, recall and F1 of a model whose mirrored sentences are equal, with an interval."""
    tasks = read_tasks("align", folder)
    assert len(tasks) == 1
    scores = {(score.protocol, score.metric): score for score in evaluate(TrigramEncoder(), tasks).scores}
    assert set(scores) == {(one, two) for one in ("strict", "lax") for two in ("precision", "recall", "f1")}
    for score in scores.values():
        assert score.task == "align" and score.subset == "made" and score.n == 75
        signed = dict(part.split(":", 1) for part in score.signature.split("|"))
        assert signed["pair"] == "zh-en" and signed["documents"] == "2" and signed["longest"] == "5"
        assert signed["lexicon"] == "learnt"
        assert len(signed["data"]) == 12
    for protocol in ("strict", "lax"):
        precision, recall, f1 = (scores[protocol, metric].value for metric in ("precision", "recall", "f1"))
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall)) and f1 > 90
        low, high = scores[protocol, "f1"].low, scores[protocol, "f1"].high
        assert low is not None and high is not None and low <= f1 <= high
    assert scores["lax", "f1"].value >= scores["strict", "f1"].value
    task = tasks[0]
    assert isinstance(task, Align)
    read = Score.from_json(json.loads(json.dumps(scores["strict", "f1"].to_json())))
    assert read.sample is not None and value_of(read.sample) == pytest.approx(scores["strict", "f1"].value)


def test_task_through_the_package(folder: Path) -> None:
    """`dualmoco.evaluate` by the task's name; its table is printed."""
    found = dualmoco.evaluate(FAST_MODEL, "align", data=folder)
    assert {score.subset for score in found.scores} == {"made"} and "align" in str(found)


def test_links_of_the_task_are_those_of_align(folder: Path) -> None:
    """What `dualmoco.align` makes of the same files with the same model."""
    write_lines(folder / "eval" / "one" / "a.zh", ["今天天气很好。", "我们去公园吧。"])
    write_lines(folder / "eval" / "one" / "a.en", ["The weather is fine today.", "Let us go to the park."])
    write_lines(folder / "eval" / "one" / "a.gold", ["1:1", "2:2"])
    task = Align(folder / "eval" / "one", "zh-en")
    scores = evaluate(dualmoco.load(FAST_MODEL), [task]).scores
    sides = (folder / "eval" / "one" / f"a.{lang}" for lang in ("zh", "en"))
    found = dualmoco.align(*sides, model=FAST_MODEL, split="no", src_lang="zh", tgt_lang="en", progress=False)
    made = as_sets(found.aligned.links)
    assert link_f1([task.documents[0].gold], [made]) == next(score.value for score in scores if score.metric == "f1")


def test_found_pairs_are_kept_in_json() -> None:
    """A sample with pairs found otherwise than correct ones is the same after JSON; one without has none."""
    sample = agreement([GOLD], [MADE], lax=True)
    read = sample_from_json(json.loads(json.dumps(sample.to_json())))
    assert isinstance(read, Extraction) and read.found is not None and sample.found is not None
    assert read.ids == sample.ids and read.to_json() == sample.to_json()
    for one, two in ((read.extracted, sample.extracted), (read.gold, sample.gold), (read.found, sample.found)):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == np.int64
    weights = np.random.default_rng(0).integers(0, 4, (5, len(sample.ids))).astype(np.float64)
    np.testing.assert_array_equal(read.statistic(weights), sample.statistic(weights))
    plain = Extraction(sample.ids, sample.extracted, sample.correct, sample.gold)
    assert "found" not in plain.to_json()
    same = sample_from_json(plain.to_json())
    assert isinstance(same, Extraction) and same.found is None


def test_samples_with_found_pairs_side_by_side() -> None:
    """Over the units of either, values stay; other gold is refused."""
    one, two = agreement([GOLD], [MADE], lax=True), agreement([GOLD], [GOLD], lax=True)
    assert one.ids != two.ids
    a, b = one.aligned_with(two)
    assert a.ids == b.ids == sorted({*one.ids, *two.ids}) and a.found is not None and b.found is not None
    assert value_of(a) == pytest.approx(value_of(one)) and value_of(b) == pytest.approx(value_of(two)) == 100
    assert a.found.sum() == 4 and a.correct.sum() == 5
    with pytest.raises(DataError, match="the two scores are not over the same test items"):
        one.aligned_with(agreement([GOLD[:3]], [MADE], lax=True))


def test_mac_dev_is_read(data_folder: Path) -> None:
    """Six documents, as many sentences and links as the corpus has."""
    folder = data_folder / "eval" / "mac-dev"
    if not folder.is_dir():
        pytest.skip("needs MAC-Dev: eval/mac-dev in the folder of corpora")
    task = Align(folder, "zh-en")
    assert [document.name for document in task.documents] == [f"00{number}" for number in range(1, 7)]
    assert sum(len(document.src) for document in task.documents) == 1444
    assert sum(len(document.tgt) for document in task.documents) == 1947
    assert sum(len(document.gold) for document in task.documents) == 1329
    assert is_aligned(folder, "zh-en") and set(task.texts()) == {"zh", "en"}

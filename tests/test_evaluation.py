"""Every task on small test sets in the layouts of the real ones, and what is wrong with damaged ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.evaluation.bucc import Bucc, read_bucc
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.metrics import Score, compare
from dualmoco.evaluation.monolingual import Paraphrases, closure
from dualmoco.evaluation.postprocessing import Whitening
from dualmoco.evaluation.retrieval import BitextRetrieval, Lexicon, Tatoeba, nearest_by_csls
from dualmoco.evaluation.sts import STS_SETS, Sts
from dualmoco.evaluation.task import Task
from dualmoco.evaluation.tasks import TASK_FACTORIES, read_tasks
from dualmoco.mining.margins import Margin
from dualmoco.models.model import Identity, Model
from dualmoco.search.exact import nearest_both_ways
from testsets import (
    TrigramBackend,
    TrigramEncoder,
    mirrored,
    sentences,
    write_all,
    write_bucc,
    write_lines,
    write_sts,
    write_tatoeba,
)

MORE = ("tatoeba", "bucc", "sts", "xsts", "lexicon", "paraphrase", "clustering", "mteb-bitext-retrieval")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All test sets."""
    return write_all(tmp_path_factory.mktemp("data"))


def scores_of(task: Task) -> dict[tuple[str, str, str], float]:
    """Values by subset, protocol and metric."""
    return {score.key[1:]: score.value for score in evaluate(TrigramEncoder(), [task]).scores}


def test_every_task_gives_signed_scores_in_range(data: Path) -> None:
    """Each score names its task, has a value, a count, and a signature with all that made it."""
    encoder = TrigramEncoder()
    scores = evaluate(encoder, read_tasks(MORE, data)).scores
    assert {score.task for score in scores} == set(MORE)
    for score in scores:
        assert -100 <= score.value <= 100 and score.n > 0
        signed = dict(part.split(":", 1) for part in score.signature.split("|"))
        assert signed["task"] == score.task and signed["protocol"] == score.protocol
        assert signed["model"] == "abababababab" and len(signed["data"]) == 12 and signed["postprocessing"] == "none"
        assert score.low is None or score.high is None or score.low <= score.value <= score.high
        assert Score.from_json(score.to_json()).key == score.key
    assert len({score.signature for score in scores}) == len({score.key for score in scores}) == len(scores)


def test_every_distinct_sentence_is_encoded_once(data: Path) -> None:
    """Over all tasks together."""
    encoder = TrigramEncoder()
    tasks = read_tasks(MORE, data)
    evaluate(encoder, tasks)
    wanted = {f"{lang} {text}" for task in tasks for lang, texts in task.texts().items() for text in texts}
    assert sorted(encoder.encoded) == sorted(wanted)


def test_inputs_are_left_as_they_are(data: Path) -> None:
    """Evaluation writes nothing among the test sets."""

    def snapshot() -> dict[str, str]:
        files = sorted(path for path in data.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = snapshot()
    evaluate(TrigramEncoder(), read_tasks(MORE, data))
    assert snapshot() == before


def test_tatoeba_accuracy_by_a_plain_loop(data: Path) -> None:
    """The share of sentences whose nearest neighbour is on the same line, each way."""
    task = Tatoeba(data / "eval" / "tatoeba", "cmn-eng")
    found = scores_of(task)
    vectors = {lang: unit_vectors(TrigramEncoder().encode(texts, lang=lang)) for lang, texts in task.texts().items()}
    for a, b in (("zh", "en"), ("en", "zh")):
        cosines = (vectors[a].astype(np.float64) @ vectors[b].astype(np.float64).T).round(6)
        right = sum(int(np.argmax(row)) == number for number, row in enumerate(cosines))
        assert found["cmn-eng", f"{a}-{b}", "accuracy"] == pytest.approx(100 * right / len(cosines))


def test_all_pairs_of_a_model_also_through_english(tmp_path: Path) -> None:
    """The pairs of its languages, and two others by the English sentences they share; a loop finds the same."""
    texts = sentences(120, 1)
    sets = {"cmn": texts[:80], "deu": texts[20:120][::-1], "fra": texts[:30]}
    for code, english in sets.items():
        write_lines(tmp_path / "tatoeba" / f"tatoeba.{code}-eng.eng", english)
        other = [mirrored(text) if code == "cmn" else text.upper() for text in english]
        write_lines(tmp_path / "tatoeba" / f"tatoeba.{code}-eng.{code}", other)
    model = Model(Identity("trigrams", "ab" * 32), ["en", "zh", "de"], lambda lang: TrigramBackend(lang, []))
    evaluation = evaluate(model, "tatoeba", data=tmp_path, pairs="all")
    assert {(score.task, score.subset) for score in evaluation.scores} == {
        ("tatoeba", "cmn-eng"),
        ("tatoeba", "deu-eng"),
        ("tatoeba through English", "zh-de"),
    }
    chinese, german = [mirrored(text) for text in sets["cmn"]], [text.upper() for text in sets["deu"]]
    vectors = {"zh": model.encode(chinese, lang="zh"), "de": model.encode(german, lang="de")}
    found = {score.protocol: score for score in evaluation.scores if score.task == "tatoeba through English"}
    for (src, own), (tgt, others) in ((("zh", "cmn"), ("de", "deu")), (("de", "deu"), ("zh", "cmn"))):
        right = [
            int(np.argmax((vectors[src][row] @ vectors[tgt].T).round(6))) == sets[others].index(text)
            for row, text in enumerate(sets[own])
            if text in sets[others]
        ]
        assert found[f"{src}-{tgt}"].n == len(right) == 60
        assert found[f"{src}-{tgt}"].value == pytest.approx(100 * sum(right) / 60)
    (table, without_english) = evaluation.tables()
    assert without_english.rows[0][:2] == ["zh-de", "60"] and len(without_english.rows) == 1
    assert [row[0] for row in table.rows] == [f"trigrams, {name}" for name in ("cmn-eng", "deu-eng", "mean of 2")]
    forward = [score.value for score in evaluation.scores if score.metric == "accuracy" and score.protocol[3:] == "en"]
    assert len(forward) == 2 and table.rows[-1][1] == f"{sum(forward) / 2:.2f}"
    with pytest.raises(DataError, match="no pair of fi; expected one of cmn-eng, deu-eng, fra-eng"):
        read_tasks("tatoeba", tmp_path, "all", languages=["fi"])
    (shared,) = evaluate(model, "tatoeba", data=tmp_path, pairs="de-zh").scores[:1]
    assert (shared.task, shared.n) == ("tatoeba through English", 60)
    with pytest.raises(DataError, match="de-fr share 10 English sentences; expected at least 40"):
        read_tasks("tatoeba", tmp_path, "de-fr")

    pair = Model(Identity("pair", "cd" * 32), ["en", "zh"], lambda lang: TrigramBackend(lang, []))
    compared = evaluate(model, "tatoeba", data=tmp_path, pairs="all", peers=[pair])
    accuracy, errors, through = compared.tables()
    assert accuracy.columns == ["languages", "n", "trigrams", "pair"]
    assert [row[0] for row in accuracy.rows] == ["zh-en", "de-en"] and accuracy.rows[0][2] == accuracy.rows[0][3]
    assert accuracy.rows[1][3] == through.rows[0][3] == "–" and errors.title.endswith("xSIM error")
    assert len(compared.all_scores) == len(compared.scores) + 4
    both = evaluate(model, "tatoeba", data=tmp_path, pairs="all", peers=[model]).tables()[0]
    assert both.rows[-1][0] == "mean of 2" and both.rows[-1][2] == both.rows[-1][3]
    evaluation.to_json(tmp_path / "one.json")
    compared.to_json(tmp_path / "two.json")
    with pytest.raises(DataError, match=r"two.json: scores of several models; expected one"):
        compare(tmp_path / "one.json", tmp_path / "two.json")
    page = tmp_path / "report.html"
    compared.to_html(page)
    assert "Accuracy on Tatoeba, mean of both directions." in page.read_text(encoding="utf-8")
    lacking = Model(Identity("finnish", "ef" * 32), ["fi"], lambda lang: TrigramBackend(lang, []))
    with pytest.raises(ModelError, match="finnish: does not have the languages of any task"):
        evaluate(model, "tatoeba", data=tmp_path, pairs="all", peers=[lacking])


def test_wrong_tower_is_an_error(data: Path) -> None:
    """A model asked for a language it does not have says so; nothing is encoded with another tower."""
    write_tatoeba(data / "eval" / "tatoeba", pair="deu-eng")
    encoder = TrigramEncoder()
    with pytest.raises(ModelError, match=r"has no language 'de'; expected one of en, zh"):
        evaluate(encoder, [Tatoeba(data / "eval" / "tatoeba", "deu-eng")])
    assert not encoder.encoded


def test_bucc_finds_planted_pairs(data: Path) -> None:
    """Mirrored sentences have equal vectors: nearly all gold is found, little else."""
    found = scores_of(Bucc(data / "eval" / "bucc2018", "zh-en"))
    assert found["zh-en dev", "gold-optimal threshold", "f1"] >= found["zh-en dev", "threshold cross-fitted", "f1"]
    assert found["zh-en dev", "threshold cross-fitted", "f1"] > 80


def test_bucc_threshold_comes_from_development_gold(tmp_path: Path) -> None:
    """With a test split the threshold is the development set's, whatever the test gold says."""
    write_bucc(tmp_path, "training", seed=3)
    write_bucc(tmp_path, "test", seed=4)
    task = Bucc(tmp_path, "zh-en")
    result = evaluate(TrigramEncoder(), [task])
    kept = {score.protocol for score in result.scores}
    assert kept == {"threshold from training", "gold-optimal threshold"}
    threshold = result.mined[0].threshold
    lines = (tmp_path / "zh-en.test.gold").read_text(encoding="utf-8").splitlines()
    write_lines(tmp_path / "zh-en.test.gold", lines[:3])
    again = evaluate(TrigramEncoder(), [Bucc(tmp_path, "zh-en")])
    assert again.mined[0].threshold == threshold


@pytest.mark.parametrize("task", [Bucc, BitextRetrieval])
def test_the_bucc_sample_is_scored_next_to_the_training_split(tmp_path: Path, task: type[Bucc]) -> None:
    """A folder that has the training split as well gives the scores of the sample alone, and says so."""
    write_bucc(tmp_path, "sample", gold=10, noise=10)
    alone = evaluate(TrigramEncoder(), [task(tmp_path, "zh-en")])
    write_bucc(tmp_path, "training", gold=12, noise=12, seed=5)
    both = evaluate(TrigramEncoder(), [task(tmp_path, "zh-en")])
    assert [score.to_json() for score in both.scores] == [score.to_json() for score in alone.scores]
    assert all(score.subset == "zh-en sample" and "|split:sample|" in score.signature for score in both.scores)


def test_bucc_repeated_sentences_are_mined_but_not_counted(tmp_path: Path) -> None:
    """As in LASER's script: a pair of a sentence that stands twice in its file is never extracted."""
    write_bucc(tmp_path)
    path = tmp_path / "zh-en.dev.en"
    first = path.read_text(encoding="utf-8").splitlines()[0].split("\t")[1]
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"en-again\t{first}\n")
    mined = evaluate(TrigramEncoder(), [Bucc(tmp_path, "zh-en")]).mined[0]
    assert "en-0" not in mined.tgt_ids and "en-again" not in mined.tgt_ids and "en-1" in mined.tgt_ids


@pytest.mark.parametrize("margin", Margin)
def test_bucc_margins_are_signed(data: Path, margin: Margin) -> None:
    """The margin and k stand in the signature."""
    task = Bucc(data / "eval" / "bucc2018", "zh-en", margin, 4)
    signature = evaluate(TrigramEncoder(), [task]).scores[0].signature
    assert f"margin:{margin.value}|k:4" in signature


def test_mteb_retrieval_is_not_called_bucc(data: Path) -> None:
    """Its name and protocols say what it is, and gold-only search is never harder than search among all."""
    found = scores_of(BitextRetrieval(data / "eval" / "bucc2018", "zh-en"))
    assert all("MTEB" in protocol for _, protocol, _ in found)
    for direction in ("zh-en", "en-zh"):
        easy = found["zh-en dev", f"{direction} gold only, as MTEB BUCC.v2", "accuracy"]
        assert easy >= found["zh-en dev", f"{direction} all candidates, as MTEB BUCC", "accuracy"]


def test_sts_protocols_by_a_plain_loop(data: Path) -> None:
    """all, wmean and mean of one year, worked out with scipy from the files themselves."""
    found = scores_of(Sts(data / "eval"))
    each, sizes = list[float](), list[int]()
    together: tuple[list[float], list[float]] = ([], [])
    for name in ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"):
        folder = data / "eval" / "STS" / "STS16-en-test"
        pairs = [line.split("\t") for line in (folder / f"STS.input.{name}.txt").read_text().splitlines()]
        gold = (folder / f"STS.gs.{name}.txt").read_text().split("\n")[:-1]
        judged = [(pair, float(score)) for pair, score in zip(pairs, gold, strict=True) if score]
        vectors = [unit_vectors(TrigramEncoder().encode([pair[s] for pair, _ in judged], lang="en")) for s in (0, 1)]
        cosines = (vectors[0] * vectors[1]).sum(axis=1).round(6).tolist()
        each.append(spearmanr(cosines, [score for _, score in judged]).statistic)
        sizes.append(len(judged))
        together[0].extend(cosines)
        together[1].extend(score for _, score in judged)
    weighted = sum(size * value for size, value in zip(sizes, each, strict=True)) / sum(sizes)
    expected = {"all": spearmanr(*together).statistic, "wmean": weighted, "mean": sum(each) / len(each)}
    for protocol, value in expected.items():
        assert found["STS16", protocol, "spearman"] == pytest.approx(100 * value, abs=0.2)
    average = sum(found[name, "wmean", "spearman"] for name in STS_SETS) / 7
    assert found["average of 7", "wmean", "spearman"] == pytest.approx(average)


def test_csls_by_a_plain_loop() -> None:
    """2 cos(x, y) - r(x) - r(y) with means over k neighbours, sorted."""
    generator = np.random.default_rng(0)
    x, y = (unit_vectors(generator.standard_normal((count, 5)).astype(np.float32)) for count in (12, 15))
    _, backward = nearest_both_ways(x, y, 4)
    found = nearest_by_csls(x, y, backward.mean, 15)
    cosines = (x.astype(np.float64) @ y.astype(np.float64).T).round(6)
    near_x = np.sort(cosines, axis=1)[:, -4:].mean(axis=1)
    near_y = np.sort(cosines, axis=0)[-4:].mean(axis=0)
    for i in range(12):
        slow = sorted(range(15), key=lambda j: (-(2 * cosines[i, j] - near_x[i] - near_y[j]), j))
        assert found[i].tolist() == slow


def test_lexicon_counts_any_translation(tmp_path: Path) -> None:
    """A word with two translations is right if either is found first."""
    write_lines(
        tmp_path / "en-zh.txt", ["house nonsense", f"house {mirrored('house')}", f"garden {mirrored('garden')}"]
    )
    assert scores_of(Lexicon(tmp_path, "en-zh"))["en-zh", "en-zh cosine", "p@1"] == 100


def test_paraphrases_of_paraphrases() -> None:
    """1-2 and 2-3 make 1-3."""
    assert closure([(1, 2), (3, 2), (7, 8)]) == {(1, 2), (1, 3), (2, 3), (7, 8)}


def test_paraphrases_with_broken_bytes_are_read(tmp_path: Path) -> None:
    """Quora's files hold bytes that are not UTF-8; a mark stands in their place."""
    for name in ("dev.tsv", "test.tsv"):
        (tmp_path / name).write_bytes(b"1\tgo \xe2 on\tgo on\tx\n0\ta b c\td e f\ty\n")
    assert "go \ufffd on" in Paraphrases(tmp_path).texts()["en"]


def test_postprocessing_is_fitted_and_signed(data: Path, tmp_path: Path) -> None:
    """A post-processing changes scores and signatures; the text it was fitted to is named."""
    task = Sts(data / "eval")
    plain = evaluate(TrigramEncoder(), [task]).scores[0]
    whitened = evaluate(TrigramEncoder(), [task], Whitening(8)).scores[0]
    assert whitened.value != plain.value and "postprocessing:whitening:8 fitted to test sentences" in whitened.signature
    write_lines(tmp_path / "fit.txt", sentences(50, 9))
    other = evaluate(TrigramEncoder(), [task], Whitening(8), TextFile(tmp_path / "fit.txt", "en")).scores[0]
    digest = hashlib.sha256((tmp_path / "fit.txt").read_bytes()).hexdigest()[:12]
    assert f"fitted to {digest}" in other.signature and other.value != whitened.value


def test_vectors_with_nan_are_refused(data: Path) -> None:
    """An encoder that gives NaN is named."""

    class BrokenBackend(TrigramBackend):
        def encode(self, texts: Sequence[str]) -> Vectors:
            vectors = super().encode(texts)
            vectors[-1, 0] = np.nan
            return vectors

    broken = Model(Identity("broken", "00" * 32), ["en", "zh"], lambda lang: BrokenBackend(lang, []))
    with pytest.raises(DataError, match="broken: 1 vectors contain NaN"):
        evaluate(broken, [Tatoeba(data / "eval" / "tatoeba", "cmn-eng")])


def spoil(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Rewrites a file."""
    write_lines(path, change(path.read_text(encoding="utf-8").split("\n")[:-1]))


BUCC_FAULTS: dict[str, tuple[str, Callable[[list[str]], list[str]], str]] = {
    "unknown gold id": ("zh-en.dev.gold", lambda lines: [*lines, "zh-0\ten-9999"], r"gold:31: id 'en-9999' is not in"),
    "repeated gold": ("zh-en.dev.gold", lambda lines: [*lines, lines[0]], "1 gold pairs are repeated"),
    "repeated id": ("zh-en.dev.en", lambda lines: [*lines, "en-0\tHello."], "'en-0' was used on line 1"),
    "no tab": ("zh-en.dev.zh", lambda lines: [*lines, "zh-7777"], "1 columns; expected at least 2"),
    "empty sentence": ("zh-en.dev.zh", lambda lines: [*lines, "zh-7777\t "], "empty cell"),
    "no gold": ("zh-en.dev.gold", lambda lines: [], "no lines of data"),
}


@pytest.mark.parametrize("fault", BUCC_FAULTS)
def test_damaged_bucc_files_are_named(tmp_path: Path, fault: str) -> None:
    """One line with the file and what is wrong in it."""
    name, change, said = BUCC_FAULTS[fault]
    write_bucc(tmp_path)
    spoil(tmp_path / name, change)
    with pytest.raises(DataError, match=said) as error:
        read_bucc(tmp_path, "zh-en", "dev")
    assert "\n" not in str(error.value)


STS_FAULTS: dict[str, tuple[str, Callable[[list[str]], list[str]], str]] = {
    "score out of range": ("STS/STS12-en-test/STS.gs.MSRpar.txt", lambda lines: ["5.1", *lines[1:]], "from 0 to 5"),
    "not a number": ("STS/STS12-en-test/STS.gs.MSRpar.txt", lambda lines: ["five", *lines[1:]], "'five'"),
    "fewer scores": ("STS/STS13-en-test/STS.gs.OnWN.txt", lambda lines: lines[1:], "12 pairs, .* 11 scores"),
    "one sentence": ("STS/STS14-en-test/STS.input.images.txt", lambda lines: ["alone", *lines[1:]], "1 columns"),
    "SICK out of range": ("SICK/SICK_trial.txt", lambda lines: [lines[0], "1\ta\tb\t0.5\tX"], "from 1 to 5"),
    "no scores": ("STS/STS16-en-test/STS.gs.headlines.txt", lambda lines: ["" for _ in lines], "0 scores"),
}


@pytest.mark.parametrize("fault", STS_FAULTS)
def test_damaged_sts_files_are_named(tmp_path: Path, fault: str) -> None:
    """One line with the file and what is wrong in it."""
    name, change, said = STS_FAULTS[fault]
    write_sts(tmp_path)
    spoil(tmp_path / name, change)
    with pytest.raises(DataError, match=said) as error:
        Sts(tmp_path)
    assert Path(name).name in str(error.value) and "\n" not in str(error.value)


def test_missing_subset_is_named(tmp_path: Path) -> None:
    """A year without one of its subsets would give another number under the same name."""
    write_sts(tmp_path)
    (tmp_path / "STS" / "STS15-en-test" / "STS.input.belief.txt").unlink()
    with pytest.raises(DataError, match=r"STS\.input\.belief\.txt: not found"):
        Sts(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda lines: lines[1:], "39 lines, .* has 40"), (lambda lines: ["", *lines[1:]], "cmn:1: empty line")],
    ids=["unequal", "empty line"],
)
def test_damaged_tatoeba_files_are_named(tmp_path: Path, change: Callable[[list[str]], list[str]], said: str) -> None:
    """Files of unequal length and empty lines."""
    write_tatoeba(tmp_path)
    spoil(tmp_path / "tatoeba.cmn-eng.cmn", change)
    with pytest.raises(DataError, match=said):
        Tatoeba(tmp_path, "cmn-eng")


def test_unknown_tasks_and_pairs_are_named(data: Path) -> None:
    """What was given and what there is."""
    with pytest.raises(ConfigError, match=r"task 'moon': expected paper, or tasks from tatoeba, bucc"):
        read_tasks(["moon"], data)
    with pytest.raises(DataError, match="no pair zh-fr"):
        read_tasks(["tatoeba"], data, "zh-fr")
    with pytest.raises(DataError, match="no gold of de-en"):
        read_tasks(["bucc"], data, "de-en")
    with pytest.raises(DataError, match="no folder with a trained head"):
        read_tasks(["nli"], data)
    with pytest.raises(DataError, match=r"no aligned documents of zh-en; .*mac-dev/001\.gold"):
        read_tasks(["align"], data)
    assert set(MORE) | {"nli", "align"} == set(TASK_FACTORIES)  # what aligns has tests of its own

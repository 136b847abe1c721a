"""Tasks of mteb on local data: the same scores as `dualmoco evaluate` where the protocol is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmoco
from dualmoco.core.errors import DataError, ModelError
from dualmoco.evaluation.bucc import Bucc
from dualmoco.evaluation.metrics import Score
from dualmoco.evaluation.sts import Sts
from dualmoco.models.mteb_encoder import MtebEncoder, text_language

mteb = pytest.importorskip("mteb", reason="needs pip install 'dualmoco[mteb]'")
from datasets import Dataset  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = "en-zh-static"


def run_task(name: str, subset: str, columns: Mapping[str, Sequence[Any]], model: str = MODEL) -> dict[str, float]:
    """The scores of a model in a task of mteb, whose data are these columns."""
    task = mteb.get_task(name, **({} if subset == "default" else {"hf_subsets": [subset]}))
    # BUCC keeps sides of different lengths in a dict, as its `dataset_transform` makes it
    data = dict(columns) if "gold" in columns else Dataset.from_dict(dict(columns))
    task.dataset = {"test": data} if subset == "default" else {subset: {"test": data}}
    task.data_loaded = True
    done = mteb.evaluate(dualmoco.mteb_meta(model), task, cache=None, show_progress_bar=False, co2_tracker=False)
    (scores,) = done.task_results[0].scores["test"]
    return {key: value for key, value in scores.items() if isinstance(value, float)}


def ours(scores: Sequence[Score], subset: str, protocol: str, metric: str) -> float:
    """One of the scores of `evaluate`."""
    (score,) = [s for s in scores if (s.subset, s.protocol, s.metric) == (subset, protocol, metric)]
    return float(score.value) / 100


def test_tatoeba_as_evaluate_scores_it() -> None:
    """The nearest neighbor by cosine, from Chinese to English; the same sentences the other way round."""
    folder = EXAMPLES / "eval" / "tatoeba"
    zh, en = ((folder / f"tatoeba.zh-en.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("zh", "en"))
    scores = dualmoco.evaluate(MODEL, tasks=["tatoeba"], data=EXAMPLES, progress=False).scores
    for sides, direction in (((zh, en), "zh-en"), ((en, zh), "en-zh")):
        found = run_task("Tatoeba", "cmn-eng", {"sentence1": sides[0], "sentence2": sides[1]})
        assert found["accuracy"] == pytest.approx(ours(scores, "zh-en", direction, "accuracy"), abs=1e-9)
    assert found["main_score"] == found["f1"]


@pytest.mark.data
def test_bucc_and_sts_as_evaluate_scores_them(data_folder: Path) -> None:
    """Weighted F1 among the gold sentences and among all, and Spearman."""
    folder = data_folder / "eval" / "bucc2018"
    split = Bucc(folder, "zh-en").dev
    scores = dualmoco.evaluate(MODEL, tasks=["mteb-bitext-retrieval"], data=data_folder, progress=False).scores
    rows = {name: row for row, name in enumerate(split.tgt_ids)}
    src = dict(zip(split.src_ids, split.src, strict=True))
    gold = [(src[zh], rows[en]) for zh, en in split.gold]
    sources, numbers = [text for text, _ in gold], [number for _, number in gold]
    columns = {"sentence1": sources, "sentence2": [split.tgt[number] for number in numbers]}
    found = run_task("BUCC.v2", "zh-en", columns)
    assert found["f1"] == pytest.approx(
        ours(scores, "zh-en dev", "zh-en gold only, as MTEB BUCC.v2", "weighted f1"), abs=1e-9
    )
    found = run_task("BUCC", "zh-en", {"sentence1": sources, "sentence2": split.tgt, "gold": list(enumerate(numbers))})
    expected = ours(scores, "zh-en dev", "zh-en all candidates, as MTEB BUCC", "weighted f1")
    assert found["f1"] == pytest.approx(expected, abs=1e-9)
    pairs = Sts(data_folder / "eval").sets["STS-B"]["test"]
    found = run_task("STSBenchmark", "default", {"sentence1": pairs.a, "sentence2": pairs.b, "score": pairs.gold})
    scores = dualmoco.evaluate(MODEL, tasks=["sts"], data=data_folder, progress=False).scores
    assert found["cosine_spearman"] == pytest.approx(ours(scores, "STS-B", "all", "spearman"), abs=1e-6)


def test_the_language_of_texts_comes_from_the_task_or_is_recognised(tmp_path: Path) -> None:
    """A subset of one language needs no recognition; a doubtful text of several is refused."""
    many = dualmoco.load("many-static")
    german, english = ["Das ist nicht mein Buch, sondern deins."] * 20, ["This is not my book but yours."] * 20
    pair = ["deu-Latn", "eng-Latn"]
    assert text_language(many, ["deu-Latn"], english, "x") == "de"  # as the task says
    assert [text_language(many, pair, side, "x") for side in (german, english)] == ["de", "en"]
    assert text_language(many, ["cmn-Hans", "cmn-Hant"], ["雨"], "x") == "zh"
    with pytest.raises(DataError, match=r"x: may be .*expected more text, or the name of its language"):
        text_language(many, ["spa-Latn", "por-Latn"], ["Casa."], "x")
    with pytest.raises(DataError, match=r"x: looks like .*; expected texts in one of de, en"):
        text_language(many, pair, ["这本书不是我的。"] * 5, "x")
    with pytest.raises(DataError, match="x: looks like no language; expected texts in one of de, en"):
        text_language(many, pair, ["123"], "x")
    with pytest.raises(ModelError, match="has no language 'afr-Latn'; expected one of"):
        text_language(many, ["afr-Latn", "eng-Latn"], english, "x")


def test_columns_of_parallel_tasks_are_named_by_their_language() -> None:
    """FLORES and others give the language in place of the subset."""
    task = mteb.get_task("FloresBitextMining")
    encoder = MtebEncoder("many-static")
    made = encoder.encode([{"text": ["Guten Tag."]}], task_metadata=task.metadata, hf_split="dev", hf_subset="deu_Latn")
    np.testing.assert_array_equal(made, dualmoco.load("many-static").encode("Guten Tag.", lang="de"))


def test_what_mteb_knows_of_a_model(tiny_model: Path) -> None:
    """Name, checksum, languages and licence, for embedded models and folders."""
    meta, opened = dualmoco.mteb_meta(MODEL), dualmoco.load(MODEL)
    assert (meta.name, meta.revision, meta.embed_dim) == (f"dualmoco/{MODEL}", opened.identity.sha256, opened.dimension)
    assert meta.languages == ["eng-Latn", "zho-Hans"] and meta.license and meta.training_datasets is None
    own = dualmoco.mteb_meta(tiny_model)
    assert (own.name, own.license, own.framework) == ("local/run", None, ["NumPy"])
    assert dualmoco.mteb_meta(tiny_model, "me/tiny").name == "me/tiny"
    loaded: Any = own.load_model()
    assert isinstance(loaded, mteb.EncoderProtocol) and loaded.mteb_model_meta.name == "local/run"
    assert loaded.model.identity.sha256 == own.revision

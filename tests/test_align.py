"""`dualmoco.align`: one pair of documents, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dualmoco
from aligned_files import DEMO, EN, FRENCH, ZH, merged, pair_of, rows_of, texts_of, write
from dualmoco.alignment.aligner import DEFAULT_LONGEST
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, count_links
from dualmoco.alignment.pipeline import (
    MAX_LONGEST,
    MAX_SIZE_RATIO,
    UnrelatedError,
    resolve_languages,
    sentences_sha256,
)
from dualmoco.alignment.splitting import Text
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL
from dualmoco.models.model import Model
from dualmoco.text.files import read_lines


@pytest.fixture(scope="module")
def model() -> Model:
    """The fast model."""
    return dualmoco.load(FAST_MODEL)


def test_demo_sentences_are_what_these_tests_take_them_for() -> None:
    """Enough distinct pairs."""
    assert len(set(EN)) == len(set(ZH)) == len(EN) == 320 and len(list(read_lines(Path(str(DEMO))))) == 321


def test_sentences_are_placed_side_by_side(model: Model) -> None:
    """Every sentence stands beside its translation; languages are guessed; where it stands is known."""
    found = dualmoco.align(EN[:60], ZH[:60], model=model, progress=False)
    assert texts_of(found) == list(zip(EN[:60], ZH[:60], strict=True))
    assert (found.aligned.src.lang, found.aligned.tgt.lang) == ("en", "zh")
    assert len(found) == found.counts.links == found.counts.linked == 60 and found.counts.types == {"1-1": 60}
    assert [pair.src_places for pair in found.pairs] == [(str(number),) for number in range(1, 61)]
    assert all(0 <= pair.confidence <= 1 and pair.score is not None for pair in found.pairs)
    assert found.counts == count_links(found.pairs)
    origin = found.aligned.origin
    assert origin["model"] == FAST_MODEL and origin["model_sha256"] == model.identity.sha256
    assert origin["src_sha256"] == sentences_sha256(EN[:60]) and origin["tgt_sentences"] == 60
    assert origin["longest"] == DEFAULT_LONGEST and origin["split"] == "auto" and origin["runs"] == "encoded"


def test_the_other_way_round_is_the_same(model: Model) -> None:
    """Chinese as the source, its language guessed, gives the same pairs."""
    src, tgt, links = merged(0, 60)
    found = dualmoco.align(tgt, src, model=model, split="no", progress=False)
    assert found.aligned.src.lang == "zh"
    assert [(b, a) for a, b in texts_of(found)] == links


@pytest.mark.parametrize("vectors", ["auto", "encoded", "averaged"])
def test_merged_sentences_are_linked(vectors: str, model: Model) -> None:
    """One to two and two to one, with vectors of runs made either way."""
    src, tgt, links = merged(0, 150)
    found = dualmoco.align(src, tgt, model=model, split="no", runs=vectors, progress=False)
    assert found.aligned.origin["runs"] == ("averaged" if vectors == "averaged" else "encoded")
    right = set(texts_of(found)) & set(links)
    assert len(right) > 0.97 * len(links) and {"1-1", "1-2", "2-1"} <= set(found.counts.types)


def test_words_can_be_left_out(model: Model) -> None:
    """The origin says whether they were looked at; scores are of vectors either way."""
    with_words, without = (
        dualmoco.align(EN[:40], ZH[:40], model=model, split="no", lexicon=lexicon, progress=False)
        for lexicon in (True, False)
    )
    assert with_words.aligned.origin["lexicon"] is True and without.aligned.origin["lexicon"] is False
    assert [pair.src for pair in with_words] == [pair.src for pair in without]
    assert [pair.score for pair in with_words] == [pair.score for pair in without]
    assert [pair.confidence for pair in with_words] != [pair.confidence for pair in without]


def test_the_longest_run_can_be_set(model: Model) -> None:
    """With 1 every link is one to one or one-sided."""
    src, tgt, _ = merged(0, 60)
    found = dualmoco.align(src, tgt, model=model, split="no", longest=1, progress=False)
    assert set(found.counts.types) <= {"1-1", "1-0", "0-1"} and found.aligned.origin["longest"] == 1


def test_the_default_model_aligns_the_example() -> None:
    """What the documentation of `align` shows."""
    found = dualmoco.align(
        ["How are you?", "I am fine. Thanks."], ["你好吗？", "我很好，", "谢谢。"], split="no", progress=False
    )
    assert [pair.type for pair in found.pairs] == ["1-1", "1-2"]
    assert found.aligned.origin["model"] == DEFAULT_MODEL


def test_left_out_and_foreign_sentences(model: Model) -> None:
    """What one side has alone stands alone."""
    src, tgt = [*EN[:30], *EN[40:70]], [*ZH[:50], *ZH[55:70]]
    found = dualmoco.align(src, tgt, model=model, progress=False)
    alone = [pair for pair in found.pairs if not pair.is_linked]
    assert {pair.tgt for pair in alone if pair.tgt} == set(ZH[30:40]) and {pair.src for pair in alone} >= set(EN[50:55])
    assert all(pair.score is None and pair.type in ("1-0", "0-1") for pair in alone)
    assert len(alone) == 15 and found.counts.linked == 55


def test_unsure_links_can_be_left_out(model: Model, tmp_path: Path) -> None:
    """Of all links those with both sides and enough confidence are kept, here and in the file."""
    src, tgt = [*EN[:30], *EN[35:70]], ZH[:70]
    every = dualmoco.align(src, tgt, model=model, progress=False)
    least = sorted(pair.confidence for pair in every.pairs if pair.is_linked)[10]
    out = tmp_path / "a.tsv"
    found = dualmoco.align(src, tgt, model=model, min_confidence=least, out=out, progress=False)
    assert list(found.pairs) == [pair for pair in every.pairs if pair.is_linked and pair.confidence >= least]
    assert len(found.aligned.links) == len(every.aligned.links) > len(found)
    assert [row[2] for row in rows_of(out)] == [pair.src for pair in found.pairs]
    note = json.loads(out.with_name("a.tsv.json").read_text(encoding="utf-8"))
    assert note["min_confidence"] == least and note["links"] == len(found)


def test_paragraphs_are_split(model: Model, tmp_path: Path) -> None:
    """Lines of several sentences are cut by themselves or when told, and places name paragraphs."""
    lines = [(" ".join(EN[at : at + 3]), "".join(ZH[at : at + 3])) for at in range(0, 30, 3)]
    paths = (
        write(tmp_path / "a.txt", [line[0] for line in lines]),
        write(tmp_path / "b.txt", [line[1] for line in lines]),
    )
    found = dualmoco.align(*paths, model=model, progress=False)
    assert found.pairs[4].src_places[0] == "2.2" and len(found.aligned.src.sentences) >= 30
    assert found.pairs == dualmoco.align(*map(str, paths), model=model, split="yes", progress=False).pairs
    whole = dualmoco.align(*paths, model=model, split="no", progress=False)
    assert texts_of(whole) == lines and whole.pairs[4].src_places == ("5",)


def test_files_of_all_kinds_are_written(model: Model, tmp_path: Path) -> None:
    """Links of every format, the note beside each, and the page; all the same when made again."""
    paths = pair_of(tmp_path, 0, 30)
    written: list[dict[str, bytes]] = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        for number, ending in enumerate(ALIGNMENT_ENDINGS):
            out, page = folder / f"{number}{ending}", folder / f"page{number}.html"
            dualmoco.align(*paths, model=model, out=out, html=page, progress=False)
            assert json.loads(Path(f"{out}.json").read_text(encoding="utf-8"))["links"] == 30
        written.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert written[0] == written[1]
    content = written[0]["page0.html"]
    assert ZH[3] in content.decode() and content.startswith(b"<!")
    names = {name[1:] for name in written[0]}
    assert {".tsv", ".parquet", ".tmx", ".xml", ".intertext.xml", ".src.xml", ".tgt.xml"} <= names
    table = tmp_path / "one" / f"{ALIGNMENT_ENDINGS.index('.tsv')}.tsv"
    assert [row[2] for row in rows_of(table)] == EN[:30]


def test_one_sentence_a_side(model: Model) -> None:
    """The shortest documents there are; and more target sentences than a link may hold."""
    one = dualmoco.align(EN[:1], ZH[:1], model=model, src_lang="en", tgt_lang="zh", progress=False)
    assert texts_of(one) == [(EN[0], ZH[0])]
    many = dualmoco.align(EN[:1], ZH[:9], model=model, src_lang="en", tgt_lang="zh", force=True, progress=False)
    assert sum(len(pair.tgt_places) for pair in many.pairs) == 9 and many.counts.linked == 1


# Wrong input


BAD: dict[str, tuple[Sequence[str], Sequence[str], dict[str, Any], type[Exception], str]] = {
    "no source": ([], ZH[:5], {"src_lang": "en"}, DataError, r"^src: no sentences; expected at least one"),
    "empty target": (EN[:5], ["", " "], {"tgt_lang": "zh"}, DataError, r"^tgt: no sentences; expected at least one"),
    "far longer": (
        EN[:1],
        ZH * 4,
        {"src_lang": "en"},
        DataError,
        r"src: 1, of tgt: 1,280; expected two versions of one document.*--split",
    ),
    "just too long": (
        EN[:2],
        ZH[: 2 * MAX_SIZE_RATIO + 1],
        {},
        DataError,
        r"src: 2, of tgt: 41; expected",
    ),
    "unrelated": (
        EN[:150],
        ZH[170:],
        {},
        UnrelatedError,
        r"^src and tgt: only \d+ % of the sentences .*expected at least 40 %.*--force$",
    ),
    "swapped": (
        ZH[:40],
        EN[:40],
        {"src_lang": "en", "tgt_lang": "zh"},
        DataError,
        r"^src looks like zh and tgt like en; expected en and zh.*--force",
    ),
    "lacking": (EN[:40], ZH[:40], {"src_lang": "fr"}, ModelError, r"has no language 'fr'; expected one of en, zh"),
    "foreign": (
        FRENCH,
        ZH[:40],
        {},
        ModelError,
        r"^src: looks like fr, and the model .* has en and zh; expected one of these languages, or a model that has fr",
    ),
    "no letters": (EN[:40], ["1 2 3", "4"], {}, ConfigError, r"^tgt: no letters to recognise the language .*en, zh$"),
    "no string": (EN[:40], [*ZH[:2], 3], {}, DataError, r"^tgt: sentence 2 .*int; expected a string$"),  # type: ignore[list-item]
    "longest 0": (EN[:40], ZH[:40], {"longest": 0}, ConfigError, r"^longest 0; expected .*1 to 10"),
    "longest": (EN, ZH, {"longest": MAX_LONGEST + 1}, ConfigError, r"^longest 11; expected .*1 to 10"),
    "confidence": (EN, ZH, {"min_confidence": 1.5}, ConfigError, r"^min_confidence 1.5; expected a number from 0 to"),
    "not a number": (EN, ZH, {"min_confidence": float("nan")}, ConfigError, r"^min_confidence nan; expected a number"),
    "split": (EN, ZH, {"split": "maybe"}, ConfigError, r"^split maybe; expected one of auto, yes, no$"),
    "runs": (EN, ZH, {"runs": "summed"}, ConfigError, r"^runs summed; expected one of auto, encoded, averaged$"),
    "ending": (EN, ZH, {"out": "x.doc"}, ConfigError, r"^x.doc: ends with .doc; expected one of .tsv, .parquet, .tmx"),
    "folder": (EN, ZH, {"out": "."}, ConfigError, r"^.: .*folder; expected .* file"),
    "page": (EN, ZH, {"html": "."}, ConfigError, r"^.: .*folder; expected .* file"),
}


@pytest.mark.parametrize("fault", BAD)
def test_wrong_input_is_named(fault: str, model: Model) -> None:
    """What was given, what was expected, what to do."""
    src, tgt, options, kind, said = BAD[fault]
    with pytest.raises(kind, match=said) as error:
        dualmoco.align(src, tgt, model=model, progress=False, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fault", ["far longer", "just too long", "unrelated", "swapped"])
def test_what_looks_wrong_can_be_forced(fault: str, model: Model) -> None:
    """Every sentence is in one link all the same."""
    src, tgt, options, _, _ = BAD[fault]
    found = dualmoco.align(src, tgt, model=model, force=True, progress=False, **options)
    assert sum(len(pair.src_places) for pair in found.pairs) == len(src)
    assert sum(len(pair.tgt_places) for pair in found.pairs) == len(tgt)


def test_just_short_enough_is_not_too_long(model: Model) -> None:
    """Twenty times as many sentences are not refused for their number."""
    found = dualmoco.align(EN[:2], ZH[: 2 * MAX_SIZE_RATIO], model=model, progress=False)
    assert sum(len(pair.tgt_places) for pair in found.pairs) == 2 * MAX_SIZE_RATIO


def test_another_language_is_a_warning(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    """It is aligned as what it was said to be, and the guess is shown."""
    text = Text("a.txt", FRENCH), Text("b.txt", ZH[:40])
    assert resolve_languages(text, ("en", "zh"), model, force=False) == ("en", "zh")
    (said,) = caplog.messages
    assert said.startswith("a.txt: looks like fr, ") and "encoded as en" in said
    caplog.clear()
    assert resolve_languages((Text("a", EN[:40]), text[1]), ("en", None), model, force=False) == ("en", "zh")
    assert not caplog.messages


def test_two_versions_in_one_language(model: Model) -> None:
    """Two translations into one language are aligned, with languages recognised or given with a region."""
    edited = [f"{line} Indeed." for line in EN[:40]]
    for langs in ({}, {"src_lang": "en-US", "tgt_lang": "en-GB"}):
        found = dualmoco.align(EN[:40], edited, model=model, split="no", progress=False, **langs)  # type: ignore[arg-type]
        assert [pair.type for pair in found.pairs] == ["1-1"] * 40
        assert (found.aligned.src.lang, found.aligned.tgt.lang) == tuple(langs.values() or ("en", "en"))


def test_files_that_cannot_be_read(model: Model, tmp_path: Path) -> None:
    """Another encoding, nothing in it, not there: with the name of the file, and the line where there is one."""
    en, _ = pair_of(tmp_path)
    (tmp_path / "gbk.txt").write_bytes(b"\xff" + "\n".join(ZH[:40]).encode("gbk"))
    (tmp_path / "wide.txt").write_bytes("\n".join(EN[:40]).encode("utf-16-le"))
    write(tmp_path / "none.txt", ["", " "])
    faults = {
        "gbk.txt": r"gbk\.txt:1: not UTF-8 \(invalid .*\); convert the file, for example with iconv$",
        "wide.txt": r"wide\.txt: not UTF-8 text \(zero bytes\); convert the file, for example with iconv$",
        "none.txt": r"none\.txt: .*no text; expected at least one sentence",
        "lost.txt": r"lost\.txt: no such file; expected a document: text, Markdown, HTML, .* or subtitles$",
        "": r": is a folder; expected a document: text, Markdown, HTML, .* or subtitles$",
    }
    for name, said in faults.items():
        with pytest.raises(DataError, match=said):
            dualmoco.align(en, tmp_path / name, model=model, progress=False)


def test_score_of_a_single_pair_is_usual(model: Model) -> None:
    """A document of one sentence has no other scale than cosines."""
    found = dualmoco.align(EN[:1], ZH[:1], model=model, src_lang="en", tgt_lang="zh", progress=False)
    assert found.pairs[0].score is not None and found.pairs[0].score < 3


def test_an_empty_side_is_named_before_its_language(model: Model) -> None:
    """Not as a language that cannot be told."""
    with pytest.raises(DataError, match="src: no sentences"):
        dualmoco.align([], ZH[:5], model=model)

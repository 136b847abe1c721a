"""One rule for languages: recognised where they are not given, codes with regions, and refusals before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco import ConfigError, DataError, Model, ModelError
from dualmoco.cli.main import main
from dualmoco.text.languages import apparent_language, find_language, recognize_language

EN_ZH = ["en", "zh"]
GERMAN = ["Das Wetter ist heute sehr schön.", "Wir fahren morgen mit dem Zug nach Hause.", "Wo ist der Bahnhof?"]
ENGLISH = ["The weather is fine today.", "We take the train home tomorrow.", "Where is the station?"]
CHINESE = ["今天天气很好。", "我们明天坐火车回家。", "车站在哪里？"]
TRADITIONAL = ["今天天氣很好。", "我們明天坐火車回家，佢哋唔知。", "車站在哪裡？"]


@pytest.fixture(scope="module")
def model() -> Model:
    return dualmoco.load("en-zh-static")


@pytest.mark.parametrize(
    ("texts", "known", "found"),
    [
        (ENGLISH, EN_ZH, "en"),
        (["Good morning"], EN_ZH, "en"),
        (["Paris"], EN_ZH, "en"),
        (["No context, no text."], EN_ZH, "en"),
        (CHINESE, EN_ZH, "zh"),
        (TRADITIONAL, EN_ZH, "zh"),
        (TRADITIONAL, None, "zh"),
        (["我用iPhone", "使用 PostgreSQL 数据库"], EN_ZH, "zh"),
        (GERMAN, EN_ZH, "de"),
        (GERMAN, ["en", "de"], "de"),
        (ENGLISH, ["de", "en-GB"], "en-GB"),
        (["これは本です。", "東京へ行きました。"], EN_ZH, "ja"),
        (["Где находится вокзал?"], EN_ZH, "ru"),
        (["1 2", "--"], EN_ZH, ""),
        ([], EN_ZH, ""),
    ],
)
def test_languages_are_recognised(texts: list[str], known: list[str] | None, found: str) -> None:
    """By script first; by words where several languages share it, or none of them fits."""
    assert recognize_language(texts, known) == found


def test_sentences_in_several_scripts_have_no_language() -> None:
    """They are refused with the shares of their scripts."""
    with pytest.raises(DataError, match=r"several scripts \(50 % LATIN, 50 % CJK\); expected one language"):
        recognize_language([ENGLISH[0], CHINESE[0]], EN_ZH)


def test_codes_with_regions_mean_the_language() -> None:
    """As `prepare` maps them; a code that is known as it stands comes first."""
    for code in ("zh-CN", "zh_Hans", "zh-Hant", "cmn", "zho"):
        assert find_language(code, EN_ZH) == "zh"
    assert find_language("zh-TW", ["zh", "zh-TW"]) == "zh-TW"
    assert find_language("de", EN_ZH) is None


def test_only_a_clearly_different_language_is_apparent() -> None:
    """Another script, or enough lines of other words; mixed text is not."""
    assert apparent_language(CHINESE, "en") == "zh" and apparent_language(ENGLISH, "zh-CN") == "en"
    assert apparent_language(TRADITIONAL * 20, "zh") == apparent_language(ENGLISH * 20, "en-US") == ""
    assert apparent_language(GERMAN * 20, "en") == "de" and apparent_language(GERMAN, "en") == ""
    assert apparent_language([*ENGLISH, *CHINESE], "zh") == apparent_language([], "zh") == ""


def test_a_model_recognises_what_it_encodes(model: Model) -> None:
    """The vectors are those of the language by its name, with a region or without."""
    for lang, region, texts in (("en", "en-US", ENGLISH), ("zh", "zh_Hans", CHINESE)):
        named = model.encode(texts, lang=lang)
        assert np.array_equal(model.encode(texts), named) and np.array_equal(model.encode(texts, lang=region), named)
    each = model.encode_each([ENGLISH[0], CHINESE[0], "12"])
    assert np.array_equal(each[:2], np.concatenate([model.encode(ENGLISH[:1]), model.encode(CHINESE[:1])]))
    assert model.encode([]).shape == (0, each.shape[1])


def test_a_model_refuses_languages_that_it_lacks(model: Model) -> None:
    """With its own languages and what to do, and without the advice to give them another name."""
    with pytest.raises(ModelError, match=r"has no language 'de'; expected one of en, zh, or .*dualmoco join or train$"):
        model.encode(GERMAN, lang="de")
    with pytest.raises(
        ModelError, match=r"^sentences: looks like de, and the model en-zh-static has en and zh; .*train"
    ):
        model.encode(GERMAN)
    with pytest.raises(ConfigError, match=r"^sentences: no letters to recognise the language by; .*one of en, zh$"):
        model.encode(["12", "13"])
    with pytest.raises(DataError, match=r"^sentences: sentences in several scripts"):
        model.encode([ENGLISH[0], CHINESE[0]])


def test_a_wrong_name_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """In one line for all calls of a model."""
    model = dualmoco.load("en-zh-static")
    for _ in range(2):
        model.encode(CHINESE, lang="en")
        model.encode(ENGLISH, lang="en")
    assert caplog.messages == [
        "sentences: looks like zh, but is encoded as en; if that is wrong, correct the language",
    ]


def test_similarity_within_a_language(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal sentences are equal, in Python and in the command."""
    assert dualmoco.similarity("Good morning", "Good morning", model=model)[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert main(["similarity", "Good morning", "Good morning", "--model", "en-zh-static"]) == 0
    assert capsys.readouterr().out == "1.0000\n"
    assert main(["similarity", CHINESE[0], ENGLISH[0], "--tgt", "en-US", "--model", "en-zh-static"]) == 0
    swapped = capsys.readouterr().out
    assert main(["similarity", ENGLISH[0], CHINESE[0], "--model", "en-zh-static"]) == 0
    assert capsys.readouterr().out == swapped
    assert main(["similarity", GERMAN[1], CHINESE[0], "--model", "en-zh-static"]) == 2
    assert "looks like de, and the model" in capsys.readouterr().err


def test_mining_recognises_both_sides(model: Model, tmp_path: Path) -> None:
    """Sides in any order; codes as given in TMX; German is refused, and nothing is written."""
    options = {"model": model, "threshold": -1.0, "progress": False}
    found = list(dualmoco.mine(CHINESE, ENGLISH, **options))  # type: ignore[arg-type]
    named = list(dualmoco.mine(CHINESE, ENGLISH, src_lang="zh", tgt_lang="en", **options))  # type: ignore[arg-type]
    assert found == named and {(pair.src_line, pair.tgt_line) for pair in found} >= {(1, 1), (2, 2), (3, 3)}
    out = tmp_path / "pairs.tmx"
    dualmoco.mine(ENGLISH, TRADITIONAL, tgt_lang="zh-TW", out=out, **options)  # type: ignore[arg-type]
    assert 'xml:lang="zh-TW"' in out.read_text(encoding="utf-8") and 'srclang="en"' in out.read_text(encoding="utf-8")
    with pytest.raises(ModelError, match=r"^tgt: looks like de, and"):
        dualmoco.mine(ENGLISH, GERMAN, out=tmp_path / "none.tsv", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "none.tsv").exists()
    same = dualmoco.mine(ENGLISH, list(reversed(ENGLISH)), **options)  # type: ignore[arg-type]
    assert {(pair.src_line, pair.tgt_line) for pair in same if pair.src == pair.tgt} == {(1, 3), (2, 2), (3, 1)}


def test_regions_use_the_threshold_of_the_model(model: Model) -> None:
    """`en-US` and `zh-CN` are calibrated as `en` and `zh`."""
    plain = dualmoco.mine(ENGLISH, CHINESE, model=model, progress=False)
    found = dualmoco.mine(ENGLISH, CHINESE, model=model, src_lang="en-US", tgt_lang="zh-CN", progress=False)
    assert found.threshold == plain.threshold is not None


def test_scoring_recognises_both_sides(model: Model) -> None:
    """A bitext with its sides swapped has the same scores."""
    options = {"model": model, "threshold": -1.0, "progress": False}
    pairs = list(zip(ENGLISH, CHINESE, strict=True))
    there = dualmoco.score(pairs, **options)  # type: ignore[arg-type]
    back = dualmoco.score([(b, a) for a, b in pairs], **options)  # type: ignore[arg-type]
    assert [pair.score for pair in there] == pytest.approx([pair.score for pair in back])


def test_paraphrases_and_vectors_recognise_the_language(model: Model, tmp_path: Path) -> None:
    """Of sentences and of a file; a region is the same store."""
    assert dualmoco.paraphrases(CHINESE, model=model, threshold=-1.0, progress=False).count == 3
    path = tmp_path / "zh.txt"
    path.write_text("\n".join(TRADITIONAL), encoding="utf-8")
    assert dualmoco.encode(path, tmp_path / "store", model=model, progress=False).key.lang == "zh"
    assert dualmoco.encode(path, tmp_path / "store", model=model, lang="zh-TW", progress=False).count == 3
    path.write_text("\n".join(GERMAN), encoding="utf-8")
    with pytest.raises(ModelError, match=rf"^{path}: looks like de"):
        dualmoco.encode(path, tmp_path / "other", model=model, progress=False)
    with pytest.raises(DataError, match=r"no such file"):
        dualmoco.encode(tmp_path / "missing.txt", tmp_path / "other", model=model, progress=False)


def test_queries_are_recognised_one_by_one(model: Model, tmp_path: Path) -> None:
    """Queries of both languages in one call, hits by a code with a region, and a German query refused."""
    for lang, texts in (("en", ENGLISH), ("zh", CHINESE)):
        (tmp_path / f"{lang}.txt").write_text("\n".join(texts), encoding="utf-8")
    folder = tmp_path / "index"
    dualmoco.build_index(folder, {lang: tmp_path / f"{lang}.txt" for lang in ("en", "zh")}, model)
    index = dualmoco.open_index(folder, model)
    hits = index.search([ENGLISH[2], CHINESE[1]], k=1)
    assert [found[0].text for found in hits] == [ENGLISH[2], CHINESE[1]]
    assert index.search(ENGLISH[2], k=1, within="zh-CN")[0][0].text == CHINESE[2]
    with pytest.raises(ModelError, match="looks like de, and the model"):
        index.search(GERMAN[1])
    assert main(["search", "query", str(folder), ENGLISH[2], "-k", "1"]) == 0


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("It is raining.", True),
        ("Where have you been, and what did they say about it?", True),
        ("Es regnet heute.", False),
        ("The Beatles sind da.", False),
        ("It's déjà vu that they have.", False),
        ("Il pleut", False),
        ("123 ...", False),
    ],
)
def test_plain_english_is_not_identified(text: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Common words tell English at once; for everything else the identifier is asked."""
    asked: list[str] = []

    def closest(lines: list[str], fitting: list[str], name: str) -> str:
        asked.extend(lines)
        return "other"

    monkeypatch.setattr("dualmoco.text.languages._closest", closest)
    has_letters = any(map(str.isalpha, text))
    assert recognize_language([text], ["en", "zh"]) == ("en" if plain else "other" if has_letters else "")
    assert asked == ([text] if has_letters and not plain else [])

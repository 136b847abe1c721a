"""The model that is used when none is named: it follows the languages of the texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dualmoco
from dualmoco.alignment import lexical
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.models import embedded
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.embedded import CHECKSUMS, default_model
from dualmoco.models.folder import folder_sha256
from dualmoco.models.load import GivenText, open_for
from dualmoco.models.model import recognize_sentences
from dualmoco.models.network import save_encoders
from dualmoco.text.languages import AmbiguousLanguageError, recognize_language
from dualmoco.training.merge import merge
from testsets import write_lines

TEXTS = {
    "en": ["The weather is fine today.", "We take the train home tomorrow.", "Where is the station?"],
    "zh": ["今天天气很好。", "我们明天坐火车回家。", "车站在哪里？"],
    "de": ["Das Wetter ist heute sehr schön.", "Wir fahren morgen mit dem Zug nach Hause.", "Wo ist der Bahnhof?"],
    "fr": ["Il fait très beau aujourd'hui.", "Nous rentrons demain en train.", "Où se trouve la gare ?"],
    "ru": ["Сегодня очень хорошая погода.", "Завтра мы поедем домой на поезде.", "Где находится вокзал?"],
    "sv": ["Vädret är mycket vackert idag.", "I morgon åker vi hem med tåget.", "Var ligger järnvägsstationen?"],
}
MANY = ["en", "zh", "de", "fr", "ru"]


def make_static(folder: Path, lang: str) -> Path:
    """A static model of English, which is always the same, and another language, with random vectors."""
    torch.manual_seed(3)
    src, tgt = (EncoderConfig(code, EncoderKind.static, width=8, vocab_size=300) for code in ("en", lang))
    save_encoders(build_encoders(src, tgt, {code: TEXTS[code] * 20 for code in ("en", lang)}), folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with a small English-Chinese model and one of five languages."""
    place = tmp_path_factory.mktemp("installed")
    pairs = [make_static(tmp_path_factory.mktemp("pairs") / lang, lang) for lang in MANY[1:]]
    pairs[0].rename(place / "en-zh")
    merge([place / "en-zh", *pairs[1:]], place / "many-static")
    shutil.copytree(place / "en-zh", place / "en-zh-static")  # the words of an alignment come from it
    checksums = {name: folder_sha256(place / name) for name in ("en-zh", "en-zh-static", "many-static")}
    (place / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    return place


@pytest.fixture
def home(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That installation, and a text of each language in the current folder."""
    monkeypatch.setattr(embedded, "HOME", installed)
    monkeypatch.chdir(tmp_path)
    for lang, lines in TEXTS.items():
        write_lines(Path(f"{lang}.txt"), lines)
    opened = lexical._token_model, lexical._token_table  # embedded models that the aligner keeps open, by name
    for kept in opened:
        kept.cache_clear()
    yield installed
    for kept in opened:
        kept.cache_clear()


@pytest.mark.parametrize(
    ("langs", "name"),
    [
        ([], "en-zh"),
        (["en"], "en-zh"),
        (["zh-TW"], "en-zh"),
        (["zh", "en-US"], "en-zh"),
        (["de"], "many-static"),
        (["en", "fr"], "many-static"),
        (["zh", "ru"], "many-static"),
        (["de", "de"], "many-static"),
    ],
)
@pytest.mark.usefixtures("home")
def test_the_first_model_with_all_languages_is_the_default(langs: list[str], name: str) -> None:
    """English and Chinese, alone or together, keep `en-zh`."""
    assert default_model(langs) == name


@pytest.mark.usefixtures("home")
def test_every_command_follows_the_languages(capsys: pytest.CaptureFixture[str]) -> None:
    """Recognised or given; the record says which model it was."""
    write_lines(Path("de-fr.tsv"), [f"{de}\t{fr}" for de, fr in zip(TEXTS["de"], TEXTS["fr"], strict=True)])
    made = {
        "mine de.txt fr.txt --out mined.tsv": ("mined.tsv.json", "model", "many-static"),
        "mine en.txt zh.txt --out plain.tsv": ("plain.tsv.json", "model", "en-zh"),
        "mine zh.txt ru.txt --src zh --out named.tsv": ("named.tsv.json", "model", "many-static"),
        "score de-fr.tsv --out scored.tsv": ("scored.tsv.json", "model", "many-static"),
        "paraphrases fr.txt --out same.tsv": ("same.tsv.json", "model", "many-static"),
        "align ru.txt de.txt --out aligned.tsv --split no --force": ("aligned.tsv.json", "model", "many-static"),
        "align en.txt zh.txt --out links.tsv --split no --force": ("links.tsv.json", "model", "en-zh"),
        "search build index de=de.txt fr=fr.txt": ("index/manifest.json", "model", "many-static"),
        "search build plain en=en.txt": ("plain/manifest.json", "model", "en-zh"),
    }
    for words, (record, key, name) in made.items():
        assert main([*words.split(), *([] if "search" in words else ["--quiet"])]) == 0, words
        assert json.loads(Path(record).read_text(encoding="utf-8"))[key] == name, words
    assert main("encode fr.txt --out vectors".split()) == 0
    assert main("visualize de-fr.tsv --out parallel.svg".split()) == 0
    assert main(["similarity", TEXTS["de"][0], TEXTS["fr"][0]]) == 0
    capsys.readouterr()
    assert main(["search", "query", "de=de.txt", TEXTS["ru"][2], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 3


def test_python_follows_the_languages_as_well(home: Path) -> None:
    """The same vectors as of the model by name; an open model stays what it is."""
    model = dualmoco.load("many-static")
    assert model.languages is not None and sorted(model.languages) == sorted(MANY)
    expected = model.encode(TEXTS["de"], lang="de") @ model.encode(TEXTS["fr"], lang="fr").T
    assert dualmoco.similarity(TEXTS["de"], TEXTS["fr"]) == pytest.approx(expected)
    assert len(dualmoco.mine(TEXTS["de"], TEXTS["fr"])) == len(dualmoco.mine(TEXTS["de"], TEXTS["fr"], model=model))
    assert dualmoco.Embeddings(lang="fr").model.identity.name == "many-static"
    assert dualmoco.Embeddings().model.identity.name == dualmoco.load().identity.name == "en-zh"
    mixed = [*TEXTS["de"], *TEXTS["ru"]]
    dualmoco.build_index("mixed", sentences=mixed)
    assert {part.lang for part in dualmoco.open_index("mixed").manifest.parts} == {"de", "ru"}
    with pytest.raises(ModelError, match=r"^tgt: looks like de, and the model en-zh has en and zh"):
        dualmoco.mine(TEXTS["en"], TEXTS["de"], model="en-zh")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("mine sv.txt en.txt --out new.tsv", "sv.txt: looks like sv, which no installed model has"),
        ("mine en.txt de.txt --src sv --out new.tsv", "language 'sv': no installed model has it"),
        ("score pairs.tsv --src en --tgt sv --out new.tsv", "language 'sv': no installed model has it"),
        ("encode sv.txt --out new", "sv.txt: looks like sv, which no installed model has"),
        ("search build new sv=sv.txt", "language 'sv': no installed model has it"),
        ("align sv.txt de.txt --out new.tsv", "sv.txt: looks like sv, which no installed model has"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_language_without_a_model_gets_one_line(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which languages there are and what to do; nothing is written."""
    write_lines(Path("pairs.tsv"), ["Good morning.\tGod morgon."])
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and problem in said
    assert "expected en, zh, de, fr, ru, or another --model" in said and "dualmoco join" in said
    assert not any(Path(name).exists() for name in ("new", "new.tsv", "new.tsv.json"))


def test_without_the_larger_model_there_are_two_languages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation that lacks its weights."""
    monkeypatch.setattr(embedded, "DEFAULT_MODELS", ("en-zh", "not-installed"))
    assert default_model(["en"]) == "en-zh" and len(dualmoco.mine(TEXTS["en"], TEXTS["zh"])) >= 0
    with pytest.raises(ModelError, match=r"^src: looks like de, which no installed model has; expected en, zh, or"):
        dualmoco.mine(TEXTS["de"], TEXTS["en"])
    monkeypatch.setattr(embedded, "HOME", home / "nowhere")
    with pytest.raises(ModelError, match=r"^en-zh: its weights are not in this installation"):
        default_model(["en"])


@pytest.mark.usefixtures("home")
def test_an_ambiguous_sentence_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what it may be; the language by name, or more text, decides."""
    assert main(["similarity", "Merci Paris", TEXTS["ru"][0]]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "'Merci Paris': may be" in said and "or the name of its language" in said
    assert main(["similarity", "Merci Paris", TEXTS["ru"][0], "--src", "fr"]) == 0
    with pytest.raises(AmbiguousLanguageError) as caught:
        recognize_language(["Berlin"], MANY)
    assert {"de", "en"} <= set(caught.value.candidates)
    assert recognize_language(["Hello."], MANY) == "en" and recognize_language(["本"], [*MANY, "ja"]) == "zh"
    assert recognize_language(["Berlin"], ["en", "zh"]) == "en"
    with pytest.raises(ConfigError, match=r"^src: no letters to recognise the language by; .* en, zh, de, fr, ru$"):
        open_for(None, [GivenText(None, ["12"], "src")])
    with pytest.raises(DataError, match=r"^src: sentences in several scripts"):
        dualmoco.mine([*TEXTS["ru"], *TEXTS["zh"]], TEXTS["en"])


def test_an_ambiguous_sentence_has_the_language_of_the_others() -> None:
    """Or of those that are likely, such as the languages of an index; without any it is refused."""
    assert recognize_sentences([*TEXTS["de"], "Berlin"], MANY) == ["de"] * 4
    assert recognize_sentences(["Merci Paris", "12"], MANY, ["fr"]) == ["fr", "en"]
    with pytest.raises(AmbiguousLanguageError, match=r"^'Berlin': may be .*; expected more text"):
        recognize_sentences(["Berlin", *TEXTS["ru"]], MANY)


@pytest.mark.usefixtures("home")
def test_text_in_a_script_that_its_language_does_not_use_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A language that is named is trusted, in one line."""
    dualmoco.mine(TEXTS["ru"], TEXTS["en"], src_lang="de", tgt_lang="en")
    found = [message for message in caplog.messages if "looks like" in message]
    assert len(found) == 1 and "looks like ru, but is encoded as de" in found[0]

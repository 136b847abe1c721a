"""Tests of cutting documents into sentences: hand-made texts in both languages, and what must hold for any text."""

from __future__ import annotations

import re
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.alignment.splitting import SplitMode, Text, split_text
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.text.languages import WITHOUT_SPACES

PROSE = [
    "Mr. Smith went to Washington on Jan. 5 and met Dr. Lee, who had been waiting for him. He was late, as ever. "
    "Nobody minded, because the well-known guests had brought their own wine and the evening was warm.",
    "It rained the next day. “Why?” she asked. The question, of course, had no answer that anybody in the house could "
    "have given, and so the matter rested there until the end of the summer.",
    "They left.",
]
SENTENCES = [
    "Mr. Smith went to Washington on Jan. 5 and met Dr. Lee, who had been waiting for him.",
    "He was late, as ever.",
    "Nobody minded, because the well-known guests had brought their own wine and the evening was warm.",
    "It rained the next day.",
    "“Why?” she asked.",
    "The question, of course, had no answer that anybody in the house could have given, and so the matter rested there "
    "until the end of the summer.",
    "They left.",
]
CHINESE = ["他昨天来了。我们谈了很久，直到半夜才睡。", "“你走吗？”她问。“走！”他说。", "第二天下雨了。"]
CHINESE_SENTENCES = [
    "他昨天来了。",
    "我们谈了很久，直到半夜才睡。",
    "“你走吗？”",
    "她问。",
    "“走！”",
    "他说。",
    "第二天下雨了。",
]


def sentences_of(lines: list[str], lang: str = "en", split: SplitMode = SplitMode.auto) -> list[str]:
    return list(split_text(Text("a.txt", lines), lang, split).sentences)


def cut(paragraph: str, lang: str) -> list[str]:
    return sentences_of([paragraph], lang, SplitMode.yes)


def apart(paragraphs: list[str]) -> list[str]:
    """Paragraphs as lines with an empty one between two."""
    return "\n\n".join(paragraphs).split("\n")


def test_lines_that_are_not_cut() -> None:
    """Every line with text is a sentence; its place is its number among all lines."""
    lines = ["One. Two.", "", "  \u3000", "\t第三。 ", "last  one"]
    document = split_text(Text("a.txt", lines), "zh-CN", SplitMode.no)
    assert list(document.sentences) == ["One. Two.", "第三。", "last  one"]
    assert list(document.places) == ["1", "4", "5"]
    assert (document.name, document.lang) == ("a.txt", "zh-CN")


def test_places_of_sentences_in_paragraphs() -> None:
    document = split_text(Text("a.txt", apart(PROSE)), "en", SplitMode.yes)
    assert list(document.sentences) == SENTENCES
    assert list(document.places) == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "3.1"]


@pytest.mark.parametrize("split", [SplitMode.yes, SplitMode.auto])
@pytest.mark.parametrize("width", [50, 72])
def test_hard_wrapped_lines_are_joined(split: SplitMode, width: int) -> None:
    """Wherever lines were broken, the sentences are the same; an abbreviation at the end of a line ends nothing."""
    lines = apart(["\n".join(textwrap.wrap(paragraph, width, break_on_hyphens=True)) for paragraph in PROSE])
    assert any(line.endswith(("Mr.", "Dr.", "Jan.", "well-")) for line in lines) or width == 72
    assert sentences_of(lines, split=split) == SENTENCES


def test_an_abbreviation_at_the_end_of_a_line() -> None:
    lines = ["They had all been waiting a long time for Mr.", "Smith, who was late.", "He came."]
    assert sentences_of(lines) == [f"{lines[0]} {lines[1]}", "He came."]


def test_a_hyphen_at_the_end_of_a_line_is_kept() -> None:
    lines = ["This was a perfectly well-", "known fact; he knew it too -", "and said so loudly. So did I."]
    assert sentences_of(lines) == [
        "This was a perfectly well-known fact; he knew it too - and said so loudly.",
        "So did I.",
    ]


def test_one_long_line_does_not_hide_that_a_text_is_wrapped() -> None:
    wrapped = apart(["\n".join(textwrap.wrap(paragraph, 60)) for paragraph in PROSE * 30])
    link = f"See https://example.org/{'x' * 300} for more."
    assert sentences_of([*wrapped, "", link]) == [*SENTENCES * 30, link]


@pytest.mark.parametrize("split", [SplitMode.yes, SplitMode.auto])
def test_wrapped_chinese_is_joined_by_nothing(split: SplitMode) -> None:
    whole = "".join(CHINESE)
    assert sentences_of([whole[at : at + 12] for at in range(0, len(whole), 12)], "zh", split) == CHINESE_SENTENCES


def wrap_columns(text: str, width: int) -> list[str]:
    """Breaks a text after so many columns, but not inside Latin words."""
    lines, line, columns = [], "", 0
    for piece in re.findall(r"[!-~]+ ?|.", text):
        size = len(piece) if piece.isascii() else 2
        if columns + size > width:
            lines.append(line.rstrip())
            line, columns = "", 0
        line, columns = line + piece, columns + size
    return [*lines, line]


MIXED = [
    "自由软件基金会（Free Software Foundation）发布了这份许可证。",
    "它的版本是2.0版，在GNU General Public License的名下，人人都可以复制和分发它的副本。",
    "但是不允许修改它，除非得到了作者的同意，或者在每一份副本里写明了修改的日期。",
]


@pytest.mark.parametrize("split", [SplitMode.yes, SplitMode.auto])
@pytest.mark.parametrize("width", [32, 40, 42, 44, 46, 60])
def test_wrapped_chinese_with_latin_words_and_rules(split: SplitMode, width: int) -> None:
    """Widths are columns, so a rule of ASCII as wide as the text is no outlier; Latin words keep their spaces."""
    wrapped = wrap_columns("".join(MIXED), width)
    found = sentences_of(["-" * width, "GNU 许可证", "-" * width, "", *wrapped, "", "* * *", ""] * 3, "zh", split)
    assert found == ["GNU 许可证", *MIXED] * 3


def test_lines_without_letters_are_dropped() -> None:
    """Section numbers, page numbers and rules; a page number inside a paragraph does not break its sentence."""
    lines = ["13.3.1.", "Terms and conditions of the whole licence", "-----", "* * *", ""]
    lines += [
        "The first line of a paragraph that was wrapped ends here and",
        "17",
        "goes on after the number. And ends.",
        "",
    ]
    lines += [
        "- 18 -",
        "",
        "He went away, and nobody ever saw him again after the summer of",
        "1984.",
        "",
        "13.3.1. More.",
    ]
    assert sentences_of(lines, split=SplitMode.yes) == [
        "Terms and conditions of the whole licence",
        "The first line of a paragraph that was wrapped ends here and goes on after the number.",
        "And ends.",
        "He went away, and nobody ever saw him again after the summer of 1984.",
        "13.3.1. More.",
    ]
    assert sentences_of(lines, split=SplitMode.no)[:3] == [lines[0], lines[1], lines[2]]


@pytest.mark.parametrize("split", [SplitMode.yes, SplitMode.auto])
@pytest.mark.parametrize("lang", ["zh", "zh-CN", "cmn"])
def test_chinese_paragraphs_on_lines_of_their_own(split: SplitMode, lang: str) -> None:
    """One paragraph a line without empty lines, with the indent that Chinese books have."""
    document = split_text(Text("a.txt", [f"\u3000\u3000{line}" for line in CHINESE]), lang, split)
    assert list(document.sentences) == CHINESE_SENTENCES
    assert list(document.places) == ["1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "3.1"]


def test_short_lines_are_not_joined() -> None:
    """Headings and addresses end before the margin, so each is a paragraph."""
    lines = ["Chapter One", "The Beginning", *textwrap.wrap(PROSE[0], 60)]
    assert sentences_of(lines, split=SplitMode.yes) == ["Chapter One", "The Beginning", *SENTENCES[:3]]


@pytest.mark.parametrize(
    ("lines", "lang"),
    [
        (SENTENCES, "en"),
        (CHINESE_SENTENCES, "zh"),
        ([*SENTENCES * 2, "Two at once. It happens."], "en"),  # fewer than one in ten
        (["“Stop. Go home,” he said.", "He did."], "en"),  # a quotation that another splitter may have kept whole
        (["红色的花园里", "蓝色的天空下", "白色的雪山上", "绿色的草地旁"], "zh"),  # nothing would cut them apart again
        (["The first title", "The second title", "Another one here"], "en"),
    ],
)
def test_one_sentence_a_line_stays(lines: list[str], lang: str) -> None:
    document = split_text(Text("a.txt", lines), lang, SplitMode.auto)
    assert list(document.sentences) == lines
    assert list(document.places) == [str(number) for number in range(1, len(lines) + 1)]


@pytest.mark.parametrize(("several", "is_cut"), [(9, False), (10, True)])
def test_one_line_in_ten_with_several_sentences_decides(several: int, is_cut: bool) -> None:
    lines = ["One here. Two here."] * several + ["One."] * (100 - several)
    assert len(sentences_of(lines)) == 100 + several * is_cut


def test_only_the_first_lines_are_looked_at() -> None:
    assert len(sentences_of(["One."] * 500 + ["One here. Two here."] * 500)) == 1000


def test_formats_with_markup_are_always_cut() -> None:
    text = Text("a.docx", ["A title", "", "One sentence alone.", ""], is_plain=False)
    assert list(split_text(text, "en", SplitMode.auto).places) == ["1.1", "2.1"]
    assert list(split_text(text, "en", SplitMode.no).places) == ["1", "3"]


@pytest.mark.parametrize(
    "expected",
    [
        ["Dr. Lee came at 5 p.m. to see J. K. Rowling, e.g. at No. 5.", "It cost $3.50."],
        ["1. First item.", "2. Second item.", "(a) Third."],
        ["“Stop.", "Go home. ”", "He left."],
        ["He said “Stop.", "It is late.", "Go home,” and left."],
        ['He said "Stop.', 'It is late," and left.', "She stayed."],
        ["‘I don’t know.", "I can’t say,’ he said.", "She left."],
        ["“Is it?” he asked.", "“Yes!” she said."],
        ["Then it ended * * *"],
    ],
)
def test_english(expected: list[str]) -> None:
    assert cut(" ".join(expected), "en") == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["他说：“你好。”", "然后走了。", "我也走了！"],
        ["「你來了嗎？」", "他問。", "『是的！』", "我說。", "『好。』"],
        ["「甲說：『走！』」", "乙走了。"],
        ["他说：“你好。", "我是谁？", "你知道的。”", "然后走了。"],
        ["“真的吗？！”", "她问。", "什么？？？", "不会吧！！！"],
        ["他想了想……然后说：“好吧……”于是走了。"],  # a pause
        ["“走吧……”", "“好。”", "他们走了"],
        ["（他走了。）", "我留下。"],
        ["他问（真的吗？）她。", "她不知道。"],
        ["我走了。", "2020年他来了。", "3个人走了！", "iPhone是手机。"],
        ["1. 第一项。", "2. 第二项。", "（1）第三项。"],
        ["价格是3.5元。", "Mr. Smith来了。", "他叫J. K. 罗琳。"],
        ["他说：“好！”，然后走了。", "“真的？”？"],
        ["《你是谁？》是一本书。", "我看了《走吧！》。"],
    ],
)
@pytest.mark.parametrize("lang", ["zh", "yue"])
def test_chinese(expected: list[str], lang: str) -> None:
    assert cut("".join(expected), lang) == expected


def test_other_languages() -> None:
    japanese = ["彼は「はい。", "そうです。」", "と言った。", "2020年に行った。"]
    assert cut("".join(japanese), "ja") == japanese
    german = ["„Ich bin hier.", "Du bist da“, sagte Dr. Meier.", "Er ging."]
    assert cut(" ".join(german), "de") == german
    assert cut("Kel lavoro. Du.", "xx") == ["Kel lavoro.", "Du."]  # a language that nobody knows


def test_white_space_on_which_the_splitter_fails() -> None:
    assert cut("Plan\u00a0A.\u3000\u3000B.\u2028\u3000Yes.", "en")[0].startswith("Plan A.")


def test_a_book_on_one_line_takes_no_longer() -> None:
    """Time that grows with the square would be minutes here."""
    assert len(cut("这是一个句子，有“一些”词。" * 10_000, "zh")) == 10_000


MARKS = "。！？….!?“”‘’「」『』（）()《》\"'，,;:-—»«„"


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.text(st.sampled_from(f"aBJé1你好ก {MARKS} \u3000\u00a0\t"), max_size=40), max_size=6),
    lang=st.sampled_from(["en", "zh", "ja", "th", "de"]),
    split=st.sampled_from(SplitMode),
)
def test_no_text_is_lost(lines: list[str], lang: str, split: SplitMode) -> None:
    """Whatever the marks, sentences are the text in order but for white space, none is empty, no place is shared.

    If lines are split, those without letters may be lost.
    """
    text = Text("a.txt", lines)
    if not any(map(str.isalpha, "".join(lines))):
        lines = [*lines, "a"]
        text = Text("a.txt", lines)
    document = split_text(text, lang, split)
    found, given = "".join("".join(document.sentences).split()), "".join("".join(lines).split())
    assert "".join(filter(str.isalpha, found)) == "".join(filter(str.isalpha, given))
    if split is SplitMode.no or all(any(map(str.isalpha, line)) for line in lines if line.strip()):
        assert found == given
    assert all(sentence and sentence == sentence.strip() for sentence in document.sentences)
    assert len(set(document.places)) == len(document.places) == len(document.sentences)
    assert split_text(text, lang, split) == document


@pytest.mark.parametrize("split", list(SplitMode))
def test_no_sentences_are_refused(split: SplitMode) -> None:
    if split is SplitMode.yes:
        with pytest.raises(DataError, match=r"^a\.txt: .*no sentences; expected at least one"):
            sentences_of(["* * *", "", "13.3.1."], split=split)
    for lines in ([], ["", " \t"]):
        with pytest.raises(DataError, match=r"^a\.txt: .*no sentences; expected at least one"):
            sentences_of(lines, split=split)


def test_a_missing_splitter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are sentences need none."""
    monkeypatch.setitem(sys.modules, "sentencex", None)
    message = r"^Splitting into sentences needs the package sentencex; pip install 'dualmoco\[align\]'$"
    with pytest.raises(ConfigError, match=message):
        sentences_of(["One."], split=SplitMode.yes)
    assert sentences_of(["One."], split=SplitMode.no) == ["One."]


PARAGRAPHS = {
    "en": [
        "Dr. Smith arrived at 3 p.m. on Jan. 5.",
        "He paid $3.50 for the U.S. edition.",
        "“Is it far?” she asked.",
        "No, i.e. about 2 km.",
    ],
    "de": [
        "Am 3. Mai kam Dr. Müller nach Berlin.",
        "Das kostet z. B. 3,50 Euro.",
        "„Wo warst du?“, fragte sie.",
        "Er schwieg.",
        "Ludwig XIV. war der 2. Sohn.",
        "Die Nr. 5 fährt bzw. fuhr bis ca. 22 Uhr.",
        "Danach geht man zu Fuß.",
    ],
    "fr": [
        "M. Dupont habite au 3e étage, n° 5.",
        "« Où étais-tu ? » demanda-t-elle.",
        "Mme Martin vécut vers 50 av. J.-C., etc., tout cela est loin.",
        "C'est vrai ?",
        "Oui !",
        "Alors, partons.",
    ],
    "es": [
        "El Sr. García llegó a las 3 p. m. del 5 de mayo.",
        "¿Dónde estabas?",
        "¡No lo sé!",
        "La Sra. López vive en la Av. Central, n.º 7.",
        "—Vamos —dijo él.",
    ],
    "pt": [
        "O Sr. Silva chegou às 15h de 3 de maio.",
        "Onde você estava?",
        "A Dra. Souza mora na Av. Paulista, n.º 7.",
        "Ele respondeu: “Não sei.”",
        "E saiu.",
    ],
    "it": [
        "Il sig. Rossi è arrivato il 3 maggio alle 15.30.",
        "«Dove sei stato?» chiese lei.",
        "La dott.ssa Bianchi non rispose.",
        "Costa ca. 3,50 euro, ecc., peccato!",
    ],
    "nl": [
        "Dhr. De Vries kwam op 3 mei om 15.30 uur.",
        "Dat kost bijv. 3,50 euro.",
        "‘Waar was je?’ vroeg ze.",
        "Hij woont o.a. in Den Haag.",
        "'s Avonds leest hij.",
    ],
    "ru": [
        "Проф. Иванов приехал в г. Москва 3 мая 1990 г. вместе с женой.",
        "Это стоит 3,50 руб. за штуку.",
        "— Где ты был? — спросила она.",
        "А. С. Пушкин родился в 1799 году.",
        "«Не знаю!» — ответил он.",
    ],
    "uk": [
        "Проф. Шевченко приїхав до м. Київ 3 травня 1990 р. разом із дружиною.",
        "Де ти був?",
        "Т. Г. Шевченко народився 1814 року.",
        "«Не знаю!» — відповів він.",
        "Це коштує 5 грн. за штуку.",
    ],
    "ja": [
        "彼は三時に来ました。",
        "「どこにいたの？」",
        "と彼女は聞いた。",
        "彼は答えなかった……。",
        "本当ですか！",
        "はい。",
    ],
    "zh": [
        "他三点钟来了。",
        "他没有回答。",
        "“真的吗？”",
        "“是的。”",
        "是的！",
    ],
    "pl": [
        "Dr Kowalski przyjechał 3 maja o godz. 15.30.",
        "To kosztuje np. 3,50 zł.",
        "„Gdzie byłeś?” – zapytała.",
        "Prof. Nowak mieszka przy ul. Długiej 5.",
        "Jan III Sobieski był królem.",
    ],
    "cs": [
        "Dr. Novák přijel 3. května v 15.30.",
        "Stojí to např. 3,50 Kč.",
        "„Kde jsi byl?“ zeptala se.",
        "Karel IV. založil univerzitu r. 1348.",
        "Bydlí v ul. Dlouhá 5.",
    ],
    "tr": [
        "Dr. Yılmaz 3 Mayıs'ta saat 15.30'da geldi.",
        "Fiyatı 3,50 TL vb. tutar.",
        "“Neredeydin?” diye sordu.",
        "Prof. Kaya Atatürk Cad. No. 5'te oturuyor.",
        "II. Mehmed İstanbul'u aldı.",
    ],
}


@pytest.mark.parametrize("lang", PARAGRAPHS)
def test_paragraphs_of_every_language(lang: str) -> None:
    """Abbreviations, ordinals, quoted questions and marks that open a sentence."""
    sentences = PARAGRAPHS[lang]
    paragraph = ("" if lang in WITHOUT_SPACES else " ").join(sentences)
    assert list(split_text(Text("x.txt", [paragraph]), lang, SplitMode.yes).sentences) == sentences

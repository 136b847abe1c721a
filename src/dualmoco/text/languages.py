"""Language codes as corpora write them, the scripts of languages, and language identification."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import islice

from dualmoco.core.errors import DataError

SAMPLED_CHUNKS, CHUNK_LINES, FEWEST_CHUNKS = 20, 10, 3  # of `common_language`
SAMPLED_LINES, SAMPLED_CHARACTERS = 2000, 200  # lines to recognise a language by, and characters of each
IDENTIFIED_CHARACTERS = 4000
CLEAR_SHARE = 0.8  # share of the lines that must have one script
KANA_SHARE = 0.1  # minimum share of kana among the letters of Japanese text
HAN_WEIGHT = 3  # Latin letters that one Han character counts as, because it carries as much information
AMBIGUOUS_MARGIN = 3.0  # two languages are ambiguous below this difference in log-probability
FOREIGN_MARGIN, FOREIGN_MARGIN_PER_LETTER = 10.0, 0.2
"""Above this difference in log-probability, a short text is in none of the languages it is compared with.
`benchmarks.identification` measures all three."""
logger = logging.getLogger(__name__)

SCRIPTS: dict[str, frozenset[str]] = {  # as the first words of the Unicode names of their letters
    code: frozenset(scripts.split())
    for scripts, codes in {
        "LATIN": "af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv mg ms mt nl no pl pt ro "
        "sk sl sq sv sw tl tr uz vi",
        "CYRILLIC": "be bg kk ky mk mn ru tg uk",
        "CYRILLIC LATIN": "sr",
        "CJK": "zh yue",
        "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA": "ja",
        "HANGUL CJK": "ko",
        "ARABIC": "ar fa ps ug ur",
        "HEBREW": "he yi",
        "GREEK": "el",
        "ARMENIAN": "hy",
        "GEORGIAN": "ka",
        "DEVANAGARI": "hi mr ne",
        "BENGALI": "bn",
        "GUJARATI": "gu",
        "GURMUKHI": "pa",
        "KANNADA": "kn",
        "MALAYALAM": "ml",
        "SINHALA": "si",
        "TAMIL": "ta",
        "TELUGU": "te",
        "THAI": "th",
        "LAO": "lo",
        "KHMER": "km",
        "MYANMAR": "my",
        "ETHIOPIC": "am",
        "TIBETAN": "bo",
    }.items()
    for code in codes.split()
}

ALIASES: dict[str, str] = {  # three-letter codes and old codes of each language
    alias: code
    for code, *aliases in map(
        str.split,
        (
            "ar ara arb; bg bul; bn ben; cs ces cze; da dan; de deu ger; el ell gre; en eng; es spa; et est; fa fas "
            "per pes; fi fin; fr fra fre; he heb iw; hi hin; hr hrv; hu hun; id ind in; it ita; ja jpn; ka kat geo; ko "
            "kor; lt lit; lv lav lvs; mk mkd mac; ms msa may zsm; nl nld dut; no nor nob nb nn nno; pl pol; pt por; ro "
            "ron rum; ru rus; sk slk slo; sl slv; sq sqi alb als; sr srp; sv swe; sw swa swh; ta tam; te tel; th tha; "
            "tl tgl fil; tr tur; uk ukr; ur urd; vi vie; zh zho chi cmn"
        ).split(";"),
    )
    for alias in aliases
}

VARIETIES = {"yue": "zh", "wuu": "zh", "lzh": "zh", "pcm": "en", "sco": "en"}
"""Languages that identification may return for varieties such as Traditional Chinese, and the language it means."""

WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "th", "lo", "km", "my", "bo"})
"""Languages that write no spaces between words, nor between sentences."""


LATIN_OR_MARK = re.compile(r"[!-~\u00c0-\u024f]")  # ASCII, and Latin letters with accents


class AmbiguousLanguageError(DataError):
    """A text may be in any of several languages."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        likely = ", ".join(candidates[:-1]) + f" or {candidates[-1]}"
        super().__init__(f"{name}: may be {likely}; expected more text, or the name of its language")
        self.candidates = list(candidates)


class Chinese(StrEnum):
    """Chinese characters to write."""

    keep = "keep"
    simplified = "simplified"
    traditional = "traditional"


OPENCC = {Chinese.simplified: "t2s", Chinese.traditional: "s2t"}  # OpenCC's names of the conversions


def base_language(code: str) -> str:
    """A language code without country and script: `zh` for `zh-CN`, `zh_Hans` and `cmn`."""
    first = code.strip().replace("_", "-").split("-")[0].lower()
    return ALIASES.get(first, first)


def text_separator(left: str, right: str, lang: str) -> str:
    """The separator between two texts: a space, unless the language writes none and the texts are not both Latin.

    Latin words keep their space in Chinese text, as in `Free` and `Software`.
    """
    is_latin = LATIN_OR_MARK.match(left[-1:]) and LATIN_OR_MARK.match(right[:1])
    return " " if is_latin or base_language(lang) not in WITHOUT_SPACES else ""


COMMON_WORDS = {
    "en": frozenset(
        "the and this that these those you your with have are were they their his its it there from what which when "
        "where who how would could should my our she not been does did because about hello hi thanks thank please "
        "yes".split()
    )
}
"""Common words of a language that others of its script do not have."""
COMMON_SHARE = 0.3  # share of common words that makes identification unnecessary


def scripts_of(code: str) -> frozenset[str]:
    """The scripts of a language, as the first words of the Unicode names of its letters; DataError if unknown."""
    scripts = SCRIPTS.get(base_language(code))
    if scripts is None:
        known = " ".join(sorted(SCRIPTS))
        raise DataError(f"language {code!r}: its script is unknown; expected one of {known}, or clean.min_script=0")
    return scripts


def share_script(src: str, tgt: str) -> bool:
    """Whether two languages are written in the same script."""
    return bool(SCRIPTS.get(base_language(src), frozenset()) & SCRIPTS.get(base_language(tgt), frozenset()))


def identify(text: str) -> str:
    """The most likely language of a text, as a two-letter code."""
    import py3langid

    return str(py3langid.classify(text)[0])


def common_language(lines: Iterable[str]) -> str:
    """The two-letter code of the language of most of the first 200 lines with letters; empty if there is none."""
    # The lines are identified ten at a time, because the language of a short line is a guess.
    sample = list(islice((line.strip() for line in lines if any(map(str.isalpha, line))), SAMPLED_CHUNKS * CHUNK_LINES))
    chunks = [" ".join(sample[at : at + CHUNK_LINES]) for at in range(0, len(sample) - CHUNK_LINES + 1, CHUNK_LINES)]
    if len(chunks) < FEWEST_CHUNKS:
        return ""
    lang, votes = Counter(map(identify, chunks)).most_common(1)[0]
    return lang if votes > len(chunks) / 2 else ""


def find_language(code: str, known: Sequence[str]) -> str | None:
    """The known language that a code means: itself, or one that differs only in country and script; None if missing."""
    if code in known:
        return code
    return next((lang for lang in known if base_language(lang) == base_language(code)), None)


def recognize_language(texts: Iterable[str], known: Sequence[str] | None, name: str = "sentences") -> str:
    """Recognises the language of a text by its script, and where several languages share the script, by its words.

    Args:
        texts: Lines or sentences; only the first 2,000 are used.
        known: Languages to choose from; None for any.
        name: Name of the text in error messages.

    Returns:
        One of `known`; another code if the text is clearly in none of them; empty if it has no letters.

    Raises:
        AmbiguousLanguageError: The text is too short to distinguish languages of one script.
        DataError: The sentences are in several scripts.
    """
    lines = _sample(texts)
    if not lines:
        return ""
    if known is None:
        return _identified(lines, ())
    scripts = Counter(map(main_script, lines))
    script, count = scripts.most_common(1)[0]
    if count < CLEAR_SHARE * len(lines):
        shares = ", ".join(f"{100 * part / len(lines):.0f} % {name}" for name, part in scripts.most_common(3))
        raise DataError(
            f"{name}: sentences in several scripts ({shares}); expected one language: give its name, or split the text"
        )
    fitting = [lang for lang in known if script in SCRIPTS.get(base_language(lang), {script})]
    if not fitting:
        return _other_language(lines, script, known)
    return _obvious(lines, script, fitting) or _closest(lines, fitting, name)


def apparent_language(texts: Iterable[str], lang: str) -> str:
    """The language that a text clearly has instead of `lang`: by its script, or by its words if it has 30 lines.

    Empty if the text may be in `lang`.
    """
    lines = _sample(texts)
    script, count = Counter(map(main_script, lines)).most_common(1)[0] if lines else ("", 0)
    if lines and script not in SCRIPTS.get(base_language(lang), {script}):
        return _other_language(lines, script, [lang]) if count >= CLEAR_SHARE * len(lines) else ""
    if script == "CJK" and base_language(lang) == "zh":
        return ""
    try:
        found = common_language(lines)
    except OSError as error:  # py3langid unpacks itself into a temporary file
        logger.info("cannot identify languages: %s", error)
        return ""
    return "" if base_language(lang) in (found, VARIETIES.get(found)) else found


def main_script(text: str) -> str:
    """The script of most letters of a text, as the first word of their Unicode names; empty without letters."""
    counts = Counter(map(_script_name, filter(str.isalpha, text)))
    kana = counts["HIRAGANA"] + counts["KATAKANA"]
    if kana and kana >= KANA_SHARE * (kana + counts["CJK"]):
        counts["HIRAGANA"], counts["KATAKANA"], counts["CJK"] = kana + counts["CJK"], 0, 0
    counts["CJK"] *= HAN_WEIGHT
    counts["HIRAGANA"] *= HAN_WEIGHT
    return max(counts, key=lambda script: counts[script]) if counts.total() else ""


@lru_cache(maxsize=10_000)
def _script_name(letter: str) -> str:
    return unicodedata.name(unicodedata.normalize("NFKC", letter)[0], "").split(" ", 1)[0]


def _sample(texts: Iterable[str]) -> list[str]:
    """Beginnings of the first lines that have letters."""
    starts = (text.strip()[:SAMPLED_CHARACTERS] for text in islice(texts, SAMPLED_LINES))
    return list(islice((line for line in starts if any(map(str.isalpha, line))), SAMPLED_CHUNKS * CHUNK_LINES))


def _ranked(lines: Sequence[str]) -> dict[str, float]:
    """The log-probability of each language, most likely first; empty if identification does not work here."""
    import py3langid

    try:
        return {str(lang): float(value) for lang, value in py3langid.rank(" ".join(lines)[:IDENTIFIED_CHARACTERS])}
    except OSError as error:  # py3langid unpacks itself into a temporary file
        logger.info("cannot identify languages: %s", error)
        return {}


def _identified(lines: Sequence[str], known: Sequence[str]) -> str:
    """The most likely language; a variety counts as the language it belongs to, unless the variety is known."""
    found = next(iter(_ranked(lines)), "")
    return found if found in known else VARIETIES.get(found, found)


def _obvious(lines: Sequence[str], script: str, fitting: Sequence[str]) -> str:
    """The language of a text if it is obvious without identification, which is slow; otherwise empty.

    Han characters without kana are Chinese, and some languages have common words that others of their script lack.
    """
    if script == "CJK":
        return find_language("zh", fitting) or (fitting[0] if len(fitting) == 1 else "")
    words = re.findall(r"[^\W\d_]+", " ".join(lines)[:IDENTIFIED_CHARACTERS].lower())
    if not words or not all(map(str.isascii, words)):
        return ""
    shares = {lang: sum(word in common for word in words) / len(words) for lang, common in COMMON_WORDS.items()}
    return next((lang for lang in fitting if shares.get(base_language(lang), 0) > COMMON_SHARE), "")


def _other_language(lines: Sequence[str], script: str, known: Sequence[str]) -> str:
    """The language, or else the script, of a text whose script is not that of a known language."""
    found = _identified(lines, known)
    fits = script in SCRIPTS.get(found, {script}) and find_language(found, known) is None
    return found if found and fits else script.capitalize()


def _closest(lines: Sequence[str], fitting: Sequence[str], name: str) -> str:
    """The most likely of some languages, or the language that is clearly more likely than all of them."""
    ranked = _ranked(lines)
    if not ranked:
        return _only(fitting, name)
    scores = {lang: _likelihood(base_language(lang), ranked) for lang in fitting}
    best = max(scores.values())
    voted = common_language(lines)
    found = VARIETIES.get(voted, voted) or _identified(lines, fitting)
    if find_language(found, fitting) is None and all(base_language(lang) in ranked for lang in fitting):
        letters = 0 if voted else min(sum(map(str.isalpha, " ".join(lines))), IDENTIFIED_CHARACTERS)
        if next(iter(ranked.values())) - best >= max(FOREIGN_MARGIN, FOREIGN_MARGIN_PER_LETTER * letters):
            return found
    likely = [lang for lang, score in scores.items() if score >= best - AMBIGUOUS_MARGIN]
    return _only(sorted(likely, key=lambda lang: -scores[lang]), name)


def _only(languages: Sequence[str], name: str) -> str:
    """The only one of some languages; AmbiguousLanguageError if there are several."""
    if len({*map(base_language, languages)}) > 1:
        raise AmbiguousLanguageError(name, languages)
    return languages[0]


def _likelihood(lang: str, ranked: dict[str, float]) -> float:
    """The log-probability of a language or of its most likely variety."""
    names = [lang, *(variety for variety, whole in VARIETIES.items() if whole == lang)]
    return max(ranked.get(name, float("-inf")) for name in names)

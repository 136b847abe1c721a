"""Language codes as corpora write them, the scripts of languages, and language identification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from itertools import islice

from dualmoco.core.errors import DataError

SAMPLED_CHUNKS, CHUNK_LINES, FEWEST_CHUNKS = 20, 10, 3  # of `common_language`
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

ALIASES: dict[str, str] = {  # three-letter codes and old names of each language
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

WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "th", "lo", "km", "my", "bo"})
"""Languages that write no spaces between words, nor between sentences."""


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

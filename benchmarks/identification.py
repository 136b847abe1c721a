"""How well languages are recognised: whole files and single sentences of the Tatoeba test sets.

    python -m benchmarks.identification --data DATA

Every text is recognised among the languages of `many-static`. Texts in other languages should be refused, because a
sentence that is mistaken for a known language gets a meaningless vector.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from dualmoco.core.errors import DataError
from dualmoco.evaluation.retrieval import tatoeba_pairs
from dualmoco.evaluation.tasks import find_data
from dualmoco.text.files import read_lines
from dualmoco.text.languages import VARIETIES, AmbiguousLanguageError, base_language, recognize_language

KNOWN = "en zh de fr es pt it nl ru uk ja pl cs tr".split()
RIGHT, WRONG, AMBIGUOUS, FOREIGN = "right", "wrong", "ambiguous", "foreign"


def judge(texts: Sequence[str], lang: str) -> str:
    """The result of recognition for a text in `lang`."""
    try:
        found = recognize_language(texts, KNOWN)
    except AmbiguousLanguageError:
        return AMBIGUOUS
    except DataError:
        return FOREIGN
    return RIGHT if found == lang else WRONG if found in KNOWN else FOREIGN


def main() -> None:
    """Prints a row for each language."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder that contains eval/")
    parser.add_argument("--sentences", type=int, default=1000, help="maximum sentences per language")
    parsed = parser.parse_args()
    folder = find_data(parsed.data) / "eval" / "tatoeba"
    pairs = [pair for pair in tatoeba_pairs(folder) if pair.endswith("-eng")]
    files = {base_language(pair.split("-")[0]): folder / f"tatoeba.{pair}.{pair.split('-')[0]}" for pair in pairs}
    files["en"] = folder / "tatoeba.deu-eng.eng"
    texts = {lang: list(read_lines(file))[: parsed.sentences] for lang, file in files.items()}
    judged = {lang: Counter(judge([line], lang) for line in lines) for lang, lines in texts.items()}
    whole = {lang: judge(lines, lang) for lang, lines in texts.items()}
    sys.stdout.write("| language | whole file | sentences right | wrong | ambiguous | refused |\n")
    sys.stdout.write("|---|---|---:|---:|---:|---:|\n")
    for lang in KNOWN:
        shares = (100 * judged[lang][name] / len(texts[lang]) for name in (RIGHT, WRONG, AMBIGUOUS, FOREIGN))
        sys.stdout.write(f"| {lang} | {whole[lang]} | {' | '.join(f'{share:.1f}' for share in shares)} |\n")
    others = sorted(files.keys() - {*KNOWN, *VARIETIES})
    taken = sum((judged[lang] for lang in others), Counter[str]())
    files_taken = ", ".join(lang for lang in others if whole[lang] == WRONG)
    share = 100 * taken[WRONG] / taken.total()
    sys.stdout.write(f"{len(others)} other languages: {share:.1f} % of the sentences are taken for a known language, ")
    sys.stdout.write(f"and the whole files of {files_taken}\n")


if __name__ == "__main__":
    main()

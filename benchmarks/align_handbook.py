"""Sentence alignment in many languages, on documents made from the Debian Administrator's Handbook.

    python -m benchmarks.align_handbook --langs de-fr,ja-en,ru-it --model many-static

needs Debian's `apt-get` and `dpkg-deb`. The package `debian-handbook` has the same paragraphs in all languages, in
order. Headings, those that are not translated, and those with several sentences on both sides are passed over. Links
are made of the others as in `align_documents`; some sentences are split at a clause.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from collections.abc import Container, Iterator
from pathlib import Path

from benchmarks.align_documents import Suite, make_document, make_links
from benchmarks.align_systems import Encoder, align_suite
from benchmarks.debian import files_of
from benchmarks.measure import print_machine, print_table
from dualmoco.alignment.documents import read_text
from dualmoco.alignment.splitting import collapse_spaces
from dualmoco.evaluation.align import link_f1
from dualmoco.models.load import open_model

HANDBOOK = "debian-handbook"
PAGE_PATH = re.compile(r"/html/(?P<lang>[a-z]{2})-(?P<country>[A-Z]{2})/(?P<name>[^/]+)$")
COUNTRIES = {"pt": "BR", "zh": "CN"}  # where a language is there several times
FINAL_STOPS = (".", "!", "?", ":")  # of paragraphs that are not headings, whose numbers sentencex splits off
HANDBOOK_LIMITS = (0.25, 0.265, 0.28, 0.34, 0.49)
MOST_TIMES_AS_LONG = 3  # a translation may be as the English paragraph; otherwise, one lacks a part
HANDBOOK_DOCUMENTS = 3  # of each pair of languages


def main() -> None:
    """Makes the documents of each pair of languages and prints F1 of all aligners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--langs", default="de-fr,ja-en,ru-it", help="pairs of languages, by commas")
    parser.add_argument("--model", default="many-static", help="a model with these languages")
    parser.add_argument("--debs", type=Path, help="folder with the package, if it need not be downloaded")
    parsed = parser.parse_args()
    print_machine()
    encoder, rows = Encoder(open_model(parsed.model)), []
    pairs = [pair.split("-") for pair in parsed.langs.split(",")]
    pages = handbook_pages({"en", *(lang for pair in pairs for lang in pair)}, parsed.debs)
    for src, tgt in pairs:
        linked = make_links(translated_paragraphs(pages, (src, tgt)), (src, tgt), HANDBOOK_LIMITS, seed=1)
        documents = [make_document(f"{src}-{tgt}-{number}", [], linked) for number in range(HANDBOOK_DOCUMENTS)]
        suite = Suite(f"{src}-{tgt}", (src, tgt), [document for document in documents if document.gold])
        golds = [document.gold for document in suite.documents]
        for name, made in align_suite(suite, encoder).items():
            strict, lax = (link_f1(golds, made, lax=lax) for lax in (False, True))
            rows.append(
                {
                    "languages": suite.name,
                    "links": sum(map(len, golds)),
                    "aligner": name,
                    "strict F1": f"{strict:.2f}",
                    "lax F1": f"{lax:.2f}",
                }
            )
    print_table(rows)


Pages = dict[str, dict[str, list[str]]]
"""Paragraphs by language and name of the page."""


def handbook_pages(langs: Container[str], debs: Path | None) -> Pages:
    """The pages of the handbook in some languages."""
    pages: Pages = defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        for name, content in files_of(HANDBOOK, debs, (".html",)):
            page = PAGE_PATH.search(name)
            if page and page["lang"] in langs and page["country"] == COUNTRIES.get(page["lang"], page["country"]):
                path.write_bytes(content)
                lines = map(collapse_spaces, read_text(path).lines)
                pages[page["lang"]][page["name"]] = list(filter(None, lines))
    return pages


def translated_paragraphs(pages: Pages, langs: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Paragraphs in both languages that differ from the English ones, each once."""
    seen: set[str] = set()
    for name in sorted(pages["en"]):
        english, src, tgt = (pages[lang][name] for lang in ("en", *langs))
        if not len(english) == len(src) == len(tgt):
            continue
        for original, *pair in zip(english, src, tgt, strict=True):
            is_translated = pair[0] != pair[1] and all(
                lang == "en" or text != original for text, lang in zip(pair, langs, strict=True)
            )
            has_length = max(map(len, pair)) <= MOST_TIMES_AS_LONG * len(original)
            if is_translated and has_length and original.endswith(FINAL_STOPS) and not seen.intersection(pair):
                seen.update(pair)
                yield pair[0], pair[1]


if __name__ == "__main__":
    main()

"""`dualmoco align`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_model, add_verb, counted, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.alignment.batch import Outcome
    from dualmoco.alignment.pipeline import Alignment, AlignOptions

EXIT_FAILED, EXIT_UNRELATED = 1, 3


def add(verbs: Any) -> None:
    """Describes the verb."""
    align = add_verb(
        verbs,
        "align",
        "place the sentences of two versions of a document side by side",
        "A document is plain text, Markdown, HTML, DOCX or EPUB. Exit code 3: the texts are not translations.\n\n"
        "examples:\n"
        "  dualmoco align en.txt zh.txt --out aligned.tsv --html aligned.html\n"
        "  dualmoco align book.epub book-zh.docx --out book.tmx --min-confidence 0.5\n"
        "  dualmoco align en/ zh/ --out aligned/ --format tmx\n"
        "  dualmoco align en/ zh/ --match --out aligned/ --engine ray\n"
        "  dualmoco align --list documents.tsv --out aligned/",
    )
    align.add_argument("src_file", nargs="?", metavar="SRC", help="a document, or a folder of documents")
    align.add_argument("tgt_file", nargs="?", metavar="TGT", help="its translation, or a folder of translations")
    align.add_argument("--src", metavar="LANG", help="language of SRC; guessed if not given")
    align.add_argument("--tgt", metavar="LANG", help="language of TGT; guessed if not given")
    align.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="links as .tsv, .parquet, .tmx or .xml; a folder for several documents",
    )
    align.add_argument("--html", nargs="?", const="", metavar="FILE", help="a page with both texts side by side")
    several = align.add_mutually_exclusive_group()
    several.add_argument(
        "--list", metavar="FILE", help="source<TAB>target of several documents, in place of SRC and TGT"
    )
    several.add_argument("--match", action="store_true", help="pair the documents of two folders by what they say")
    align.add_argument("--format", default="tsv", help="of several documents: tsv, parquet, tmx, xml or intertext.xml")
    align.add_argument("--split", default="auto", help="into sentences: auto, yes, or no if every line is one")
    align.add_argument("--runs", default="auto", help="vectors of several sentences: auto, encoded or averaged")
    align.add_argument("--no-lexicon", action="store_true", help="go by vectors alone, not by words learnt on the way")
    align.add_argument("--longest", type=int, default=5, metavar="N", help="sentences of one side in a link")
    align.add_argument(
        "--min-confidence", type=float, default=0.0, metavar="C", help="leave out links of less, and one-sided ones"
    )
    align.add_argument("--force", action="store_true", help="align texts that do not look like translations")
    add_model(align)
    align.add_argument("--engine", default="local", help="of several documents: local, or ray for a Ray cluster")
    align.add_argument("--address", metavar="HOST:PORT", help="of a running Ray cluster; a new local one if not given")
    align.add_argument("--json", action="store_true", help="print the result as JSON")
    align.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Aligns, and says what was found."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, require

    require("numba", "align", "align")
    if parsed.list and parsed.src_file:
        raise ConfigError("--list together with SRC; expected one of them")
    if not parsed.list and not parsed.tgt_file:
        raise ConfigError("SRC or TGT is missing; expected two documents, two folders, or --list FILE")
    folders = [] if parsed.list else [Path(name).is_dir() for name in (parsed.src_file, parsed.tgt_file)]
    if any(folders) and not all(folders):
        raise ConfigError(f"{parsed.src_file} and {parsed.tgt_file}: a folder and a file; expected two of a kind")
    if parsed.match and not any(folders):
        raise ConfigError("--match without two folders; expected folders of documents as SRC and TGT")
    return _run_batch(parsed) if parsed.list or all(folders) else _run_pair(parsed)


def _run_pair(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    from dualmoco.alignment.pipeline import UnrelatedError, align

    page = Path(parsed.out).with_suffix(".html") if parsed.html == "" else parsed.html
    try:
        found = align(
            parsed.src_file,
            parsed.tgt_file,
            model=parsed.model,
            src_lang=parsed.src,
            tgt_lang=parsed.tgt,
            out=parsed.out,
            html=page,
            **_options(parsed),
        )
    except UnrelatedError as error:
        sys.stderr.write(f"dualmoco: {error}\n")
        return EXIT_UNRELATED
    if parsed.json:
        counts = found.counts
        print_json(
            {
                "out": parsed.out,
                "html": str(page) if page else None,
                "links": counts.links,
                "linked": counts.linked,
                "types": dict(counts.types),
                "mean_score": counts.mean_score,
            }
        )
    else:
        sys.stdout.write(describe_alignment(found, parsed.out, page))
    return 0


def describe_alignment(found: Alignment, out: str, page: str | Path | None) -> str:
    """What was found, in words."""
    src, tgt, counts = found.aligned.src, found.aligned.tgt, found.counts
    types = ", ".join(f"{name} {count:,}" for name, count in list(counts.types.items())[:6])
    low = sum(pair.confidence < 0.5 for pair in found.pairs)
    return (
        f"{counted(len(src.sentences), 'sentence')} {src.lang}, {counted(len(tgt.sentences), 'sentence')} {tgt.lang}\n"
        f"{counted(counts.links, 'link')}: {types}; {low:,} of low confidence\n"
        f"{out}{f', {page}' if page else ''}\n"
    )


def _run_batch(parsed: argparse.Namespace) -> int:
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.alignment.batch import SUMMARY, BatchSettings, align_batch
    from dualmoco.alignment.pairing import pairs_by_content, pairs_by_name, pairs_of_list
    from dualmoco.alignment.pipeline import align_settings, check_outputs
    from dualmoco.cli.options import open_named_model
    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.ray_engine import open_engine

    out, ending = Path(parsed.out), f".{parsed.format}"
    if out.is_file() or out.suffix in (".tsv", ".tmx", ".parquet", ".xml"):
        raise ConfigError(f"--out {out}: a file; expected a folder for several documents")
    if parsed.html:
        raise ConfigError(f"--html {parsed.html}: a name; expected --html alone for several documents")
    check_outputs(out / f"name{ending}", None)
    settings, langs = align_settings(_options(parsed)), (parsed.src, parsed.tgt)
    model, engine = open_named_model(parsed), open_engine(parsed.engine, parsed.address)
    src, tgt = (Path(name or "") for name in (parsed.src_file, parsed.tgt_file))
    if parsed.list:
        pairs = pairs_of_list(Path(parsed.list), out, ending)
    elif parsed.match:
        pairs = pairs_by_content(src, tgt, langs, model, settings, out, ending)
    else:
        pairs = pairs_by_name(src, tgt, _codes(langs, model.languages or ["en", "zh"]), out, ending)
    batch = BatchSettings(langs, settings, parsed.min_confidence, parsed.html is not None)
    outcomes = align_batch(pairs, out, model, batch, engine)
    failed = [outcome for outcome in outcomes if outcome.error]
    if parsed.json:
        print_json({"out": parsed.out, "documents": [asdict(outcome) for outcome in outcomes]})
    else:
        sys.stdout.write(_describe_batch(outcomes, failed, out / SUMMARY))
    return EXIT_FAILED if failed else 0


def _codes(given: tuple[str | None, str | None], known: list[str]) -> list[tuple[str, str]]:
    """Pairs of languages by which documents may be named."""
    sides = [[lang] if lang else known for lang in given]
    return [(src, tgt) for src in sides[0] for tgt in sides[1] if src != tgt] or [(sides[0][0], sides[1][0])]


def _describe_batch(outcomes: list[Outcome], failed: list[Outcome], summary: Path) -> str:
    links = sum(outcome.linked for outcome in outcomes)
    lines = [f"{outcome.error}" for outcome in failed]
    lines.append(
        f"{counted(len(outcomes) - len(failed), 'pair')} of documents aligned, {counted(links, 'link')}"
        + (f"; {len(failed):,} could not be" if failed else "")
        + f": {summary}"
    )
    return "\n".join(lines) + "\n"


def _options(parsed: argparse.Namespace) -> AlignOptions:
    return {
        "split": parsed.split,
        "runs": parsed.runs,
        "longest": parsed.longest,
        "lexicon": not parsed.no_lexicon,
        "force": parsed.force,
        "min_confidence": parsed.min_confidence,
        "backend": parsed.backend,
    }

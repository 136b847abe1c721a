"""`dualmoco search`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import Formatter, add_model, add_verb, open_named_model, print_json

if TYPE_CHECKING:
    from dualmoco.embeddings.unique_lines import TextFile
    from dualmoco.search.index import Hit, Index
    from dualmoco.search.index_files import IndexManifest

BATCH = 64
READ_AT_ONCE = 65_536


def add(verbs: Any) -> None:
    """Describes the verb."""
    text = "build an index of text files and search it by meaning, in any language of the model"
    search = verbs.add_parser("search", help=text, description=text, formatter_class=Formatter)
    actions = search.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_build(actions)
    add_add(actions)
    add_query(actions)


def add_build(actions: Any) -> None:
    """Describes `search build`."""
    build = add_verb(
        actions,
        "build",
        "make an index",
        "example:\n  dualmoco search build tv.index en=tv.en.txt zh=tv.zh.txt --model runs/static-cpu --precision fp16",
    )
    build.add_argument("folder", metavar="INDEX", help="a new folder; an interrupted build is resumed")
    build.add_argument("files", nargs="+", metavar="LANG=FILE", help="text, one sentence a line, plain or compressed")
    add_model(build)
    build.add_argument("--precision", default="fp32", help="of stored vectors: fp32, fp16 or int8")
    build.add_argument(
        "--index", default="exact", metavar="KIND", help="exact, or ivf or ivfpq: inverted lists, which need faiss"
    )
    build.add_argument("--json", action="store_true", help="print the result as JSON")
    build.set_defaults(run=run_build)


def add_add(actions: Any) -> None:
    """Describes `search add`."""
    more = add_verb(actions, "add", "add files to an index", "example:\n  dualmoco search add tv.index en=more.en.txt")
    more.add_argument("folder", metavar="INDEX", help="made by search build")
    more.add_argument("files", nargs="+", metavar="LANG=FILE", help="text, one sentence a line, plain or compressed")
    more.add_argument("--model", metavar="MODEL", help="where the index's model is now, if it was moved")
    more.add_argument("--json", action="store_true", help="print the result as JSON")
    more.set_defaults(run=run_add)


def add_query(actions: Any) -> None:
    """Describes `search query`."""
    query = add_verb(
        actions,
        "query",
        "find the nearest sentences",
        "Without TEXT, queries are read from standard input, one a line, and answered as they come.\n\n"
        "examples:\n"
        '  dualmoco search query tv.index "Where are you going?" --lang en --in zh\n'
        "  dualmoco search query tv.index --lang zh -k 10 --no-exact-match --json < queries.txt",
    )
    query.add_argument("folder", metavar="INDEX", help="made by search build")
    query.add_argument("texts", nargs="*", metavar="TEXT", help="sentences to look for")
    query.add_argument("--lang", required=True, help="language of the queries")
    query.add_argument("-k", type=int, default=5, help="sentences found for each")
    query.add_argument("--in", dest="within", metavar="LANG", help="find only sentences of this language")
    query.add_argument(
        "--no-exact-match",
        action="store_true",
        help="leave out sentences equal to the query but for case and punctuation",
    )
    query.add_argument("--nprobe", type=int, metavar="N", help="inverted lists looked at; as measured if not given")
    query.add_argument("--model", metavar="MODEL", help="where the index's model is now, if it was moved")
    query.add_argument("--no-check", action="store_true", help="do not compare checksums: large indexes open at once")
    query.add_argument("--json", action="store_true", help="a line of JSON for each query")
    query.set_defaults(run=run_query)


def run_build(parsed: argparse.Namespace) -> int:
    """Builds, and says what is there now."""
    files = parse_files(parsed.files)

    from dualmoco.core.config_loader import VectorPrecision, parse_choice
    from dualmoco.search.build import build_index
    from dualmoco.search.index_files import IndexKind

    kind = parse_choice(IndexKind, parsed.index, "--index")
    precision = parse_choice(VectorPrecision, parsed.precision, "--precision")
    show_index(parsed, build_index(parsed.folder, files, open_named_model(parsed), kind=kind, precision=precision))
    return 0


def run_add(parsed: argparse.Namespace) -> int:
    """Adds, and says what is there now."""
    from dualmoco.search.build import add_to_index

    show_index(parsed, add_to_index(parsed.folder, parse_files(parsed.files), parsed.model))
    return 0


def run_query(parsed: argparse.Namespace) -> int:
    """Answers queries from the command line, or from standard input as they come."""
    from dualmoco.search.index import open_index

    index = open_index(parsed.folder, parsed.model, check=not parsed.no_check)
    for texts in [parsed.texts] if parsed.texts else read_queries(sys.stdin.fileno()):
        answer(parsed, index, texts)
    return 0


def parse_files(words: list[str]) -> list[TextFile]:
    """The files of a command line and their languages.

    Args:
        words: Each LANG=FILE.

    Returns:
        The files.

    Raises:
        ConfigError: Something else.
    """
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.unique_lines import TextFile

    files = []
    for word in words:
        lang, _, name = word.partition("=")
        if not lang or not name:
            raise ConfigError(f"{word}; expected LANG=FILE, such as en=sentences.txt")
        files.append(TextFile(Path(name), lang))
    return files


def show_index(parsed: argparse.Namespace, manifest: IndexManifest) -> None:
    """Writes what an index holds."""
    lists = manifest.lists
    if parsed.json:
        print_json(
            {
                "index": parsed.folder,
                "sentences": manifest.rows,
                "kind": manifest.kind.value,
                "precision": manifest.precision.value,
                "parts": [{"lang": part.lang, "name": part.name, "sentences": part.rows} for part in manifest.parts],
                "nprobe": lists and lists.probes,
                "recall": lists and lists.recall,
            }
        )
        return
    for part in manifest.parts:
        sys.stdout.write(f"{part.lang}  {part.rows:>12,} distinct sentences  {part.name}\n")
    if lists:
        sys.stdout.write(
            f"{lists.lists:,} lists, {lists.probes:,} looked at: recall@10 {lists.recall:.3f} on held-out vectors\n"
        )
    sys.stdout.write(f"{manifest.kind} index of {manifest.rows:,} sentences, {manifest.precision}: {parsed.folder}\n")


def read_queries(descriptor: int) -> Iterator[list[str]]:
    """Yields the lines that have come in, at most BATCH at a time; empty ones are passed over.

    Args:
        descriptor: Of standard input.

    Yields:
        At least one query.

    Raises:
        DataError: Invalid UTF-8, after the queries before it.
    """
    waiting, number = b"", 0
    while True:
        chunk = os.read(descriptor, READ_AT_ONCE)
        *lines, waiting = (waiting + chunk).split(b"\n")
        if not chunk:
            lines.append(waiting)
        for start in range(0, len(lines), BATCH):
            yield from _decoded(lines[start : start + BATCH], number + start)
        number += len(lines)
        if not chunk:
            return


def _decoded(lines: list[bytes], number: int) -> Iterator[list[str]]:
    from dualmoco.core.errors import DataError

    texts: list[str] = []
    wrong = None
    for place, line in enumerate(lines):
        try:
            texts.append(line.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            wrong = DataError(f"standard input, line {number + place + 1}: not UTF-8 ({error.reason}); convert it")
            break
    if any(texts):
        yield [text for text in texts if text]
    if wrong:
        raise wrong


def answer(parsed: argparse.Namespace, index: Index, texts: list[str]) -> None:
    """Writes the hits of some queries."""
    from dataclasses import asdict

    found = index.search(
        texts,
        lang=parsed.lang,
        k=parsed.k,
        within=parsed.within,
        exact_match=not parsed.no_exact_match,
        probes=parsed.nprobe,
    )
    for text, hits in zip(texts, found, strict=True):
        if parsed.json:
            print_json({"query": text, "hits": [asdict(hit) for hit in hits]})
        else:
            sys.stdout.write("\n".join([text, *map(describe_hit, hits)]) + "\n\n")
    sys.stdout.flush()


def describe_hit(hit: Hit) -> str:
    """A hit as a line."""
    return f"  {hit.score:6.3f}  {hit.lang}  {hit.text}  ({hit.part}:{hit.line})"

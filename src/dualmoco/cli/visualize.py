"""`dualmoco visualize`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import (
    add_bitext,
    add_command,
    add_json,
    add_model,
    add_on_error,
    add_overwrite,
    add_pooling,
    describe_skipped,
    parse_columns,
    print_json,
)
from dualmoco.cli.parser import hint


def add(commands: Any) -> None:
    """Declares the command."""
    visualize = add_command(
        commands,
        "visualize",
        run,
        "draw how close sentences are to their translations",
        "examples:\n"
        "  dualmoco visualize examples/pairs.tsv --out parallel.png\n"
        "\nwith your own files:\n"
        "  dualmoco visualize dev.en dev.zh --model runs/mine --count 25 --out parallel.html",
    )
    given = add_bitext(visualize)
    add_on_error(given, default="skip")
    given.add_argument(
        "--count", type=int, default=15, metavar="N", help="pairs to draw; up to 40 show their sentences"
    )
    given.add_argument("--first", action="store_true", help="draw the first pairs instead of random ones")
    given.add_argument("--seed", type=int, default=0, help="random seed for the choice of pairs")
    output = visualize.add_argument_group("output")
    output.add_argument("--out", default="parallel.png", metavar="FILE", help="draw to FILE: .png, .svg or .html")
    add_overwrite(output)
    add_json(output, "pairs and their cosines")
    add_pooling(add_model(visualize))


def run(parsed: argparse.Namespace) -> int:
    """Chooses, encodes and draws pairs."""
    from pathlib import Path
    from statistics import fmean

    from dualmoco.evaluation.figures import visualize

    if parsed.tgt_file and not Path(parsed.bitext).is_file():  # version 0.1: visualize MODEL BITEXT
        hint("MODEL before BITEXT is now --model MODEL")
        parsed.model, parsed.bitext, parsed.tgt_file = parsed.bitext, parsed.tgt_file, None
    drawn = visualize(
        parsed.bitext,
        parsed.out,
        model=parsed.model,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        tgt_file=parsed.tgt_file,
        format=parsed.format,
        columns=parse_columns(parsed.columns),
        count=parsed.count,
        first=parsed.first,
        seed=parsed.seed,
        pooling=parsed.pooling,
        backend=parsed.backend,
        dimension=parsed.dimension,
        on_error=parsed.on_error,
        overwrite=parsed.overwrite,
    )
    mean = fmean(drawn.cosines)
    if parsed.json:
        rows = [[*pair, cosine] for pair, cosine in zip(drawn.pairs, drawn.cosines, strict=True)]
        print_json({"out": parsed.out, "pairs": rows, "mean_cosine": mean, "unreadable": drawn.unreadable})
    else:
        skipped = describe_skipped(drawn.unreadable)
        sys.stdout.write(f"{len(drawn.pairs)} pairs, mean cosine {mean:.3f}{skipped}\nfigure in {parsed.out}\n")
    return 0

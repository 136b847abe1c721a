"""Sentence alignment compared with the algorithms of Bertalign and vecalign, all with the same vectors.

python -m benchmarks.align accuracy --data DATA --model en-zh
python -m benchmarks.align accuracy --data DATA --model many-static --langs de-fr
python -m benchmarks.align robustness --data DATA --model en-zh
python -m benchmarks.align speed --sentences 5000
python -m benchmarks.align length --sentences 5000,20000,50000

`accuracy` uses generated documents, on which our parameters were chosen, and MAC-Dev as the test set; the other
aligners have their authors' settings. With `--langs de-fr` it uses Text+Berg's development document instead, on which
nothing was chosen. `robustness` disturbs MAC-Dev. `speed` and `length` use random vectors (see `align_synthetic`) and
measure each aligner in a separate process; seconds are CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.align_documents import (
    Suite,
    delete_sentences,
    generated_suites,
    insert_foreign,
    mac_dev,
    swap_chapters,
    textberg,
)
from benchmarks.align_systems import (
    ALIGNERS,
    AVERAGED,
    AVERAGED_BY_VECTORS,
    PEERS,
    Encoder,
    align_suite,
    peak_mib,
)
from benchmarks.measure import in_new_process, print_machine, print_table
from dualmoco.evaluation.align import GoldDocument, Link, link_f1
from dualmoco.models.load import open_model
from dualmoco.text.files import read_lines

DELETED = 0.1
FOREIGN_LINES = 500
LIMIT_MIB = 2048  # memory limit for aligning 50,000 sentences
UNDISTURBED = "nothing"


def main() -> None:
    """Runs one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in (("accuracy", measure_accuracy), ("robustness", measure_robustness)):
        command = commands.add_parser(name, help=work.__doc__)
        command.add_argument("--data", required=True, type=Path, help="folder of the corpora and test sets")
        command.add_argument("--model", default="en-zh-static", help="model with the languages en and zh")
        command.add_argument("--test", action="store_true", help="use only MAC-Dev, without generated documents")
        command.add_argument("--langs", default="zh-en", help="language pair: zh-en, or de-fr for Text+Berg")
        command.set_defaults(work=work)
    speed = commands.add_parser("speed", help=measure_speed.__doc__)
    speed.add_argument("--sentences", type=int, default=5_000, help="sentences per text")
    speed.set_defaults(work=measure_speed)
    length = commands.add_parser("length", help=measure_length.__doc__)
    length.add_argument("--sentences", default="5000,20000,50000", help="sentences per text, separated by commas")
    length.set_defaults(work=measure_length)
    parsed = parser.parse_args()
    print_machine()
    parsed.work(parsed)


def measure_accuracy(parsed: argparse.Namespace) -> None:
    """Strict and lax F1 on generated documents and on MAC-Dev."""
    encoder, rows = Encoder(open_model(parsed.model)), []
    for suite in _accuracy_suites(parsed):
        golds, made = [document.gold for document in suite.documents], align_suite(suite, encoder)
        strict = {name: link_f1(golds, links) for name, links in made.items()}
        rows += [
            {
                "documents": suite.name,
                "aligner": name,
                "strict F1": _percent(strict[name]),
                "lax F1": _percent(link_f1(golds, links, lax=True)),
                "to the better peer": _to_better_peer(strict, name),
            }
            for name, links in made.items()
        ]
    print_table(rows)
    print(f"{parsed.model}; {peak_mib():,.0f} MiB peak memory, including the model and all vectors")


def _accuracy_suites(parsed: argparse.Namespace) -> list[Suite]:
    """The documents of a language pair."""
    if parsed.langs == "de-fr":
        return [textberg(parsed.data)]
    generated = [] if parsed.test else generated_suites(parsed.data)
    chosen = [replace(suite, name=f"{suite.name}, chosen on") for suite in generated]
    return [*chosen, replace(mac_dev(parsed.data), name="MAC-Dev, the test")]


def measure_robustness(parsed: argparse.Namespace) -> None:
    """Strict F1 on MAC-Dev, undisturbed and disturbed in four ways."""
    encoder, suite = Encoder(open_model(parsed.model)), mac_dev(parsed.data)
    foreign = list(islice(read_lines(parsed.data / "eval/tatoeba/tatoeba.deu-eng.deu"), FOREIGN_LINES))
    disturbances: dict[str, Callable[[GoldDocument], GoldDocument]] = {
        UNDISTURBED: lambda document: document,
        "10 % of the target deleted": partial(delete_sentences, share=DELETED, side="tgt", seed=0),
        "10 % of the source deleted": partial(delete_sentences, share=DELETED, side="src", seed=0),
        "first two thirds of the target swapped": swap_chapters,
        f"{len(foreign)} German lines amid the target": partial(insert_foreign, lines=foreign),
    }
    rows: list[dict[str, Any]] = []
    whole: dict[str, float] = {}
    for what, disturb in disturbances.items():
        disturbed = replace(suite, documents=[disturb(document) for document in suite.documents])
        strict, linked = _scores(disturbed, encoder)
        whole = whole or strict
        rows += [
            {
                "disturbed by": what,
                "aligner": name,
                "strict F1": _percent(strict[name]),
                "lost": _percent(whole[name] - strict[name]),
                "of links with both sides": _percent(linked[name]),
                "to the better peer": _to_better_peer(strict, name),
            }
            for name in ALIGNERS
        ]
    print_table(rows)
    print("a deletion is a link too, so unlinked foreign lines raise F1, but not the F1 of links with both sides;")
    print("ordered links cannot contain both of two swapped chapters, so each aligner loses one")
    print(f"{parsed.model}; {peak_mib():,.0f} MiB peak memory, including the model and all vectors")


def measure_speed(parsed: argparse.Namespace) -> None:
    """Seconds and peak memory on synthetic texts."""
    found = {
        name: in_new_process("benchmarks.align_synthetic", name, "--sentences", str(parsed.sentences))
        for name in ALIGNERS
    }
    fastest = min(found[name]["seconds"] for name in PEERS)
    print(f"{parsed.sentences:,} sentences per text, best of 3\n")
    print_table(
        [
            {
                "aligner": name,
                "seconds": one["seconds"],
                "elapsed": one["elapsed"],
                "speedup over the faster peer": fastest / one["seconds"],
                "strict F1": _percent(one["f1"]),
                "peak MiB": one["peak"],
                "of these, vectors": one["vectors"],
            }
            for name, one in found.items()
        ]
    )


def measure_length(parsed: argparse.Namespace) -> None:
    """Seconds and peak memory of averaged spans on synthetic texts of increasing length, with and without words."""
    rows: list[dict[str, Any]] = []
    for name in (AVERAGED_BY_VECTORS, AVERAGED):
        first = 0.0
        for count in map(int, parsed.sentences.split(",")):
            one = in_new_process("benchmarks.align_synthetic", name, "--sentences", str(count))
            each = 1000 * one["seconds"] / count
            first = first or each
            rows.append(
                {
                    "aligner": name,
                    "sentences": f"{count:,}",
                    "seconds": one["seconds"],
                    "elapsed": one["elapsed"],
                    "ms per sentence": each,
                    "to the first": each / first,
                    "strict F1": _percent(one["f1"]),
                    "peak MiB": one["peak"],
                    "of these, vectors": one["vectors"],
                }
            )
    print_table(rows)
    share = max(row["peak MiB"] for row in rows) / LIMIT_MIB
    print(f"at most {share:.2f} of {LIMIT_MIB:,} MiB")


def _scores(suite: Suite, encoder: Encoder) -> tuple[dict[str, float], dict[str, float]]:
    """Strict F1 of each aligner, for all links and for links with both sides."""
    golds, made = [document.gold for document in suite.documents], align_suite(suite, encoder)
    strict = {name: link_f1(golds, links) for name, links in made.items()}
    return strict, {name: link_f1(_linked(golds), _linked(links)) for name, links in made.items()}


def _linked(documents: Sequence[Sequence[Link]]) -> list[list[Link]]:
    return [[link for link in links if all(link)] for links in documents]


def _to_better_peer(figures: dict[str, float], name: str) -> str:
    return f"{figures[name] / max(figures[peer] for peer in PEERS):.3f}"


def _percent(value: float) -> str:
    return f"{value:.2f}"


if __name__ == "__main__":
    main()

"""Preparing a corpus: ours versus a plain loop that reads, normalizes, and keeps a set of seen pairs.

    python -m benchmarks.prepare                 # 1 and 16 million pairs: a quarter of an hour, 3 GB of disk
    python -m benchmarks.prepare --pairs 1000000

The file is generated: distinct sentence pairs from our grammar, one in ten repeated with other punctuation. Ours is
measured with only the steps of the plain loop, and with all default steps, which exclude sentences equal or similar to
20,000 test sentences. Ours also writes Parquet; the plain loop writes nothing. Prints pairs per second, the ratio, and
peak memory of all processes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import in_new_process, peak_memory, print_machine, print_table
from dualmoco.data.config import CleanConfig, CorpusConfig, ExcludeConfig, Identify, PrepareConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.prepare import prepare
from dualmoco.text.characters import normalize

BASE = 4200  # sentences per side; BASE squared pairs are distinct
TESTS = 20_000
REPEAT_EVERY = 10
NO_STEPS = CleanConfig(
    markup=False,
    nfc=False,
    controls=False,
    spaces=False,
    max_chars=0,
    min_tokens=0,
    max_tokens=0,
    max_ratio=0,
    min_script=0,
    language=Identify.never,
)
SYSTEMS = ("plain loop", "ours, same steps", "ours, all default steps")


def main() -> None:
    """Measures every system at every size, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 16_000_000], help="sizes of the file")
    parser.add_argument("--only", choices=SYSTEMS, help="one measurement on --file, as JSON")
    parser.add_argument("--file", type=Path, help="the generated file")
    parsed = parser.parse_args()
    if parsed.only:
        print(json.dumps(measure(parsed.only, parsed.file)))
        return
    print_machine()
    rates: dict[tuple[str, int], float] = {}
    for pairs in parsed.pairs:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pairs.tsv"
            write(path, pairs)
            print(f"{pairs:,} pairs, {path.stat().st_size / 1e6:,.0f} MB\n")
            results = {
                name: in_new_process("benchmarks.prepare", "--only", name, "--file", str(path)) for name in SYSTEMS
            }
        rates |= {(name, pairs): pairs / result["seconds"] for name, result in results.items()}
        print_table(
            [
                {
                    "system": name,
                    "seconds": result["seconds"],
                    "pairs/s": rates[name, pairs],
                    "speed / plain loop": rates[name, pairs] / rates[SYSTEMS[0], pairs],
                    "kept": result["kept"],
                    "peak MiB": result["mib"],
                }
                for name, result in results.items()
            ]
        )
    if len(parsed.pairs) > 1:
        first, last = parsed.pairs[0], parsed.pairs[-1]
        growth = [{"system": name, "time / linear": rates[name, first] / rates[name, last]} for name in SYSTEMS]
        print(f"growth from {first:,} to {last:,} pairs\n")
        print_table(growth)


def write(path: Path, pairs: int) -> None:
    """Writes the generated file."""
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{src}\t{tgt}\n" for src, tgt in generate(pairs))


def generate(pairs: int) -> Iterator[tuple[str, str]]:
    """Distinct pairs, except that every tenth repeats an earlier one with other punctuation."""
    base = generate_pairs(BASE, seed=0)
    for number in range(pairs):
        is_repeat = number % REPEAT_EVERY == REPEAT_EVERY - 1
        first, second = divmod(number // 2 if is_repeat else number, BASE)
        src, tgt = f"{base[first][0]} {base[second][0]}", f"{base[first][1]}{base[second][1]}"
        yield (src.upper(), f"{tgt}!") if is_repeat else (src, tgt)


def measure(name: str, path: Path) -> dict[str, float]:
    """Seconds, pairs kept and peak memory of one system."""
    with tempfile.TemporaryDirectory() as folder, peak_memory(children=True) as peak:
        began = time.perf_counter()
        if name == SYSTEMS[0]:
            kept = plain_loop(path)
        else:
            kept = ours(path, Path(folder), all_steps=name == SYSTEMS[2])
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "kept": kept, "mib": peak.extra_mib}


def plain_loop(path: Path) -> int:
    """The plain loop of a short script."""
    seen = set()
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            src, tgt = line.rstrip("\n").split("\t")
            seen.add((normalize(src), normalize(tgt)))
    return len(seen)


def ours(path: Path, folder: Path, *, all_steps: bool) -> int:
    """`dualmoco prepare`."""
    tests = folder / "tests.txt"
    tests.write_text("".join(f"{src}\n{tgt}\n" for src, tgt in generate_pairs(TESTS // 2, seed=1)), encoding="utf-8")
    config = PrepareConfig(
        out=str(folder / "out"),
        corpora=[CorpusConfig(files=[str(path)])],
        clean=CleanConfig() if all_steps else NO_STEPS,
        exclude=ExcludeConfig(files=[str(tests)]) if all_steps else ExcludeConfig(),
    )
    return prepare(config).total.train


if __name__ == "__main__":
    main()

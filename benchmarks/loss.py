"""The loss alone: ours in blocks beside plain cross-entropy over materialised logits.

    python -m benchmarks.loss

Prints time, memory beyond the inputs, and how far value and gradient differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from benchmarks.measure import in_new_process, peak_memory, print_machine, print_table
from dualmoco.training.contrast import info_nce

QUERIES, WIDTH, TEMPERATURE = 256, 768, 0.04
SIZES = (409_600, 1_000_000)
ROUNDS = 5


def main() -> None:
    """Measures both losses in turn, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ours", "plain", "difference"], help="one measurement, as JSON")
    parser.add_argument("--queue", type=int, default=SIZES[0], help="rows of the queue")
    parsed = parser.parse_args()
    if parsed.only == "difference":
        print(json.dumps(difference(parsed.queue)))
    elif parsed.only:
        print(json.dumps(measure(parsed.only, parsed.queue)))
    else:
        compare()


def compare() -> None:
    """Prints one row a queue size."""
    print_machine()
    rows = []
    for size in SIZES:
        words = ("--queue", str(size))
        results = {name: in_new_process("benchmarks.loss", "--only", name, *words) for name in ("ours", "plain")}
        ours, plain = results["ours"], results["plain"]
        rows.append(
            {
                "queue": f"{size:,}",
                "ours s": ours["seconds"],
                "plain s": plain["seconds"],
                "time ratio": ours["seconds"] / plain["seconds"],
                "ours MiB": ours["mib"],
                "plain MiB": plain["mib"],
                "memory ratio": ours["mib"] / plain["mib"],
            }
        )
    print_table(rows)
    print_table([in_new_process("benchmarks.loss", "--only", "difference", "--queue", "65536")])


def measure(name: str, size: int) -> dict[str, float]:
    """Median seconds of value and gradient, and peak memory beyond the inputs."""
    inputs = make_inputs(size)
    seconds = []
    with peak_memory() as peak:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            value_and_gradient(name, *inputs)
            seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds), "mib": peak.extra_mib}


def difference(size: int) -> dict[str, float]:
    """How far the two losses are apart, relative to the plain one."""
    inputs = make_inputs(size)
    (ours, our_gradient), (plain, plain_gradient) = (value_and_gradient(name, *inputs) for name in ("ours", "plain"))
    return {
        "relative difference of the value": float((ours - plain).abs() / plain),
        "of the gradient": float((our_gradient - plain_gradient).norm() / plain_gradient.norm()),
    }


def make_inputs(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random queries, keys near enough to them for a loss well above 0, a queue filled in place, and ids."""
    torch.manual_seed(0)
    query = normalize(torch.randn(QUERIES, WIDTH), dim=1)
    key = normalize(query + 0.2 * torch.randn(QUERIES, WIDTH), dim=1)
    queue = torch.empty(size, WIDTH).normal_()
    for rows in queue.split(4096):
        rows /= rows.norm(dim=1, keepdim=True)
    return query, key, queue, torch.randint(1 << 60, (QUERIES, 2)), torch.randint(1 << 60, (size, 2))


def value_and_gradient(
    name: str, query: Tensor, key: Tensor, queue: Tensor, query_ids: Tensor, queue_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean loss and the gradient of the queries."""
    query = query.clone().requires_grad_()
    if name == "ours":
        loss = info_nce(query, key, queue, torch.tensor(TEMPERATURE), query_ids, queue_ids)[0].mean()
    else:
        positive = (query * key).sum(dim=1, keepdim=True)  # (N, 1)
        logits = torch.cat([positive, query @ queue.T], dim=1) / TEMPERATURE  # (N, 1 + K)
        loss = cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))
    loss.backward()
    assert query.grad is not None
    return loss.detach(), query.grad


if __name__ == "__main__":
    main()

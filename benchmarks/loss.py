"""Only the loss: ours in blocks versus plain cross-entropy over materialised logits.

python -m benchmarks.loss               # time, memory beyond the inputs, differences of value and gradient
python -m benchmarks.loss --launches    # number of kernel launches on a GPU, and of waits on the host
python -m benchmarks.loss --rounding    # error of the gradient if a GPU rounds the inputs of matrix products
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.functional import cross_entropy, normalize

from benchmarks.measure import in_new_process, peak_memory, print_machine, print_table
from dualmoco.training.infonce import BLOCK_ROWS, blockwise_info_nce, choose_block_rows

QUERIES, DIMENSION, TEMPERATURE = 256, 768, 0.04
SIZES = (409_600, 1_000_000)
ROUNDS = 5
LAUNCH_QUERIES, LAUNCH_DIMENSION = 1024, 8  # batch size for the count, as in paper.yaml
MANTISSA_BITS = {"fp32": 0, "tf32": 10, "bf16": 7}
WAITS = ("aten::nonzero", "aten::_local_scalar_dense", "aten::_unique2")  # their results are needed by the host
ON_HOST = (  # views, memory and bookkeeping: no kernel
    "aten::as_strided",
    "aten::as_strided_",
    "aten::view",
    "aten::reshape",
    "aten::_reshape_alias",
    "aten::slice",
    "aten::select",
    "aten::narrow",
    "aten::expand",
    "aten::t",
    "aten::transpose",
    "aten::permute",
    "aten::unsqueeze",
    "aten::squeeze",
    "aten::flatten",
    "aten::detach",
    "detach_",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::resize_",
    "aten::to",
    "aten::lift_fresh",
    "aten::promote_types",
    "aten::tensor_split",
    "aten::resolve_conj",
    "aten::resolve_neg",
    "aten::result_type",
    "aten::expand_as",
    "aten::view_as",
    "aten::numpy_T",
    "aten::new_empty",
    "aten::detach_",
)


def main() -> None:
    """Measures both losses in turn, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ours", "plain", "difference"], help="one measurement, as JSON")
    parser.add_argument("--launches", action="store_true", help="count launches and waits instead")
    parser.add_argument("--rounding", action="store_true", help="emulate TF32 and bf16 instead")
    parser.add_argument("--queue", type=int, default=SIZES[0], help="queue sizes")
    parsed = parser.parse_args()
    if parsed.launches:
        chosen = choose_block_rows(LAUNCH_QUERIES, torch.device("cuda"))
        print_table([count_launches(parsed.queue, rows) for rows in (BLOCK_ROWS, chosen)])
    elif parsed.rounding:
        print_table([rounding_error(temperature) for temperature in (0.04, 0.01)])
    elif parsed.only == "difference":
        print(json.dumps(difference(parsed.queue)))
    elif parsed.only:
        print(json.dumps(measure(parsed.only, parsed.queue)))
    else:
        compare()


def compare() -> None:
    """Prints one row per queue size."""
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
    """The relative difference between the two losses."""
    inputs = make_inputs(size)
    (ours, our_gradient), (plain, plain_gradient) = (value_and_gradient(name, *inputs) for name in ("ours", "plain"))
    return {
        "relative difference of the value": float((ours - plain).abs() / plain),
        "of the gradient": float((our_gradient - plain_gradient).norm() / plain_gradient.norm()),
    }


def count_launches(size: int, block_rows: int) -> dict[str, int]:
    """Kernels for one value of the loss, and how many of them the host waits for, counted by the profiler on a CPU."""
    query, key, queue, query_ids, queue_ids = make_inputs(size, LAUNCH_QUERIES, LAUNCH_DIMENSION)
    queue_ids[:: size // 8] = query_ids[0]  # a text of the batch in some places
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        blockwise_info_nce(query, key, queue, torch.tensor(TEMPERATURE), query_ids, queue_ids, block_rows=block_rows)
    names = [event.name for event in profile.events() if _is_kernel(event)]
    blocks = -(-size // block_rows)
    return {"block rows": block_rows, "blocks": blocks, "kernels": len(names), "waits": _waits(names)}


def rounding_error(temperature: float) -> dict[str, float]:
    """Relative errors of the gradient for the queries, versus double precision, for mantissas of some bits."""
    query, other, queue = make_inputs(65_536)[:3]
    cosine = temperature * (query @ queue.T / temperature).logsumexp(dim=1, keepdim=True)  # a translation as likely as
    other = normalize(other - (other * query).sum(dim=1, keepdim=True) * query, dim=1)  # all negatives together
    key = cosine * query + (1 - cosine**2).sqrt() * other
    exact = emulated_gradient(query.double(), key.double(), queue.double(), temperature)
    errors = {
        name: emulated_gradient(query, key, queue, temperature, bits) - exact for name, bits in MANTISSA_BITS.items()
    }
    return {"temperature": temperature, **{name: float(error.norm() / exact.norm()) for name, error in errors.items()}}


def emulated_gradient(query: Tensor, key: Tensor, queue: Tensor, temperature: float, bits: int = 0) -> Tensor:
    """The gradient of the loss for the queries if both matrix products round their inputs; 0 bits does not round."""
    rows = rounded(queue, bits)
    positive = (query * key).sum(dim=1, keepdim=True) / temperature  # (N, 1)
    logits = torch.cat([positive, rounded(query / temperature, bits) @ rows.T], dim=1)  # (N, 1 + K)
    weights = logits.softmax(dim=1)
    weighted_sum = weights[:, :1] * key + rounded(weights[:, 1:], bits) @ rows  # (N, D)
    return (weighted_sum - key) / temperature


def rounded(numbers: Tensor, bits: int) -> Tensor:
    """Numbers in fp32 with mantissas rounded to some bits; 0 does not round."""
    if not bits:
        return numbers
    dropped = 23 - bits
    whole = numbers.contiguous().view(torch.int32)
    return ((whole + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


def _is_kernel(event: FunctionEvent) -> bool:
    """Whether an operator launches a kernel itself, not through other operators."""
    return event.name.startswith("aten::") and event.name not in ON_HOST and not any(map(_works, event.cpu_children))


def _works(event: FunctionEvent) -> bool:
    return event.name not in ON_HOST or any(map(_works, event.cpu_children))


def _waits(names: list[str]) -> int:
    return sum(names.count(name) for name in WAITS)


def make_inputs(
    size: int, queries: int = QUERIES, dimension: int = DIMENSION
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random queries, keys close enough to them for a realistic loss, a full queue, and ids."""
    torch.manual_seed(0)
    query = normalize(torch.randn(queries, dimension), dim=1)
    key = normalize(query + 0.2 * torch.randn(queries, dimension), dim=1)
    queue = torch.empty(size, dimension).normal_()
    for rows in queue.split(4096):
        rows /= rows.norm(dim=1, keepdim=True)
    return query, key, queue, torch.randint(1 << 60, (queries, 2)), torch.randint(1 << 60, (size, 2))


def value_and_gradient(
    name: str, query: Tensor, key: Tensor, queue: Tensor, query_ids: Tensor, queue_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean loss and the gradient of the queries."""
    query = query.clone().requires_grad_()
    if name == "ours":
        loss = blockwise_info_nce(query, key, queue, torch.tensor(TEMPERATURE), query_ids, queue_ids)[0].mean()
    else:
        positive = (query * key).sum(dim=1, keepdim=True)  # (N, 1)
        logits = torch.cat([positive, query @ queue.T], dim=1) / TEMPERATURE  # (N, 1 + K)
        loss = cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))
    loss.backward()
    assert query.grad is not None
    return loss.detach(), query.grad


if __name__ == "__main__":
    main()

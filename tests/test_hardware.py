"""The number of threads, and matrix products of one thread each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dualmoco.core import hardware
from dualmoco.core.hardware import one_blas_thread, thread_count


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in hardware.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield


def blas_threads() -> set[int]:
    """Of numpy's own library; others, of which each thread may have its own limit, can be loaded as well."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in found if "numpy" in library["filepath"]}


@pytest.mark.usefixtures("no_variables")
def test_variables_come_before_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An argument counts most, then our variable, then OpenMP's, then the cores; nonsense is passed over."""
    monkeypatch.setattr(hardware, "CPU_QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert thread_count() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert thread_count() == 4
    monkeypatch.setenv("DUALMOCO_THREADS", "6")
    assert thread_count() == 6 and thread_count(1) == 1
    monkeypatch.setenv("DUALMOCO_THREADS", "many")
    assert thread_count() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert thread_count() == 3


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)])
def test_containers_limit_cores(quota: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The share of CPU time that a container may use counts as cores, rounded up."""
    path = tmp_path / "cpu.max"
    path.write_text(quota)
    monkeypatch.setattr(hardware, "CPU_QUOTA", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert thread_count() == expected


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [("x86_64", "flags: avx2", False), ("x86_64", "flags: avx512_vnni", True), ("aarch64", "", True)],
)
def test_instructions_for_int8(
    machine: str, text: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only an Intel or AMD processor that is known to lack them counts as one without."""
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: machine)
    hardware.has_int8_instructions.cache_clear()
    assert hardware.has_int8_instructions() is expected
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "none")
    hardware.has_int8_instructions.cache_clear()
    assert hardware.has_int8_instructions()
    hardware.has_int8_instructions.cache_clear()


def test_overlapping_limits_are_lifted_by_the_last() -> None:
    """However blocks overlap, products within them use one thread, and afterwards as many as before."""
    np.ones((2, 2)) @ np.ones((2, 2))

    def work(_: int) -> set[int]:
        with one_blas_thread():
            return blas_threads()

    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(8) as pool:
        assert all(found == {1} for found in pool.map(work, range(100)))
        with one_blas_thread():
            work(0)
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        assert blas_threads() == pool.submit(blas_threads).result()

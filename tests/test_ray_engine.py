"""The Ray engine on a real cluster of three nodes: the results of the local engine, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from commands import ForkedPython
from dualmoco.analysis import ablate as ablate_module
from dualmoco.analysis.ablate import RunWork, ablate
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.core.progress import Progress
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings import engine as engine_module
from dualmoco.embeddings.encode import Encoding, StoreForm, encode_file
from dualmoco.embeddings.engine import (
    FAIL_FAST,
    MAX_FAILURES,
    PIECES_PER_WORKER,
    Engine,
    LocalEngine,
    Pool,
    RayEngine,
    Work,
    Worker,
)
from dualmoco.embeddings.store import ShardedVectors, Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.knn import Scanning
from dualmoco.mining.mine import mine
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders
from dualmoco.search.exact import Block

ray: Any = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

PAIRS = 4000
ENGLISH, CHINESE = (list(side) for side in zip(*generate_pairs(PAIRS, seed=7), strict=True))
TEXTS = {"en": ENGLISH, "zh": CHINESE}
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
SHARD_ROWS = 100
LOST = "a worker of the cluster was lost"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU each, as processes of this machine."""
    nodes: Any = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(**NODE)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def engine(cluster: Any) -> RayEngine:
    """That cluster; its workers stay from test to test."""
    return RayEngine(cluster.address)


def test_a_study_survives_a_killed_worker(engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on all nodes; results are those of one machine."""
    monkeypatch.setattr(ablate_module, "subprocess", SimpleNamespace(Popen=ForkedPython))  # of this process
    fast = [
        "data.train=[grammar:300]",
        "data.heldout=20",
        "schedule.steps=3",
        "optimizer.batch_size=16",
        "contrast.queue_size=64",
        "src.width=8",
        "tgt.width=8",
    ]
    study = {"title": "Temperature", "recipe": "tiny", "set": fast, "vary": {"contrast.temperature": [0.05, 0.2, 0.5]}}
    found = []
    for name, used in (("local", "local"), ("cluster", Disturbed(engine, RunWork, kill_worker))):
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(study | {"out": str(tmp_path / name)}), encoding="utf-8")
        result = ablate(path, engine=used, progress=False)
        assert result.is_whole
        found.append([row.metrics["held-out"].values for row in result.rows])
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sentences of both languages."""
    folder = tmp_path_factory.mktemp("texts")
    for lang, texts in TEXTS.items():
        (folder / lang).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return {lang: folder / lang for lang in TEXTS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[EncoderKind, str]:
    """Untrained models of two encoders, of dimension 16."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    some = {lang: texts[:500] for lang, texts in TEXTS.items()}
    for kind in (EncoderKind.static, EncoderKind.bert):
        en, zh = (EncoderConfig(lang, kind=kind, width=16, layers=1, heads=2, vocab_size=300) for lang in TEXTS)
        save_encoders(build_encoders(en, zh, some), folder / kind)
    return {kind: str(folder / kind) for kind in (EncoderKind.static, EncoderKind.bert)}


class Disturbed:
    """An engine to which something happens after the first result of one kind of work."""

    def __init__(self, engine: Engine, at: type[Work], disturb: Callable[[], object]) -> None:
        self.engine, self.at, self.disturb = engine, at, disturb

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Does pieces of work."""
        found = self.engine.run(work, pieces, progress)
        yield next(found)
        if isinstance(work, self.at):
            self.disturb()
        yield from found


def find_workers() -> list[psutil.Process]:
    """The processes of this test's cluster that work for a pool."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "".join(process.cmdline()[:1]).startswith("ray::Worker"):
                found.append(process)
    assert found, "no worker to disturb"
    return found


def kill_worker() -> None:
    """SIGKILL for one worker."""
    find_workers()[0].kill()


def encoded(engine: Engine, path: Path, folder: Path, model: str) -> tuple[Store, list[int]]:
    """A store of many shards, and which of them were made now."""
    made: list[int] = []
    form = StoreForm(shard_rows=SHARD_ROWS)
    return encode_file(TextFile(path, "en"), folder, open_model(model), form, engine, made.append), made


def mined(
    engine: Engine, files: dict[str, Path], out: Path, model: str, *, approximate: bool = False
) -> tuple[bytes, bytes]:
    """The best target of every source, found in 16 blocks, and the file that says how."""
    mine(
        *files.values(),
        model=model,
        out=out,
        retrieval="forward",
        memory=1,
        approximate=approximate,
        probes=3,
        work=out.with_suffix(".work"),
        engine=engine,
    )
    return out.read_bytes(), out.with_name(f"{out.name}.json").read_bytes()


def test_encoding_survives_a_killed_worker(
    engine: RayEngine,
    files: dict[str, Path],
    models: dict[EncoderKind, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All shards are made, each as the local engine makes it."""
    local, _ = encoded(LocalEngine(), files["en"], tmp_path / "local", models[EncoderKind.static])
    store, made = encoded(
        Disturbed(engine, Encoding, kill_worker), files["en"], tmp_path / "ray", models[EncoderKind.static]
    )
    assert LOST in caplog.text
    assert sorted(made) == list(range(-(-store.count // SHARD_ROWS))) and len(made) > 3 * PIECES_PER_WORKER + 2
    assert store.shards == local.shards  # with checksums


def test_encoding_survives_a_frozen_worker(
    engine: RayEngine,
    files: dict[str, Path],
    models: dict[EncoderKind, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers that do not answer any more are replaced, and all shards are made."""
    monkeypatch.setattr(engine_module, "PING_SECONDS", 0.5)
    monkeypatch.setattr(engine_module, "FROZEN_SECONDS", 4.0)
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        time.sleep(2)  # all workers have answered once
        frozen.extend(find_workers())
        for process in frozen:
            process.suspend()

    try:
        store, made = encoded(
            Disturbed(engine, Encoding, freeze), files["en"], tmp_path / "ray", models[EncoderKind.static]
        )
    finally:
        for process in frozen:
            with suppress(psutil.Error):
                process.kill()
    assert "has not answered for 4 s" in caplog.text
    assert sorted(made) == list(range(-(-store.count // SHARD_ROWS)))


LOST_HEAD = """
import subprocess, sys, time
from dualmoco.core.errors import RunError
from dualmoco.embeddings.engine import RayEngine

class Naps:
    wants_gpu = False
    def opener(self):
        def opened():
            def nap(piece, progress):
                import time
                time.sleep(1)
                return piece
            return nap
        return opened
    def size(self, piece):
        return 1

try:
    for number, _ in RayEngine(sys.argv[1]).run(Naps(), enumerate(range(60)), lambda count: None):
        if number == 0:
            print("first", flush=True)
except RunError as error:
    print(error, flush=True)
import os
os._exit(0)  # what Ray does at the end takes a minute without the head
"""


def test_a_lost_head_is_one_line(tmp_path: Path) -> None:
    """The head's process is killed while pieces are being done: the run ends by itself and says what to do."""
    nodes: Any = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False}, connect=False, shutdown_at_exit=False
    )
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", LOST_HEAD, nodes.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout and process.stdout.readline() == "first\n"
        time.sleep(0.5)  # until the run waits for the next result
        address = nodes.address
        nodes.head_node.kill_gcs_server()
        said = process.communicate(timeout=120)[0]
    finally:
        nodes.shutdown()
    assert said.startswith(f"the head node {address} of the Ray cluster is lost")
    assert said.endswith("start the cluster again, then run the same command\n")


def test_mining_survives_a_killed_worker(
    engine: RayEngine,
    files: dict[str, Path],
    models: dict[EncoderKind, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The file of pairs is the local engine's, byte for byte."""
    expected = mined(LocalEngine(), files, tmp_path / "local.tsv", models[EncoderKind.static])
    assert (
        mined(Disturbed(engine, Scanning, kill_worker), files, tmp_path / "ray.tsv", models[EncoderKind.static])
        == expected
    )
    assert expected[0].count(b"\n") > 3 * 1024 and LOST in caplog.text


def test_mining_survives_a_lost_node(
    cluster: Any,
    engine: RayEngine,
    files: dict[str, Path],
    models: dict[EncoderKind, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two of three nodes finish what the third had in hand, with a transformer too."""

    def remove_node() -> None:
        cluster.remove_node(min(cluster.worker_nodes, key=lambda node: node.node_id))

    expected = mined(LocalEngine(), files, tmp_path / "local.tsv", models[EncoderKind.bert])
    assert (
        mined(Disturbed(engine, Scanning, remove_node), files, tmp_path / "ray.tsv", models[EncoderKind.bert])
        == expected
    )
    assert expected[0].count(b"\n") > 3 * 1024 and LOST in caplog.text


def test_approximate_mining_is_the_local_engines(
    engine: RayEngine, files: dict[str, Path], models: dict[EncoderKind, str], tmp_path: Path
) -> None:
    """Workers read the lists from the work folder; the recall is the same, and not all is found."""
    pytest.importorskip("faiss")
    local = mined(LocalEngine(), files, tmp_path / "local.tsv", models[EncoderKind.static], approximate=True)
    assert mined(engine, files, tmp_path / "ray.tsv", models[EncoderKind.static], approximate=True) == local
    assert 0.5 < json.loads(local[1])["approximate_recall"] < 1


def encoding(model: str) -> Encoding:
    """What encodes English with a model."""
    return Encoding(open_model(model), "en", VectorPrecision.fp32)


def test_shards_are_taken_as_fast_as_they_are_done(engine: RayEngine, models: dict[EncoderKind, str]) -> None:
    """Never more sentences are out than workers can have in hand, and one shard that waits."""
    taken = counted = most = done = 0

    def shards() -> Iterator[tuple[int, list[str]]]:
        nonlocal taken
        for number in range(60):
            taken += 1
            yield number, ENGLISH[number : number + 2]

    def count(sentences: int) -> None:
        nonlocal counted
        counted += sentences

    for _ in engine.run(encoding(models[EncoderKind.static]), shards(), count):
        most = max(most, taken - done)
        done += 1
    assert (taken, done, counted) == (60, 60, 120)
    assert most <= 3 * PIECES_PER_WORKER + 1


def test_users_errors_come_through_as_they_are(
    engine: RayEngine, models: dict[EncoderKind, str], tmp_path: Path
) -> None:
    """A worker's error is the same one line, of the same kind."""
    static = Path(shutil.copytree(models[EncoderKind.static], tmp_path / "model"))
    work = encoding(str(static))
    with pytest.raises(ModelError) as language:
        list(engine.run(replace(work, lang="fr"), [(0, ["Un chat."])], print))
    assert "fr" in str(language.value) and "\n" not in str(language.value)
    static.rename(tmp_path / "moved")
    with pytest.raises(ModelError) as model:
        list(engine.run(work, [(0, ["A cat."])], print))
    said = str(model.value)
    assert said.startswith(f"{static}: ") and "on node " in said and "\n" not in said
    shutil.copytree(models[EncoderKind.bert], static)
    with pytest.raises(ModelError, match=r"checksum \w{12} on node .*; expected \w{12}, the same model on every node"):
        list(engine.run(work, [(0, ["A cat."])], print))


def test_vectors_must_be_on_storage_that_every_node_sees(engine: RayEngine, tmp_path: Path) -> None:
    """A worker without the files says so."""
    path = tmp_path / "0.npy"
    np.save(path, np.eye(3, dtype=np.float32))
    vectors = ShardedVectors([path], 3)
    path.unlink()
    with pytest.raises(
        DataError, match=r"0\.npy: not found on node .*; expected a work folder that every node can read"
    ):
        list(engine.run(Scanning(vectors, vectors, 1), [(0, Block(slice(0, 3), slice(0, 3)))], print))


def test_a_piece_that_always_fails_ends_the_run(engine: RayEngine, tmp_path: Path) -> None:
    """The last reason is said in one line, and the piece is not tried forever."""
    np.save(tmp_path / "0.npy", np.eye(3, dtype=np.float32))
    vectors, nothing = ShardedVectors([tmp_path / "0.npy"], 3), cast(slice, None)
    with pytest.raises(
        RunError, match=rf"^piece 4 failed {MAX_FAILURES} times: \w+Error: .*; finished pieces are kept$"
    ):
        list(engine.run(Scanning(vectors, vectors, 1), [(4, Block(slice(0, 3), nothing))], print))


def test_interrupted_encoding_is_resumed(
    engine: RayEngine, files: dict[str, Path], models: dict[EncoderKind, str], tmp_path: Path
) -> None:
    """What was written before Ctrl-C is not made again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoded(Disturbed(engine, Encoding, interrupt), files["en"], tmp_path / "store", models[EncoderKind.static])
    store, made = encoded(engine, files["en"], tmp_path / "store", models[EncoderKind.static])
    local, every = encoded(LocalEngine(), files["en"], tmp_path / "local", models[EncoderKind.static])
    assert len(made) == len(every) - 1
    assert store.shards == local.shards


def test_workers_that_never_start_end_the_run(engine: RayEngine) -> None:
    """What keeps them from starting is said."""
    nothing: Any = None
    with pytest.raises(RunError, match=r"^no worker starts: TypeError: .*; expected dualmoco"):
        list(Pool(ray, nothing).run([(0, "a piece")], engine.spare))
    engine.close()


def test_workers_have_the_drivers_version() -> None:
    """Another one might give other vectors."""
    with pytest.raises(ConfigError, match=r"dualmoco .* on node .*; expected 99 on every node"):
        Worker().open(lambda: print, "99")


def test_addresses_without_a_cluster_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong form and a closed port at once; a server that is not Ray after one attempt of Ray's."""
    with pytest.raises(ConfigError, match=r"--address nowhere.*HOST:PORT"):
        RayEngine("nowhere")
    attempts = []

    def refuse(address: str, **settings: object) -> None:
        attempts.append({name: os.environ[name] for name in FAIL_FAST})
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"--address {address}.*not a Ray head node"):
            RayEngine(address)
    assert attempts == [FAIL_FAST] and not FAIL_FAST.keys() & os.environ.keys()
    with pytest.raises(ConfigError, match=f"--address {address}.*refused.*ray start"):
        RayEngine(address)


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to type is said."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray; pip install 'dualmoco\[ray\]'"):
        RayEngine()

"""Compares embedded vector stores with our own index; results are in `docs/results/vector-stores.md`.

    python benchmarks/vector_stores.py lancedb

Times are CPU times of all threads, in a process whose parallel libraries may use one thread (OMP_NUM_THREADS=1).
Measures one store in the environment that it runs in, and prints a JSON line. The documents have 384-dimensional
vectors around random centres, an id, a number and a word. Only `ours` needs dualmoco.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DIMENSION, CENTRES, NOISE = 384, 1000, 0.8
QUERIES, K, CHANGED = 50, 10, 1000
YEARS = 100  # values of the number, so that one of them selects 1 % of the documents
HALF = YEARS // 2
PACKAGES = {
    "lancedb": "lancedb",
    "duckdb": "duckdb",
    "qdrant": "qdrant-client",
    "usearch": "usearch",
    "ours": "numpy",
}
Rows = list[dict[str, Any]]


class VectorStore(Protocol):
    """The measured operations of a store."""

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        """Writes documents."""

    def open(self) -> None:
        """Opens the store on disk."""

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        """The ids of the K nearest documents, optionally only among those whose year is below a number."""

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        """Replaces documents by id."""

    def delete(self, ids: Sequence[int]) -> None:
        """Removes documents by id."""


class _LanceStore:
    """LanceDB without an approximate index, which is exact."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lib, self.arrow = folder, import_module("lancedb"), import_module("pyarrow")

    def _table(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> Any:
        flat = self.arrow.array(vectors.ravel())
        column = self.arrow.FixedSizeListArray.from_arrays(flat, DIMENSION)
        return self.arrow.table({"id": list(ids), "vector": column, "year": years})

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.lib.connect(self.folder).create_table("t", self._table(ids, vectors, years))

    def open(self) -> None:
        self.table = self.lib.connect(self.folder).open_table("t")

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        search = self.table.search(vector).distance_type("cosine").select(["id", "_distance"]).limit(K)
        search = search if below is None else search.where(f"year < {below}", prefilter=True)
        return [row["id"] for row in search.to_list()]

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self._table(ids, vectors, years))

    def delete(self, ids: Sequence[int]) -> None:
        self.table.delete(f"id IN ({','.join(map(str, ids))})")


class _DuckStore:
    """DuckDB comparing all vectors, without its vss extension, which is approximate."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lib, self.arrow = folder, import_module("duckdb"), None
        folder.mkdir()

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.open()
        self.db.execute(f"CREATE TABLE t (id BIGINT, year INT, vector FLOAT[{DIMENSION}])")
        self._insert(ids, vectors, years)
        self.db.close()

    def _insert(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        names = {"ids": np.asarray(ids), "years": years}
        for name, values in names.items():
            self.db.register(name, {name: values})
        flat = {"value": vectors.ravel(), "row": np.repeat(np.arange(len(vectors)), DIMENSION)}
        self.db.register("flat", flat)
        self.db.execute(
            "INSERT INTO t SELECT ids, years, vector FROM (SELECT ids, row_number() OVER () - 1 AS row FROM ids) "
            "JOIN (SELECT years, row_number() OVER () - 1 AS row FROM years) USING (row) JOIN "
            f'(SELECT "row", list(value)::FLOAT[{DIMENSION}] AS vector FROM flat GROUP BY "row") USING (row)'
        )

    def open(self) -> None:
        self.db = self.lib.connect(str(self.folder / "t.duckdb"))

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        where = "" if below is None else f"WHERE year < {below}"
        order = f"array_cosine_distance(vector, ?::FLOAT[{DIMENSION}])"
        rows = self.db.execute(f"SELECT id FROM t {where} ORDER BY {order} LIMIT {K}", [vector.tolist()]).fetchall()
        return [row[0] for row in rows]

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.delete(ids)
        self._insert(ids, vectors, years)

    def delete(self, ids: Sequence[int]) -> None:
        self.db.execute(f"DELETE FROM t WHERE id IN ({','.join(map(str, ids))})")
        self.db.execute("CHECKPOINT")


class _QdrantStore:
    """Qdrant in this process, which compares all vectors with numpy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lib = folder, import_module("qdrant_client")
        self.models = self.lib.models

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.open()
        size = self.models.VectorParams(size=DIMENSION, distance=self.models.Distance.COSINE)
        self.db.create_collection("t", vectors_config=size)
        self.update(ids, vectors, years)
        self.db.close()

    def open(self) -> None:
        self.db = self.lib.QdrantClient(path=str(self.folder))

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        rule = None
        if below is not None:
            rule = self.models.Filter(must=[self.models.FieldCondition(key="year", range=self.models.Range(lt=below))])
        return [point.id for point in self.db.query_points("t", vector.tolist(), query_filter=rule, limit=K).points]

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        payload = [{"year": year} for year in years.tolist()]
        self.db.upload_collection("t", vectors, payload, ids=list(ids))

    def delete(self, ids: Sequence[int]) -> None:
        self.db.delete("t", self.models.PointIdsList(points=list(ids)))


class _UsearchStore:
    """USearch: a graph of vectors in one file, approximate, without metadata; a filter is applied to more hits."""

    def __init__(self, folder: Path) -> None:
        self.file, self.lib = folder / "t.usearch", import_module("usearch.index")
        folder.mkdir()

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.index = self.lib.Index(ndim=DIMENSION, metric="cos", dtype="f32")
        self.index.add(np.asarray(ids), vectors)
        self.index.save(str(self.file))
        self.years = dict(zip(ids, years.tolist(), strict=True))

    def open(self) -> None:
        self.index = self.lib.Index.restore(str(self.file))

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        wanted = K
        while True:
            keys = self.index.search(vector, wanted).keys.tolist()
            kept = [key for key in keys if below is None or self.years[key] < below]
            if len(kept) >= K or wanted >= len(self.index):
                return kept[:K]
            wanted *= 8

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.index.remove(np.asarray(ids))
        self.index.add(np.asarray(ids), vectors)
        self.years |= dict(zip(ids, years.tolist(), strict=True))
        self.index.save(str(self.file))

    def delete(self, ids: Sequence[int]) -> None:
        self.index.remove(np.asarray(ids))
        self.index.save(str(self.file))


class _OwnStore:
    """An exact index of dualmoco, whose model takes the vector of a document from a table."""

    name, is_unit, dimension = "table", True, DIMENSION

    def __init__(self, folder: Path) -> None:
        from dualmoco.models.model import Identity, Model

        self.folder, self.lib = folder, import_module("dualmoco")
        self.model = Model(Identity("table", "0" * 64), None, lambda lang: self)
        self.table: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The back-end of the model."""
        return np.stack([self.table[text] for text in texts])

    def _documents(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> Rows:
        texts = [f"Document {number}, {vector[0]}" for number, vector in zip(ids, vectors, strict=True)]
        self.table |= dict(zip(texts, vectors, strict=True))
        rows = zip(ids, texts, years.tolist(), strict=True)
        return [{"id": str(number), "text": text, "lang": "en", "year": year} for number, text, year in rows]

    def build(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.lib.build_index(self.folder, documents=self._documents(ids, vectors, years), model=self.model)

    def open(self) -> None:
        self.index = self.lib.open_index(self.folder, self.model)

    def query(self, vector: np.ndarray, below: int | None) -> list[int]:
        rule = None if below is None else {"year": {"<": below}}
        return [int(hit.id) for hit in self.index.search(vectors=vector, k=K, filter=rule)[0]]

    def update(self, ids: Sequence[int], vectors: np.ndarray, years: np.ndarray) -> None:
        self.index.add(documents=self._documents(ids, vectors, years))

    def delete(self, ids: Sequence[int]) -> None:
        self.index.delete(list(map(str, ids)))


STORES: dict[str, Callable[[Path], VectorStore]] = {
    "lancedb": _LanceStore,
    "duckdb": _DuckStore,
    "qdrant": _QdrantStore,
    "usearch": _UsearchStore,
    "ours": _OwnStore,
}


def make_vectors(count: int, seed: int) -> np.ndarray:
    """Unit vectors around random centres."""
    centres = np.random.default_rng(0).standard_normal((CENTRES, DIMENSION), dtype=np.float32)
    rng = np.random.default_rng(seed)
    made = centres[rng.integers(0, CENTRES, count)]
    made += NOISE * rng.standard_normal(made.shape, dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def installed(package: str) -> tuple[int, float]:
    """Number and size in MB of a package and all its dependencies, except for numpy."""
    found: dict[str, float] = {}
    waiting = [package]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or (name == "numpy" and package != "numpy"):
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = (Path(str(distribution.locate_file(file))) for file in distribution.files or [])
        found[name] = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
        needed = [text for text in distribution.requires or [] if "extra ==" not in text]
        waiting += [match.group() for text in needed if (match := re.match(r"[\w.-]+", text))]
    return len(found), sum(found.values())


def seconds(work: Callable[[], object]) -> float:
    """CPU time of some work in all threads, which other work on the machine hardly affects."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure_store(name: str, count: int, folder: Path) -> dict[str, Any]:
    """The row of a store."""
    vectors, years = make_vectors(count, 1), np.random.default_rng(2).integers(0, YEARS, count)
    queries, ids, changed = make_vectors(QUERIES, 3), list(range(count)), list(range(0, count, count // CHANGED))
    store = STORES[name](folder / name)
    packages, size = installed(PACKAGES[name])
    row: dict[str, Any] = {"store": name, "packages": packages, "installed MB": size}
    row["build s"] = seconds(lambda: store.build(ids, vectors, years))
    row["open s"] = seconds(store.open)
    for title, below in (("all", None), ("50 %", HALF), ("1 %", 1)):
        allowed = np.flatnonzero(years < (YEARS if below is None else below))
        store.query(queries[0], below)
        found: list[list[int]] = []
        spent = seconds(lambda below=below, found=found: found.extend(store.query(one, below) for one in queries))  # type: ignore[misc]
        row[f"query {title} ms"] = 1000 * spent / QUERIES
        truth = allowed[np.argsort(-(queries @ vectors[allowed].T), axis=1)[:, :K]]
        row[f"recall {title}"] = sum(
            len(set(one) & set(best)) for one, best in zip(found, truth.tolist(), strict=True)
        ) / (K * QUERIES)
    row["update s"] = seconds(lambda: store.update(changed, make_vectors(len(changed), 4), years[changed]))
    row["delete s"] = seconds(lambda: store.delete(changed))
    row["disk MB"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    return row


def main() -> None:
    """Measures a store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", choices=sorted(STORES))
    parser.add_argument("--rows", type=int, default=100_000)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure_store(parsed.store, parsed.rows, Path(folder))
    sys.stdout.write(
        json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}) + "\n"
    )


if __name__ == "__main__":
    main()

"""Mutated files for all readers of sentence pairs: only a DualmocoError may escape, and no process may die.

`DUALMOCO_FUZZ` is the number of mutations per reader; `make fuzz` sets it to thousands.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualmoco.core.errors import DualmocoError
from dualmoco.data.config import CorpusConfig, Duplicates, OnError, PrepareConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.prepare import prepare
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs

MUTATIONS = int(os.environ.get("DUALMOCO_FUZZ", "50"))
SECONDS_PER_MUTATION = 2
PAIRS = generate_pairs(40, seed=11)
TOKENS = (
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b",", b"\\", b"{", b"[", b"]"),
    *(b"null", b"1e999", b"NaN", b'"\\ud800"', b"<", b">", b"&", b"<tu>", b"</seg>", b"<!ENTITY a 'b'>", b"<![CDATA["),
    *(b"msgid", b'msgstr ""', b"msgstr[9]", b"#, fuzzy", b'encoding="utf-7"', b"PK\x03\x04", b"ARROW1", b"PAR1"),
    *(b"[" * 3000, b'{"a":' * 3000, b"x" * 3000),
)
"""What is inserted into files, besides random bytes."""


def write_pairs() -> dict[str, bytes]:
    """Small files with the same pairs, by the names that choose their readers."""
    tsv = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS).encode()
    segments = "<tuv xml:lang='{}'><seg>{}</seg></tuv>"
    units = "".join(f"<tu>{segments.format('en', src)}{segments.format('zh', tgt)}</tu>\n" for src, tgt in PAIRS)
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: zh\\n"\n\n'
    jsonl = "".join(f'{{"en": "{src}", "zh": "{tgt}"}}\n' for src, tgt in PAIRS)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for side, lang in enumerate(("en", "zh")):
            file.writestr(f"a.{lang}", "".join(f"{pair[side]}\n" for pair in PAIRS))
    table = pa.table({"en": [src for src, _ in PAIRS], "zh": [tgt for _, tgt in PAIRS]})
    mappings = pa.table({"translation": table.to_pylist()})
    parquet, arrow, stream, nested, nested_arrow = (pa.BufferOutputStream() for _ in range(5))
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table, 10)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, 10)
    pq.write_table(mappings, nested)
    with pa.ipc.new_file(nested_arrow, mappings.schema) as writer:
        writer.write_table(mappings)
    return {
        "a.tsv": tsv,
        "a.csv": "".join(f'"{src}","{tgt}"\n' for src, tgt in PAIRS).encode(),
        "a.jsonl": jsonl.encode(),
        "a.tmx": f"<?xml version='1.0'?><tmx version='1.4'><body>\n{units}</body></tmx>".encode(),
        "a.po": (head + "".join(f'msgid "{src}"\nmsgstr "{tgt}"\n\n' for src, tgt in PAIRS)).encode(),
        "a.zip": archive.getvalue(),
        "a.tsv.gz": gzip.compress(tsv, mtime=0),
        "a.tsv.xz": lzma.compress(tsv),
        "a.jsonl.bz2": bz2.compress(jsonl.encode()),
        "a.parquet": parquet.getvalue().to_pybytes(),
        "nested.parquet": nested.getvalue().to_pybytes(),
        "a.arrow": arrow.getvalue().to_pybytes(),
        "stream.arrow": stream.getvalue().to_pybytes(),
        "nested.arrow": nested_arrow.getvalue().to_pybytes(),
    }


FILES = write_pairs()
COLUMNAR = [name for name in FILES if name.endswith((".parquet", ".arrow"))]


def mutate(content: bytes, seed: str) -> bytes:
    """Changes, inserts, removes or repeats a few parts of a file, or cuts it off; the same seed does the same."""
    draw, result = random.Random(seed), bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(result) + 1)
        end = min(len(result), at + draw.choice((1, 4, 50)))
        old = bytes(result[at:end])
        flipped = bytes(byte ^ (1 << draw.randrange(8)) for byte in old)
        new = draw.choice((draw.randbytes(len(old)), draw.choice(TOKENS), old * 2, flipped, b""))
        result[at : end if draw.random() < 0.7 else at] = new
        if draw.random() < 0.1:
            del result[draw.randrange(len(result) + 1) :]
    return bytes(result)


def read_all(path: Path) -> tuple[int, int]:
    """Pairs and unreadable lines of a file that is read to its end or to its first error; all text can be encoded."""
    problems: list[str] = []
    count = 0
    try:
        for row in read_pairs(Source(path, "en", "zh"), report=lambda line, what: problems.append(f"{line}: {what}")):
            (row.src + row.tgt).encode()
            count += 1
    except DualmocoError as error:
        problems.append(str(error))
    assert not any("\n" in problem for problem in problems), problems
    return count, len(problems)


def fuzz(name: str, folder: Path, count: int) -> None:
    """Reads mutations of a file, and prints the seed of each before it is read."""
    path = folder / name
    for number in range(count):
        seed = f"{name} {number}"
        sys.stdout.write(f"{seed}\n")
        sys.stdout.flush()
        path.write_bytes(mutate(FILES[name], seed))
        read_all(path)


@pytest.mark.parametrize("name", FILES)
def test_unchanged_files_have_all_pairs(name: str, tmp_path: Path) -> None:
    """What is mutated below can be read."""
    (tmp_path / name).write_bytes(FILES[name])
    assert read_all(tmp_path / name) == (len(PAIRS), 0)


@pytest.mark.timeout(60 + SECONDS_PER_MUTATION * MUTATIONS)
@pytest.mark.parametrize("name", FILES)
def test_mutated_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Only a DualmocoError ends the reading, and every problem is one line; a crash would show its seed."""
    command = [sys.executable, __file__, name, str(tmp_path), str(MUTATIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 + SECONDS_PER_MUTATION * MUTATIONS)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}, status {done.returncode}\n{done.stderr}"


@pytest.mark.timeout(120 + SECONDS_PER_MUTATION * MUTATIONS)
def test_skipping_does_not_depend_on_workers(tmp_path: Path) -> None:
    """`prepare` with one and with two workers keeps the same pairs and counts the same problems."""
    names = [name for name in FILES if name not in COLUMNAR]
    found = []
    for number in range(max(1, MUTATIONS // 50)):
        for name in names:
            (tmp_path / name).write_bytes(mutate(FILES[name], f"workers {name} {number}"))
        config = PrepareConfig(
            root=str(tmp_path),
            corpora=[CorpusConfig(name=name, files=[name]) for name in names],
            duplicates=Duplicates.keep,
            heldout=0,
            on_error=OnError.skip,
        )
        one, two = (
            prepare(replace(config, out=str(tmp_path / "out"), workers=workers), progress=False) for workers in (1, 2)
        )
        assert one.shards == two.shards, number
        assert [corpus.to_dict() for corpus in one.corpora] == [corpus.to_dict() for corpus in two.corpora], number
        assert one.problems == two.problems, number
        found.append(one.total)
    assert sum(total.read for total in found) > 0 < sum(total.unreadable for total in found)


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.config import CleanConfig, CorpusConfig, Duplicates, ExcludeConfig, OnError, OneSided, PrepareConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.manifest import read_prepared_manifest
from dualmoco.data.prepare import prepare
from dualmoco.data.readers import lines

GOOD = generate_pairs(300, seed=5)
Pair = tuple[str, str]


def write_tsv(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path: Path) -> PrepareConfig:
    write_tsv(tmp_path / "good.tsv", GOOD)
    return PrepareConfig(
        out=str(tmp_path / "out"), root=str(tmp_path), corpora=[CorpusConfig(files=["good.tsv"])], workers=1
    )


def rows_of(folder: str | Path, split: str = "train") -> list[tuple[str, str, str]]:
    rows = []
    for path in sorted(Path(folder).glob(f"{split}-*.parquet")):
        rows += [(row["src"], row["tgt"], row["corpus"]) for row in pq.read_table(path).to_pylist()]
    return rows


def digests(folder: str | Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}


def test_clean_pairs_pass_unchanged(config: PrepareConfig) -> None:
    manifest = prepare(config)
    assert rows_of(config.out) == [(src, tgt, "good") for src, tgt in GOOD]
    assert (manifest.total.read, manifest.total.train) == (300, 300)
    assert sorted(digests(config.out)) == ["README.md", "manifest.json", "train-00000.parquet"]


def test_the_manifest_accounts_for_every_pair(config: PrepareConfig, tmp_path: Path) -> None:
    dirty = [
        *GOOD[:10],
        ("", "空"),
        ("same", "same"),
        ("<b>Bold</b>  text", "粗体 文字"),
        ("你好", "hello"),
        ("only", "english"),
        ("HELLO there, friend!", "你好，朋友"),
        ("hello there friend", "你好 朋友。"),
        ("Test me", "测试我"),
    ]
    write_tsv(tmp_path / "dirty.tsv", dirty)
    (tmp_path / "tests.txt").write_text("測試我。\n", encoding="utf-8")
    manifest = prepare(
        replace(
            config,
            corpora=[*config.corpora, CorpusConfig(name="messy", files=["dirty.tsv"])],
            exclude=ExcludeConfig(files=["tests.txt"]),
            heldout=20,
        )
    )
    messy = manifest.corpora[1]
    assert messy.read == len(dirty) == sum(messy.dropped.values()) + messy.train + messy.heldout
    assert +messy.dropped == {
        "empty side": 1,
        "identical sides": 1,
        "swapped sides": 1,
        "wrong script": 1,
        "duplicate": 11,
        "test sentence": 1,
    } | ({"shares a held-out sentence": 1} if messy.dropped["shares a held-out sentence"] else {})
    assert manifest.total.heldout == 20 == len(rows_of(config.out, "heldout"))
    content = read_prepared_manifest(Path(config.out))
    assert content["test_sentences_left"] == 0
    assert content["test_files"][0]["sha256"] == hashlib.sha256((tmp_path / "tests.txt").read_bytes()).hexdigest()
    assert content["inputs"]["messy"][0]["sha256"] == hashlib.sha256((tmp_path / "dirty.tsv").read_bytes()).hexdigest()
    for shard in content["shards"]:
        assert hashlib.sha256((Path(config.out) / shard["path"]).read_bytes()).hexdigest() == shard["sha256"]
    assert str(tmp_path) not in (Path(config.out) / "manifest.json").read_text()
    texts = {src for src, _, _ in rows_of(config.out) + rows_of(config.out, "heldout")}
    assert "Bold text" in texts


def test_a_second_run_gives_the_same_bytes_whatever_the_workers(config: PrepareConfig, tmp_path: Path) -> None:
    write_tsv(tmp_path / "more.tsv", generate_pairs(5000, seed=7))
    config = replace(
        config,
        corpora=[*config.corpora, CorpusConfig(files=["more.tsv"], max_pairs=1000)],
        heldout=50,
        shard_pairs=400,
    )
    prepare(config)
    first = digests(config.out)
    assert len([name for name in first if name.startswith("train")]) == 4
    prepare(replace(config, workers=2, out=str(tmp_path / "again")))
    assert digests(tmp_path / "again") == first
    prepare(config)
    assert digests(config.out) == first
    prepare(replace(config, seed=1))
    assert digests(config.out) != first


def test_held_out_pairs_share_no_sentence_with_training(config: PrepareConfig) -> None:
    prepare(replace(config, heldout=30))
    train, heldout = rows_of(config.out), rows_of(config.out, "heldout")
    assert len(heldout) == 30
    for side in (0, 1):
        assert not {row[side] for row in train} & {row[side] for row in heldout}


def test_sampling_and_mixing(config: PrepareConfig, tmp_path: Path) -> None:
    write_tsv(tmp_path / "b.tsv", generate_pairs(900, seed=11))
    corpora = [CorpusConfig(files=["good.tsv"], weight=1), CorpusConfig(files=["b.tsv"], weight=3)]
    manifest = prepare(replace(config, corpora=corpora, total=200))
    assert [corpus.train for corpus in manifest.corpora] == [50, 150]
    manifest = prepare(replace(config, corpora=[replace(corpora[0], max_pairs=17)]))
    assert manifest.total.train == 17
    order = [row[:2] for row in rows_of(config.out)]
    assert order == [pair for pair in GOOD if pair in set(order)]


@pytest.mark.parametrize(
    ("duplicates", "one_sided", "left"),
    [
        (Duplicates.keep, OneSided.none, 5),
        (Duplicates.exact, OneSided.none, 4),
        (Duplicates.normalized, OneSided.none, 3),
        (Duplicates.normalized, OneSided.src, 2),
        (Duplicates.normalized, OneSided.tgt, 2),
        (Duplicates.normalized, OneSided.either, 1),
    ],
)
def test_duplicates(
    config: PrepareConfig, tmp_path: Path, duplicates: Duplicates, one_sided: OneSided, left: int
) -> None:
    pairs = [("Good day", "你好"), ("Good day", "你好"), ("good day!", "你好。"), ("Good day", "日安"), ("Hi", "你好")]
    write_tsv(tmp_path / "d.tsv", pairs)
    config = replace(config, corpora=[CorpusConfig(files=["d.tsv"])], duplicates=duplicates, one_sided=one_sided)
    assert prepare(config).total.train == left


def test_bad_lines_stop_or_are_skipped(config: PrepareConfig, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_bytes(b"fine one\t\xe5\xa5\xbd\nno tab here\n\xff\tbroken\nfine two\t\xe5\x9d\x8f\n")
    config = replace(config, corpora=[CorpusConfig(files=["bad.tsv"])])
    with pytest.raises(DataError, match=r"bad\.tsv:\d: .*on_error=skip"):
        prepare(config)
    assert not Path(config.out).exists()
    manifest = prepare(replace(config, on_error=OnError.skip))
    assert (manifest.total.train, manifest.total.unreadable) == (2, 2)
    assert [problem.split(": ")[0].rpartition(":")[2] for problem in manifest.problems] == ["2", "3"]


def test_an_early_error_is_one_line(config: PrepareConfig, tmp_path: Path) -> None:
    """Even if the workers have only begun to start."""
    (tmp_path / "bad.csv").write_text('en,zh\n"open\n', encoding="utf-8")
    words = ["prepare", str(tmp_path / "bad.csv"), "--src", "en", "--tgt", "zh", "--out", config.out]
    done = subprocess.run([sys.executable, "-m", "dualmoco", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_damaged_file_among_others_is_skipped_from_its_damage_on(config: PrepareConfig, tmp_path: Path) -> None:
    data = "".join(f"{src}\t{tgt}\n" for src, tgt in generate_pairs(20_000, seed=3)).encode()
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(data)[:-1000])
    config = replace(config, corpora=[CorpusConfig(files=["cut.tsv.gz"]), *config.corpora])
    with pytest.raises(DataError, match=r"cut\.tsv\.gz: cannot be read after line \d+"):
        prepare(config)
    manifest = prepare(replace(config, on_error=OnError.skip))
    assert manifest.corpora[1].read == 300
    assert manifest.corpora[0].unreadable == 1


def write_damaged(folder: Path) -> list[str]:
    """Files of several formats, each of several blocks, with good pairs before and bad rows among them."""
    pairs = [(f"{src} {number}", f"{tgt}{number}") for number, (src, tgt) in enumerate(generate_pairs(300, seed=7))]
    units = "".join(
        f'<tu><tuv lang="en"><seg>{src}</seg></tuv><tuv lang="zh"><seg>{tgt}</seg></tuv></tu>\n' for src, tgt in pairs
    )
    (folder / "b.tmx").write_text(f"<tmx><body>\n{units}", encoding="utf-8")
    records: list[Any] = [{"en": src, "zh": tgt} for src, tgt in pairs]
    records[150] = None
    pq.write_table(pa.table({"translation": records}), folder / "c.parquet")
    nested = ["[" * 100_000, "no JSON"]
    (folder / "d.jsonl").write_text("\n".join([*map(json.dumps, records), *nested, json.dumps(records[0])]))
    (folder / "e.csv").write_text(
        "".join(f'"{src}",{tgt}\n' for src, tgt in pairs[:100]) + 'x\n"' + "y" * 200_000 + '",z\nlast,最后\nx\n',
        encoding="utf-8",
    )
    return ["b.tmx", "c.parquet", "d.jsonl", "e.csv"]


def test_skipped_errors_cost_no_good_pair_whatever_the_workers(config: PrepareConfig, tmp_path: Path) -> None:
    """What a reader gave before it failed counts, a bad row costs one row, and all files are the same."""
    names = write_damaged(tmp_path)
    config = replace(config, corpora=[CorpusConfig(files=[name]) for name in names], on_error=OnError.skip)
    found = []
    for workers in (1, 2):
        config = replace(config, out=str(tmp_path / f"out{workers}"), workers=workers, duplicates=Duplicates.keep)
        manifest = prepare(config)
        assert [corpus.unreadable for corpus in manifest.corpora] == [1, 1, 3, 3]
        assert [corpus.read for corpus in manifest.corpora] == [300, 299, 300, 101]
        assert all("\n" not in problem and len(problem) < 500 for problem in manifest.problems)
        found.append(digests(config.out))
    assert found[0] == found[1]


def test_a_truncated_archive_gives_the_same_pairs_whatever_the_workers(
    config: PrepareConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More blocks than the workers take ahead come before the damage."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 18)
    data = "".join(f"{src} {n}\t{tgt}{n}\n" for n in range(100) for src, tgt in GOOD).replace("\n", "\nno tab\n", 1)
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(data.encode(), 1)[:-20_000])
    config = replace(config, corpora=[CorpusConfig(files=["cut.tsv.gz"])], on_error=OnError.skip)
    read = []
    for workers in (1, 2):
        manifest = prepare(replace(config, out=str(tmp_path / f"out{workers}"), workers=workers))
        assert manifest.total.unreadable == 2
        read.append(manifest.total.read)
    assert read[0] == read[1] > 10_000
    assert digests(tmp_path / "out1") == digests(tmp_path / "out2")


DIE_IN_A_WORKER = """
import os, signal, sys
from pathlib import Path
from dualmoco.data import prepare as module

def die(raw):
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    module._clean = die  # sent to the workers by name, where it ends the process as the OOM killer does
    from dualmoco.cli.main import main
    sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_worker_is_an_error_even_if_lines_are_skipped(config: PrepareConfig, tmp_path: Path) -> None:
    (tmp_path / "die.py").write_text(DIE_IN_A_WORKER)
    words = ["prepare", "good.tsv", "--data", str(tmp_path), "--out", config.out, "--on-error", "skip", "workers=2"]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "die.py"), *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "a worker process died" in done.stderr
    assert not Path(config.out).exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"out": ""}, ConfigError, "out is ''"),
        ({"tgt": "en"}, ConfigError, "tgt is 'en'"),
        ({"tgt": "xx"}, DataError, "'xx': its script is unknown"),
        ({"corpora": []}, ConfigError, "at least one corpus"),
        ({"corpora": [CorpusConfig(files=["absent.tsv"])]}, DataError, r"absent\.tsv: no such file"),
        ({"corpora": [CorpusConfig(files=["good.tsv"], format="word")]}, DataError, "format 'word'"),
        ({"corpora": [CorpusConfig(files=["good.tsv"])] * 2}, DataError, "named twice"),
        ({"corpora": [CorpusConfig(files=["good.tsv"], columns=["0", "1", "2"])]}, ConfigError, "columns"),
        ({"heldout": 300}, DataError, "expected more than heldout=300"),
        ({"exclude": ExcludeConfig(files=["no.txt"])}, DataError, r"no\.txt: no such file"),
        ({"exclude": ExcludeConfig(similarity=0.1)}, ConfigError, "similarity"),
        ({"clean": CleanConfig(max_tokens=5, min_tokens=9)}, ConfigError, "max_tokens is 5"),
        (
            {"clean": CleanConfig(min_tokens=150)},
            DataError,
            "no pairs left of 300 read; most .*'too short'",
        ),
    ],
)
def test_settings_that_cannot_work(
    config: PrepareConfig, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(replace(config, **change))
    assert not Path(config.out).exists()


def test_a_foreign_folder_is_left_alone(config: PrepareConfig) -> None:
    Path(config.out).mkdir()
    (Path(config.out) / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="out: exists"):
        prepare(config)
    assert (Path(config.out) / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(
    "manifest",
    [
        {"version": 1, "kind": "exact", "parts": []},  # of an index
        {"version": 1, "key": {}, "shards": [], "format": 1},  # of a vector store
        {"format": 1, "corpora": [], "settings": {}, "shards": [{"path": "../x.parquet", "bytes": 1}]},
        {"format": 1, "corpora": [3], "settings": {}, "shards": []},
        {"format": 1, "corpora": 3, "settings": {}, "shards": {}},
        [],
    ],
)
def test_a_folder_with_the_manifest_of_another_command_is_left_alone(config: PrepareConfig, manifest: Any) -> None:
    path = Path(config.out) / "manifest.json"
    path.parent.mkdir()
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="out: exists and was not written by prepare"):
        prepare(config)
    assert json.loads(path.read_text()) == manifest
    with pytest.raises(DataError, match=r"manifest\.json: (not written by|damaged)"):
        read_prepared_manifest(path.parent)
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="expected a folder made by dualmoco prepare"):
        read_prepared_manifest(path.parent)


KILLED = """
import os, signal
from dualmoco.data import prepare as module
from dualmoco.data.config import CorpusConfig, PrepareConfig

def die(*_):
    {kill}

target, name = {{"reading": (module.TemporaryStore, "append"), "writing": (module, "write_shards"),
                "renaming": (module, "write_text")}}["{moment}"]
setattr(target, name, die)
module.prepare(PrepareConfig(out={out!r}, corpora=[CorpusConfig(files=[{file!r}])], workers=2))
"""


@pytest.mark.parametrize("moment", ["reading", "writing", "renaming"])
def test_killed_it_leaves_nothing_half_and_starts_again(config: PrepareConfig, tmp_path: Path, moment: str) -> None:
    """The process and its workers are killed at a certain moment: the former result stays until a new one is whole."""
    prepare(config)
    before = digests(config.out)
    more = write_tsv(tmp_path / "more.tsv", generate_pairs(400, seed=6))
    code = KILLED.format(moment=moment, kill="os.killpg(0, signal.SIGKILL)", out=config.out, file=str(more))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, start_new_session=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert digests(config.out) == before
    assert (tmp_path / ".out.partial").is_dir()
    prepare(replace(config, corpora=[CorpusConfig(files=["more.tsv"])]))
    assert len(rows_of(config.out)) == 400
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_no_worker_outlives_the_main_process(config: PrepareConfig, moment: str, sent: signal.Signals) -> None:
    """The output ends only when all processes that share it have ended; SIGTERM also removes temporary files."""
    kill = f"os.kill(os.getpid(), {int(sent)})"
    code = KILLED.format(moment=moment, kill=kill, out=config.out, file=str(Path(config.root) / "good.tsv"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == (128 + sent if sent == signal.SIGTERM else -sent), done.stderr
    assert "Traceback" not in done.stderr
    assert (Path(config.root) / ".out.partial").exists() == (sent == signal.SIGKILL)


FULL_DISK = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from dualmoco.data.staging import TemporaryStore

folder, rows = Path(sys.argv[1]), 100_000
with TemporaryStore(folder) as store:
    texts = pa.array([""] * rows, pa.large_string())
    store.append(texts, texts, np.zeros((rows, 3), dtype=np.int64))
try:
    with (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
except OSError:
    pass
try:
    store.status()[:] = 1
except OSError as error:
    print(error.strerror)
"""


def test_a_disk_that_is_full_before_the_status_is_an_error(tmp_path: Path) -> None:
    """Writing to a map of a sparse file would kill the process instead."""
    (tmp_path / "code.py").write_text(FULL_DISK)
    script = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$2" "$3" "$1"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    (tmp_path / "disk").mkdir()
    if not shutil.which("unshare") or subprocess.run([*inside, str(tmp_path / "disk"), "true"]).returncode:
        pytest.skip("needs permission to mount a small disk")
    words = [str(tmp_path / "disk"), sys.executable, str(tmp_path / "code.py")]
    done = subprocess.run([*inside, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "No space left on device\n"), done.stderr


def test_a_full_disk_is_one_line_and_keeps_the_old_result(config: PrepareConfig, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same error, at the same place."""
    prepare(config)
    before = digests(config.out)
    write_tsv(tmp_path / "big.tsv", generate_pairs(15_000, seed=2))
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "from dualmoco.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["prepare", str(tmp_path / "big.tsv"), "--src", "en", "--tgt", "zh", "--out", config.out]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]  # after progress bars, if the machine is slow
    assert re.fullmatch(r"dualmoco: .*cannot be written: .*File too large.*", message), done.stderr
    assert digests(config.out) == before


def test_command_line(config: PrepareConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, tgt = tmp_path / "a.en", tmp_path / "a.zh"
    src.write_text("".join(f"{pair[0]}\n" for pair in GOOD), encoding="utf-8")
    tgt.write_text("".join(f"{pair[1]}\n" for pair in GOOD), encoding="utf-8")
    words = ["prepare", str(src), str(tgt), "--format", "aligned", "--src", "en", "--tgt", "zh", "--out", config.out]
    assert main([*words, "heldout=10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["heldout"] == 10
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("src: en\ntgt: zh\ncorpora:\n  - {name: g, files: [good.tsv], max_pairs: 5}\n")
    assert main(["prepare", str(recipe), "--data", str(tmp_path), "--out", config.out]) == 0
    assert "5 pairs for training" in capsys.readouterr().out
    assert main(["prepare", str(recipe), "more.tsv", "--out", config.out]) == 2
    assert "'more.tsv': a second file next to a recipe" in capsys.readouterr().err
    assert main(["prepare", str(src), "--format", "aligned", "--out", config.out]) == 2
    assert "1 file; expected source and target" in capsys.readouterr().err
    assert main(["prepare", str(recipe), "--out", config.out, "nosuch=1"]) == 2
    assert "nosuch" in capsys.readouterr().err


def plainly(sentence: str) -> str:
    """Letters and digits in lower case: written apart from the package, to check it."""
    kept = (c for c in unicodedata.normalize("NFKD", sentence).lower() if unicodedata.category(c)[0] in "LN")
    return "".join(kept)


@pytest.mark.data
def test_no_test_sentence_is_left_of_real_corpora(tmp_path: Path, data_folder: Path) -> None:
    names = ["tatoeba_manythings", "un_devset"]
    tests = ["eval/tatoeba/*.cmn-eng.*", "eval/bucc2018/*", "eval/STS/**/*.txt", "eval/STS/**/*.csv", "eval/SICK/*.txt"]
    manifest = prepare(
        PrepareConfig(
            out=str(tmp_path / "out"),
            root=str(data_folder),
            corpora=[CorpusConfig(files=[f"parallel/{name}.tsv.xz"]) for name in names],
            exclude=ExcludeConfig(files=tests),
            workers=1,
        )
    )
    assert manifest.total.dropped["test sentence"] > 500
    assert manifest.total.dropped["similar to a test sentence"] > 10
    fields = set()
    for pattern in tests:
        for path in data_folder.glob(pattern):
            if path.is_file():
                for line in path.read_text(encoding="utf-8").splitlines():
                    fields |= {*line.split("\t")}
    forbidden = {plainly(field) for field in fields} - {""}
    written = {plainly(sentence) for sentence in {side for row in rows_of(tmp_path / "out") for side in row[:2]}}
    assert len(written) > 50_000
    assert not written & forbidden

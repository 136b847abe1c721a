"""Tests of files and folders that are whole or absent, on good disks and on full ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.storage import (
    check_replaceable,
    locked,
    new_folder,
    read_record,
    record_path,
    restore_folder,
    write_json,
    write_recorded,
    write_text,
)

TOO_MUCH = 2 << 20  # bytes; twice what the small disk holds


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the program mount")
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too, with its content."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def _fill(path: Path, content: str) -> None:
    with new_folder(path) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(content, encoding="utf-8")


def test_new_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Until the block ends nothing is at the place, and missing parents are made."""
    path = tmp_path / "a" / "b"
    with new_folder(path) as folder:
        (folder / "file").write_text("content", encoding="utf-8")
        assert folder.parent == path.parent and not path.exists()
    assert _tree(tmp_path) == {"a/b/file": "content"}
    assert [child.name for child in path.parent.iterdir()] == ["b"]


def test_new_folder_replaces_the_old_one(tmp_path: Path) -> None:
    """The old content is there until the end and gone after it, files with other names too."""
    path = tmp_path / "model"
    _fill(path, "old")
    (path / "stale").write_text("old", encoding="utf-8")
    with new_folder(path) as folder:
        (folder / "file").write_text("new", encoding="utf-8")
        assert _tree(path) == {"sub/file": "old", "stale": "old"}
    assert _tree(tmp_path) == {"model/file": "new"}
    assert [child.name for child in tmp_path.iterdir()] == ["model"]


def test_failing_disk_keeps_the_old_folder(tmp_path: Path) -> None:
    """An error of the system is told in one line, and nothing but the old content is left."""
    path = tmp_path / "model"
    _fill(path, "old")
    with pytest.raises(RunError) as caught, new_folder(path) as folder:
        (folder / "file").write_text("half", encoding="utf-8")
        raise OSError(5, "Input/output error")
    assert str(caught.value) == f"{path}: cannot be written: Input/output error; the previous contents are kept"
    assert _tree(tmp_path) == {"model/sub/file": "old"}
    assert [child.name for child in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_other_errors_keep_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    """An error of the block itself passes through and leaves the old content in its place."""
    path = tmp_path / "model"
    _fill(path, "old")
    with pytest.raises(error, match="ours"), new_folder(path) as folder:
        (folder / "file").write_text("half", encoding="utf-8")
        raise error("ours")
    assert _tree(path) == {"sub/file": "old"}
    _fill(path, "new")
    assert _tree(tmp_path) == {"model/sub/file": "new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_other_errors_leave_no_partial_folder(tmp_path: Path, error: type[BaseException]) -> None:
    """What was half written is removed whatever the error is."""
    with pytest.raises(error), new_folder(tmp_path / "model") as folder:
        (folder / "file").write_text("half", encoding="utf-8")
        raise error("ours")
    assert list(tmp_path.iterdir()) == []


def test_partial_folder_of_a_killed_process_is_not_mixed_in(tmp_path: Path) -> None:
    """What a killed process left half written is thrown away by the next one."""
    partial = tmp_path / ".model.partial"
    partial.mkdir()
    (partial / "rest").write_text("half", encoding="utf-8")
    _fill(tmp_path / "model", "new")
    assert _tree(tmp_path) == {"model/sub/file": "new"}


def test_interrupted_exchange_is_undone(tmp_path: Path) -> None:
    """A process killed between the two renamings has left the old folder aside: it is put back, once."""
    path, aside = tmp_path / "model", tmp_path / ".model.old"
    _fill(aside, "old")
    restore_folder(path)
    assert _tree(tmp_path) == {"model/sub/file": "old"} and not aside.exists()
    restore_folder(path)
    assert _tree(tmp_path) == {"model/sub/file": "old"}


def test_interrupted_removal_is_finished(tmp_path: Path) -> None:
    """A process killed after the exchange has left both: the new one stays, the old one goes."""
    _fill(tmp_path / "model", "new")
    _fill(tmp_path / ".model.old", "old")
    restore_folder(tmp_path / "model")
    assert _tree(tmp_path) == {"model/sub/file": "new"} and not (tmp_path / ".model.old").exists()


def test_restoring_nothing_does_nothing(tmp_path: Path) -> None:
    """Where nothing was interrupted nothing appears."""
    restore_folder(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_new_folder_after_an_interrupted_exchange_keeps_the_old_one_until_the_end(tmp_path: Path) -> None:
    """The folder that was left aside is in its place again while the next one is written, and if that fails."""
    path = tmp_path / "model"
    _fill(tmp_path / ".model.old", "old")
    with pytest.raises(RunError, match="cannot be written"), new_folder(path):
        assert _tree(path) == {"sub/file": "old"}
        raise OSError(28, "No space left on device")
    assert _tree(tmp_path) == {"model/sub/file": "old"}


def test_write_text_replaces_at_once(tmp_path: Path) -> None:
    """The file has the new content, its folder is made, and nothing else is left there."""
    path = tmp_path / "deep" / "down" / "file.txt"
    write_text(path, "first")
    write_text(path, "第二\n")
    assert path.read_bytes() == "第二\n".encode()
    assert [child.name for child in path.parent.iterdir()] == ["file.txt"]


def test_write_text_is_a_renaming(tmp_path: Path) -> None:
    """A reader that has the old file open keeps the old content: the file is exchanged, not overwritten."""
    path = tmp_path / "file.txt"
    write_text(path, "old content")
    with path.open(encoding="utf-8") as reader:
        write_text(path, "new")
        assert reader.read() == "old content"


def test_write_json_is_readable(tmp_path: Path) -> None:
    """The content comes back, Chinese is not escaped, and the file ends in a line feed."""
    content = {"step": 3, "name": "你好", "list": [1.5, None]}
    write_json(tmp_path / "file.json", content)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == content
    assert "你好" in text and text.endswith("}\n") and '\n  "step": 3' in text


def test_place_below_a_file_is_refused(tmp_path: Path) -> None:
    """Where no folder can be made the error says so, and the file in the way stays."""
    (tmp_path / "file").write_text("old", encoding="utf-8")
    with pytest.raises(RunError, match=r"file/model: cannot be written: .*; the previous contents are kept$"):
        _fill(tmp_path / "file" / "model", "new")
    with pytest.raises(RunError, match=r"file/log\.jsonl: cannot be written: \w+"):
        write_text(tmp_path / "file" / "log.jsonl", "new")
    assert _tree(tmp_path) == {"file": "old"}


def test_full_disk_keeps_the_old_folder(small_disk: Path) -> None:
    """A folder that does not fit is an error of one line; the old one stays and the space is free again."""
    path = small_disk / "model"
    _fill(path, "old")
    with pytest.raises(
        RunError, match=r"^[^\n]*model: cannot be written: No space left on device; the previous contents"
    ):
        _fill(path, "x" * TOO_MUCH)
    assert _tree(small_disk) == {"model/sub/file": "old"}
    _fill(path, "y" * (TOO_MUCH // 3))
    assert _tree(small_disk) == {"model/sub/file": "y" * (TOO_MUCH // 3)}


def test_full_disk_is_told_when_weights_do_not_fit(small_disk: Path) -> None:
    """Weights that do not fit are the same error: safetensors, which writes them, has an error of its own."""
    path = small_disk / "model"
    _fill(path, "old")
    with pytest.raises(RunError, match=r"model: cannot be written: .*No space left on device"), new_folder(path) as new:
        save_file({"weight": torch.zeros(TOO_MUCH // 4)}, new / "model.safetensors")
    assert _tree(small_disk) == {"model/sub/file": "old"}


def test_full_disk_keeps_the_old_file(small_disk: Path) -> None:
    """A file that does not fit is an error, and the old content stays."""
    path = small_disk / "log.jsonl"
    write_text(path, "old")
    with pytest.raises(RunError, match=r"log\.jsonl: cannot be written: No space left on device$"):
        write_text(path, "x" * TOO_MUCH)
    assert path.read_text(encoding="utf-8") == "old"


def test_full_disk_is_not_kept_full(small_disk: Path) -> None:
    """The part of a file that did fit is removed."""
    with pytest.raises(RunError):
        write_text(small_disk / "log.jsonl", "x" * TOO_MUCH)
    assert list(small_disk.iterdir()) == []


def test_a_folder_made_anew_keeps_its_own_lock(tmp_path: Path) -> None:
    """Who ends in a folder that was deleted under it does not free the one that another has made there since."""
    folder = tmp_path / "study"
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(locked(folder))
        shutil.rmtree(folder)
        second.enter_context(locked(folder))
        first.close()
        with pytest.raises(RunError, match="another process"), locked(folder):
            pass
    assert not folder.exists()


WRITER = """
import sys
from pathlib import Path
from dualmoco.core.storage import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "first").write_text("first")
    print("writing", flush=True)
    sys.stdin.read()
    (folder / "second").write_text("second")
"""


def _start_writer(path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing a folder; it finishes when its standard input ends."""
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "writing\n"
    return process


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    """The second one is refused in one line and harms nothing; no lock is left."""
    path = tmp_path / "model"
    with _start_writer(path) as process:
        with pytest.raises(RunError, match=r"^[^\n]*model: in use by another process; wait until [^\n]*$"):
            _fill(path, "other")
        process.communicate("")
    assert process.returncode == 0
    assert _tree(tmp_path) == {"model/first": "first", "model/second": "second"}


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    """The next process writes the folder and removes what the killed one left."""
    path = tmp_path / "model"
    with _start_writer(path) as process:
        process.kill()
    assert (tmp_path / ".model.lock").exists()
    _fill(path, "new")
    assert _tree(tmp_path) == {"model/sub/file": "new"}


def test_no_output_is_an_input_under_any_name(tmp_path: Path) -> None:
    """The same path, a symbolic link, a hard link, the record, and two outputs of one name."""
    given = tmp_path / "given.tsv"
    write_text(given, "a\tb\n")
    (tmp_path / "soft.tsv").symlink_to(given)
    (tmp_path / "hard.tsv").hardlink_to(given)
    for output in (given, tmp_path / "soft.tsv", tmp_path / "hard.tsv", tmp_path / "." / "given.tsv"):
        with pytest.raises(ConfigError, match="also an input"):
            check_replaceable([output], [str(given), ["a sentence"], None], overwrite=True)
    with pytest.raises(ConfigError, match="also an input"):
        check_replaceable([tmp_path / "x"], [tmp_path / "x.json"], has_record=True)
    with pytest.raises(ConfigError, match="two outputs"):
        check_replaceable([tmp_path / "x", tmp_path / "y" / ".." / "x"])
    check_replaceable([tmp_path / "new"], [given])


def test_only_unchanged_outputs_are_replaced(tmp_path: Path) -> None:
    """A file without a record or with another content needs `overwrite`; a record of somebody else is a file too."""
    out = tmp_path / "out.tsv"
    write_recorded(out, {"tool": "dualmoco mine"}, {out: b"1"})
    check_replaceable([out], has_record=True)
    write_recorded(out, {"tool": "dualmoco mine"}, {out: b"2"})
    assert out.read_bytes() == b"2" and "replaced" not in json.loads(record_path(out).read_text(encoding="utf-8"))
    write_text(out, "corrected")
    with pytest.raises(
        ConfigError, match="was changed after this command wrote it; expected another name, or --overwrite"
    ):
        check_replaceable([out], has_record=True)
    check_replaceable([out], overwrite=True, has_record=True)
    for content in ("[]", "{", "[" * 100_000, '{"name": "mine"}'):
        write_text(record_path(out), content)
        assert read_record(out) is None
        with pytest.raises(ConfigError, match="already exists; expected another name"):
            check_replaceable([out], has_record=True)
    out.unlink()
    with pytest.raises(ConfigError, match="json: already exists"):
        check_replaceable([out], has_record=True)

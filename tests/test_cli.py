"""Tests of the command line: help, exit codes, one line for each error a user can repair, and the demo."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualmoco import __version__
from dualmoco.alignment.pipeline import SpanVectors
from dualmoco.alignment.splitting import SplitMode
from dualmoco.cli import main as main_module
from dualmoco.cli import train
from dualmoco.cli.main import INTERRUPTION_HINTS, build_parser, main
from dualmoco.cli.options import EXIT_INTERNAL, EXIT_PARTIAL, EXIT_UNRELATED, EXIT_USAGE
from dualmoco.cli.parser import OLD_SPELLINGS, CommandParser, find_leaves
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError
from dualmoco.core.progress import are_shown
from dualmoco.data.config import OnError
from dualmoco.data.readers.formats import READERS
from dualmoco.mining.margins import Margin, Retrieval
from dualmoco.models.export import TARGETS
from dualmoco.models.load import POOLING_NAMES
from dualmoco.models.model import BACKENDS
from dualmoco.search.index_files import IndexKind

ROOT = Path(__file__).parents[1]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dualmoco", *words], capture_output=True, text=True)


def _write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


LEAVES = {leaf.command: leaf for leaf in find_leaves(build_parser())}
"""The parser of each command, such as `train` and `search build`."""


def _options(command: str) -> list[argparse.Action]:
    return LEAVES[command]._actions


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], ["train", "demo", "--version", "--quiet", "docs/reference/commands.md"]),
        (["train", "--help"], ["train RECIPE.yaml [key=value ...] [options]", "--data", "--json", "examples:"]),
        (["demo", "--help"], ["--recipe", "(default: tiny)", "--out", "(default: runs/demo)"]),
        (["mine", "--help"], ["mine SRC TGT --out FILE", "(choices: distance, ratio, absolute; default: distance)"]),
    ],
)
def test_help_is_instant(words: list[str], expected: list[str]) -> None:
    """Help comes at once, on standard output, with options, choices, defaults and examples."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _run(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert [text for text in expected if text not in shown] == []
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.4  # of CPU time


@pytest.mark.parametrize("command", LEAVES)
def test_help_shows_true_defaults_and_an_example(command: str) -> None:
    """No default is None or False, every option has help in plain words, and there is an example."""
    text = LEAVES[command].format_help()
    assert not re.search(r"default: (None|False|True|\[\]|\))", text) and f"\n  dualmoco {command}" in text
    for action in _options(command):
        assert action.help and action.help[0] != "-" and not action.help.startswith(("of ", "the ", "a ", "an "))


def test_choices_are_those_of_the_package() -> None:
    """Choices that are repeated for the sake of instant help agree with the modules that define them."""
    choices = {
        action.option_strings[0]: tuple(action.choices)
        for command in LEAVES
        for action in _options(command)
        if action.option_strings and action.choices and (command, action.option_strings[0]) != ("align", "--to")
    }
    assert choices["--backend"] == BACKENDS
    assert choices["--format"] == ("auto", *READERS)
    assert choices["--pooling"] == POOLING_NAMES
    assert choices["--to"] == TARGETS
    enums = {
        "--margin": Margin,
        "--precision": VectorPrecision,
        "--retrieval": Retrieval,
        "--index": IndexKind,
        "--on-error": OnError,
        "--split": SplitMode,
        "--runs": SpanVectors,
    }
    assert {name: choices[name] for name in enums} == {name: tuple(kind) for name, kind in enums.items()}


def test_an_option_means_the_same_everywhere() -> None:
    """Commands that share an option agree on whether it takes a value, on its type, its choices and its metavar."""
    kinds: dict[str, set[object]] = {}
    for command in LEAVES:
        for action in _options(command):
            for name in action.option_strings:
                kinds.setdefault(name, set()).add((action.nargs == 0, action.type, action.metavar))
    several = {"--out", "--to"}  # a file, a folder or either; the output formats differ
    assert {name: kind for name, kind in kinds.items() if len(kind) > 1 and name not in several} == {}


def test_parser_imports_nothing_heavy() -> None:
    """The parser is built, and a wrong recipe refused, without torch, numpy or transformers."""
    code = """
import sys
from dualmoco.cli.main import build_parser, main
build_parser()
assert main(["train", "no-such-recipe.yaml"]) == 2
print([name for name in ("torch", "numpy", "transformers", "sentence_transformers", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr.startswith("dualmoco: no-such-recipe.yaml: no such recipe")


def test_version() -> None:
    """The version is that of the package."""
    done = _run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dualmoco {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "required: COMMAND"),
        (["fly"], "unknown command 'fly'; see dualmoco --help"),
        (["trian"], "unknown command 'trian' (did you mean train?)"),
        (["search", "bild"], "unknown command 'bild' (did you mean build?); see dualmoco search --help"),
        (["--quite", "train"], "unknown option --quite (did you mean --quiet?)"),
        (["train"], "required: RECIPE.yaml; see dualmoco train --help"),
        (["train", "recipe.yaml", "--fast"], "unknown option --fast; see dualmoco train --help"),
        (["mine", "a", "b", "--out", "c", "--treshold", "1"], "unknown option --treshold (did you mean --threshold?)"),
        (["mine", "a", "b", "c", "--out", "d"], "unexpected argument 'c'; see dualmoco mine --help"),
        (["mine", "a", "b"], "required: --out"),
        (["mine", "a", "b", "--out"], "--out: expected one argument"),
        (["mine", "a", "b", "--out", "c", "--margin", "ration"], "--margin ration; expected one of distance, ratio"),
        (["score", "a", "--out", "b", "--neighbors", "three"], "--neighbors: invalid int value: 'three'"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and one line that suggests what was meant, or where to find help."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("dualmoco: ") and expected in captured.err


OLD_COMMANDS = {
    "ablate s.yaml --fresh": "ablate s.yaml --overwrite",
    "align en zh --out a --format tmx": "align en zh --out a --to tmx",
    "align en zh --out a --format=tmx": "align en zh --out a --to tmx",
    "data get un --to folder": "data get un --data folder",
    "evaluate --json scores.json m": "evaluate --out scores.json m",
    "evaluate m --json=scores": "evaluate m --out scores",
    "evaluate m --json -": "evaluate m --json",
    "evaluate m --markdown a.md --html b.html": "evaluate m --out a.md --out b.html",
    "evaluate m --pairs all": "evaluate m --langs all",
    "evaluate m --lang-pairs all": "evaluate m --langs all",
    "inspect a.en a.zh --aligned": "inspect a.en a.zh --format aligned",
    "plan r.yaml --pairs 5": "plan r.yaml --pair-count 5",
    "prepare a.en --aligned a.zh --out o x=1": "prepare a.en a.zh --format aligned --out o x=1",
    "score --tgt-file a.zh a.en --out o": "score a.en a.zh --out o",
    "score a.en --tgt-file=a.zh --out o": "score a.en a.zh --out o",
    "search query i text --lang en --nprobe 3": "search query i text --lang en --probes 3",
    "similarity --files a b --all": "similarity a b --all",
    "train --resume r.yaml a=1": "train r.yaml a=1",
    "visualize a.en --tgt-file a.zh": "visualize a.en a.zh",
}


@pytest.mark.parametrize("old", OLD_COMMANDS)
def test_old_spellings_still_work(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command of version 0.1 is parsed as the one of today, with one line on standard error for each old option."""
    parsed = build_parser().parse_args(old.split())
    hints = capsys.readouterr().err.splitlines()
    assert parsed == build_parser().parse_args(OLD_COMMANDS[old].split())
    assert capsys.readouterr().err == ""
    spelled = [
        word.partition("=")[0] for word in old.split() if word.partition("=")[0] not in OLD_COMMANDS[old].split()
    ]
    assert len(hints) == max(1, sum(word.startswith("--") for word in spelled))
    assert all(re.match(r"dualmoco: --[\w-]+.* is (now|no longer needed)", line) for line in hints)


def test_every_old_spelling_is_tested_and_hidden() -> None:
    """The table of old spellings is covered above, and help shows none of them."""
    tested = {
        (" ".join(old.split()[: len(command.split())]), word.partition("=")[0])
        for old in OLD_COMMANDS
        for command in OLD_SPELLINGS
        for word in old.split()
        if old.startswith(f"{command} ")
    }
    for command, table in OLD_SPELLINGS.items():
        for old, new in table.items():
            name = old.split()[0]
            assert (command, name) in tested
            assert name in ("--json", "--format", "--to") or name not in LEAVES[command]._option_string_actions, new


@pytest.mark.parametrize("flag", ["quiet", "verbose"])
def test_general_options_go_before_and_after_the_command(flag: str) -> None:
    """`dualmoco --quiet COMMAND` is `dualmoco COMMAND --quiet`."""
    for command in ("data list", "demo"):
        words = command.split()
        before, after, without = (
            build_parser().parse_args(given) for given in ([f"--{flag}", *words], [*words, f"--{flag}"], words)
        )
        assert before == after and getattr(before, flag) is True and getattr(without, flag) is False


def test_quiet_and_verbose(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--quiet` hides progress bars and notes; `--verbose` shows where an error comes from."""
    seen = []

    def fail(parsed: object) -> int:
        seen.append((are_shown(), logging.getLogger("dualmoco").level))
        raise DataError("a.tsv: broken")

    monkeypatch.setattr(train, "run", fail)
    for words in (["train", "r.yaml"], ["--quiet", "train", "r.yaml"]):
        assert main(words) == 2
        assert capsys.readouterr().err == "dualmoco: a.tsv: broken\n"
    assert main(["train", "r.yaml", "--verbose"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.endswith("\ndualmoco: a.tsv: broken\n")
    assert seen == [(True, logging.INFO), (False, logging.WARNING), (True, logging.DEBUG)]


def test_exit_statuses_are_documented() -> None:
    """The page has a row for each status that the code names."""
    page = (ROOT / "docs" / "reference" / "exit-statuses.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `?(\d+)`? \| (.+?) \|$", page, flags=re.MULTILINE))
    assert {0, EXIT_PARTIAL, EXIT_USAGE, EXIT_UNRELATED, EXIT_INTERNAL, 130, 141, 143} == set(map(int, rows))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_options_and_choices(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script has them all, and bash accepts it."""
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    assert ended.value.code == 0
    assert not [word for word in (*LEAVES, "threshold", "onnx-int8", "intersection") if word.split()[-1] not in script]
    assert "--nprobe" not in script and "--tgt-file" not in script
    if shell == "bash" and shutil.which("bash"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_manual_page(tmp_path: Path) -> None:
    """`make man` writes a page that groff renders without a warning, with every command and option."""
    recipe = re.search(r"^man: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    program = Path(sys.executable).with_name("argparse-manpage")
    words = shlex.split(
        recipe[1].replace("\\\n", " ").splitlines()[-1].replace("$(BIN)/argparse-manpage", str(program))
    )
    (tmp_path / "build").mkdir()
    subprocess.run(words, cwd=tmp_path, check=True)
    page = tmp_path / "build" / "dualmoco.1"
    text = page.read_text(encoding="utf-8").replace("\\-", "-")
    options = {name for command in LEAVES for action in _options(command) for name in action.option_strings}
    assert not [word for word in (*LEAVES, *(options - {"-h", "--help"})) if word not in text]
    if groff := shutil.which("groff"):
        shown = subprocess.run([groff, "-ww", "-man", "-Tutf8", str(page)], capture_output=True, text=True, check=True)
        assert shown.stderr == "" and "find the parallel sentences" in shown.stdout


def _examples() -> list[str]:
    lines = [line for leaf in LEAVES.values() for line in (leaf.epilog or "").splitlines()]
    found = [re.fullmatch(r"  (?:torchrun .* -m )?dualmoco (.*?)(?: [<>] .*)?", line) for line in lines]
    return list(dict.fromkeys(match[1] for match in found if match))


@pytest.mark.parametrize("example", _examples())
def test_examples_of_the_help_are_understood(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is parsed without a hint, and files of the repository that it names exist."""
    words = shlex.split(example)
    assert build_parser().parse_args(words).command == words[0]
    assert capsys.readouterr().err == ""
    for word in words:
        name = word.rpartition("=")[2]
        assert not name.startswith(("examples/", "recipes/", "src/")) or (ROOT / name).is_file(), name


SLOW_EXAMPLES = {"ablate", "combine", "data get", "demo", "join", "merge", "plan", "serve", "train"}
"""Commands whose examples train a model, download, or serve until they are stopped; their own tests run them."""


@pytest.mark.parametrize("command", sorted(LEAVES.keys() - SLOW_EXAMPLES))
def test_examples_of_the_help_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines below `examples:` run as pasted in a fresh clone."""
    for name in ("examples", "recipes", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DUALMOCO_DATA", raising=False)
    examples = (LEAVES[command].epilog or "").partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    assert any(line.startswith(f"  dualmoco {command}") for line in examples)
    for line in examples:
        program, *words = shlex.split(line.partition(" < ")[0])
        if program != "dualmoco":
            subprocess.run([program, *words], check=True)
        elif " < " not in line:
            assert main([*words, "--quiet"]) == 0, capsys.readouterr().err
            assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    [
        "train recipe.yaml --data folder seed=1 out=run",
        "train --quiet recipe.yaml --data=folder -- seed=1 out=run",
        "train recipe.yaml seed=1 --data folder out=run",
        "train --data folder recipe.yaml --json seed=1 out=run",
    ],
)
def test_options_and_settings_mix(line: str) -> None:
    """Options may come before, after and between the arguments."""
    parsed = build_parser().parse_args(shlex.split(line))
    assert (parsed.recipe, parsed.data, parsed.overrides) == ("recipe.yaml", "folder", ["seed=1", "out=run"])


def _bad_length(folder: Path) -> list[str]:
    src, tgt = _write(folder / "a.en", "a\nb\n"), _write(folder / "a.zh", "甲\n乙\n丙\n")
    return ["data.train=[]", f"data.src_files=[{src}]", f"data.tgt_files=[{tgt}]"]


def _other_run(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    _write(folder / "run" / "config.yaml", "out: elsewhere\n")
    return []


def _foreign_files(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    _write(folder / "run" / "thesis.txt", "years of work")
    return []


def _pickled_weights(folder: Path) -> list[str]:
    (folder / "model").mkdir()
    _write(folder / "model" / "config.json", '{"model_type": "bert"}')
    _write(folder / "model" / "pytorch_model.bin", b"\x80\x04")
    return ["src.kind=pretrained", f"src.name={folder / 'model'}"]


BAD_INPUTS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "missing data file": (lambda folder: ["data.train=[none.tsv]"], r"none\.tsv: no such file; expected a file or a"),
    "different lengths": (_bad_length, r"a\.en ends after line 2 but .*a\.zh has more"),
    "line without a tab": (
        lambda folder: [f"data.train=[{_write(folder / 'x.tsv', 'a' + chr(9) + 'b' + chr(10) + 'no tab')}]"],
        r"x\.tsv:2: 1 tab-separated column; expected at least 2",
    ),
    "invalid UTF-8": (
        lambda folder: [f"data.train=[{_write(folder / 'x.tsv', b'a' + bytes([9, 0xFF]))}]"],
        r"x\.tsv:1: not UTF-8",
    ),
    "empty corpus": (lambda folder: [f"data.train=[{_write(folder / 'x.tsv', '')}]"], "no usable pair in the training"),
    "fewer pairs than held out": (
        lambda folder: ["data.heldout=700"],
        "600 usable pairs, 600 of them without",
    ),
    "fewer pairs than a batch": (lambda folder: ["optimizer.batch_size=551"], "550 training rows; expected at least"),
    "unknown key": (lambda folder: ["contrast.queue=8"], "Key 'queue' not in 'ContrastConfig'"),
    "wrong type": (lambda folder: ["schedule.steps=many"], "'many' of type 'str' could not be converted to Integer"),
    "no equals sign": (lambda folder: ["fast"], "'fast': expected key=value"),
    "queue 0": (lambda folder: ["contrast.queue_size=0"], r"contrast\.queue_size is 0; expected at least 1"),
    "temperature 0": (lambda folder: ["contrast.temperature=0"], r"contrast\.temperature is 0\.0; expected above 0"),
    "missing test set": (lambda folder: ["data.exclude=[no-test]"], "no-test: no such file"),
    "out holds another run": (_other_run, "run: was started with .*out=FOLDER"),
    "out holds foreign files": (_foreign_files, "run: contains files but no run; choose another folder"),
    "out is a file": (lambda folder: [f"out={_write(folder / 'x', '')}"], "x: is a file; expected a folder for the"),
    "pickled weights": (_pickled_weights, r"pytorch_model\.bin: pickled weights are never loaded; expected them as"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_one_line(name: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is exit code 2 and one line on standard error, and no file of the run folder is made or changed."""
    make, expected = BAD_INPUTS[name]
    overrides = make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["train", str(recipe), *overrides]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"dualmoco: [^\n]*{expected}[^\n]*\n", captured.err), captured.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("contrast.queue=8", "Key 'queue' not in 'ContrastConfig'"),
        ("contrast.temperature=0", r"contrast\.temperature is 0\.0; expected above 0"),
    ],
)
def test_bad_input_is_one_line_in_a_process_of_its_own(recipe: Path, override: str, expected: str) -> None:
    """The program itself ends with code 2, one line and no traceback."""
    done = _run("train", str(recipe), override)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"dualmoco: [^\n]*{expected}[^\n]*\n", done.stderr), done.stderr


def test_resuming_with_other_settings_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first setting that differs is named with both values."""
    assert main(["train", str(recipe), "--quiet", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert (result["step"], result["stop"], result["out"]) == (12, "finished", str(tmp_path / "run"))
    assert 0 <= result["best"] <= 1
    assert main(["train", str(recipe), "contrast.temperature=0.1"]) == 2
    error = capsys.readouterr().err
    assert "run: was started with contrast.temperature=0.05, now contrast.temperature=0.1; resume with" in error
    assert error.count("\n") == 1


def test_result_is_told(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output has how it ended, both scores and where the model is; --data is the root of relative names."""
    data = tmp_path / "data"
    data.mkdir()
    _write(data / "own.tsv", "".join(f"sentence {n}\t句子{n}\n" for n in range(100)))
    words = ["train", str(recipe), "data.train=[own.tsv]", "schedule.steps=2", "--data", str(data)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"finished at step 2 after \d+\.\d minutes", lines[0])
    assert re.fullmatch(r"held-out retrieval \d+\.\d % before, \d+\.\d % at step \d+", lines[1])
    assert lines[2:] == [f"model in {tmp_path / 'run'}/model"]
    assert (tmp_path / "run" / "model" / "modules.json").is_file()


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("train tiny", "the last checkpoint is kept in the run folder; run the same command again to resume"),
        ("encode a.txt --out v", "finished shards are kept in v; run the same command again to resume"),
        ("mine a b --out p.tsv", "finished work is kept in p.tsv.work; run the same command again to resume"),
        ("mine a b --out p.tsv --work w", "finished work is kept in w; run the same command again to resume"),
        ("search build i en=a.txt", "finished vectors are kept next to i; run the same command again to resume"),
        ("export en-zh --lang en --to onnx --out m", "nothing was written; run the same command again"),
    ],
)
def test_interruption_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    word: str,
    line: str,
    kept: str,
) -> None:
    """Ctrl-C and SIGTERM end any command without a traceback; one line says how to resume."""
    monkeypatch.setattr(main_module, "build_parser", lambda: _interrupting(number))
    assert main(line.split()) == 128 + number
    assert capsys.readouterr() == ("", f"dualmoco: {word}: {kept}\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def _interrupting(number: signal.Signals) -> CommandParser:
    """The real parser, with commands that signal their own process."""

    def run(parsed: object) -> int:
        os.kill(os.getpid(), number)
        time.sleep(60)
        return 0

    parser = build_parser()
    for leaf in find_leaves(parser):
        leaf.set_defaults(run=run)
    return parser


def test_hints_are_of_commands() -> None:
    """Each hint for an interrupted command belongs to a command that exists, and fits its options."""
    assert INTERRUPTION_HINTS.keys() <= LEAVES.keys()


FAILING = """
import sys
from dualmoco.cli import train
from dualmoco.cli.main import main
def fail(parsed):
    raise {error}
train.run = fail
sys.exit(main(["train", "recipe.yaml", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            "TypeError('one\\ntwo')",
            70,
            "internal error: TypeError: one two; run with --debug for the traceback, and report it",
        ),
        ("OSError(36, 'File name too long', 'x')", 2, "x: File name too long"),
        ("MemoryError()", 2, "out of memory; expected a machine with more memory, or smaller inputs"),
    ],
)
def test_any_exception_is_one_line(error: str, status: int, line: str) -> None:
    """A fault of dualmoco is one line with its own exit status; `--debug` shows where it happened."""
    code = FAILING.format(error=error)
    plain, debug = (
        subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        for words in ([], ["--debug"])
    )
    assert (plain.returncode, plain.stdout, plain.stderr) == (status, "", f"dualmoco: {line}\n")
    assert debug.returncode == status and debug.stderr.startswith("Traceback") and debug.stderr.endswith(plain.stderr)


def test_arguments_that_are_not_text_are_refused() -> None:
    """A name with bytes that are not UTF-8 is one line, in every command."""
    for words in (
        [b"inspect", b"caf\xe9.tsv"],
        [b"similarity", b"\xff", b"b"],
        [b"train", b"tiny", b"out=\xed\xa0\x80"],
    ):
        done = subprocess.run([sys.executable.encode(), b"-m", b"dualmoco", *words], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"dualmoco: argument [^\n]*\\udc\w\w[^\n]*: not valid UTF-8; [^\n]*\n", done.stderr)


@pytest.mark.parametrize("length", [300, 5000])
def test_long_names_are_one_line(length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the file system does not take is refused before any work, as input and as output."""
    name, text = str(tmp_path / ("n" * length)), _write(tmp_path / "a.txt", "Hello.\n")
    for words in (
        ["inspect", f"{name}.tsv"],
        ["train", "tiny", f"out={name}"],
        ["train", f"{name}.yaml"],
        ["encode", text, "--out", name],
        ["encode", name, "--out", str(tmp_path / "v")],
        ["mine", text, text, "--out", f"{name}.tsv"],
        ["prepare", text, "--src", "en", "--tgt", "zh", "--out", name],
        ["prepare", text, "--src", "en", "--tgt", "zh", "--out", str(tmp_path / "o"), "--exclude", name],
    ):
        status, error = main([*words, "--quiet"]), capsys.readouterr().err
        assert status == 2 and error.count("\n") == 1 and "internal" not in error, (words[0], error[-200:])


def test_names_that_leave_no_room_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output of 245 characters could be created, but not the temporary file that becomes it."""
    text = _write(tmp_path / "a.txt", "Hello.\n")
    assert main(["align", text, text, "--out", str(tmp_path / f"{'n' * 241}.tsv")]) == 2
    assert "the name has 245 bytes; expected at most 240" in capsys.readouterr().err


def test_closed_pipe_is_quiet(recipe: Path) -> None:
    """A reader that goes away, such as head, ends the program without a traceback."""
    code = """
import sys
from dualmoco.cli import train
from dualmoco.cli.main import main
def write(parsed):
    for _ in range(100_000):
        sys.stdout.write("a line of results\\n")
    return 0
train.run = write
sys.exit(main(["train", "recipe.yaml"]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    assert process.stdout.readline() == b"a line of results\n"
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=30), errors) == (128 + signal.SIGPIPE, b"")

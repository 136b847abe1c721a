"""Tests of recipes: types, overrides, refused settings, fingerprints, and the recipes we ship."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dualmoco.analysis.study import StudyConfig, read_study
from dualmoco.cli.main import build_parser
from dualmoco.core.config_loader import read_recipe
from dualmoco.core.errors import ConfigError
from dualmoco.data.config import PrepareConfig, check_recipe
from dualmoco.models.config import EncoderKind, PoolingMode
from dualmoco.training.config import FREE_SETTINGS, MixedPrecision, NliFeatures, TrainConfig
from dualmoco.training.recipe import load_config

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
RECIPE = """
out: runs/test
src: {lang: en, kind: static}
tgt: {lang: zh, kind: static}
data: {train: [pairs.tsv]}
optimizer: {lr: 4e-5}
schedule: {steps: 10}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recipe that names what it must and leaves the rest to the defaults."""
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    return file


def _changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_values_have_their_types(path: Path) -> None:
    """Numbers without a point, enums and lists arrive as what the dataclasses say, at every depth."""
    config = load_config(path, ["contrast.temperature=1", "nli.features=sbert", "data.columns=[2,5]"])
    assert type(config) is TrainConfig
    assert type(config.optimizer.lr) is float and config.optimizer.lr == 4e-5
    assert type(config.contrast.temperature) is float and config.contrast.temperature == 1.0
    assert type(config.schedule.steps) is int and config.schedule.steps == 10
    assert config.src.kind is EncoderKind.static and config.src.pooling is PoolingMode.auto
    assert config.nli.features is NliFeatures.sbert
    assert type(config.data.train) is list and config.data.train == ["pairs.tsv"]
    assert type(config.data.columns) is list and config.data.columns == [2, 5]


def test_defaults_are_the_papers(path: Path) -> None:
    """What a recipe leaves out has the value of the paper's appendix."""
    config = load_config(path)
    assert config.objective == "dual-moco"
    assert (config.contrast.queue_size, config.contrast.temperature, config.contrast.momentum) == (409_600, 0.04, 0.999)
    optimizer = config.optimizer
    assert (optimizer.batch_size, optimizer.clip, optimizer.warmup_steps, optimizer.weight_decay) == (
        1024,
        10.0,
        400,
        1e-4,
    )
    assert (config.nli.weight, config.nli.batch_size, config.nli.hidden, config.nli.dropout) == (0.1, 128, 256, 0.1)


@pytest.mark.parametrize("name", ["dual-moco", "in-batch", "simcse"])
def test_objectives_have_the_names_of_the_documentation(path: Path, name: str) -> None:
    """An objective is named as the settings file of a run writes it, hyphen and all."""
    assert load_config(path, [f"objective={name}"]).objective == name


def test_default_precision_can_be_written(path: Path) -> None:
    """The name of the default precision is accepted, in a recipe and as an override."""
    assert load_config(path, ["optimizer.precision=fp32"]).optimizer.precision is MixedPrecision.fp32
    _changed(path, "lr: 4e-5", "lr: 4e-5, precision: fp32")
    assert load_config(path).optimizer.precision is MixedPrecision.fp32


def test_norwegian_is_a_language(path: Path) -> None:
    """YAML reads a bare `no` as false; where text is expected, it stays as it was typed."""
    assert load_config(path, ["tgt.lang=no"]).tgt.lang == "no"
    assert load_config(path, ['tgt.lang="no"']).tgt.lang == "no"
    assert load_config(_changed(path, "lang: zh", "lang: no")).tgt.lang == "no"


@pytest.mark.parametrize("text", ["2024_11_18", "no", "1e3", "null", "0x10", "a: b", "[a", "a\\b", "12:30"])
def test_text_of_an_override_stays_as_typed(path: Path, text: str) -> None:
    """A key that takes text is not read as YAML."""
    assert load_config(path, [f"out={text}"]).out == text


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("data.train=[no, 2024_11_18]", ["no", "2024_11_18"]),
        ("data.train=[1e3.tsv, 0x10, '12:30', on, a b.tsv]", ["1e3.tsv", "0x10", "12:30", "on", "a b.tsv"]),
        ("data.train=[]", []),
        ("data.exclude=[007, '*.txt']", ["007", "*.txt"]),
        ("data.train=1e3", ["1e3"]),  # one text instead of a list
        ("data.train=grammar:2000", ["grammar:2000"]),
    ],
)
def test_text_in_lists_stays_as_typed(path: Path, tmp_path: Path, override: str, values: list[str]) -> None:
    """Elements of a list of texts are not read as booleans and numbers, on the command line and in a recipe."""
    key, _, value = override.partition("=")
    name = key.partition(".")[2]
    settings = ["data.prepared=p"] if not values else []
    assert getattr(load_config(path, [override, *settings]).data, name) == values
    (tmp_path / "r.yaml").write_text(f"data:\n  {name}: {value}\nout: 1_0\nseed: 3\n", encoding="utf-8")
    found = read_recipe(TrainConfig, tmp_path / "r.yaml")
    assert (getattr(found.data, name), found.out, found.seed) == (values, "1_0", 3)


def test_text_in_lists_of_settings_stays_as_typed(tmp_path: Path) -> None:
    """The same for text in a list of settings, and for `prepare` and studies."""
    (tmp_path / "p.yaml").write_text(
        "src: no\ntgt: en\ncorpora: [{name: 2024_11, files: [on], max_pairs: 1_000}]\n", encoding="utf-8"
    )
    found = read_recipe(PrepareConfig, tmp_path / "p.yaml", ["out=1e3"])
    (corpus,) = found.corpora
    assert (found.src, found.out, corpus.name, corpus.files, corpus.max_pairs) == ("no", "1e3", "2024_11", ["on"], 1000)
    (tmp_path / "s.yaml").write_text("title: 1_0\nvary: {optimizer.lr: [1e-3, 2]}\nseeds: [0]\n", encoding="utf-8")
    study = read_recipe(StudyConfig, tmp_path / "s.yaml", ["set=[src.lang=no]", "out=2024_11_18"])
    assert (study.title, study.out, study.set) == ("1_0", "2024_11_18", ["src.lang=no"])
    assert (study.vary, study.seeds) == ({"optimizer.lr": ["1e-3", "2"]}, [0])


@pytest.mark.parametrize("seeds", ["[[1]]", "[{a: 1}]", "3", "{a: 1}", "[x]"])
def test_seeds_of_another_type_are_refused(tmp_path: Path, seeds: str) -> None:
    """A study with values of another type is refused in one line."""
    (tmp_path / "s.yaml").write_text(
        f"title: t\nout: s\nrecipe: tiny\nvary: {{seed: [1]}}\nseeds: {seeds}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"seeds|list"):
        read_study(tmp_path / "s.yaml")


def test_data_is_no_recipe(tmp_path: Path) -> None:
    """Sentence pairs are refused in one short line that says what to do."""
    for name, line in (("my.tsv", "How are you?\t你好吗？\n"), ("my.yaml", "How are you\n"), ("my.txt", "- a: b\n")):
        (tmp_path / name).write_text(line * 1000, encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"not a recipe; expected a YAML file.*dualmoco prepare.*data\.prepared="
        ) as said:
            load_config(tmp_path / name)
        assert len(str(said.value)) < 600


def test_long_reasons_are_cut(path: Path) -> None:
    """A message of the YAML reader may quote the whole file."""
    with pytest.raises(ConfigError) as said:
        load_config(path, [f"schedule.steps={'x' * 10_000}"])
    assert len(str(said.value)) < 800


def test_overrides_win(path: Path) -> None:
    """An override is stronger than the recipe, the later of two is stronger, and other keys stay."""
    config = load_config(path, ["optimizer.lr=1e-3", "schedule.steps=5", "schedule.steps=7", "src.lang=de"])
    assert (config.optimizer.lr, config.schedule.steps, config.src.lang) == (1e-3, 7, "de")
    assert (config.src.kind, config.tgt.lang, config.out) == (EncoderKind.static, "zh", "runs/test")


def test_settings_survive_being_written(path: Path, tmp_path: Path) -> None:
    """The settings as plain types are a recipe that says the same."""
    config = load_config(path, ["objective=in-batch", "tgt.pooling=mean", "src.lang=de"])
    written = tmp_path / "config.yaml"
    written.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    assert load_config(written) == config


def test_missing_recipe_is_refused(tmp_path: Path) -> None:
    """The message names the file and what was expected."""
    with pytest.raises(ConfigError, match=r"nothing\.yaml: no such recipe; expected a YAML file such as recipes/tiny"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="no such recipe"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"data: {train: [a", r"recipe\.yaml: while parsing a flow .* line 1"),
        (b"out: [a\nsrc: b]: c", r"recipe\.yaml: .* line 2"),
        (b"out: \xff\xfe", r"recipe\.yaml: .*can't decode byte 0xff"),
        (b"out: ${nothing}\n", r"recipe\.yaml: Interpolation key 'nothing' not found"),
        (b"out: !!python/object/apply:os.getcwd []\n", r"recipe\.yaml: could not determine a constructor"),
    ],
)
def test_broken_recipe_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    """What is not YAML, or not a mapping of our keys, is named in one line that ends in where to look."""
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"(?s)^[^\n]*{expected}[^\n]*; see dualmoco/training/config.py for every key[^\n]*$"
    ):
        load_config(file)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("queue=3", "Key 'queue' not in 'TrainConfig'"),
        ("contrast.queue=3", r"Key 'queue' not in 'ContrastConfig'.* full_key: contrast\.queue "),
        ("optimizer.lr.peak=3", r"optimizer\.lr"),
        ("optimizer.lr=fast", "'fast' of type 'str' could not be converted to Float"),
        ("schedule.steps=1.5", "'1.5' of type 'float' could not be converted to Integer"),
        ("schedule.steps=many", "'many' of type 'str' could not be converted to Integer"),
        ("optimizer.compile=perhaps", "'perhaps' is not a valid bool"),
        ("schedule.tensorboard=true", "Key 'tensorboard' not in 'ScheduleConfig'"),  # now schedule.trackers
        ("data.columns=3", r"is not a ListConfig.* full_key: data\.columns"),
        ("src=bert-base-uncased", "str is not a subclass of EncoderConfig"),
        ("complement.model=a", "Key 'complement' not in 'TrainConfig'"),  # removed
        ("src.word_pairs=9", "Key 'word_pairs' not in 'EncoderConfig'"),  # removed
        ("contrast.teacher_weight=0.5", "Key 'teacher_weight' not in 'ContrastConfig'"),  # removed
        ("contrast.momentum_ramp=5", "Key 'momentum_ramp' not in 'ContrastConfig'"),  # removed
        ("nli.side=tgt", "Key 'side' not in 'NliConfig'"),  # removed
        ("src.kind=lstm", r"Invalid value 'lstm', expected one of \[pretrained, bert, static, shared\]"),
        ("src.pooling=sum", r"Invalid value 'sum', expected one of \[auto, mean, max, cls, last\]"),
        ("optimizer.precision=fp8", r"Invalid value 'fp8', expected one of \[fp32, bf16, fp16\]"),
        ("data.train=[a", "while parsing a flow sequence"),
    ],
)
def test_wrong_key_or_type_is_refused(path: Path, override: str, expected: str) -> None:
    """Unknown keys, wrong types and unknown names are errors of one line with the file and the key."""
    with pytest.raises(ConfigError, match=rf"^[^\n]*recipe\.yaml: [^\n]*{expected}[^\n]*$"):
        load_config(path, [override])


def test_wrong_key_in_the_recipe_is_refused(path: Path) -> None:
    """A misspelt key in the file itself is no default in silence."""
    with pytest.raises(ConfigError, match=r"Key 'learning_rate' not in 'OptimizerConfig'"):
        load_config(_changed(path, "lr: 4e-5", "learning_rate: 4e-5"))
    with pytest.raises(ConfigError, match=r"Invalid value 'rnn', expected one of"):
        load_config(_changed(_changed(path, "learning_rate", "lr"), "lang: zh, kind: static", "lang: zh, kind: rnn"))


@pytest.mark.parametrize("override", ["--fast", "optimizer.lr", "lr 3"])
def test_override_without_equals_is_refused(path: Path, override: str) -> None:
    """The message shows what was given and the form that was expected."""
    with pytest.raises(ConfigError, match=rf"^'{override}': expected key=value, for example optimizer\.lr=1e-4$"):
        load_config(path, [override])


FROZEN = ["src.kind=pretrained", "src.name=a", "src.frozen=true"]
RIDGE = ["tgt.projection=8", "tgt.projection_init=ridge"]
SENSELESS: list[tuple[list[str], str]] = [
    (["out=''"], "out is ''; expected a folder for the run"),
    (["src.lang=''"], "src.lang is ''; expected a language name such as"),
    (["tgt.lang=''"], "tgt.lang is ''; expected a language name such as"),
    (["tgt.lang=en"], "tgt.lang is 'en'; expected another language than src.lang"),
    (["src.kind=shared"], "src.kind is 'shared'; expected pretrained, bert or static"),
    (["contrast.queue_size=0"], "contrast.queue_size is 0; expected at least 1"),
    (["contrast.queue_size=-5"], "contrast.queue_size is -5; expected at least 1"),
    (["contrast.temperature=0"], "contrast.temperature is 0.0; expected above 0, for example 0.04"),
    (["contrast.temperature=nan"], "contrast.temperature is nan; expected above 0, for example 0.04"),
    (["contrast.momentum=1.0"], "contrast.momentum is 1.0; expected from 0 to below 1, for example 0.999"),
    (["contrast.momentum=-0.1"], "contrast.momentum is -0.1; expected from 0 to below 1"),
    (["optimizer.lr=0"], "optimizer.lr is 0.0; expected above 0"),
    (["optimizer.batch_size=1"], "optimizer.batch_size is 1; expected at least 2"),
    (["optimizer.accumulate=0"], "optimizer.accumulate is 0; expected at least 1"),
    (["optimizer.clip=0"], "optimizer.clip is 0.0; expected above 0"),
    (["schedule.steps=0"], "schedule is []; expected exactly one of epochs, steps and minutes above 0"),
    (["schedule.epochs=2"], "schedule is [2.0, 10]; expected exactly one of epochs, steps and minutes above 0"),
    (["schedule.minutes=2"], "schedule is [10, 2.0]; expected exactly one of epochs, steps and minutes above 0"),
    (["schedule.evaluate_every=0"], "schedule.evaluate_every is 0; expected at least 1"),
    (["schedule.checkpoint_every=0"], "schedule.checkpoint_every is 0; expected at least 1"),
    (["schedule.log_every=0"], "schedule.log_every is 0; expected at least 1"),
    (["schedule.keep=0"], "schedule.keep is 0; expected at least 1"),
    (["data.train=[]"], "data.train is []; expected exactly one of train, prepared, and src_files"),
    (["data.src_files=[a]", "data.tgt_files=[b]"], "data.train is ['pairs.tsv']; expected exactly one of train"),
    (
        ["data.train=[]", "data.src_files=[a,b]", "data.tgt_files=[c]"],
        "data.tgt_files is ['c']; expected the same number",
    ),
    (["data.tgt_files=[c]"], "data.tgt_files is ['c']; expected the same number of files as src_files"),
    (["data.columns=[1]"], "data.columns is [1]; expected two column numbers from 0"),
    (["data.columns=[0,1,2]"], "data.columns is [0, 1, 2]; expected two column numbers from 0"),
    (["data.columns=[0,-1]"], "data.columns is [0, -1]; expected two column numbers from 0"),
    (["data.heldout=0"], "data.heldout is 0; expected at least 2"),
    (["data.heldout=1"], "data.heldout is 1; expected at least 2"),
    (["data.bucket=0"], "data.bucket is 0; expected at least 1"),
    (["objective=moco"], "objective is 'moco'; expected one of dual-moco, in-batch, distill, nli, simcse"),
    (["contrast.dimensions=[8,8]"], "contrast.dimensions is [8, 8]; expected numbers above 0 from high to low"),
    (["contrast.dimensions=[4,8]"], "contrast.dimensions is [4, 8]; expected numbers above 0 from high to low"),
    (["contrast.dimensions=[8,0]"], "contrast.dimensions is [8, 0]; expected numbers above 0 from high to low"),
    (["contrast.dimensions=[999]"], "contrast.dimensions is [999]; expected at most 256, the dimension of src"),
    (
        ["contrast.dimensions=[8]", "objective=distill", "teacher=a"],
        "contrast.dimensions is [8]; expected [] when objective is distill; use dual-moco or in-batch or simcse",
    ),
    (["options.bias=1"], "options is ['bias']; expected options of dual-moco: none"),
    (["objective=nli"], "nli.train is []; expected NLI files when objective is nli"),
    (["objective=simcse", "src.dropout=0"], "expected src.dropout and tgt.dropout above 0 when objective is simcse"),
    (["objective=simcse", "tgt.dropout=0"], "expected src.dropout and tgt.dropout above 0 when objective is simcse"),
    (["objective=distill"], "teacher is ''; expected a model folder or hub name when objective is distill"),
    (["src.kind=pretrained"], "src.name is ''; expected a model folder or hub name such as bert-base-uncased"),
    (["tgt.kind=pretrained"], "tgt.name is ''; expected a model folder or hub name such as bert-base-uncased"),
    (["src.dropout=1"], "src.dropout is 1.0; expected from 0 to below 1"),
    (["tgt.dropout=-0.1"], "tgt.dropout is -0.1; expected from 0 to below 1"),
    (["src.pooling=max"], "src.pooling is 'max'; expected auto or mean when src.kind is static"),
    (["src.max_tokens=2"], "src.max_tokens is 2; expected at least 3"),
    (["tgt.max_tokens=2"], "tgt.max_tokens is 2; expected at least 3"),
    (["src.width=0"], "src.width is 0; expected at least 1"),
    (["tgt.width=0"], "tgt.width is 0; expected at least 1"),
    (["src.vocab_size=10"], "src.vocab_size is 10; expected at least 11"),
    (["tgt.vocab_size=10"], "tgt.vocab_size is 10; expected at least 11"),
    (["src.frozen=true", "tgt.frozen=true"], "tgt.frozen is True; expected false when src.frozen is true: one side"),
    (["src.frozen=true"], "src.kind is 'static'; expected pretrained when src.frozen is true"),
    (["tgt.frozen=true", "tgt.kind=bert"], "tgt.kind is 'bert'; expected pretrained when tgt.frozen is true"),
    ([*FROZEN, "tgt.kind=shared"], "src.frozen is True; expected false when tgt.kind is shared: it is one encoder"),
    (["tgt.frozen=true", "tgt.kind=shared"], "tgt.frozen is True; expected false when tgt.kind is shared"),
    (
        [*FROZEN, "objective=in-batch"],
        "src.frozen is True; expected false when objective is in-batch, which trains both",
    ),
    ([*FROZEN, "objective=distill", "teacher=a"], "src.frozen is True; expected false when objective is distill"),
    ([*FROZEN, "objective=nli", "nli.train=[a]"], "src.frozen is True; expected false when objective"),
    ([*FROZEN, "objective=simcse"], "src.frozen is True; expected false when objective is simcse"),
    ([*FROZEN, "nli.train=[a]"], "src.frozen is True; expected false when nli.train names files"),
    ([*FROZEN, "contrast.key_dropout=true"], "contrast.key_dropout is True; expected false when src.frozen is true"),
    (
        [*FROZEN, "src.projection=8"],
        "src.projection is 8; expected 0 when src.frozen is true: a new layer must be trained",
    ),
    ([*FROZEN, "src.trainable=head"], "src.trainable is 'head'; expected all when src.frozen is true"),
    (["src.trainable=none"], "src.trainable is 'none'; expected all, head or last:N such as last:2"),
    (["src.trainable=last:0"], "src.trainable is 'last:0'; expected all, head or last:N such as last:2"),
    (["src.trainable=last:x"], "src.trainable is 'last:x'; expected all, head or last:N such as last:2"),
    (["src.trainable=last:1"], "src.trainable is 'last:1'; expected all or head when src.kind is static"),
    (
        ["tgt.kind=bert", "tgt.trainable=last:5"],
        "tgt.trainable is 'last:5'; expected at most last:4, the number of tgt",
    ),
    (["tgt.kind=shared", "tgt.trainable=head"], "tgt.trainable is 'head'; expected all when tgt.kind is shared"),
    (["tgt.projection_init=ridge"], "tgt.projection is 0; expected a dimension when tgt.projection_init is ridge"),
    ([*RIDGE, "src.projection_init=ridge"], "tgt.projection_init is 'ridge'; expected random when src.projection_init"),
    ([*RIDGE, "tgt.kind=shared"], "tgt.projection_init is 'ridge'; expected random when tgt.kind is shared"),
    ([*RIDGE, "tgt.ridge_pairs=0"], "tgt.ridge_pairs is 0; expected at least 1"),
]


@pytest.mark.parametrize(("overrides", "expected"), SENSELESS, ids=[" ".join(case[0]) for case in SENSELESS])
def test_senseless_value_is_refused(path: Path, overrides: list[str], expected: str) -> None:
    """Each rule names its key, the value that was given and what was expected."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["contrast.queue_size=1", "contrast.momentum=0", "optimizer.batch_size=2", "data.heldout=2"],
        ["schedule.steps=0", "schedule.epochs=0.5"],
        ["data.train=[]", "data.src_files=[a]", "data.tgt_files=[b]"],
        ["tgt.kind=shared", "src.dropout=0", "src.max_tokens=3", "src.vocab_size=11", "tgt.width=1"],
        ["objective=nli", "nli.train=[a]"],
        ["objective=distill", "teacher=a"],
        ["src.kind=pretrained", "src.name=a"],
        ["tgt.kind=pretrained", "tgt.name=a", "tgt.frozen=True", "nli.train=[a]"],
        ["tgt.kind=bert", "tgt.trainable=last:4", "src.trainable=head", "src.projection=1"],
        ["tgt.projection=1", "tgt.projection_init=ridge", "tgt.ridge_pairs=1"],
    ],
    ids=" ".join,
)
def test_values_at_the_limit_are_allowed(path: Path, overrides: list[str]) -> None:
    """The smallest values that make sense, and what each objective asks for, pass the rules and arrive."""
    settings = load_config(path, overrides).to_dict()
    for override in overrides:
        key, value = override.split("=")
        found: Any = settings
        for name in key.split("."):
            found = found[name]
        assert str(found).replace("'", "") == value or float(found) == float(value)


FREE_VALUES = {
    "out": "elsewhere",  # a run that was moved, or whose data was, is the same run
    "data.root": "/elsewhere",
    "optimizer.accumulate": "2",
    "optimizer.gradient_checkpointing": "true",
    "schedule.evaluate": "sts",
    "schedule.checkpoint_every": "7",
    "schedule.log_every": "7",
    "schedule.keep": "7",
    "schedule.trackers": "wandb",
}


@pytest.mark.parametrize("key", FREE_SETTINGS)
def test_fingerprint_ignores_settings_that_cannot_change_the_result(path: Path, key: str) -> None:
    """Runs that differ in them have one fingerprint."""
    changed = load_config(path, [f"{key}={FREE_VALUES[key]}"])
    assert changed != load_config(path)
    assert changed.fingerprint() == load_config(path).fingerprint()


def test_fingerprint_tells_every_other_setting(path: Path) -> None:
    """No two of these settings have one fingerprint."""
    overrides = [
        "seed=1",
        "objective=in-batch",
        "teacher=a",
        "src.lang=de",
        "src.dropout=0.2",
        "tgt.pooling=mean",
        "tgt.dropout=0.2",
        "data.train=[b.tsv]",
        "data.exclude=[a]",
        "data.heldout=999",
        "data.columns=[1,0]",
        "contrast.queue_size=8",
        "contrast.temperature=0.05",
        "contrast.batch_keys=true",
        "optimizer.lr=1e-3",
        "optimizer.batch_size=512",
        "schedule.steps=11",
        "schedule.evaluate_every=3",
        "nli.weight=0.2",
        "nli.features=concat",
        "src.trainable=head",
        "tgt.ridge_pairs=9",
    ]
    prints = [load_config(path).fingerprint(), *(load_config(path, [change]).fingerprint() for change in overrides)]
    assert len(set(prints)) == len(overrides) + 1
    assert all(len(print_) == 16 and int(print_, 16) >= 0 for print_ in prints)
    assert load_config(path).fingerprint() == prints[0]


def test_recipes_are_found() -> None:
    """The recipe of the demo is where the tests below look for recipes."""
    assert (RECIPES / "tiny.yaml").is_file()


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda recipe: recipe.name)
def test_shipped_recipe_loads_and_begins_with_its_command(recipe: Path) -> None:
    """The first line of a recipe is the command that runs it, and the command line understands it."""
    command = "prepare" if recipe.name.startswith("prepare") else "train"
    if command == "train":
        assert isinstance(load_config(recipe), TrainConfig)
    else:
        check_recipe(read_recipe(PrepareConfig, recipe))
    words = shlex.split(recipe.read_text(encoding="utf-8").splitlines()[0])
    assert words[:4] == ["#", "dualmoco", command, f"recipes/{recipe.name}"]
    assert build_parser().parse_args(words[2:]).command == command


def _paper(name: str) -> TrainConfig:
    if not (RECIPES / name).is_file():
        pytest.skip(f"recipes/{name} is not there yet")
    return load_config(RECIPES / name)


@pytest.mark.parametrize("name", ["paper.yaml", "paper-nli.yaml"])
def test_recipe_has_the_papers_values(name: str) -> None:
    """Every value of the paper's appendix A."""
    config = _paper(name)
    assert config.objective == "dual-moco"
    assert (config.contrast.queue_size, config.contrast.temperature, config.contrast.momentum) == (409_600, 0.04, 0.999)
    assert not config.contrast.learn_temperature
    assert (config.optimizer.lr, config.optimizer.batch_size, config.optimizer.clip) == (4e-5, 1024, 10.0)
    assert (config.optimizer.warmup_steps, config.optimizer.weight_decay) == (400, 1e-4)
    assert config.optimizer.decay_all
    assert (config.schedule.epochs, config.schedule.steps, config.schedule.minutes) == (15, 0, 0)
    for side, encoder in (("bert-base-uncased", config.src), ("hfl/chinese-roberta-wwm-ext", config.tgt)):
        assert (encoder.kind, encoder.name, encoder.pooling) == (EncoderKind.pretrained, side, PoolingMode.mean)
        assert (encoder.dropout, encoder.projection) == (0.1, 0)


@pytest.mark.parametrize("name", ["paper.yaml", "paper-nli.yaml"])
def test_the_papers_recipes_read_what_its_preparation_writes(name: str) -> None:
    """One folder, the same languages, and not more held-out pairs; the heads give the commands in order."""
    prepared, config = read_recipe(PrepareConfig, RECIPES / "prepare-paper.yaml"), _paper(name)
    assert config.data.prepared == prepared.out and not config.data.train
    assert (config.src.lang, config.tgt.lang) == (prepared.src, prepared.tgt)
    assert config.data.heldout <= prepared.heldout
    assert sum(corpus.max_pairs for corpus in prepared.corpora) == 5_000_000  # and all of the two small corpora
    for recipe in (name, "prepare-paper.yaml"):
        head = (RECIPES / recipe).read_text(encoding="utf-8").split("\nout:")[0]
        trained = name if recipe == name else "paper.yaml"
        commands = re.findall(r"^#   (?:torchrun .* -m )?dualmoco (prepare|train) recipes/(\S+)", head, re.MULTILINE)
        assert commands == [("prepare", "prepare-paper.yaml"), ("train", trained)]


def test_nli_recipe_has_the_papers_values() -> None:
    """Every value of the paper's appendix B; the recipe without NLI names no NLI files."""
    nli = _paper("paper-nli.yaml").nli
    assert (nli.weight, nli.batch_size, nli.hidden, nli.dropout) == (0.1, 128, 256, 0.1)
    assert nli.train
    assert _paper("paper.yaml").nli.train == []

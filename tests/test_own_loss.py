"""A loss from outside the package: the example of docs/contributing/add-a-loss.md trains, resumes and is planned."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualmoco.core.errors import ConfigError
from dualmoco.models.build import shape_of
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.training.config import TrainConfig
from dualmoco.training.memory import Lengths, device_memory
from dualmoco.training.objective import Objective
from dualmoco.training.objectives import OBJECTIVES, InBatch, objective_class, register
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log
from runfolders import assert_same_state, losses, state

PAGE = Path(__file__).parents[1] / "docs" / "contributing" / "add-a-loss.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def siglip() -> Iterator[type[Objective]]:
    """The class of the page, registered for one test."""
    exec(compile(BLOCKS[0], str(PAGE), "exec"), {})
    yield OBJECTIVES["siglip"]
    del OBJECTIVES["siglip"]


def test_the_example_is_short() -> None:
    """Under 30 lines, imports included."""
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) < 30


def test_its_loss_falls_and_its_parameters_learn(recipe: Path, tmp_path: Path) -> None:
    """Retrieval improves, and a log without accuracy has no gaps."""
    result = train(recipe, "objective=siglip", "options.scale=5", "schedule.steps=60", "optimizer.lr=3e-3")
    found = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(found[-5:]) < 0.8 * sum(found[:5])
    assert result.best is not None and result.best > result.before.score
    last = read_log(tmp_path / "run" / "log.jsonl")[-2]
    assert "accuracy" not in last and {"loss", "gradient_norm", "lr", "pairs_per_second"} <= last.keys()
    learnt = state(tmp_path / "run")
    assert 0 < abs(float(learnt["model.log_scale"].exp()) - 5) < 3 and 0 < abs(float(learnt["model.bias"]) + 10) < 3


def test_it_resumes_bit_for_bit(recipe: Path, tmp_path: Path) -> None:
    """A run that goes on from a checkpoint ends with the state of one that was not interrupted."""
    settings = ["objective=siglip", "schedule.steps=8"]
    for name in ("whole", "parts"):
        train(recipe, f"out={tmp_path / name}", *settings)
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000008")
    assert train(recipe, f"out={tmp_path / 'parts'}", *settings, resume=True).step == 8
    assert "model.log_scale" in state(tmp_path / "whole")
    assert_same_state(tmp_path / "whole", tmp_path / "parts")


def test_recipes_accept_its_name_and_options(recipe: Path, siglip: type[Objective]) -> None:
    """Unknown options are refused with the known ones, a frozen encoder with the objectives that can have one."""
    config = load_config(recipe, ["objective=siglip", "options.bias=-5"])
    assert objective_class(config) is siglip and config.options == {"bias": -5.0}
    with pytest.raises(ConfigError, match=r"options is \['margin'\]; expected options of siglip: scale, bias"):
        load_config(recipe, ["objective=siglip", "options.margin=1"])
    with pytest.raises(ConfigError, match=r"src\.frozen .*siglip.*dual-moco"):
        load_config(recipe, ["objective=siglip", "src.kind=pretrained", "src.name=a", "src.frozen=true"])
    with pytest.raises(ConfigError, match=r"objective is 'sigmoid'; expected one of dual-moco, .*, siglip"):
        load_config(recipe, ["objective=sigmoid"])


def test_names_of_the_package_are_taken(siglip: type[Objective]) -> None:
    """Registering under a built-in name is refused; one's own class may be replaced."""
    with pytest.raises(ConfigError, match=r"'dual-moco'.*SigLip"):
        register("dual-moco", siglip)
    register("siglip", InBatch)
    assert OBJECTIVES["siglip"] is InBatch


def test_its_memory_is_estimated() -> None:
    """By default as that of an in-batch loss: neither momentum encoders nor queues."""
    shape = shape_of(EncoderConfig(kind=EncoderKind.bert, width=64))
    memory = device_memory(TrainConfig(objective="siglip"), (shape, shape), Lengths(8, 8, 8, 8))
    assert memory.momentum == memory.queue == 0 and memory.scores > 0 and memory.activations > 0

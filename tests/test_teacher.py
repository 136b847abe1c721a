"""A teacher beside the contrast: its vectors by row, the labels they make, and runs that learn from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.data.bitext import Pairs
from dualmoco.data.demo.sentences import read_demo_pairs
from dualmoco.models.opening import open_model
from dualmoco.training.config import load_config
from dualmoco.training.objectives import SoftLabels, rank_translations
from dualmoco.training.recipe import ContrastConfig, TrainConfig
from dualmoco.training.run import train
from dualmoco.training.teacher import FOLDER, ask_teacher, open_teacher
from runfolders import assert_same_state, losses

TEACHER = "en-zh-static"
TAUGHT = ["objective=in-batch", f"teacher={TEACHER}", "contrast.teacher_weight=0.5"]


def unit(*shape: int, seed: int) -> torch.Tensor:
    """Random unit vectors in double precision."""
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def test_labels_are_in_part_the_teachers_similarities() -> None:
    """The loss against a loop; a key that is no negative gets no share of the teacher's labels."""
    query, key, taught_query, taught_key = (
        unit(4, 3, seed=0),
        unit(4, 3, seed=1),
        unit(4, 7, seed=2),
        unit(4, 7, seed=3),
    )
    query_ids, key_ids = torch.tensor([1, 2, 3, 1]), torch.tensor([11, 12, 13, 14])  # 0 and 3 have the same text
    config = ContrastConfig(teacher_weight=0.3, teacher_temperature=0.2)
    found, _ = rank_translations(
        query, key, query_ids, key_ids, temperature=0.1, soft=SoftLabels(taught_query, taught_key, config)
    )
    wanted = []
    for row in range(4):
        left = [other for other in range(4) if {row, other} != {0, 3}]
        student = np.array([float(query[row] @ key[other]) / 0.1 for other in left])
        logs = student - np.log(np.exp(student).sum())
        teacher = np.exp([float(taught_query[row] @ taught_key[other]) / 0.2 for other in left])
        labels = 0.3 * teacher / teacher.sum() + 0.7 * (np.array(left) == row)
        wanted.append(-(labels * logs).sum())
    assert found.item() == pytest.approx(np.mean(wanted))


def test_without_weight_the_teacher_changes_nothing() -> None:
    """The plain loss, and with all weight the true translation counts as much as the teacher says."""
    query, key, ids = unit(5, 3, seed=0), unit(5, 3, seed=1), torch.arange(5)
    plain, _ = rank_translations(query, key, ids, ids + 5, temperature=0.1)
    soft = SoftLabels(query, key, ContrastConfig(teacher_weight=0.0))
    assert rank_translations(query, key, ids, ids + 5, temperature=0.1, soft=soft)[0].item() == pytest.approx(
        plain.item()
    )
    itself = SoftLabels(query, key, ContrastConfig(teacher_weight=1.0, teacher_temperature=0.1))
    learning = query.clone().requires_grad_()
    rank_translations(learning, key, ids, ids + 5, temperature=0.1, soft=itself)[0].backward()
    assert learning.grad is not None and learning.grad.abs().max() < 1e-12  # nothing to learn from oneself


def test_vectors_are_those_of_the_rows(tmp_path: Path) -> None:
    """Both sides, in any order, also where a text stands twice, within what int8 loses."""
    texts = [(pair.src, pair.tgt) for pair in read_demo_pairs()[:30]]
    pairs = Pairs.from_texts([*texts, (texts[0][0], texts[3][1])])
    config = load_config_with(tmp_path, *TAUGHT)
    ask_teacher(config, pairs, tmp_path)
    rows = np.array([30, 2, 17, 0])
    model = open_model(TEACHER)
    for lang, sentences, vectors in zip(
        ("en", "zh"), pairs.texts(rows), open_teacher(pairs, tmp_path).vectors(rows), strict=True
    ):
        cosines = (model.encode(sentences, lang=lang) * vectors.numpy()).sum(axis=1)
        assert cosines.min() > 0.999 and vectors.norm(dim=1).numpy() == pytest.approx(1, abs=1e-4)


def load_config_with(folder: Path, *overrides: str) -> TrainConfig:
    """Settings of a run that does not begin."""
    path = folder / "recipe.yaml"
    path.write_text(
        "out: run\nsrc: {lang: en, kind: static}\ntgt: {lang: zh, kind: static}\ndata: {train: [a.tsv]}\n"
        "schedule: {steps: 1}\n",
        encoding="utf-8",
    )
    return load_config(path, list(overrides))


def test_a_taught_run_resumes_to_the_same_bits(recipe: Path, plain: Path) -> None:
    """Interrupted or not; the teacher changes what is learnt and is asked once."""
    settings = ["objective=in-batch", f"teacher={plain}", "contrast.teacher_weight=0.5", "schedule.log_every=1"]
    out = recipe.parent
    train(recipe, *settings, "schedule.steps=6", f"out={out / 'whole'}")
    train(recipe, "objective=in-batch", "schedule.steps=6", "schedule.log_every=1", f"out={out / 'untaught'}")
    assert losses(out / "whole") != losses(out / "untaught")
    train(recipe, *settings, "schedule.steps=6", "schedule.checkpoint_every=3", f"out={out / 'again'}")
    written = [path.stat().st_mtime_ns for path in sorted((out / "again" / FOLDER).rglob("*.npy"))]
    for later in sorted((out / "again" / "checkpoints").glob("*6")):
        for path in later.iterdir():
            path.unlink()
        later.rmdir()
    train(recipe, *settings, "schedule.steps=6", "schedule.checkpoint_every=3", f"out={out / 'again'}", resume=True)
    assert_same_state(out / "whole", out / "again")
    assert [path.stat().st_mtime_ns for path in sorted((out / "again" / FOLDER).rglob("*.npy"))] == written


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["contrast.teacher_weight=0.5"], "teacher_weight is 0.5; expected 0 unless objective is in-batch and teacher"),
        (
            ["teacher=x", "contrast.teacher_weight=0.5"],
            "teacher_weight is 0.5; expected 0 unless objective is in-batch",
        ),
        ([*TAUGHT, "contrast.teacher_weight=1.5"], "teacher_weight is 1.5; expected from 0 to 1"),
        ([*TAUGHT, "contrast.teacher_temperature=0"], "teacher_temperature is 0.0; expected above 0"),
    ],
)
def test_settings_without_sense(tmp_path: Path, settings: list[str], expected: str) -> None:
    """One line names the key and what it needs."""
    with pytest.raises(ConfigError, match=expected):
        load_config_with(tmp_path, *settings)


def test_a_teacher_without_the_language(tmp_path: Path) -> None:
    """Refused before anything is encoded."""
    config = load_config_with(tmp_path, *TAUGHT, "tgt.lang=de")
    with pytest.raises(ModelError, match="teacher en-zh-static: has the languages en, zh; expected en and de"):
        ask_teacher(config, Pairs.from_texts([("a", "b")]), tmp_path)
    assert not (tmp_path / FOLDER).exists()

"""Reads a recipe: a YAML file and overrides become the settings of a run, checked by their own rules."""

from __future__ import annotations

from pathlib import Path

from dualmoco.core.config_loader import check_rules, read_recipe
from dualmoco.training.config import TrainConfig


def load_config(recipe: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """Reads and checks a recipe; overrides such as `contrast.queue_size=8192` take precedence over the file."""
    settings = read_recipe(TrainConfig, recipe, overrides, extra="train")
    check_config(settings)
    return settings


def check_config(config: TrainConfig) -> None:
    """Checks the rules of all settings and of the objective; ConfigError names the key and the expected value."""
    check_rules(config.rules())

    from dualmoco.training.objectives import OBJECTIVES, objective_class

    objective = objective_class(config)
    unknown = sorted(config.options.keys() - objective.options.keys())
    freezes = [name for name, known in OBJECTIVES.items() if known.frozen_variant]
    shortens = [name for name, known in OBJECTIVES.items() if known.trains_prefixes]
    can_freeze = not config.frozen or config.objective in freezes
    learns = f"false when objective is {config.objective}, which trains both encoders; use {' or '.join(freezes)}"
    known_options = f"options of {config.objective}: {', '.join(objective.options) or 'none'}"
    frozen_rule = (f"{config.frozen}.frozen", True, can_freeze, learns)
    dimensions = config.contrast.dimensions
    whole = f"[] when objective is {config.objective}; use {' or '.join(shortens)}"
    prefix_rule = ("contrast.dimensions", dimensions, objective.trains_prefixes or not dimensions, whole)
    many = [name for name, known in OBJECTIVES.items() if known.takes_languages]
    langs, takes = [language.encoder.lang for language in config.languages], objective.takes_languages
    languages_rule = (
        "languages",
        langs,
        takes or not langs,
        f"none with this objective; use {' or '.join(many)} without nli.train",
    )
    options_rule = ("options", unknown, not unknown, known_options)
    check_rules([frozen_rule, options_rule, prefix_rule, languages_rule, *objective.rules(config)])

"""Training with test scores in its log: the tasks of `schedule.evaluate` are scored at each evaluation of a run.

`dualmoco.train` is `train_and_score`. The scores only show the progress of training. Held-out pairs, not test sets,
choose the best model and the end of a run.
"""

from __future__ import annotations

from pathlib import Path

from dualmoco.core.errors import ConfigError, require
from dualmoco.core.progress import are_shown
from dualmoco.models.load import open_model
from dualmoco.training.config import TrainConfig
from dualmoco.training.run import train
from dualmoco.training.trainer import ScoreModel, TrainResult


def train_and_score(
    recipe: str | Path | TrainConfig, *overrides: str, resume: bool = False, progress: bool = True
) -> TrainResult:
    """Trains two encoders as a recipe says.

    Args:
        recipe: A YAML file, or the settings themselves.
        overrides: Settings such as `contrast.queue_size=8192`, which take precedence over the file.
        resume: Whether to resume from the last checkpoint in the run folder, if any; the schedule may be longer.
        progress: Whether to show progress bars.

    Returns:
        The progress of training, and the scores on held-out pairs.

    Raises:
        ConfigError: The recipe cannot be read, or a setting is invalid.
        DataError: The pairs or test sets cannot be read, or there are too few pairs; the run folder has keys of another
            model or text.
        ModelError: A model cannot be loaded safely.
        RunError: The run folder contains another run or is in use, a checkpoint does not fit or cannot be written, the
            run does not fit into memory, or the loss is not a number.
    """
    return train(recipe, *overrides, resume=resume, progress=progress, open_tasks=open_tasks)


def open_tasks(config: TrainConfig) -> ScoreModel:
    """Reads the test sets of `schedule.evaluate`; ConfigError or DataError if a task is unknown or its data missing."""
    names = config.schedule.evaluate
    if "nli" in names:
        raise ConfigError(
            "schedule.evaluate has nli, which needs a saved classifier; expected other tasks, because "
            "the log has the accuracy on held-out NLI examples anyway"
        )
    for module in ("pyarrow", "scipy", "sklearn"):
        require(module, "eval", "schedule.evaluate")
    from dualmoco.evaluation.evaluate import evaluate
    from dualmoco.evaluation.report import main_scores
    from dualmoco.evaluation.tasks import read_tasks

    tasks = read_tasks(names, config.data.root, config.language_pair)

    def score_model(folder: Path) -> dict[str, float]:
        model = open_model(folder)
        model.warned_of_cuts = True  # `dualmoco evaluate` would otherwise repeat this for each model of a run
        return main_scores(score.to_json() for score in evaluate(model, tasks, progress=are_shown()).scores)

    return score_model

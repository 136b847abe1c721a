"""The run folder: its log, its settings and its best model."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from omegaconf import DictConfig, OmegaConf

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.progress import are_shown, progress_bar
from dualmoco.core.storage import LOCK, append_line, new_folder, write_json, write_text
from dualmoco.data.pairs import Split
from dualmoco.models.card import CardSubject, write_card
from dualmoco.models.folder import DIMENSIONS_KEY, MODEL_RECORD, TEXT_KEY, read_conversion
from dualmoco.models.network import Encoder, save_encoders
from dualmoco.training.config import FREE_SETTINGS, SCHEDULE_LENGTHS, TrainConfig
from dualmoco.training.objective import Objective

TRACKED_PROJECT, TRACKER_FOLDER = "dualmoco", "trackers"
BEFORE_FIRST_STEP = (
    "initial",
    ".initial.partial",
    "data.json",
    LOCK,
)  # files of a run that was killed before its first step
LONGER = "the learning rate decays to the new end, so the result differs from a run of this length"
logger = logging.getLogger(__name__)


class RunLog:
    """The progress bar, `log.jsonl` and trackers of a run; only the first process writes."""

    def __init__(
        self,
        path: Path,
        *,
        step: int,
        total: float,
        unit: str,
        is_first: bool,
        trackers: Sequence[GeneralTracker] = (),
    ) -> None:
        self.path, self.is_first, self.trackers = path, is_first, trackers
        form = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"
        self.bar = progress_bar()(
            total=total, unit=unit, bar_format=form, disable=not (is_first and are_shown()), dynamic_ncols=True
        )
        if is_first:
            kept = [line for line in read_log(path) if line["step"] <= step]
            write_text(path, "".join(json.dumps(without_nan(record)) + "\n" for record in kept))

    def show(self, done: float, metrics: dict[str, str]) -> None:
        """Moves the bar to `done` of the total and shows metrics."""
        self.bar.set_postfix(metrics, refresh=False)
        self.bar.n = min(done, self.bar.total)
        self.bar.refresh()

    def record(self, record: dict[str, Any]) -> None:
        """Appends a record, which has the key `step`."""
        if not self.is_first:
            return
        append_line(self.path, json.dumps(without_nan(record), allow_nan=False))
        for tracker in self.trackers:
            tracker.log(logged_metrics(record), step=record["step"])

    def close(self) -> None:
        """Closes the bar and the trackers."""
        self.bar.close()
        for tracker in self.trackers:
            tracker.finish()


def logged_metrics(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record by name, except for the step; groups are joined by a slash, as in `heldout/score`."""
    groups = {name: value if isinstance(value, dict) else {"": value} for name, value in record.items()}
    return {
        f"{group}/{name}" if name else group: value
        for group, values in groups.items()
        for name, value in values.items()
        if isinstance(value, int | float) and group != "step"
    }


def without_nan(value: Any) -> Any:
    """A value of JSON with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: without_nan(child) for name, child in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, without an incomplete last line."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def check_trackers(config: TrainConfig) -> None:
    """ConfigError for trackers that accelerate does not support, or whose package is missing."""
    known, installed = sorted(LOGGER_TYPE_TO_CLASS), [str(kind) for kind in get_available_trackers()]
    for name in config.schedule.trackers:
        if name not in known:
            raise ConfigError(f"schedule.trackers has {name!r}; expected only {', '.join(known)}")
        if name not in installed:
            raise ConfigError(f"schedule.trackers has {name!r}, whose package is not installed; pip install {name}")


def start_trackers(accelerator: Accelerator, config: TrainConfig, step: int) -> Sequence[GeneralTracker]:
    """Starts the trackers of a run that continues after `step`, on the first process only; RunError if one fails."""
    if not config.schedule.trackers or not accelerator.is_main_process:
        return []
    own = {
        "tensorboard": {"purge_step": step + 1},  # hides what was logged after the last checkpoint
        "wandb": {"name": Path(config.out).name, "dir": config.out},
    }
    settings = _flatten(OmegaConf.create(config.to_dict()))
    try:
        accelerator.init_trackers(TRACKED_PROJECT, settings, own)
    except Exception as error:  # trackers raise any error, for example without an account
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"schedule.trackers is {config.schedule.trackers}: one cannot be started: {reason}") from error
    trackers: Sequence[GeneralTracker] = accelerator.trackers
    return trackers


def check_run_folder(config: TrainConfig, out: Path, *, resume: bool) -> None:
    """Refuses a folder with anything other than this run, and if `resume` is off, with this run."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out}: is a file; expected a folder for the run: choose one with out=FOLDER")
    settings = out / "config.yaml"
    if not settings.is_file():
        if any(child.name not in BEFORE_FIRST_STEP for child in out.iterdir()):
            raise RunError(f"{out}: contains files but no run; choose another folder with out=FOLDER")
        return
    if not resume:
        raise RunError(
            f"{out}: already contains a run; set resume=True to resume it, or choose another folder with out=FOLDER"
        )
    for key, old, new in _changes(config, settings):
        if key not in FREE_SETTINGS and not _is_longer(key, old, new):
            raise RunError(
                f"{out}: was started with {key}={old}, now {key}={new}; resume with the settings of {settings} (only "
                "a longer schedule, and settings that cannot change the result, may differ), or start another run with "
                "out=FOLDER"
            )


def _changes(config: TrainConfig, settings: Path) -> Iterator[tuple[str, str | None, str | None]]:
    """Yields keys of the recipe whose values differ from those in a run folder, and both values."""
    old, new = (_flatten(OmegaConf.create(text)) for text in (settings.read_text(encoding="utf-8"), _yaml(config)))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def _is_longer(key: str, old: str | None, new: str | None) -> bool:
    """Whether a change makes the schedule longer, in its own unit."""
    return key in [f"schedule.{name}" for name in SCHEDULE_LENGTHS] and 0 < float(old or 0) < float(new or 0)


def write_inputs(config: TrainConfig, split: Split, out: Path) -> None:
    """Writes the settings and the counts of the data, or only the settings if some of them have changed."""
    settings = out / "config.yaml"
    if settings.exists():
        for key, old, new in _changes(config, settings):
            note = FREE_SETTINGS.get(key, LONGER)
            logger.info("%s: %s is now %s, was %s%s", *(out, key, new, old, note and f"; from here on {note}"))
        write_text(settings, _yaml(config))
    else:
        write_json(out / "data.json", {"counts": split.counts, "digest": split.train.digest()})
        write_text(out / "config.yaml", _yaml(config))


def save_model(
    out: Path,
    encoders: dict[str, Encoder],
    objective: Objective,
    record: dict[str, Any],
    text: dict[str, object],
    config: TrainConfig,
) -> None:
    """Writes the current encoders as a model folder, and `record` (step, score, signature) into `dualmoco.json`."""
    trained = trained_dimensions(config, encoders)
    with new_folder(out) as folder:
        save_encoders(encoders, folder)
        objective.save_files(folder)
        write_json(folder / MODEL_RECORD, {**record, **trained, TEXT_KEY: text, "settings": config.to_dict()})
        dimension = encoders[config.src.lang].dimension
        subject = CardSubject(folder, Path(config.out).resolve().name, list(encoders), dimension)
        write_card(subject, read_conversion(folder))


def trained_dimensions(config: TrainConfig, encoders: dict[str, Encoder]) -> dict[str, Any]:
    """The part of a model's record about shorter vectors that were trained; empty if there are none."""
    dimension, contrast = encoders[config.src.lang].dimension, config.contrast
    return {DIMENSIONS_KEY: contrast.prefixes(dimension)} if contrast.dimensions else {}


def _yaml(config: TrainConfig) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(config.to_dict()))


def _flatten(settings: Any, prefix: str = "") -> dict[str, str]:
    """Settings by dotted key, for example `contrast.momentum`."""
    if not isinstance(settings, DictConfig):
        return {prefix: str(settings)}
    return {
        key: value
        for name, child in settings.items()
        for key, value in _flatten(child, f"{prefix}.{name!s}" if prefix else str(name)).items()
    }

"""What a run reports on the way: a progress bar, a JSON line now and then, TensorBoard if asked.

Takes metrics from `loop.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import are_shown
from dualmoco.core.storage import append_line, write_text


class RunLog:
    """The log of one run; silent on all processes but the first."""

    def __init__(self, path: Path, *, step: int, total: float, unit: str, is_first: bool, tensorboard: bool) -> None:
        """Opens the log, without the lines that came after `step`.

        Args:
            path: The JSON lines file.
            step: Where the run starts or resumes.
            total: How much there is to do, in `unit`.
            unit: "steps" or "s".
            is_first: Whether this process writes.
            tensorboard: Whether to write event files beside the log.

        Raises:
            ConfigError: TensorBoard is asked for but not installed.
        """
        self.path, self.is_first = path, is_first
        self.board = _open_board(path.parent / "tensorboard") if tensorboard and is_first else None
        form = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm(
            total=total, unit=unit, bar_format=form, disable=not (is_first and are_shown()), dynamic_ncols=True
        )
        if is_first:
            kept = [line for line in read_log(path) if line["step"] <= step]
            write_text(path, "".join(json.dumps(record) + "\n" for record in kept))

    def show(self, done: float, metrics: dict[str, str]) -> None:
        """Moves the bar to `done` of the total and shows metrics beside it."""
        self.bar.set_postfix(metrics, refresh=False)
        self.bar.n = min(done, self.bar.total)
        self.bar.refresh()

    def record(self, record: dict[str, Any]) -> None:
        """Appends a line; `step` is one of its keys."""
        if not self.is_first:
            return
        append_line(self.path, json.dumps(record))
        if self.board:
            scores = {f"heldout/{name}": value for name, value in record.get("heldout", {}).items()}
            for name, value in (record | scores).items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Ends the bar and the event files."""
        self.bar.close()
        if self.board:
            self.board.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log; a last line that a kill cut short is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def _open_board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "schedule.tensorboard is true but tensorboard is not installed; pip install 'dualmoco[train]'"
        ) from None
    return SummaryWriter(str(folder))

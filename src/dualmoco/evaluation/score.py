"""A number of an evaluation, and the signature that says how it was made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualmoco.core.storage import file_sha256
from dualmoco.core.version import VERSION
from dualmoco.evaluation.sample import Sample, sample_from_json, value_of
from dualmoco.models.model import Identity

SHOWN = 12  # characters of a checksum in a signature


@dataclass(frozen=True)
class Score:
    """One number, from 0 to 100 (correlations may fall below)."""

    task: str
    subset: str
    protocol: str
    """How the task was scored, or in which direction."""
    metric: str
    value: float
    n: int
    """Test items behind it."""
    signature: str
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    sample: Sample | None = None
    """What it was computed from, for paired comparisons."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must agree for two scores to be comparable."""
        return self.task, self.subset, self.protocol, self.metric

    @property
    def settings(self) -> dict[str, str]:
        """What the signature says, by name."""
        return dict(part.partition(":")[::2] for part in self.signature.split("|"))

    def to_json(self) -> dict[str, Any]:
        """The score as a JSON object."""
        content = {name: value for name, value in vars(self).items() if name != "sample"}
        return content if self.sample is None else {**content, "sample": self.sample.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Score:
        """Reads what `to_json` wrote; TypeError or DataError if it is something else."""
        fields = dict(content)
        sample = fields.pop("sample", None)
        return cls(**fields, sample=sample_from_json(sample) if sample else None)


@dataclass(frozen=True)
class Signer:
    """Signs the scores of one model on one task's data."""

    identity: Identity
    task: str
    data: str
    """Checksum of the test files."""

    def sign(self, protocol: str, metric: str, **settings: object) -> str:
        """One line that says how a number was made.

        Args:
            protocol: How the task was scored, or in which direction.
            metric: What was counted.
            settings: Everything else that changes the number.

        Returns:
            Such as `task:bucc|protocol:...|data:...|model:...|pooling:mean|postprocessing:none|version:0.1.0`.
        """
        parts = {
            "task": self.task, "protocol": protocol, "metric": metric, **settings,
            "data": self.data[:SHOWN], "model": self.identity.sha256[:SHOWN], "pooling": self.identity.pooling,
            "postprocessing": self.identity.postprocessing, "version": VERSION,
        }  # fmt: skip
        return "|".join(f"{name}:{value}" for name, value in parts.items())

    def score(
        self, subset: str, protocol: str, metric: str, sample: Sample, n: int, ends: tuple[float, float], /,
        **settings: object,
    ) -> Score:  # fmt: skip
        """A signed score of a sample.

        Args:
            subset: The part of the task's data.
            protocol: How the task was scored, or in which direction.
            metric: What was counted.
            sample: What the value is computed from.
            n: Test items.
            ends: Of the 95 % interval.
            settings: Everything else that changes the number, for the signature.

        Returns:
            The score.
        """
        signature = self.sign(protocol, metric, **settings)
        return Score(self.task, subset, protocol, metric, value_of(sample), n, signature, *ends, sample)


def data_sha256(paths: Iterable[Path]) -> str:
    """One checksum of several files, in their order."""
    return hashlib.sha256("".join(file_sha256(path) for path in paths).encode()).hexdigest()

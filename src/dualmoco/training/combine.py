"""Combines several models into one hybrid, with weights that are given or chosen on held-out pairs.

Shapes: n pairs, D_i dimension of part i.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import counting, showing
from dualmoco.core.storage import new_folder
from dualmoco.data.config import OnError
from dualmoco.mining.io import Bitext, Problems, read_bitext
from dualmoco.models.backends.onnx_runtime import is_onnx_folder
from dualmoco.models.folder import check_place, copy_model
from dualmoco.models.hybrid import (
    PACKAGE_PREFIX,
    HybridPart,
    check_weights,
    is_hybrid,
    join_vectors,
    shared_languages,
    write_hybrid,
)
from dualmoco.models.load import find_folder, open_model
from dualmoco.models.model import Model
from dualmoco.search.exact import nearest_both_ways

TRIED_WEIGHTS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)  # weights of each further part, relative to the first part
FEWEST_HELDOUT_PAIRS = 10


@dataclass(frozen=True)
class WeightTrial:
    """Retrieval accuracy of some weights, as shares from 0 to 1."""

    weights: tuple[float, ...]  # one per part; all but one are 0 to measure a single part
    src_to_tgt: float
    tgt_to_src: float

    @property
    def score(self) -> float:
        """The mean of both directions."""
        return (self.src_to_tgt + self.tgt_to_src) / 2


@dataclass(frozen=True)
class Combined:
    """A summary of the new model."""

    out: str
    parts: list[HybridPart]
    sha256: str  # checksum of the hybrid
    trials: list[WeightTrial]  # results on held-out pairs; empty if weights were given
    pairs: int  # held-out pairs of the trials
    unreadable: int = 0  # skipped lines of the pairs


def combine(
    models: Sequence[str | Path],
    out: str | Path,
    *,
    weights: Sequence[float] | None = None,
    pairs: Bitext | None = None,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    on_error: str = OnError.stop,
    overwrite: bool = False,
    progress: bool = True,
) -> Combined:
    """Writes several models as one, in a folder that `load` and every command accept.

    Args:
        models: Two or more model or run folders, hub names or `package:NAME`, all with the same languages or for any. A
            package that is not a network is not copied, so it must be installed wherever the hybrid is used.
        out: Folder to write and to copy the models into; an earlier hybrid is replaced.
        weights: One weight above 0 per model: cosines are weighted means (default: equal weights, or chosen on pairs).
        pairs: Held-out translations, a file or pairs of sentences, to choose the weights on by retrieval.
        src_lang: Language of the first side of the pairs.
        tgt_lang: Language of the second side of the pairs.
        on_error: What to do with unreadable lines of the pairs: stop, or skip.
        overwrite: Whether to replace a folder with other contents.
        progress: Whether to show progress bars.

    Returns:
        A summary of the hybrid.

    Raises:
        ConfigError: There is only one model, a weight is not above 0, both weights and pairs are given, or the folder
            has other contents.
        ModelError: A model cannot be opened safely, is a hybrid or not a network, or has other languages.
        DataError: The pairs cannot be read, or there are too few.
        RunError: The folder cannot be written.
    """
    names, out = [str(model) for model in models], Path(out)
    if weights is not None and pairs is not None:
        raise ConfigError(
            "weights and held-out pairs were both given; expected only one of them, because pairs choose the weights"
        )
    weights = [1.0] * len(names) if weights is None else list(weights)
    check_weights(weights, len(names))
    check_place(out, [Path(name) for name in names], "hybrid", replace=overwrite or is_hybrid(out))
    folders = [_part_folder(name) for name in names]
    if any(out.resolve().is_relative_to(folder.resolve()) for folder in folders if folder):
        raise ConfigError(f"{out}: is inside one of the models; expected a folder outside of them")
    opened = [open_model(name) for name in names]
    languages = shared_languages(opened)
    trials, count = list[WeightTrial](), 0
    problems = Problems(pairs or "", skip=parse_choice(OnError, on_error, "on_error") == OnError.skip)
    if pairs is not None:
        sides = _read_heldout(pairs, (src_lang, tgt_lang), languages, problems)
        with showing(progress):
            count, trials = len(sides[0]), try_weights(opened, sides, (src_lang, tgt_lang))
        weights = best_weights(trials)
    with new_folder(out) as folder:
        parts = []
        for number, (model, source, weight) in enumerate(zip(opened, folders, weights, strict=True), start=1):
            place = f"part-{number}" if source else names[number - 1]  # a package is not copied
            part = HybridPart(place, float(weight), model.identity.sha256, model.identity.name)
            if source:
                copy_model(source, folder / part.folder)
            parts.append(part)
        write_hybrid(folder, parts, {"pairs": count, "trials": [asdict(trial) for trial in trials]})
        sha256 = open_model(folder).identity.sha256  # verifies the checksums of the copies
    return Combined(str(out), parts, sha256, trials, count, problems.count)


def try_weights(
    models: Sequence[Model], sides: tuple[list[str], list[str]], langs: tuple[str, str]
) -> list[WeightTrial]:
    """Measures retrieval with each part alone, then with the weights of a small grid; encodes every sentence once."""
    src, tgt = (
        [model.encode(texts, lang=lang) for model in models] for texts, lang in zip(sides, langs, strict=True)
    )  # of each part (n, D_i)
    alone = [tuple(float(part == other) for other in range(len(models))) for part in range(len(models))]
    grid = [(1.0, *ratios) for ratios in itertools.product(TRIED_WEIGHTS, repeat=len(models) - 1)]
    trials = []
    with counting("trying weights", len(alone) + len(grid), " weights") as advance:
        for weights in [*alone, *grid]:
            near = nearest_both_ways(join_vectors(src, weights), join_vectors(tgt, weights), 1)
            trials.append(WeightTrial(weights, *(float(side.found_translations.mean()) for side in near)))
            advance(1)
    return trials


def best_weights(trials: Sequence[WeightTrial]) -> tuple[float, ...]:
    """The best weights that use every part; in a tie, the weights nearest to equal."""
    allowed = [trial for trial in trials if all(trial.weights)]
    return max(
        allowed, key=lambda trial: (trial.score, -sum(abs(math.log(weight)) for weight in trial.weights))
    ).weights


def _part_folder(name: str) -> Path | None:
    """The folder of a model that can be a part; None for a package that is not a network."""
    folder = find_folder(name)
    if folder is None and name.startswith(PACKAGE_PREFIX):
        return None
    if folder is None:
        raise ModelError(f"{name}: is not a network; expected the model folder, hub name or package:NAME of a network")
    if is_hybrid(folder):
        raise ModelError(f"{name}: is a hybrid; expected single models: combine all of its parts")
    if is_onnx_folder(folder):
        raise ModelError(f"{name}: is an ONNX export; expected the model it was made from: export the hybrid instead")
    return folder


def _read_heldout(
    pairs: Bitext, langs: tuple[str, str], languages: list[str] | None, problems: Problems
) -> tuple[list[str], list[str]]:
    for lang in langs:
        if languages is not None and lang not in languages:
            raise ModelError(
                f"held-out pairs in {lang!r}; expected two of the models' languages {', '.join(languages)}"
            )
    rows = list(read_bitext(pairs, langs, None, "auto", problems))
    if len(rows) < FEWEST_HELDOUT_PAIRS:
        name = pairs if isinstance(pairs, str | Path) else "pairs"
        raise DataError(f"{name}: {len(rows)} pairs; expected at least {FEWEST_HELDOUT_PAIRS} to choose weights by")
    return [row.src for row in rows], [row.tgt for row in rows]

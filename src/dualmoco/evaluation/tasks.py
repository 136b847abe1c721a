"""The tasks by name: reads and checks the test data of the tasks that a user asks for.

Packages that only one task needs, such as scikit-learn, are imported when that task is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.evaluation.bucc import Bucc
from dualmoco.evaluation.monolingual import Clustering, Inference, Paraphrases
from dualmoco.evaluation.retrieval import (
    FEWEST_SHARED,
    MTEB_RETRIEVAL,
    BitextRetrieval,
    Lexicon,
    SharedTatoeba,
    Tatoeba,
    tatoeba_pairs,
)
from dualmoco.evaluation.sts import CrossLingualSts, Sts
from dualmoco.evaluation.task import Task
from dualmoco.mining.margins import Margin
from dualmoco.text.languages import base_language

ALL_PAIRS = "all"
DATA_VARIABLE = "DUALMOCO_DATA"


@dataclass(frozen=True)
class TaskSettings:
    """Settings that the tasks of one evaluation share."""

    data: Path  # folder that contains eval/, or eval/ itself
    pairs: tuple[str, ...] = ("zh-en",)  # language pairs of the cross-lingual tasks; `all` for every pair of Tatoeba
    margin: Margin = Margin.distance
    k: int = 3
    model: Path | None = None  # folder of the model, which may contain an NLI head
    languages: Sequence[str] | None = None  # languages of the model, to choose among all pairs; None for any

    @property
    def folder(self) -> Path:
        """The folder eval/."""
        return self.data / "eval" if (self.data / "eval").is_dir() else self.data


def _tatoeba(settings: TaskSettings) -> list[Task]:
    folder = settings.folder / "tatoeba"
    known = tatoeba_pairs(folder)
    if settings.pairs == (ALL_PAIRS,):
        return _all_tatoeba(folder, known, settings.languages)
    return [_tatoeba_pair(folder, pair, known) for pair in settings.pairs]


def _tatoeba_pair(folder: Path, pair: str, known: Sequence[str]) -> Task:
    """The set of a pair of languages, or without English the sentences that two sets share."""
    langs = [base_language(code) for code in pair.split("-")]
    names = [f"{lang}-en" for lang in langs]
    if (
        len(langs) == 2
        and "en" not in langs
        and not _find_pair(pair, known)
        and all(_find_pair(name, known) for name in names)
    ):
        first, second = (Tatoeba(folder, _matching(name, known, folder)) for name in names)
        shared = SharedTatoeba(first, second)
        if len(shared.rows[0]) >= FEWEST_SHARED:
            return shared
        raise DataError(
            f"{folder}: {pair} share {len(shared.rows[0])} English sentences; expected at least {FEWEST_SHARED}"
        )
    return Tatoeba(folder, _matching(pair, known, folder))


def _all_tatoeba(folder: Path, known: Sequence[str], languages: Sequence[str] | None) -> list[Task]:
    """All pairs of a model's languages, including those that are only connected by English sentences."""
    if languages is None:
        return [Tatoeba(folder, pair) for pair in known]
    own = {base_language(lang) for lang in languages}
    read = [Tatoeba(folder, pair) for pair in known if {base_language(code) for code in pair.split("-")} <= own]
    if not read:
        raise DataError(f"{folder}: no pair of {', '.join(languages)}; expected one of {', '.join(known)}")
    with_english = [task for task in read if task.langs[1] == "en"]
    shared = [SharedTatoeba(a, b) for a, b in combinations(with_english, 2) if a.langs != b.langs]
    return [*read, *(task for task in shared if len(task.rows[0]) >= FEWEST_SHARED)]


def _bucc(settings: TaskSettings) -> list[Task]:
    folder = settings.folder / "bucc2018"
    return [Bucc(folder, pair, settings.margin, settings.k) for pair in _gold_pairs(folder, settings)]


def _retrieval(settings: TaskSettings) -> list[Task]:
    require("sklearn", "eval", f"The task {MTEB_RETRIEVAL}")
    folder = settings.folder / "bucc2018"
    return [BitextRetrieval(folder, pair) for pair in _gold_pairs(folder, settings)]


def _lexicon(settings: TaskSettings) -> list[Task]:
    folder = settings.folder / "lexicon"
    known = [path.stem for path in sorted(folder.glob("*-*.txt"))]
    wanted = known if settings.pairs == (ALL_PAIRS,) else settings.pairs
    found = [pair for pair in dict.fromkeys(_both_orders(wanted)) if pair in known]
    if not found:
        raise DataError(f"{folder}: no dictionary of {', '.join(settings.pairs)}; expected XX-YY.txt files of MUSE")
    return [Lexicon(folder, pair) for pair in found]


def _inference(settings: TaskSettings) -> list[Task]:
    root = settings.data.parent if settings.data.name == "eval" else settings.data
    if settings.model is None:
        raise DataError("nli: the model has no folder with a trained head; expected a model trained with nli.train")
    found = sorted(path for pattern in ("*test*.tsv", "*test*.jsonl") for path in (root / "nli").glob(pattern))
    if not found:
        raise DataError(f"{root / 'nli'}: no test file of NLI; expected a *test*.tsv or *test*.jsonl")
    return [Inference(path, settings.model) for path in found]


def _clustering(settings: TaskSettings) -> list[Task]:
    require("sklearn", "eval", "The task clustering")
    return [Clustering(settings.folder)]


def _align(settings: TaskSettings) -> list[Task]:
    require("numba", "align", "The task align")
    from dualmoco.evaluation.align import Align, is_aligned

    pairs = ("zh-en",) if settings.pairs == (ALL_PAIRS,) else settings.pairs
    folders = sorted({path.parent for path in settings.folder.glob("*/*.gold")})
    found: list[Task] = [Align(folder, pair) for folder in folders for pair in pairs if is_aligned(folder, pair)]
    if not found:
        raise DataError(
            f"{settings.folder}: no aligned documents of {', '.join(pairs)}; expected files such as mac-dev/001.gold"
        )
    return found


TASK_FACTORIES: dict[str, Callable[[TaskSettings], list[Task]]] = {
    "tatoeba": _tatoeba,
    "bucc": _bucc,
    "sts": lambda settings: [Sts(settings.folder)],
    "xsts": lambda settings: [CrossLingualSts(settings.folder / "XSTS")],
    "nli": _inference,
    "lexicon": _lexicon,
    "paraphrase": lambda settings: [Paraphrases(settings.folder / "quora")],
    "clustering": _clustering,
    "align": _align,
    MTEB_RETRIEVAL: _retrieval,
}
"""Creates the tasks of each name; this reads and checks their data."""
PAPER_TASKS = ("tatoeba", "bucc", "sts")


def find_data(data: str | Path | None) -> Path:
    """The folder of test data (default: DUALMOCO_DATA); ConfigError if it does not exist."""
    found = data or os.environ.get(DATA_VARIABLE)
    if not found or not Path(found).is_dir():
        raise ConfigError(
            f"test data {found or 'not given'}; expected a folder: --data DIR, or set {DATA_VARIABLE}; "
            "`dualmoco data get eval --data DIR` fetches the public test sets"
        )
    return Path(found)


def read_tasks(
    names: str | Sequence[str],
    data: str | Path | None = None,
    pairs: str = "zh-en",
    *,
    margin: str = "distance",
    k: int = 3,
    model: Path | None = None,
    languages: Sequence[str] | None = None,
) -> list[Task]:
    """Reads the test data of some tasks, which are then ready to score.

    `names`, `data` and `pairs` are as in `evaluate`; `margin` (distance, ratio or absolute) and `k` (neighbors) are for
    mining, and the folder `model` may contain an NLI head. With `pairs="all"`, Tatoeba is scored for the pairs of
    `languages`, or for all if that is None.
    """
    folder = find_data(data)
    if margin not in [known.value for known in Margin]:
        raise ConfigError(f"margin {margin}; expected distance, ratio or absolute")
    if k < 1:
        raise ConfigError(f"{k} neighbors; expected at least 1")
    given = names.split(",") if isinstance(names, str) else names
    wanted = [task for name in given for task in (PAPER_TASKS if name == "paper" else (name,))]
    for name in wanted:
        if name not in TASK_FACTORIES:
            raise ConfigError(f"task {name!r}: expected paper, or tasks from {', '.join(TASK_FACTORIES)}")
    settings = TaskSettings(folder, tuple(pairs.split(",")), Margin(margin), k, model, languages)
    return [task for name in dict.fromkeys(wanted) for task in TASK_FACTORIES[name](settings)]


def _matching(pair: str, known: Sequence[str], folder: Path) -> str:
    """The Tatoeba pair of the same two languages, in any order and with any codes; DataError if there is none."""
    found = _find_pair(pair, known)
    if not found:
        raise DataError(f"{folder}: no pair {pair}; expected one of its {len(known)} pairs, such as {known[0]}")
    return found


def _find_pair(pair: str, known: Sequence[str]) -> str | None:
    wanted = {base_language(code) for code in pair.split("-")}
    return next((name for name in known if {base_language(code) for code in name.split("-")} == wanted), None)


def _gold_pairs(folder: Path, settings: TaskSettings) -> list[str]:
    known = sorted({path.name.split(".")[0] for path in folder.glob("*-*.*.gold")})
    if settings.pairs == (ALL_PAIRS,) and known:
        return known
    found = [pair for pair in _both_orders(settings.pairs) if pair in known]
    if not found:
        raise DataError(
            f"{folder}: no gold of {', '.join(settings.pairs)}; expected BUCC 2018 files such as zh-en.dev.gold"
        )
    return found


def _both_orders(pairs: Sequence[str]) -> list[str]:
    return [pair for name in pairs for pair in (name, "-".join(reversed(name.split("-"))))]

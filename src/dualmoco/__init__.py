"""dualmoco: two language-specific encoders in one embedding space, by dual momentum contrast, and what they find.

    model = dualmoco.load("runs/static-cpu")
    model.encode(["Hello."], lang="en")

Every name below is imported from its room when it is first used, so importing the package takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dualmoco.core.errors import missing_package
from dualmoco.core.version import VERSION as __version__

if TYPE_CHECKING:
    from dualmoco.alignment.pipeline import align
    from dualmoco.analysis.ablate import ablate
    from dualmoco.analysis.plan import plan
    from dualmoco.evaluation.evaluate import evaluate
    from dualmoco.mining.mine import mine, paraphrases
    from dualmoco.mining.score import score
    from dualmoco.mining.threshold import calibrate_model as calibrate
    from dualmoco.models.load import open_model as load
    from dualmoco.models.model import Model
    from dualmoco.search.build import build_index
    from dualmoco.search.index import open_index
    from dualmoco.training.combine import combine
    from dualmoco.training.run import train

__all__ = [
    "Model",
    "__version__",
    "ablate",
    "align",
    "build_index",
    "calibrate",
    "combine",
    "evaluate",
    "load",
    "mine",
    "open_index",
    "paraphrases",
    "plan",
    "score",
    "train",
]

LAZY_EXPORTS = {
    "Model": ("models.model", "Model"),
    "load": ("models.load", "open_model"),
    "train": ("training.run", "train"),
    "evaluate": ("evaluation.evaluate", "evaluate"),
    "ablate": ("analysis.ablate", "ablate"),
    "plan": ("analysis.plan", "plan"),
    "combine": ("training.combine", "combine"),
    "mine": ("mining.mine", "mine"),
    "align": ("alignment.pipeline", "align"),
    "calibrate": ("mining.threshold", "calibrate_model"),
    "score": ("mining.score", "score"),
    "paraphrases": ("mining.mine", "paraphrases"),
    "build_index": ("search.build", "build_index"),
    "open_index": ("search.index", "open_index"),
}
"""For each public name the module that has it, and its name there."""
EXTRAS = {"ablate": "all", "align": "align", "plan": "all", "train": "train", "evaluate": "eval"}
"""What must be installed besides the base for some of them."""


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in LAZY_EXPORTS:
        raise AttributeError(f"module 'dualmoco' has no attribute {name!r}")
    module, attribute = LAZY_EXPORTS[name]
    try:
        found = getattr(import_module(f"dualmoco.{module}"), attribute)
    except ModuleNotFoundError as error:
        if name not in EXTRAS or (error.name or "").startswith("dualmoco"):
            raise
        raise missing_package(error.name, EXTRAS[name], f"dualmoco.{name}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

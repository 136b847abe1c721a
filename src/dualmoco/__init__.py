"""Cross-lingual sentence encoders by dual momentum contrast, and the parallel text they find.

    model = dualmoco.load()
    model.encode(["Hello."], lang="en")

Public names are imported when they are first used, so importing the package takes no time.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from dualmoco.core import VERSION as __version__
from dualmoco.core.errors import missing_package

if TYPE_CHECKING:
    from dualmoco.alignment.batch import align_folders, align_list
    from dualmoco.alignment.pipeline import Alignment, align
    from dualmoco.analysis.ablate import ablate
    from dualmoco.analysis.plan import plan
    from dualmoco.analysis.study_plan import plan_study
    from dualmoco.core.errors import ConfigError, DataError, DualmocoError, ModelError, RunError
    from dualmoco.data.corpora import get_corpus
    from dualmoco.data.corpora import load_catalogue as corpora
    from dualmoco.data.inspection import inspect
    from dualmoco.data.prepare import prepare
    from dualmoco.embeddings.encode import encode
    from dualmoco.evaluation.evaluate import Evaluation, evaluate
    from dualmoco.evaluation.figures import visualize
    from dualmoco.evaluation.metrics import compare
    from dualmoco.evaluation.training_scores import train_and_score as train
    from dualmoco.mining.mine import MiningResult, mine, paraphrases
    from dualmoco.mining.score import score
    from dualmoco.mining.threshold import calibrate_model as calibrate
    from dualmoco.models.adapters import Embeddings
    from dualmoco.models.hub import push
    from dualmoco.models.load import open_model as load
    from dualmoco.models.load import similarity
    from dualmoco.models.model import Model
    from dualmoco.models.mteb_encoder import MtebEncoder, mteb_meta
    from dualmoco.search.index import Index, open_index
    from dualmoco.search.index_update import add_to_index, build_index, delete_from_index, update_index
    from dualmoco.server.serve import serve
    from dualmoco.training.checkpoint_model import export_encoders as export
    from dualmoco.training.combine import combine
    from dualmoco.training.join import join
    from dualmoco.training.merge import merge
    from dualmoco.training.trainer import TrainResult

__all__ = [
    "Alignment",
    "ConfigError",
    "DataError",
    "DualmocoError",
    "Embeddings",
    "Evaluation",
    "Index",
    "MiningResult",
    "Model",
    "ModelError",
    "MtebEncoder",
    "RunError",
    "TrainResult",
    "__version__",
    "ablate",
    "add_to_index",
    "align",
    "align_folders",
    "align_list",
    "build_index",
    "calibrate",
    "combine",
    "compare",
    "corpora",
    "delete_from_index",
    "encode",
    "evaluate",
    "export",
    "get_corpus",
    "inspect",
    "join",
    "load",
    "merge",
    "mine",
    "mteb_meta",
    "open_index",
    "paraphrases",
    "plan",
    "plan_study",
    "prepare",
    "push",
    "score",
    "serve",
    "similarity",
    "train",
    "update_index",
    "visualize",
]

LAZY_EXPORTS = {
    "ablate": ("analysis.ablate", "ablate"),
    "add_to_index": ("search.index_update", "add_to_index"),
    "align": ("alignment.pipeline", "align"),
    "align_folders": ("alignment.batch", "align_folders"),
    "align_list": ("alignment.batch", "align_list"),
    "build_index": ("search.index_update", "build_index"),
    "calibrate": ("mining.threshold", "calibrate_model"),
    "combine": ("training.combine", "combine"),
    "compare": ("evaluation.metrics", "compare"),
    "corpora": ("data.corpora", "load_catalogue"),
    "delete_from_index": ("search.index_update", "delete_from_index"),
    "encode": ("embeddings.encode", "encode"),
    "evaluate": ("evaluation.evaluate", "evaluate"),
    "export": ("training.checkpoint_model", "export_encoders"),
    "get_corpus": ("data.corpora", "get_corpus"),
    "inspect": ("data.inspection", "inspect"),
    "join": ("training.join", "join"),
    "load": ("models.load", "open_model"),
    "merge": ("training.merge", "merge"),
    "mine": ("mining.mine", "mine"),
    "mteb_meta": ("models.mteb_encoder", "mteb_meta"),
    "open_index": ("search.index", "open_index"),
    "paraphrases": ("mining.mine", "paraphrases"),
    "plan": ("analysis.plan", "plan"),
    "plan_study": ("analysis.study_plan", "plan_study"),
    "prepare": ("data.prepare", "prepare"),
    "push": ("models.hub", "push"),
    "score": ("mining.score", "score"),
    "serve": ("server.serve", "serve"),
    "similarity": ("models.load", "similarity"),
    "train": ("evaluation.training_scores", "train_and_score"),
    "update_index": ("search.index_update", "update_index"),
    "visualize": ("evaluation.figures", "visualize"),
    "Alignment": ("alignment.pipeline", "Alignment"),
    "Embeddings": ("models.adapters", "Embeddings"),
    "Evaluation": ("evaluation.evaluate", "Evaluation"),
    "Index": ("search.index", "Index"),
    "MiningResult": ("mining.mine", "MiningResult"),
    "Model": ("models.model", "Model"),
    "MtebEncoder": ("models.mteb_encoder", "MtebEncoder"),
    "TrainResult": ("training.trainer", "TrainResult"),
    "ConfigError": ("core.errors", "ConfigError"),
    "DataError": ("core.errors", "DataError"),
    "DualmocoError": ("core.errors", "DualmocoError"),
    "ModelError": ("core.errors", "ModelError"),
    "RunError": ("core.errors", "RunError"),
}
"""The module, and the name in it, of each public name."""
EXTRAS = {
    "ablate": "all",
    "align": "align",
    "align_folders": "align",
    "align_list": "align",
    "evaluate": "eval",
    "export": "onnx",
    "inspect": "data",
    "join": "all",
    "mteb_meta": "mteb",
    "plan": "all",
    "plan_study": "all",
    "prepare": "data",
    "push": "torch",
    "serve": "serve",
    "train": "train",
    "visualize": "eval",
}
"""The extra that each public name needs besides the base installation."""


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
    if isfunction(found):
        from dualmoco.core.config_loader import suggesting

        found = suggesting(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

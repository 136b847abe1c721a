"""Models as mteb calls them, so that their results can be compared on its leaderboard.

mteb says which languages a subset of a task has, but not in which of them the texts of a call are. In a subset of
several languages, that of the texts is recognised from all of them together, among the languages of the subset alone,
and texts that may be in several are refused. mteb itself is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dualmoco.core.errors import DataError, require
from dualmoco.core.vectors import Vectors
from dualmoco.models.card import HUB_NAME, inherited_metadata
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, STATIC, TORCH, UNDETERMINED, Model
from dualmoco.models.text_normalization import NO_CONVERSION
from dualmoco.text.languages import recognize_language

if TYPE_CHECKING:
    from mteb.models import ModelMeta

MTEB_OWNER, LOCAL_OWNER = "dualmoco", "local"  # before the / in the names of embedded models, and of folders


class MtebEncoder:
    """A model as mteb calls it, its `EncoderProtocol`.

    Args:
        model_name: The name that mteb knows the model by, and the model itself if `model` is not given.
        revision: Of mteb; not used.
        model: A name that `load` takes.
        backend: Back-end of the model.
        device: Device of PyTorch.
    """

    mteb_model_meta: ModelMeta | None = None  # which mteb sets

    def __init__(
        self,
        model_name: str,
        revision: str | None = None,
        *,
        model: str = "",
        backend: str = AUTO,
        device: str | None = None,
    ) -> None:
        self.model = open_model(model or model_name, backend, device=device)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: object = None,
        **settings: object,
    ) -> Vectors:
        """The unit vectors (n, D) of texts.

        Args:
            inputs: Batches, whose texts are under `text`.
            task_metadata: The task, whose subsets have languages.
            hf_split: The split, for messages.
            hf_subset: The subset of the task.
            prompt_type: Not used: a model has its own prompt, which does not depend on tasks.
            settings: Not used: vectors are the same for every batch size.

        Raises:
            DataError: In a subset of several languages, the texts may be in more than one of them, or in none.
            ModelError: The model does not have one of the languages.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        place = f"mteb {task_metadata.name}, {hf_subset}, {hf_split}"
        known = task_metadata.hf_subsets_to_langscripts
        codes = known.get(hf_subset, [hf_subset])  # of parallel columns, mteb gives the language in place of the subset
        return self.model.encode_as(texts, text_language(self.model, codes, texts, place), progress=False)

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Vectors:
        """Cosines of all vectors with all others, shape (n, m)."""
        return np.asarray(embeddings1) @ np.asarray(embeddings2).T

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Vectors:
        """Cosines of vectors with those in the same row, shape (n,)."""
        cosines: Vectors = np.einsum("nd,nd->n", np.asarray(embeddings1), np.asarray(embeddings2))
        return cosines


def text_language(model: Model, codes: Sequence[str], texts: Sequence[str], place: str) -> str:
    """The language of a model that texts are in, among the codes of a subset of mteb such as `cmn-Hans`.

    Raises:
        DataError: The texts may be in several of the languages, or are in none.
        ModelError: The model does not have one of the languages.
    """
    if model.languages is None and model.conversion == NO_CONVERSION:
        return UNDETERMINED  # no language is encoded differently
    langs = list(dict.fromkeys(model.language(code) for code in codes))
    if len(langs) == 1 or not texts:
        return langs[0]
    found = recognize_language(texts, langs, place)
    if found not in langs:
        raise DataError(f"{place}: looks like {found or 'no language'}; expected texts in one of {', '.join(langs)}")
    return found


def mteb_meta(model: str | Path, name: str = "", *, backend: str = AUTO) -> ModelMeta:
    """What mteb must know of a model to evaluate it: `mteb.evaluate(mteb_meta("many-static"), tasks)`.

    Args:
        model: A name that `load` takes.
        name: OWNER/NAME in the results; by default a hub name itself, `dualmoco/NAME` for models that come with
            dualmoco, and `local/NAME` for others.
        backend: Back-end of the model.

    Returns:
        mteb's `ModelMeta`, whose loader opens the model with dualmoco. Its revision is the checksum of the model. What
        the model was trained on is left open, because mteb asks for the names of its own datasets.

    Raises:
        ConfigError: mteb is not installed, or `backend` does not fit the model.
        ModelError: The model cannot be opened.
    """
    models = require("mteb.models", "mteb", "An evaluation by mteb")
    from mteb.languages.iso_mappings import _hf_langs_to_iso_lang_scripts
    from mteb.types import Licenses

    opened = open_model(model, backend)
    running = opened.backend((opened.languages or [UNDETERMINED])[0]).name
    licence = inherited_metadata(opened.folder).get("license") if opened.folder else None
    meta: ModelMeta = models.ModelMeta(
        loader=MtebEncoder,
        loader_kwargs={"model": str(model), "backend": backend},
        name=name or _default_name(str(model)),
        revision=opened.identity.sha256,
        release_date=None,
        languages=_hf_langs_to_iso_lang_scripts(opened.languages),
        n_parameters=None,
        memory_usage_mb=None,
        max_tokens=None,
        embed_dim=opened.dimension,
        license=licence if licence in get_args(Licenses) else None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["NumPy"] if running == STATIC else ["PyTorch"] if TORCH in running else ["ONNX"],
        similarity_fn_name="cosine",
        use_instructions=False,
        training_datasets=None,
    )
    return meta


def _default_name(model: str) -> str:
    """The name of a model in mteb's results."""
    if model in EMBEDDED:
        return f"{MTEB_OWNER}/{model}"
    if HUB_NAME.fullmatch(model) and not Path(model).exists():
        return model
    path = Path(model).resolve()
    return f"{LOCAL_OWNER}/{path.parent.name if path.name == 'model' else path.name}"

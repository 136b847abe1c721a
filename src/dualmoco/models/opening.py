"""Any model that evaluation takes, by one name: a folder, a hub name, or `package:`, `words:` and `embeddings:`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.models.baselines.packages import open_package
from dualmoco.models.baselines.precomputed import open_precomputed
from dualmoco.models.baselines.wordvectors import open_words
from dualmoco.models.identity import SentenceEncoder
from dualmoco.models.network import open_network
from dualmoco.models.pooling import FIRST_LAST
from dualmoco.models.recipe import PoolingMode

AUTO = "auto"
OPENERS: dict[str, Callable[[str], SentenceEncoder]] = {
    "package": open_package,
    "words": open_words,
    "embeddings": open_precomputed,
}


def open_encoder(name: str, pooling: str = AUTO, *, prompt: str = "") -> SentenceEncoder:
    """Opens a model to be evaluated.

    Args:
        name: A model folder, a run folder or a hub name; `package:NAME`, an installed package; `words:FILE` or
            `words:en=FILE,zh=FILE`, averaged word vectors; `embeddings:FOLDER`, vectors made elsewhere.
        pooling: `auto` for the model's own, or mean where it has none; mean, max, cls or first-last to overrule it.
        prompt: Put before every sentence, for example "query: "; empty for the one that the model names, if any.

    Returns:
        The encoder.

    Raises:
        ConfigError: An unknown pooling, or a pooling or prompt for a model that takes none.
        ModelError: A name that stands for no model, or a model that cannot be loaded safely.
        DataError: A file of vectors that cannot be read as such.
    """
    poolings = [*(choice.value for choice in PoolingMode), FIRST_LAST]
    if pooling not in poolings:
        raise ConfigError(f"pooling {pooling!r}: expected one of {', '.join(poolings)}")
    prefix, colon, rest = name.partition(":")
    if not colon or Path(name).exists():
        return open_network(name, None if pooling == AUTO else pooling, prompt=prompt)
    if prefix not in OPENERS:
        known = ", ".join(f"{known}:" for known in OPENERS)
        raise ModelError(f"{name}: no such folder, and {prefix}: is no prefix; expected one of {known} or a hub name")
    if pooling != AUTO or prompt:
        raise ConfigError(f"{name}: takes neither pooling nor prompt; expected pooling auto and no prompt")
    return OPENERS[prefix](rest)

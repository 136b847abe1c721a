"""A text file of any size to a store of vectors: `dualmoco encode`."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.progress import Progress, counting
from dualmoco.embeddings.engine import Engine, LocalEngine
from dualmoco.embeddings.store import SHARD_ROWS, Store, StoreKey, open_or_start, pack, pending
from dualmoco.embeddings.unique_lines import TextFile, survey
from dualmoco.models.model import BAR_SENTENCES, TORCH, Model
from dualmoco.text.files import read_lines
from dualmoco.text.languages import base_language, common_language

logger = logging.getLogger(__name__)
REMOTE_THREADS = 1  # of a worker of a cluster, which takes one CPU


@dataclass(frozen=True)
class StoreForm:
    """How vectors are stored."""

    precision: VectorPrecision = VectorPrecision.fp32
    shard_rows: int = SHARD_ROWS


def encode_file(
    text: TextFile,
    folder: Path,
    model: Model,
    form: StoreForm | None = None,
    engine: Engine | None = None,
    done: Callable[[int], object] | None = None,
) -> Store:
    """Encodes the distinct sentences of a file, resuming where an interrupted run stopped.

    Args:
        text: One sentence a line, plain or compressed.
        folder: Of the store.
        model: What encodes.
        form: Of the store.
        engine: Where it runs; this process if None.
        done: Is called with the number of each shard that was written.

    Returns:
        The store, whole.

    Raises:
        DataError: A text without sentences or with invalid UTF-8, or a store of something else.
        ModelError: A model without the language.
    """
    form, backend = form or StoreForm(), model.backend(text.lang)
    lines = survey(text.path)
    key = StoreKey(
        model.identity.sha256,
        backend.name,
        text.lang,
        lines.sha256,
        form.precision.value,
        form.shard_rows,
        model.identity.pooling,
    )
    store = open_or_start(folder, key, backend.dimension, lines)
    if not text.is_known:
        warn_of_language(text)
    work = Encoding(model, text.lang, form.precision)
    left = sum(min(key.shard_rows, store.count - number * key.shard_rows) for number in store.missing())
    with counting(f"encoding {text.lang}", left) as progress:
        for number, packed in (engine or LocalEngine()).run(work, pending(store, text.path, lines.first), progress):
            store.add(number, packed)
            if done:
                done(number)
    return store


def warn_of_language(text: TextFile) -> None:
    """Warns of a text that is in another language than it is said to be.

    Args:
        text: One sentence a line.
    """
    try:
        found = common_language(read_lines(text.path))
    except OSError as error:  # py3langid unpacks itself into a temporary file
        logger.info("%s: its language is not looked at: %s", text.path, error)
        return
    if found and found != base_language(text.lang):
        logger.warning(
            "%s: looks like language %s, is encoded as %s; if that is wrong, name the files or languages the other way "
            "round",
            text.path,
            found,
            text.lang,
        )


@dataclass(frozen=True)
class Encoding:
    """The work of an engine: sentences of one language to vectors as they are stored."""

    model: Model
    lang: str
    precision: VectorPrecision

    @property
    def wants_gpu(self) -> bool:
        """PyTorch alone runs on GPUs."""
        return self.model.backend(self.lang).name == TORCH

    def open(self) -> Callable[[Sequence[str], Progress], np.ndarray]:
        """What makes sentences packed vectors."""
        self.model.backend(self.lang)
        return self._encode

    def size(self, piece: Sequence[str]) -> int:
        """Sentences."""
        return len(piece)

    def portable(self) -> PortableEncoding:
        """The model by its name; ConfigError if it was not opened by one."""
        return PortableEncoding(reopener(self.model), self.lang, self.precision, self.model.identity.sha256)

    def _encode(self, texts: Sequence[str], progress: Progress) -> np.ndarray:
        packed = []
        for start in range(0, len(texts), BAR_SENTENCES):
            part = texts[start : start + BAR_SENTENCES]
            packed.append(pack(self.model.encode(part, lang=self.lang, progress=False), self.precision))
            progress(len(part))
        return np.concatenate(packed)


@dataclass(frozen=True)
class PortableEncoding:
    """A model's name and checksum, sent to other machines; opened there it is an `Encoding`."""

    reopen: Callable[..., Model]
    lang: str
    precision: VectorPrecision
    sha256: str
    wants_gpu = False

    def open(self) -> Callable[[Sequence[str], Progress], np.ndarray]:
        """What makes sentences packed vectors; see `open_on_node`."""
        model = open_on_node(self.reopen, self.sha256)
        return Encoding(model, self.lang, self.precision).open()

    def size(self, piece: Sequence[str]) -> int:
        """Sentences."""
        return len(piece)

    def portable(self) -> PortableEncoding:
        """Itself."""
        return self


def open_on_node(reopen: Callable[..., Model], sha256: str) -> Model:
    """Opens a model in a worker of a cluster.

    Args:
        reopen: Opens it by its name.
        sha256: Its checksum where the work was given out.

    Returns:
        The model, on one thread.

    Raises:
        ModelError: It is not on this machine, or another is.
    """
    host = f"node {socket.gethostname()}"
    try:
        model = reopen(threads=REMOTE_THREADS)
    except ModelError as error:
        raise ModelError(f"{error} (on {host}: expected a model that every node sees)") from None
    if model.identity.sha256 != sha256:
        raise ModelError(
            f"{model.identity.name}: checksum {model.identity.sha256[:12]} on {host}; expected {sha256[:12]}, the same "
            "model on every node"
        )
    return model


def reopener(model: Model) -> Callable[..., Model]:
    """What opens a model again elsewhere; ConfigError if it was not opened by its name."""
    if model.reopen is None:
        raise ConfigError(f"{model.identity.name}: not opened by name; expected a model of dualmoco.load")
    return model.reopen

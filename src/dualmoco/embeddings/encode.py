"""Encodes a text file of any size into a store of vectors: `dualmoco encode`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from dualmoco.core.config_loader import VectorPrecision, parse_choice
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import Progress, counting, showing, working
from dualmoco.core.storage import locked
from dualmoco.data.config import OnError
from dualmoco.embeddings.engine import Engine, LocalEngine, open_engine
from dualmoco.embeddings.store import SHARD_ROWS, Store, StoreKey, open_or_start, pack, pending
from dualmoco.embeddings.unique_lines import TextChangedError, TextFile, find_unique_lines, readable_texts
from dualmoco.models.load import GivenText, as_model, open_for
from dualmoco.models.model import AUTO, BAR_SENTENCES, TORCH, Model, warn_of_language
from dualmoco.text.files import check_sentence_file, read_lines
from dualmoco.text.languages import apparent_language


@dataclass(frozen=True)
class StoreForm:
    """Precision and shard size of stored vectors."""

    precision: VectorPrecision = VectorPrecision.fp32
    shard_rows: int = SHARD_ROWS


def encode(
    file: str | Path,
    out: str | Path,
    *,
    lang: str | None = None,
    model: Model | str | Path | None = None,
    precision: str = VectorPrecision.fp32,
    shard_rows: int = SHARD_ROWS,
    engine: str | Engine = "local",
    address: str | None = None,
    backend: str = AUTO,
    dimension: int | None = None,
    on_error: str = OnError.stop,
    progress: bool = True,
) -> Store:
    """Encodes a text file of any size into a folder of vectors; resumes if interrupted.

    Args:
        file: Text with one sentence per line, plain or compressed.
        out: Folder for the vectors.
        lang: Language of the text; recognised if None.
        model: Model that encodes the text, or its name; chosen by the language if None.
        precision: Precision of the stored vectors: fp32, fp16 or int8.
        shard_rows: Sentences per file of vectors.
        engine: local, ray, or an open engine.
        address: Address of a running Ray cluster; None starts a local one.
        backend: Back-end of a model given by name.
        dimension: Number of leading components to keep, for a model given by name (default: all).
        on_error: What to do with a line that is not UTF-8: stop, or skip; a skipped line has no vector.
        progress: Whether to show progress bars.

    Returns:
        The store: `len(store.lines)` lines, `store.count` distinct sentences.

    Raises:
        ConfigError: An option value is invalid.
        DataError: The text has no sentences or invalid UTF-8, or the folder contains other vectors.
        ModelError: The model cannot be opened, or lacks the language.
    """
    if shard_rows < 1:
        raise ConfigError(f"shard_rows {shard_rows}; expected at least 1")
    form = StoreForm(parse_choice(VectorPrecision, precision, "precision"), shard_rows)
    opened_engine = open_engine(engine, address)
    model = None if model is None else as_model(model, backend, dimension)
    given = TextFile(Path(file), lang or "")
    with showing(progress), readable_texts([given], on_error) as (readable,), locked(Path(out)):
        opened, (text,) = resolve_texts(model, [readable], [str(file)], backend, dimension)
        return encode_file(text, Path(out), opened, form, opened_engine)


def resolve_texts(
    model: Model | None,
    texts: Sequence[TextFile],
    names: Sequence[str],
    backend: str = AUTO,
    dimension: int | None = None,
) -> tuple[Model, list[TextFile]]:
    """The model for some texts, chosen by their languages if None, and the texts with languages that are not empty.

    Raises the errors of `open_for`; `names` are the names in messages (default: the paths).
    """
    given = []
    for text, name in zip(texts, names, strict=True):
        if not text.lang:
            if not text.path.is_file():
                raise DataError(f"{text.path}: no such file; expected text, one sentence per line")
            check_sentence_file(text.path)
        given.append(GivenText(text.lang or None, read_lines(text.path), name or str(text.path)))
    opened, langs = open_for(model, given, backend, dimension)
    known = [
        text if text.lang else replace(text, lang=lang, is_known=True) for text, lang in zip(texts, langs, strict=True)
    ]
    return opened, known


def encode_file(
    text: TextFile,
    folder: Path,
    model: Model,
    form: StoreForm | None = None,
    engine: Engine | None = None,
    done: Callable[[int], object] | None = None,
) -> Store:
    """Encodes the distinct sentences of a file, or resumes; calls `done` with the number of each written shard."""
    form, backend = form or StoreForm(), model.backend(text.lang)
    with working(f"reading {text.name}"):
        lines = find_unique_lines(text.path)
    key = StoreKey(
        model.identity.sha256,
        backend.name,
        model.language(text.lang),
        lines.sha256,
        form.precision.value,
        form.shard_rows,
        model.identity.pooling,
    )
    store = open_or_start(folder, key, model.dimension, lines)
    is_new = not store.shards
    if not text.is_known and (found := apparent_language(read_lines(text.path), text.lang)):
        warn_of_language(text.copied_from or str(text.path), found, text.lang)
    work = Encoding(model, text.lang, form.precision)
    left = sum(min(key.shard_rows, store.count - number * key.shard_rows) for number in store.missing())
    try:
        with counting(f"encoding {text.name} ({text.lang})", left) as progress:
            for number, packed in (engine or LocalEngine()).run(work, pending(store, text.path, lines), progress):
                store.add(number, packed)
                if done:
                    done(number)
    except TextChangedError:
        if is_new:
            store.discard()  # its text no longer exists
        raise
    return store


@dataclass(frozen=True)
class Encoding:
    """Work for an engine: encode shards of sentences in one language and pack their vectors."""

    model: Model
    lang: str
    precision: VectorPrecision

    @property
    def wants_gpu(self) -> bool:
        """Only PyTorch runs on GPUs."""
        return self.model.backend(self.lang).name == TORCH

    def open(self) -> Callable[[Sequence[str], Progress], np.ndarray]:
        """The function that encodes a shard; ModelError if the model lacks the language."""
        self.model.backend(self.lang)
        return self._encode

    def opener(self) -> Callable[[], Callable[[Sequence[str], Progress], np.ndarray]]:
        """Opens the model by name in another process."""
        return partial(_open_encoding, model_opener(self.model), self.lang, self.precision)

    def size(self, piece: Sequence[str]) -> int:
        """Number of sentences."""
        return len(piece)

    def _encode(self, texts: Sequence[str], progress: Progress) -> np.ndarray:
        packed = []
        for start in range(0, len(texts), BAR_SENTENCES):
            part = texts[start : start + BAR_SENTENCES]
            packed.append(pack(self.model.encode_as(part, self.lang, progress=False), self.precision))
            progress(len(part))
        return np.concatenate(packed)


def _open_encoding(
    open_model: Callable[[], Model], lang: str, precision: VectorPrecision
) -> Callable[[Sequence[str], Progress], np.ndarray]:
    return Encoding(open_model(), lang, precision).open()


def model_opener(model: Model) -> Callable[[], Model]:
    """A function that opens the same model by name in a worker of a cluster, on one thread."""
    if model.reopen is None:
        raise ConfigError(f"{model.identity.name}: not opened by name; expected a model opened by dualmoco.load")
    return partial(_open_on_node, model.reopen, model.identity.sha256)


def _open_on_node(reopen: Callable[..., Model], sha256: str) -> Model:
    host = f"node {socket.gethostname()}"
    try:
        model = reopen(threads=1)
    except ModelError as error:
        raise ModelError(f"{error} (on {host}: expected a model that every node can read)") from None
    if model.identity.sha256 != sha256:
        raise ModelError(
            f"{model.identity.name}: checksum {model.identity.sha256[:12]} on {host}; expected {sha256[:12]}, the same "
            "model on every node"
        )
    return model

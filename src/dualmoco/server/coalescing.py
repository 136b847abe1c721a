"""Encodes many small requests for vectors in batches.

One thread encodes. While it works, requests wait. It then takes all waiting requests as one batch, so no request waits
for a batch to fill up.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from dualmoco.core.errors import RunError
from dualmoco.core.vectors import Vectors
from dualmoco.models.model import Model

BATCH_SENTENCES = 1024  # maximum sentences per batch, unless one request has more
WAITING_SENTENCES = 65_536  # maximum waiting sentences; further requests are refused


class BusyError(RunError):
    """The server is overloaded."""


@dataclass(frozen=True)
class Wanted:
    """Sentences of a request."""

    model: Model
    texts: Sequence[str]
    lang: str | None
    vectors: Future[Vectors] = field(default_factory=Future)


class Coalescer:
    """Encodes the sentences of many requests in a separate thread, which `close` ends."""

    def __init__(self) -> None:
        self.sentences, self.batches = 0, 0
        """Number of sentences encoded so far."""
        self._waiting: deque[Wanted] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def waiting(self) -> int:
        """Number of waiting sentences."""
        return self._count

    def submit(self, model: Model, texts: Sequence[str], lang: str | None = None) -> Future[Vectors]:
        """Requests the vectors (n, D) of sentences.

        Args:
            model: Model that encodes them.
            texts: The sentences.
            lang: Language of the sentences; None to recognise the language of each.

        Raises:
            BusyError: Too many sentences are waiting, or the server is stopping.
        """
        wanted = Wanted(model, texts, lang)
        with self._changed:
            if self._closed or (self._count and self._count + len(texts) > WAITING_SENTENCES):
                raise BusyError(f"{self._count:,} sentences are waiting to be encoded; try again later")
            if self._thread.ident is None:
                self._thread.start()
            self._waiting.append(wanted)
            self._count += len(texts)
            self._changed.notify()
        return wanted.vectors

    def close(self) -> None:
        """Finishes all waiting requests, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            groups = defaultdict(list)
            for wanted in batch:
                if wanted.vectors.set_running_or_notify_cancel():
                    groups[id(wanted.model)].append(wanted)
            for group in groups.values():
                self._answer(group)

    def _take(self) -> list[Wanted]:
        """All waiting requests, up to a batch; empty when no more will come."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch, size = list[Wanted](), 0
            while self._waiting and (not batch or size + len(self._waiting[0].texts) <= BATCH_SENTENCES):
                batch.append(self._waiting.popleft())
                size += len(batch[-1].texts)
            self._count -= size
            return batch

    def _answer(self, group: Sequence[Wanted]) -> None:
        """Encodes requests for one model; if that fails, each separately, so that one cannot make another fail."""
        try:
            rows = self._encode(group)
        except Exception as error:
            if len(group) == 1:
                group[0].vectors.set_exception(error)
            else:
                for wanted in group:
                    self._answer([wanted])
            return
        for wanted, vectors in zip(group, rows, strict=True):
            wanted.vectors.set_result(vectors)

    def _encode(self, group: Sequence[Wanted]) -> list[Vectors]:
        model = group[0].model
        texts = [text for wanted in group for text in wanted.texts]
        langs = [lang for wanted in group for lang in languages_of(model, wanted.texts, wanted.lang)]
        vectors: Vectors = np.empty((len(texts), model.dimension), dtype=np.float32)
        for lang in dict.fromkeys(langs):
            rows = [row for row, own in enumerate(langs) if own == lang]
            vectors[rows] = model.encode_as([texts[row] for row in rows], lang, progress=False)
        self.batches += 1
        self.sentences += len(texts)
        ends = np.cumsum([len(wanted.texts) for wanted in group])
        return np.split(vectors, ends[:-1])


def languages_of(model: Model, texts: Sequence[str], lang: str | None) -> list[str]:
    """The language of each sentence, as given or recognised.

    A sentence without letters gets the language of the first sentence with letters.

    Raises:
        ConfigError: No sentence has letters.
        DataError: A sentence is in several scripts.
        ModelError: The model does not have a language.
    """
    if lang is not None:
        return [model.language(lang)] * len(texts)
    lettered = [any(map(str.isalpha, text)) for text in texts]
    found = iter(model.recognize_each([text for text, has_letters in zip(texts, lettered, strict=True) if has_letters]))
    langs = [next(found) if has_letters else None for has_letters in lettered]
    others = next((own for own in langs if own), None)
    if others is None and any(text.strip() for text in texts):
        others = model.resolve(None, texts, "input")
    others = others or model.recognize_each([""])[0]
    return [own or others for own in langs]

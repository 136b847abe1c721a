"""A model in use: sentences of a language in, vectors out, whoever made the model and whatever runs it.

Embeddings, search, mining, alignment, evaluation and the command line encode sentences with `Model` alone. Shapes: n
sentences, D dimension.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from dualmoco.core.display import html_table
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import counting, showing
from dualmoco.core.vectors import Vectors, check_vectors, unit_vectors
from dualmoco.models.folder import guard_opening
from dualmoco.models.text_normalization import NO_CONVERSION, TextConversion
from dualmoco.text.languages import apparent_language, find_language, recognize_language

logger = logging.getLogger(__name__)
AUTO, TORCH, STATIC, INT8, ONNX, ONNX_INT8 = "auto", "torch", "static", "int8", "onnx", "onnx-int8"
BACKENDS = (AUTO, TORCH, STATIC, INT8, ONNX, ONNX_INT8)
FP32, FP16, BF16 = "fp32", "fp16", "bf16"
PRECISIONS = (FP32, FP16, BF16)  # precisions that a network can compute in; CPUs use fp32 only
UNDETERMINED = "und"  # code of a text whose language cannot be recognised, for a model of any language
ANY_LANGUAGE = ""  # key, in place of a language, of an encoder that takes text of any language
Runnable = TypeVar("Runnable")
BAR_SENTENCES = 4096  # sentences between two updates of the progress bar; back-ends sort as many by length


@dataclass(frozen=True)
class Identity:
    """Which model made a number."""

    name: str
    sha256: str  # checksum of everything that decides its vectors: weights, vocabulary, settings
    pooling: str = "own"  # how token vectors become a sentence vector; `own` if the model defines it
    postprocessing: str = "none"  # what is done to the vectors afterwards

    def pooled(self, pooling: str, prompt: str) -> Identity:
        """The same model with its pooling, and the prompt if there is one."""
        return replace(self, pooling=f"{pooling}, prompt {prompt!r}" if prompt else pooling)


class Backend(Protocol):
    """Runs one language of a model."""

    @property
    def name(self) -> str:
        """One of BACKENDS, or words, embeddings or package for encoders of other kinds."""

    @property
    def dimension(self) -> int:
        """D."""

    @property
    def is_unit(self) -> bool:
        """Whether its vectors already have unit length, or are zero."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order."""


class Model:
    """Encoders of several languages that share a space, or one encoder for any language.

    Args:
        identity: Name, checksum and pooling.
        languages: The languages that have an encoder; None if one encoder takes text of any language.
        open_backend: Returns the back-end of a language; called once per language.
        conversion: Text conversion before a back-end sees a sentence.
        reopen: Opens the same model again, also in another process; None if that is impossible.
    """

    def __init__(
        self,
        identity: Identity,
        languages: Sequence[str] | None,
        open_backend: Callable[[str], Backend],
        *,
        conversion: TextConversion = NO_CONVERSION,
        reopen: Callable[..., Model] | None = None,
    ) -> None:
        self.identity, self.conversion, self.reopen = identity, conversion, reopen
        self.folder: Path | None = None  # where it was opened from
        self.languages = None if languages is None else list(languages)
        self._open_backend = open_backend
        self._backends: dict[str, Backend] = {}
        self._suspected: set[str] = set()  # languages whose sentences looked like another one

    def __repr__(self) -> str:
        return f"<Model {self.identity.name}: {self._described_languages()}, sha256 {self.identity.sha256[:12]}>"

    def _repr_html_(self) -> str:
        identity = self.identity
        rows = [
            ("languages", self._described_languages()),
            ("pooling", identity.pooling),
            ("sha256", identity.sha256[:12]),
            ("folder", self.folder or ""),
        ]
        return html_table(f"Model {identity.name}", ("", ""), rows)

    def _described_languages(self) -> str:
        return "any language" if self.languages is None else ", ".join(self.languages)

    def language(self, code: str) -> str:
        """The language of the model that a code means, `zh` for `zh-CN`; ModelError if the model does not have it."""
        if self.languages is None:
            return code
        found = find_language(code, self.languages)
        if found is None:
            known = ", ".join(self.languages)
            raise ModelError(
                f"{self.identity.name}: has no language {code!r}; expected one of {known}, or a model that has it: "
                "another one, or your own by dualmoco train"
            )
        return found

    def backend(self, lang: str) -> Backend:
        """The back-end of a language, opened at the first call; ModelError if the model does not have the language."""
        known = self.language(lang)
        if known not in self._backends:
            with guard_opening(self.identity.name):
                self._backends[known] = self._open_backend(known)
        return self._backends[known]

    def resolve(self, lang: str | None, texts: Iterable[str], name: str = "sentences") -> str:
        """The language of a text: as given, or else recognised.

        Args:
            lang: A code such as `zh` or `zh-CN`; None to recognise the language.
            texts: Lines or sentences to recognise it by.
            name: What the text is, for messages.

        Raises:
            ConfigError: The text has no letters to recognise its language by.
            DataError: The text is in several scripts.
            ModelError: The model does not have the language.
        """
        if lang is not None:
            self.language(lang)
            return lang
        try:
            found = recognize_language(texts, self.languages)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        if self.languages is None:
            return found or UNDETERMINED
        if not found and len(self.languages) > 1:
            raise ConfigError(
                f"{name}: no letters to recognise the language by; expected text, or the language by name: one of "
                f"{self._described_languages()}"
            )
        if found and found not in self.languages:
            raise ModelError(
                f"{name}: looks like {found}, and the model {self.identity.name} has {' and '.join(self.languages)}; "
                f"expected one of these languages, or a model that has {found}: another one, or your own by dualmoco "
                "train (a language that is named is trusted)"
            )
        return found or self.languages[0]

    def encode(
        self, sentences: str | Sequence[str], *, lang: str | None = None, normalize: bool = True, progress: bool = True
    ) -> Vectors:
        """Encodes sentences of one language.

        Args:
            sentences: One sentence or several.
            lang: Their language, one of `languages`, also with a country or script such as `zh-CN`. None to recognise
                it from all sentences together; sentences in several scripts are then refused.
            normalize: Whether to scale the vectors to unit length; if not, they are as the model makes them. ONNX
                back-ends always return unit vectors.
            progress: Whether to show a progress bar if it takes longer than two seconds.

        Returns:
            Vectors of shape (n, D), one row per sentence.

        Raises:
            ConfigError: The language is not given, and there are no letters to recognise it by.
            ModelError: The model does not have the language.
            DataError: A sentence that is not a string, sentences in several languages, or vectors that are not finite
                numbers.
        """
        if lang is not None:
            self.language(lang)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"sentence {place} is a {type(text).__name__}; expected a string")
        if lang is None and not texts:
            lang = self.languages[0] if self.languages else UNDETERMINED
        if lang is None:
            return self.encode_as(texts, self.resolve(None, texts), normalize=normalize, progress=progress)
        self._suspect(texts, lang)
        return self.encode_as(texts, lang, normalize=normalize, progress=progress)

    def encode_each(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in several languages, each recognised by itself; errors as for `resolve`.

        A sentence without letters is encoded in the first language.
        """
        first = self.languages[0] if self.languages else UNDETERMINED
        langs = [
            self.resolve(None, [text], f"{text!r:.60}") if any(map(str.isalpha, text)) else first for text in texts
        ]
        vectors: Vectors = np.empty((len(texts), self.backend(first).dimension), dtype=np.float32)
        for lang in dict.fromkeys(langs):
            rows = [row for row, own in enumerate(langs) if own == lang]
            vectors[rows] = self.encode_as([texts[row] for row in rows], lang, progress=False)
        return vectors

    def encode_as(self, texts: Sequence[str], lang: str, *, normalize: bool = True, progress: bool = True) -> Vectors:
        """Encodes sentences whose language was checked before; see `encode`."""
        backend = self.backend(lang)
        vectors: Vectors = np.empty((len(texts), backend.dimension), dtype=np.float32)
        with showing(progress), counting(f"encoding {lang}", len(texts)) as advance:
            for start in range(0, len(texts), BAR_SENTENCES):
                chunk = self.conversion.apply(texts[start : start + BAR_SENTENCES], lang)
                made = check_vectors(backend.encode(chunk), len(chunk), self.identity.name, backend.dimension)
                vectors[start : start + BAR_SENTENCES] = (
                    unit_vectors(made) if normalize and not backend.is_unit else made
                )
                advance(len(chunk))
        return vectors

    def _suspect(self, texts: Sequence[str], lang: str) -> None:
        """Warns once per language if sentences clearly look like another one."""
        if self.languages is None or lang in self._suspected:
            return
        if found := apparent_language(texts, lang):
            self._suspected.add(lang)
            warn_of_language("sentences", found, lang)

    def similarity(self, a: Vectors, b: Vectors) -> Vectors:
        """Cosine similarities of all unit vectors of `a` (n, D) with all of `b` (m, D), shape (n, m)."""
        return np.asarray(a @ b.T)


def warn_of_language(name: str, found: str, lang: str) -> None:
    """Warns that a text looks like another language than the one it is encoded as."""
    logger.warning("%s: looks like %s, but is encoded as %s; if that is wrong, correct the language", name, found, lang)


def assemble_model(
    identity: Identity,
    parts: Mapping[str, Runnable],
    run: Callable[[Runnable], Backend],
    conversion: TextConversion = NO_CONVERSION,
) -> Model:
    """Makes a model of networks or tables by language, or a single one under ANY_LANGUAGE."""
    # `run` makes the back-end of a part when it is first needed; once if the part serves several languages.
    running: dict[int, Backend] = {}

    def open_backend(lang: str) -> Backend:
        part = parts[ANY_LANGUAGE if ANY_LANGUAGE in parts else lang]
        if id(part) not in running:
            running[id(part)] = run(part)
        return running[id(part)]

    languages = None if ANY_LANGUAGE in parts else list(parts)
    return Model(identity, languages, open_backend, conversion=conversion)

"""A model in use: sentences of a language in, vectors out, for every kind of model and back-end.

Embeddings, search, mining, alignment, evaluation and the command line encode sentences only with `Model`. Shapes: n
sentences, D dimension.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload, runtime_checkable

import numpy as np

from dualmoco.core.display import html_table
from dualmoco.core.errors import ConfigError, ModelError, require
from dualmoco.core.progress import counting, showing
from dualmoco.core.vectors import Vectors, check_vectors, unit_vectors
from dualmoco.models.folder import guard_opening
from dualmoco.models.text_normalization import NO_CONVERSION, TextConversion
from dualmoco.text.containers import as_sentences, check_characters
from dualmoco.text.languages import (
    AmbiguousLanguageError,
    apparent_language,
    find_language,
    recognize_language,
)

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)
AUTO, TORCH, STATIC, INT8, ONNX, ONNX_INT8 = "auto", "torch", "static", "int8", "onnx", "onnx-int8"
BACKENDS = (AUTO, TORCH, STATIC, INT8, ONNX, ONNX_INT8)
FP32, FP16, BF16 = "fp32", "fp16", "bf16"
PRECISIONS = (FP32, FP16, BF16)  # precisions that a network can compute in; CPUs use fp32 only
UNDETERMINED = "und"  # code of a text whose language cannot be recognised, for a model of any language
ANY_LANGUAGE = ""  # key of an encoder for any language, in place of a language
Runnable = TypeVar("Runnable")
BAR_SENTENCES = 4096  # sentences between two updates of the progress bar; back-ends sort as many by length
MOST_LIMITED = 8  # number of back-ends with other limits that a model keeps
NUMPY = "numpy"
VECTOR_TYPES = (NUMPY, TORCH)  # what `Model.encode` can return


@dataclass(frozen=True)
class Identity:
    """Identifies the model behind a result."""

    name: str
    sha256: str  # checksum of everything that determines its vectors: weights, vocabulary, settings
    pooling: str = "own"  # how token vectors become a sentence vector; `own` if the model defines it
    postprocessing: str = "none"  # post-processing of the vectors
    dimension: int | None = None  # number of leading components that are kept; None for all

    def pooled(self, pooling: str, prompts: Mapping[str, str]) -> Identity:
        """The same model with its pooling, and the prompts by language if there are any."""
        distinct = set(prompts.values())
        if len(distinct) > 1:
            pooling += f", prompts {', '.join(f'{lang} {prompt!r}' for lang, prompt in prompts.items())}"
        elif prompt := next(iter(distinct), ""):
            pooling += f", prompt {prompt!r}"
        return replace(self, pooling=pooling)

    def shortened(self, dimension: int) -> Identity:
        """The same model with fewer components and another checksum, so that vectors of both are never mixed."""
        sha256 = hashlib.sha256(f"{self.sha256} dimension {dimension}".encode()).hexdigest()
        return replace(self, sha256=sha256, dimension=dimension)


class Backend(Protocol):
    """Runs one language of a model."""

    @property
    def name(self) -> str:
        """One of BACKENDS, or words, embeddings or package for other kinds of encoders."""

    @property
    def dimension(self) -> int:
        """D."""

    @property
    def is_unit(self) -> bool:
        """Whether its vectors already have unit length or are zero."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order."""


@runtime_checkable
class LimitedBackend(Backend, Protocol):
    """A back-end whose network has a token limit."""

    cut: int  # number of sentences cut so far

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens after which a sentence is cut; None if unlimited."""

    @property
    def positions(self) -> int | None:
        """Maximum tokens of the network; None if unlimited."""

    def limited(self, max_tokens: int | None, batch_size: int | None) -> Backend:
        """A copy of the network with other limits; None keeps the current limit."""


@dataclass(frozen=True)
class EncodeLimits:
    """Maximum tokens per sentence, and maximum sentences per batch; None keeps the model's own limit."""

    max_tokens: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}; expected at least 1")


NO_LIMITS = EncodeLimits()


class Model:
    """Encoders of several languages that share a space, or one encoder for any language.

    Args:
        identity: Name, checksum and pooling.
        languages: Languages with an encoder; None if one encoder accepts text of any language.
        open_backend: Function that returns the back-end of a language; called once per language.
        conversion: Text conversion to apply before encoding.
        reopen: Function that opens the same model again, possibly in another process; None if that is impossible.
        takes_others: Whether languages other than `languages` are also encoded, by fewer encoders.
    """

    def __init__(
        self,
        identity: Identity,
        languages: Sequence[str] | None,
        open_backend: Callable[[str], Backend],
        *,
        conversion: TextConversion = NO_CONVERSION,
        reopen: Callable[..., Model] | None = None,
        takes_others: bool = False,
    ) -> None:
        self.identity, self.conversion, self.reopen = identity, conversion, reopen
        self.folder: Path | None = None  # folder that it was opened from
        self.languages = None if languages is None else list(languages)
        self.takes_others = takes_others
        self._open_backend = open_backend
        self._backends: dict[str, Backend] = {}
        self._limited: dict[tuple[str, EncodeLimits], Backend] = {}
        self.warned_of_cuts = False  # whether a warning about too long sentences was logged
        self._elsewhere: dict[str, Model] = {}  # the same model on other devices
        self._suspected: set[str] = set()  # languages whose sentences looked like another language

    def __repr__(self) -> str:
        return f"<Model {self.identity.name}: {self._described_languages()}, sha256 {self.identity.sha256[:12]}>"

    def _repr_html_(self) -> str:
        identity = self.identity
        rows = [
            ("languages", self._described_languages()),
            ("pooling", identity.pooling),
            *([("dimension", identity.dimension)] if identity.dimension else []),
            ("sha256", identity.sha256[:12]),
            ("folder", self.folder or ""),
        ]
        return html_table(f"Model {identity.name}", ("", ""), rows)

    def _described_languages(self) -> str:
        if self.languages is None:
            return "any language"
        return ", ".join(self.languages) + (", others in part" if self.takes_others else "")

    def language(self, code: str) -> str:
        """The language of the model that a code means, `zh` for `zh-CN`; ModelError if the model does not have it."""
        if self.languages is None:
            return code
        found = find_language(code, self.languages)
        if found is None and self.takes_others:
            return code
        if found is None:
            known = ", ".join(self.languages)
            raise ModelError(
                f"{self.identity.name}: has no language {code!r}; expected one of {known}, or a model that has it: "
                "another one, or your own from dualmoco join or train"
            )
        return found

    def has_language(self, code: str) -> bool:
        """Whether the model encodes text in a language."""
        return self.languages is None or self.takes_others or find_language(code, self.languages) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles open the model again."""
        if self.reopen is None:
            raise ModelError(f"{self.identity.name}: was not opened by name, so it cannot be copied or pickled")
        return reopen_model, (self.reopen, self.identity)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        opened = next(iter(self._backends.values()), None)
        own = opened or self.backend(self.languages[0] if self.languages else UNDETERMINED)
        return self.identity.dimension or own.dimension

    def shorten(self, dimension: int, trained: Sequence[int] = ()) -> None:
        """Keeps only the first components of all vectors from now on, scaled to unit length again.

        Args:
            dimension: Number of components; the full dimension changes nothing.
            trained: Dimensions that the model was trained for; a warning is logged for other dimensions.

        Raises:
            ConfigError: The model has fewer components, or is a hybrid.
        """
        own = self._check_dimension(dimension)
        if dimension == own:
            return
        if dimension not in trained:
            known = f"trained for {', '.join(map(str, trained))}" if trained else "not known to be trained for fewer"
            kept = f"{dimension} of {own} dimensions"
            logger.info("%s: keeps %s (%s); accuracy may suffer", self.identity.name, kept, known)
        self.identity = self.identity.shortened(dimension)

    def _check_dimension(self, dimension: int) -> int:
        """The dimension of the model; ConfigError if it cannot be reduced to `dimension`."""
        own = self.dimension
        if any(getattr(backend, "is_joined", False) for backend in self._backends.values()):
            raise ConfigError(
                f"{self.identity.name}: dimension {dimension} of a hybrid, which joins the vectors of its parts; "
                "expected no dimension, or one of the parts as the model"
            )
        if not 1 <= dimension <= own:
            raise ConfigError(f"dimension {dimension}; expected from 1 to {own}, the dimension of {self.identity.name}")
        return own

    def backend(self, lang: str, limits: EncodeLimits = NO_LIMITS) -> Backend:
        """The back-end of a language, opened at the first call.

        Raises:
            ConfigError: The back-end does not support these limits.
            ModelError: The model does not have the language.
        """
        known = self.language(lang)
        if known not in self._backends:
            with guard_opening(self.identity.name):
                self._backends[known] = self._open_backend(known)
        return self._backends[known] if limits == NO_LIMITS else self._limit(known, limits)

    def _limit(self, lang: str, limits: EncodeLimits) -> Backend:
        """The back-end of a language with other limits."""
        backend = self._backends[lang]
        has_limit = isinstance(backend, LimitedBackend) and backend.max_tokens is not None
        if limits.max_tokens is not None and not has_limit:
            raise ConfigError(
                f"{self.identity.name}: max_tokens {limits.max_tokens} with back-end {backend.name}, which has no such "
                "limit; remove it"
            )
        if not isinstance(backend, LimitedBackend):
            return backend
        found = self._limited.get((lang, limits))
        if found is None:
            if len(self._limited) >= MOST_LIMITED:
                self._limited.clear()
            found = self._limited[lang, limits] = backend.limited(limits.max_tokens, limits.batch_size)
        return found

    def resolve(self, lang: str | None, texts: Iterable[str], name: str = "sentences") -> str:
        """The language of a text, as given or recognised.

        Args:
            lang: A code such as `zh` or `zh-CN`; None to recognise the language.
            texts: Lines or sentences to recognise the language by.
            name: Name of the text in error messages.

        Raises:
            ConfigError: The text has no letters to recognise its language by.
            DataError: The text is in several scripts, or too short to recognise its language.
            ModelError: The model does not have the language.
        """
        if lang is not None:
            self.language(lang)
            return lang
        found = recognize_language(texts, self.languages, name)
        if self.languages is None:
            return found or UNDETERMINED
        if not found and len(self.languages) > 1:
            raise no_letters(name, self.languages)
        if found and found not in self.languages and not self.takes_others:
            raise ModelError(
                f"{name}: looks like {found}, and the model {self.identity.name} has {' and '.join(self.languages)}; "
                f"expected one of these languages, or a model that has {found}: another one, or your own from dualmoco "
                "join or train (a language that you name is not checked)"
            )
        return found or self.languages[0]

    @overload
    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        lang: str | None = None,
        normalize: bool = True,
        progress: bool = True,
        batch_size: int | None = None,
        device: str | None = None,
        max_tokens: int | None = None,
        dimension: int | None = None,
        convert: Literal["numpy"] = "numpy",
    ) -> Vectors: ...

    @overload
    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        lang: str | None = None,
        normalize: bool = True,
        progress: bool = True,
        batch_size: int | None = None,
        device: str | None = None,
        max_tokens: int | None = None,
        dimension: int | None = None,
        convert: Literal["torch"],
    ) -> Tensor: ...

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        lang: str | None = None,
        normalize: bool = True,
        progress: bool = True,
        batch_size: int | None = None,
        device: str | None = None,
        max_tokens: int | None = None,
        dimension: int | None = None,
        convert: str = NUMPY,
    ) -> Vectors | Tensor:
        """Encodes sentences of one language.

        The vector of an empty or blank sentence is zero with every model and back-end, so its similarity to everything
        is 0. A static model uses all tokens of a sentence. A network cuts a sentence after its maximum number of
        tokens. A warning, once per model, says how many sentences were cut.

        Args:
            sentences: One sentence, or several in a list, tuple, generator, Series, NumPy or Arrow array.
            lang: Language of the sentences, one of `languages`, possibly with a country or script such as `zh-CN`. None
                to recognise it from all sentences together, which must then be in one script.
            normalize: Whether to scale the vectors to unit length. ONNX back-ends always return unit vectors.
            progress: Whether to show a progress bar if encoding takes longer than two seconds.
            batch_size: Maximum sentences per batch of a network, to save memory (default: chosen for speed).
            device: Device of PyTorch to run on, such as cuda:1 (default: the one that the model was opened on). The
                model is opened once per device.
            max_tokens: Number of tokens after which a network cuts a sentence, up to its number of positions (default:
                the model's own limit). In a hybrid it applies to the parts that are networks.
            dimension: Number of leading components to keep, scaled to unit length again. It works best for models that
                were trained for it (Matryoshka).
            convert: `numpy` for an array, or `torch` for a tensor on the CPU.

        Returns:
            Vectors of shape (n, D), one row per sentence.

        Raises:
            ConfigError: There are no letters to recognise the language by, or the model cannot return such vectors.
            ModelError: The model does not have the language.
            DataError: The sentences are not strings, are in several languages, or have vectors that are not finite.
        """
        limits = EncodeLimits(max_tokens, batch_size)
        if lang is not None:
            self.language(lang)
        texts = as_sentences(sentences)
        if lang is None and not texts:
            lang = self.languages[0] if self.languages else UNDETERMINED
        if lang is None:
            lang = self.resolve(None, texts)
        else:
            self._suspect(texts, lang)
        if convert not in VECTOR_TYPES:
            raise ConfigError(f"convert {convert!r}; expected one of {', '.join(VECTOR_TYPES)}")
        if dimension is not None:
            self.backend(lang)
            self._check_dimension(dimension)
        running = self if device is None else self._on(device)
        vectors = running.encode_as(texts, lang, normalize=normalize, progress=progress, limits=limits)
        if dimension is not None:
            vectors = unit_vectors(vectors[:, :dimension]) if normalize else vectors[:, :dimension]
        return _as_tensor(vectors) if convert == TORCH else vectors

    def _on(self, device: str) -> Model:
        """The same model on a device; ModelError if it cannot be opened again, ConfigError for an unusable device."""
        if device not in self._elsewhere:
            if self.reopen is None:
                raise ModelError(f"{self.identity.name}: was not opened by name; expected no device")
            self._elsewhere[device] = self.reopen(device=device)
        return self._elsewhere[device]

    def recognize_each(self, texts: Sequence[str], likely: Sequence[str] = ()) -> list[str]:
        """The language of each sentence; see `recognize_sentences`. Raises the errors of `resolve` too."""
        found = recognize_sentences(texts, self.languages, likely)
        for text, lang in zip(texts, found, strict=True):
            if not self.has_language(lang):
                self.resolve(None, [text], f"{text!r:.60}")
        return found

    def encode_each(self, texts: Sequence[str], likely: Sequence[str] = ()) -> Vectors:
        """Unit vectors (n, D) of sentences in several languages, which `recognize_each` recognises."""
        langs = self.recognize_each(texts, likely)
        vectors: Vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for lang in dict.fromkeys(langs):
            rows = [row for row, own in enumerate(langs) if own == lang]
            vectors[rows] = self.encode_as([texts[row] for row in rows], lang, progress=False)
        return vectors

    def encode_as(
        self,
        texts: Sequence[str],
        lang: str,
        *,
        normalize: bool = True,
        progress: bool = True,
        limits: EncodeLimits = NO_LIMITS,
    ) -> Vectors:
        """Encodes sentences whose language was already checked; see `encode`."""
        backend = self.backend(lang, limits)
        cut_before = backend.cut if isinstance(backend, LimitedBackend) else 0
        is_unit = backend.is_unit and self.identity.dimension is None
        vectors: Vectors = np.zeros((len(texts), self.identity.dimension or backend.dimension), dtype=np.float32)
        with showing(progress), counting(f"encoding {lang}", len(texts)) as advance:
            for start in range(0, len(texts), BAR_SENTENCES):
                chunk = texts[start : start + BAR_SENTENCES]
                rows = [row for row, text in enumerate(chunk) if text.strip()]  # blank sentences have zero vectors
                filled = chunk if len(rows) == len(chunk) else [chunk[row] for row in rows]
                made = self._run(backend, filled, lang)[:, : self.identity.dimension]
                made = unit_vectors(made) if normalize and not is_unit else made
                if filled is chunk:
                    vectors[start : start + BAR_SENTENCES] = made
                else:
                    vectors[[start + row for row in rows]] = made
                advance(len(chunk))
        if isinstance(backend, LimitedBackend) and limits.max_tokens is None:
            self._warn_of_cuts(backend, backend.cut - cut_before, len(texts))
        return vectors

    def _run(self, backend: Backend, texts: Sequence[str], lang: str) -> Vectors:
        """The vectors of sentences from a back-end, checked."""
        try:
            made = backend.encode(self.conversion.apply(texts, lang))
        except (UnicodeEncodeError, TypeError):  # tokenizers raise either for an unpaired surrogate
            check_characters(texts)
            raise
        return check_vectors(made, len(texts), self.identity.name, backend.dimension)

    def _warn_of_cuts(self, backend: LimitedBackend, cut: int, count: int) -> None:
        if not cut or self.warned_of_cuts:
            return
        self.warned_of_cuts = True
        most, positions = backend.max_tokens or 0, backend.positions or 0
        advice = f"split them, or encode with max_tokens up to {positions}" if positions > most else "split them"
        name, share = self.identity.name, f"{cut:,} of {count:,}"
        logger.warning("%s: %s sentences were cut after %s tokens; %s", name, share, most, advice)

    def _suspect(self, texts: Sequence[str], lang: str) -> None:
        """Warns once per language if sentences clearly look like another one."""
        if self.languages is None or lang in self._suspected:
            return
        if found := apparent_language(texts, lang):
            self._suspected.add(lang)
            warn_of_language("sentences", found, lang)

    def similarity(self, a: Vectors, b: Vectors) -> Vectors:
        """Cosine similarities of all unit vectors `a` (n, D) to all unit vectors `b` (m, D), shape (n, m)."""
        return np.asarray(a @ b.T)


def no_letters(name: str, known: Sequence[str]) -> ConfigError:
    """The error for a text without letters to recognise its language by."""
    return ConfigError(
        f"{name}: no letters to recognise the language by; expected text, or the name of the language: one of "
        f"{', '.join(known)}"
    )


def recognize_sentences(texts: Sequence[str], known: Sequence[str] | None, likely: Sequence[str] = ()) -> list[str]:
    """The language of each sentence, recognised one by one.

    A sentence that may be in several languages gets the most frequent of them among the other sentences, or else one of
    `likely`. A sentence without letters gets the first of `known`.

    Raises:
        AmbiguousLanguageError: A sentence may be in several languages, and none of them is in `likely` or the language
            of another sentence.
    """
    found: list[str] = []
    doubtful: dict[int, AmbiguousLanguageError] = {}
    for row, text in enumerate(texts):
        try:
            found.append(recognize_language([text], known, f"{text!r:.60}"))
        except AmbiguousLanguageError as error:
            doubtful[row] = error
            found.append("")
    counts = Counter([*filter(None, found), *likely])
    for row, reason in doubtful.items():
        found[row] = max(reason.candidates, key=lambda lang: counts[lang])
        if not counts[found[row]]:
            raise reason
    return [lang or (known[0] if known else UNDETERMINED) for lang in found]


def warn_of_language(name: str, found: str, lang: str) -> None:
    """Warns that a text looks like a language other than the one it is encoded as."""
    logger.warning("%s: looks like %s, but is encoded as %s; if that is wrong, correct the language", name, found, lang)


def reopen_model(reopen: Callable[..., Model], identity: Identity) -> Model:
    """Opens a model again; ModelError if it changed."""
    model = reopen()
    if model.identity.sha256 != identity.sha256:
        raise ModelError(f"{identity.name}: changed since it was opened; open it again by its name")
    return model


def _as_tensor(vectors: Vectors) -> Tensor:
    tensor: Tensor = require("torch", "torch", 'convert="torch"').from_numpy(np.ascontiguousarray(vectors))
    return tensor


def assemble_model(
    identity: Identity,
    parts: Mapping[str, Runnable],
    run: Callable[[Runnable], Backend],
    conversion: TextConversion = NO_CONVERSION,
) -> Model:
    """Makes a model of networks or tables by language, or a single one under ANY_LANGUAGE."""
    # `run` makes the back-end of a part when it is first needed, only once if the part serves several languages.
    running: dict[int, Backend] = {}

    def open_backend(lang: str) -> Backend:
        part = parts[ANY_LANGUAGE if ANY_LANGUAGE in parts else lang]
        if id(part) not in running:
            running[id(part)] = run(part)
        return running[id(part)]

    languages = None if ANY_LANGUAGE in parts else list(parts)
    return Model(identity, languages, open_backend, conversion=conversion)

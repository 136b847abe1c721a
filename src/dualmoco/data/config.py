"""Settings of `dualmoco prepare`, and of the pairs `dualmoco train` takes: one frozen dataclass a topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dualmoco.core.errors import ConfigError
from dualmoco.text.languages import Chinese


class Identify(StrEnum):
    """When the language of each sentence is identified, which costs about 0.1 ms a sentence."""

    auto = "auto"  # if the two languages share letters; drops sentences in the other language
    always = "always"  # drops sentences in any language but their own
    never = "never"


class Duplicates(StrEnum):
    """Which pairs count as the same."""

    keep = "keep"  # none
    exact = "exact"
    normalized = "normalized"  # without case, width, punctuation, spaces and script variant


class OneSided(StrEnum):
    """Which side may not repeat in other pairs."""

    none = "none"
    src = "src"
    tgt = "tgt"
    either = "either"


class OnError(StrEnum):
    """What happens at a line that cannot be read."""

    stop = "stop"
    skip = "skip"


@dataclass(frozen=True)
class CorpusConfig:
    """One corpus: where it is, and how much of it to take."""

    name: str = ""  # in the output; the first file's name by default
    files: list[str] = field(default_factory=list)  # names or globs; for aligned files the source side
    tgt_files: list[str] = field(default_factory=list)  # the other side of line-aligned files
    format: str = "auto"  # by extension, or one of the readers' names
    columns: list[str] = field(default_factory=list)  # source and target column, by name or by number from 0
    max_pairs: int = 0  # sample that many; 0: all
    weight: float = 1.0  # of this corpus when `total` is set


@dataclass(frozen=True)
class CleanConfig:
    """Steps of cleaning, in the order they are applied."""

    markup: bool = True
    nfc: bool = True
    controls: bool = True
    spaces: bool = True
    chinese: Chinese = Chinese.keep
    damaged: bool = True  # drop pairs with U+FFFD, the trace of bytes that were no text
    letters: bool = True  # drop pairs with a side of digits and punctuation alone
    identical: bool = True  # drop pairs whose sides are equal
    min_chars: int = 1
    max_chars: int = 1000  # 0: any
    min_tokens: int = 1  # words; each character of a script without spaces is one
    max_tokens: int = 200  # 0: any
    max_ratio: float = 4.0  # between the tokens of both sides, 4 added to each; 0: any
    min_script: float = 0.5  # share of a side's words written in its language's script; 0: any
    language: Identify = Identify.auto


@dataclass(frozen=True)
class ExcludeConfig:
    """Test sentences that may not be in the output."""

    files: list[str] = field(default_factory=list)  # names or globs; every tab-separated field of every line
    similarity: float = 0.8  # also drop sentences whose character n-grams have this Jaccard similarity; 0: only equal
    ngram: int = 4


@dataclass(frozen=True)
class PrepareConfig:
    """Everything about one preparation."""

    out: str = ""
    src: str = "en"
    tgt: str = "zh"
    root: str = "."
    corpora: list[CorpusConfig] = field(default_factory=list)
    clean: CleanConfig = field(default_factory=CleanConfig)
    exclude: ExcludeConfig = field(default_factory=ExcludeConfig)
    duplicates: Duplicates = Duplicates.normalized
    one_sided: OneSided = OneSided.none
    total: int = 0  # pairs after mixing by weight; 0: all that each corpus gives
    heldout: int = 0
    seed: int = 0
    shard_pairs: int = 1_000_000
    on_error: OnError = OnError.stop
    workers: int = 0  # processes that clean; 0: one a core; 1: this process alone


@dataclass(frozen=True)
class StageConfig:
    """A stage of a curriculum: what is trained on until a share of the schedule is over."""

    until: float = 1.0  # that share; the last stage's is 1
    max_chars: int = 0  # of the longer side; 0: any
    weights: dict[str, float] = field(default_factory=dict)  # how often a pair is taken, by corpus; others 1; 0: never


@dataclass(frozen=True)
class DataConfig:
    """Which pairs are trained on, and which must not be."""

    root: str = "."  # folder that relative paths below start from
    prepared: str = ""  # folder made by `dualmoco prepare`, wherever root is; or raw files, which are cleaned less:
    train: list[str] = field(default_factory=list)  # files of any format of prepare, globs, or grammar:COUNT
    format: str = "auto"  # of the files in train: by extension, or one of the readers' names
    src_files: list[str] = field(default_factory=list)  # line-aligned instead: file i of src_files ...
    tgt_files: list[str] = field(default_factory=list)  # ... belongs to file i of tgt_files
    columns: list[int] = field(default_factory=lambda: [0, 1])  # of source and target in TSV and CSV, from 0
    exclude: list[str] = field(default_factory=list)  # test sets: no sentence of these files is trained on
    heldout: int = 1000  # pairs kept out of training to measure retrieval; of those held out by prepare at most so many
    bucket: int = 50  # pairs of this many batches are sorted by length into batches; 1: no sorting
    max_pairs: int = 0  # train on a random part of this size; 0: all
    curriculum: list[StageConfig] = field(default_factory=list)  # stages, one after the other; none: all pairs, always


def check_recipe(config: PrepareConfig) -> None:
    """Refuses settings that no preparation can use.

    Args:
        config: The settings to check.

    Raises:
        ConfigError: Names the key, its value and what it must be.
    """
    clean, exclude = config.clean, config.exclude
    rules = [
        ("out", config.out, bool(config.out), "a folder for the prepared pairs"),
        ("src", config.src, bool(config.src), "a language code such as en"),
        ("tgt", config.tgt, config.tgt not in ("", config.src), "another language code than src"),
        ("corpora", [], bool(config.corpora), "at least one corpus"),
        ("clean.min_chars", clean.min_chars, clean.min_chars >= 0, "at least 0"),
        (
            "clean.max_chars",
            clean.max_chars,
            not clean.max_chars or clean.max_chars >= clean.min_chars,
            "0 or at least clean.min_chars",
        ),
        (
            "clean.max_tokens",
            clean.max_tokens,
            not clean.max_tokens or clean.max_tokens >= clean.min_tokens,
            "0 or at least clean.min_tokens",
        ),
        ("clean.max_ratio", clean.max_ratio, clean.max_ratio == 0 or clean.max_ratio >= 1, "0 or at least 1"),
        ("clean.min_script", clean.min_script, 0 <= clean.min_script <= 1, "from 0 to 1"),
        (
            "exclude.similarity",
            exclude.similarity,
            exclude.similarity == 0 or 0.3 <= exclude.similarity <= 1,
            "0 (equal sentences only), or from 0.3 to 1",
        ),
        ("exclude.ngram", exclude.ngram, 1 <= exclude.ngram <= 8, "from 1 to 8"),
        ("total", config.total, config.total >= 0, "at least 0"),
        ("heldout", config.heldout, config.heldout >= 0, "at least 0"),
        ("seed", config.seed, config.seed >= 0, "at least 0"),
        ("shard_pairs", config.shard_pairs, config.shard_pairs > 0, "at least 1"),
        ("workers", config.workers, config.workers >= 0, "at least 0"),
    ]
    for number, corpus in enumerate(config.corpora):
        key = f"corpora[{number}]"
        rules += [
            (f"{key}.files", [], bool(corpus.files), "at least one file"),
            (f"{key}.columns", corpus.columns, len(corpus.columns) in (0, 2), "a source and a target column"),
            (f"{key}.max_pairs", corpus.max_pairs, corpus.max_pairs >= 0, "at least 0"),
            (f"{key}.weight", corpus.weight, corpus.weight > 0, "above 0"),
        ]
    for key, value, holds, expected in rules:
        if not holds:
            raise ConfigError(f"{key} is {value!r}; expected {expected}")

"""Settings of `dualmoco prepare` and of the `data` section of a training recipe."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from enum import StrEnum

from dualmoco.core.config_loader import Rule, check_rules
from dualmoco.text.languages import Chinese


class Identify(StrEnum):
    """When to identify the language of each sentence, at about 0.1 ms per sentence."""

    auto = "auto"  # if the two languages share a script; drops sentences in the language of the other side
    always = "always"  # drops sentences in any language other than their own
    never = "never"


class Duplicates(StrEnum):
    """Which pairs count as duplicates."""

    keep = "keep"  # none
    exact = "exact"
    normalized = "normalized"  # equal without case, width, punctuation, spaces and script variant


class OneSided(StrEnum):
    """Which side must not occur in two pairs."""

    none = "none"
    src = "src"
    tgt = "tgt"
    either = "either"


class OnError(StrEnum):
    """What to do with unreadable lines."""

    stop = "stop"
    skip = "skip"


@dataclass(frozen=True)
class CorpusConfig:
    """One corpus: its files, and how much of it to use."""

    name: str = ""  # name in the output; default: name of the first file
    files: list[str] = field(default_factory=list)  # names or globs; if line-aligned, those of the source side
    tgt_files: list[str] = field(default_factory=list)  # names or globs of the target side of line-aligned files
    format: str = "auto"  # name of a reader; auto: by extension
    columns: list[str] = field(default_factory=list)  # source and target column, names or numbers from 0
    max_pairs: int = 0  # size of a random sample; 0: all
    weight: float = 1.0  # share of this corpus if `total` is set, in any unit


@dataclass(frozen=True)
class CleanConfig:
    """Steps of cleaning, in the order in which they are applied."""

    markup: bool = True  # remove tags and resolve entities
    nfc: bool = True  # Unicode normalization form C
    controls: bool = True  # remove control characters
    spaces: bool = True  # one space for each run of white space
    chinese: Chinese = Chinese.keep  # convert Chinese characters to this script
    max_chars: int = 1000  # maximum characters per sentence; 0: no limit
    min_tokens: int = 1  # minimum words per sentence; each character of a script without spaces is one
    max_tokens: int = 200  # maximum words per sentence; 0: no limit
    max_ratio: float = 4.0  # maximum length ratio in words, after adding 4 to each side; 0: no limit
    min_script: float = 0.5  # minimum share of words in the script of the language; 0: no limit
    language: Identify = Identify.auto  # identify the language of each sentence; auto: if both share a script


@dataclass(frozen=True)
class ExcludeConfig:
    """Test sentences that must not be in the output."""

    files: list[str] = field(default_factory=list)  # names or globs; every tab-separated field of every line
    similarity: float = 0.8  # also drop sentences this similar: Jaccard index of character n-grams; 0: equal only
    ngram: int = 4  # characters per n-gram


@dataclass(frozen=True)
class PrepareConfig:
    """All settings of `dualmoco prepare`."""

    out: str = ""  # folder to write
    src: str = "en"  # language of the source side
    tgt: str = "zh"  # language of the target side
    root: str = "."  # folder that relative paths start from
    corpora: list[CorpusConfig] = field(default_factory=list)  # files and sizes, see below
    clean: CleanConfig = field(default_factory=CleanConfig)
    exclude: ExcludeConfig = field(default_factory=ExcludeConfig)
    duplicates: Duplicates = Duplicates.normalized  # which pairs count as equal; only the first of them is kept
    one_sided: OneSided = OneSided.none  # which side must not occur in two pairs
    total: int = 0  # maximum number of pairs, mixed from the corpora by weight; 0: no limit
    heldout: int = 0  # pairs held out of training
    seed: int = 0  # random seed
    shard_pairs: int = 1_000_000  # pairs per output file
    on_error: OnError = OnError.stop  # what to do with unreadable lines
    workers: int = 0  # number of cleaning processes; 0: one per core; 1: only this process


@dataclass(frozen=True)
class StageConfig:
    """A stage of a curriculum: which pairs are trained on, and for how long."""

    until: float = 1.0  # share of the schedule at which this stage ends; 1 for the last stage
    max_chars: int = 0  # maximum characters of the longer side; 0: no limit
    weights: dict[str, float] = field(default_factory=dict)  # uses of each pair per pass, by corpus; default 1


@dataclass(frozen=True)
class DataConfig:
    """Which pairs to train on, and which sentences to exclude."""

    root: str = "."  # folder that relative paths start from
    prepared: str = ""  # folder written by `dualmoco prepare`, not relative to root; or raw files:
    train: list[str] = field(default_factory=list)  # files of any format that prepare reads, globs, or grammar:COUNT
    format: str = "auto"  # format of the files in train: name of a reader; auto: by extension
    src_files: list[str] = field(default_factory=list)  # line-aligned files: file i of src_files ...
    tgt_files: list[str] = field(default_factory=list)  # ... belongs to file i of tgt_files
    columns: list[int] = field(default_factory=lambda: [0, 1])  # source and target column of TSV and CSV files, from 0
    exclude: list[str] = field(default_factory=list)  # test sets: pairs with a sentence of these files are dropped
    heldout: int = 1000  # pairs held out to measure retrieval; at most as many as prepare held out
    bucket: int = 50  # pairs are sorted by length within this many batches; 1: no sorting
    max_pairs: int = 0  # size of a random sample to train on; 0: all
    sampling: float = 1.0  # corpora are sampled in proportion to size ** sampling; 1: all pairs equally often
    curriculum: list[StageConfig] = field(default_factory=list)  # stages in order; none: all pairs all the time

    def rules(self) -> list[Rule]:
        """The requirements on the settings of the pairs."""
        sources = bool(self.train) + bool(self.src_files) + bool(self.prepared)
        until = [stage.until for stage in self.curriculum]
        rising = all(0 < before < after for before, after in itertools.pairwise(until))
        rises_to_one = not until or (rising and until[-1] == 1)
        as_many = len(self.src_files) == len(self.tgt_files)
        two_columns = len(self.columns) == 2 and min(self.columns) >= 0
        stages = f"until {', '.join(map(str, until))}"
        rules: list[Rule] = [
            ("data.train", self.train, sources == 1, "exactly one of train, prepared, and src_files with tgt_files"),
            ("data.tgt_files", self.tgt_files, as_many, "the same number of files as src_files"),
            ("data.columns", self.columns, two_columns, "two column numbers from 0"),
            ("data.heldout", self.heldout, self.heldout > 1, "at least 2"),
            ("data.bucket", self.bucket, self.bucket > 0, "at least 1"),
            ("data.max_pairs", self.max_pairs, self.max_pairs >= 0, "at least 0"),
            ("data.sampling", self.sampling, 0 <= self.sampling <= 1, "from 0 (corpora equally often) to 1 (pairs)"),
            ("data.curriculum", stages, rises_to_one, "shares of the schedule above 0 that increase to 1"),
        ]
        for number, stage in enumerate(self.curriculum):
            key = f"data.curriculum[{number}]"
            rules.append((f"{key}.max_chars", stage.max_chars, stage.max_chars >= 0, "at least 0; 0 means no limit"))
            for corpus, weight in stage.weights.items():
                rules.append(
                    (f"{key}.weights.{corpus}", weight, 0 <= weight < math.inf, "at least 0; 0 excludes the corpus")
                )
        return rules


def check_recipe(config: PrepareConfig) -> None:
    """Checks the values of the settings; ConfigError has the key, its value and what was expected."""
    clean, exclude = config.clean, config.exclude
    similarity, max_tokens = exclude.similarity, clean.max_tokens
    rules: list[Rule] = [
        ("out", config.out, bool(config.out), "a folder for the prepared pairs"),
        ("src", config.src, bool(config.src), "a language code such as en"),
        ("tgt", config.tgt, config.tgt not in ("", config.src), "a language code other than src"),
        ("corpora", [], bool(config.corpora), "at least one corpus"),
        ("clean.max_chars", clean.max_chars, clean.max_chars >= 0, "at least 0"),
        ("clean.max_tokens", max_tokens, not 0 < max_tokens < clean.min_tokens, "0 or at least min_tokens"),
        ("clean.max_ratio", clean.max_ratio, clean.max_ratio == 0 or clean.max_ratio >= 1, "0 or at least 1"),
        ("clean.min_script", clean.min_script, 0 <= clean.min_script <= 1, "from 0 to 1"),
        ("exclude.similarity", similarity, similarity == 0 or 0.3 <= similarity <= 1, "0 (equal) or from 0.3 to 1"),
        ("exclude.ngram", exclude.ngram, 1 <= exclude.ngram <= 8, "from 1 to 8"),
        ("shard_pairs", config.shard_pairs, config.shard_pairs > 0, "at least 1"),
    ]
    for key in ("total", "heldout", "seed", "workers"):
        rules.append((key, getattr(config, key), getattr(config, key) >= 0, "at least 0"))
    for number, corpus in enumerate(config.corpora):
        key = f"corpora[{number}]"
        rules += [
            (f"{key}.files", [], bool(corpus.files), "at least one file"),
            (f"{key}.columns", corpus.columns, len(corpus.columns) in (0, 2), "a source and a target column"),
            (f"{key}.max_pairs", corpus.max_pairs, corpus.max_pairs >= 0, "at least 0"),
            (f"{key}.weight", corpus.weight, corpus.weight > 0, "above 0"),
        ]
    check_rules(rules)

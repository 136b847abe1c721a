"""Merges the languages of several models that share a space into one model folder, with a model card.

Models share a space if they have an equal encoder, such as the frozen encoder in every model that `join` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dualmoco.core import VERSION
from dualmoco.core.display import markdown_table
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import new_folder, write_text
from dualmoco.mining.threshold import ModelCalibration, copy_calibrations, list_calibrations
from dualmoco.models.card import JOINED_KEY, CardSubject, card_body, complete_card, inherited_metadata
from dualmoco.models.folder import MODEL_CARD, check_place, copy_model, read_model_record
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.models.routes import (
    add_routes,
    merge_conversions,
    open_languages,
    read_routes,
    same_encoder,
    write_model_record,
)

BASE_HEADING = "## The model that languages joined"


@dataclass(frozen=True)
class JoinedLanguage:
    """How a language joined a model, for its record and card."""

    lang: str
    known: str  # language of the model on the other side of its training pairs
    base: str  # name of the model that it joined
    base_sha256: str
    corpora: dict[str, int]  # training pairs of each corpus
    test_sentences: int  # distinct test sentences that were excluded
    heldout: int  # held-out pairs
    to_known: float  # share of held-out sentences whose nearest neighbour is their translation
    from_known: float  # the same in the other direction
    steps: int
    minutes: float
    version: str = VERSION


@dataclass(frozen=True)
class Merged:
    """A summary of the new model."""

    out: str
    languages: list[str]
    sha256: str  # checksum of the model


def merge(models: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Merged:
    """Writes a model with the languages of several models of one space; no vector changes.

    Args:
        models: Two or more models with one encoder per language. Each must share an encoder with the models before it,
            and models with the same language must have the same encoder for it.
        out: Folder to write.
        overwrite: Whether to replace an existing folder.

    Returns:
        A summary of the model.

    Raises:
        ConfigError: There is only one model, or the folder exists.
        ModelError: A model cannot be opened or is of another kind, the models have different dimensions or do not share
            a space, or a language has two different encoders.
        RunError: The folder cannot be written.
    """
    if len(models) < 2:
        raise ConfigError(f"{len(models)} model(s) to merge; expected at least two")
    out = Path(out)
    check_new_folder(out, [Path(name) for name in models], overwrite=overwrite)
    opened = [open_languages(name) for name in models]
    owners = _find_owners(opened)
    folders = [folder for _, folder in opened]
    conversion = merge_conversions(folders)
    joined = {one["lang"]: one for folder in folders for one in read_joined(folder)}
    with new_folder(out) as folder:
        folder.rmdir()
        copy_model(folders[0], folder)
        for number, source in enumerate(folders[1:], start=1):
            add_routes(folder, source, [lang for lang, owner in owners.items() if owner == number])
        write_model_record(folder, conversion, {JOINED_KEY: list(joined.values())})
        new = open_model(folder)
        copy_calibrations([model for model, _ in opened], new)
        write_text(folder / MODEL_CARD, language_card(out.name, folder, new, folders[0]))
    return Merged(str(out), list(new.languages or ()), new.identity.sha256)


def _find_owners(opened: Sequence[tuple[Model, Path]]) -> dict[str, int]:
    """The languages of all models, and which model each is taken from; ModelError if the models do not fit."""
    first, _ = opened[0]
    owners = dict.fromkeys(first.languages or (), 0)
    for number, (model, folder) in enumerate(opened[1:], start=1):
        name = model.identity.name
        if model.dimension != first.dimension:
            raise ModelError(
                f"{name}: vectors of dimension {model.dimension}; expected {first.dimension}, that of "
                f"{first.identity.name}"
            )
        shared = [lang for lang in read_routes(folder) if lang in owners]
        for lang in shared:
            if not same_encoder(opened[owners[lang]][1], folder, lang):
                other = opened[owners[lang]][0].identity.name
                raise ModelError(
                    f"{lang}: encoded differently by {other} and {name}; expected one encoder: remove one of the models"
                )
        if not shared:
            raise ModelError(
                f"{name}: has {', '.join(model.languages or ())} and shares no language with {', '.join(owners)}; "
                "expected models with an encoder in common, because others are not in one space"
            )
        owners |= {lang: number for lang in read_routes(folder) if lang not in owners}
    return owners


def check_new_folder(out: Path, models: Sequence[Path], *, overwrite: bool) -> None:
    """ConfigError if `out` exists and must not be replaced, or if it contains one of the models."""
    check_place(out, models, "model", replace=True)
    if out.exists() and not overwrite:
        raise ConfigError(f"{out}: exists; expected a new folder, or --overwrite to replace it")


def read_joined(folder: Path) -> list[dict[str, Any]]:
    """The languages that joined a model, as its record lists them."""
    found = read_model_record(folder).get(JOINED_KEY)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def language_card(name: str, folder: Path, model: Model, base: Path) -> str:
    """The card of a model that languages joined: what they were trained on, how good they are, and the older card."""
    joined = [JoinedLanguage(**one) for one in read_joined(folder)]
    older = card_body(base)
    if read_joined(base):  # a card of this function
        older = older.partition(f"{BASE_HEADING}\n")[2].strip()
    langs = list(model.languages or ())
    pages = [
        f"# {name}",
        f"Sentences of {', '.join(langs)} to unit vectors of dimension {model.dimension} in one space. `dualmoco join` "
        f"and `dualmoco merge` of dualmoco {VERSION} wrote it; checksum {model.identity.sha256[:12]}.",
        *_language_tables(joined, list_calibrations(model)),
        *([BASE_HEADING, older] if older else []),
    ]
    subject = CardSubject(folder, name, langs, model.dimension)
    return complete_card("\n\n".join(pages) + "\n", subject, inherited_metadata(base))


def _language_tables(joined: Sequence[JoinedLanguage], calibrations: Sequence[ModelCalibration]) -> list[str]:
    """The records of the languages that joined, as paragraphs."""
    quality = [
        [
            f"{one.lang}, through {one.known}",
            f"{sum(one.corpora.values()):,}",
            f"{100 * one.to_known:.1f} / {100 * one.from_known:.1f} of {one.heldout:,}",
            f"{one.steps:,} in {one.minutes:.1f} minutes",
            f"{one.base} {one.base_sha256[:12]}",
        ]
        for one in joined
    ]
    header = ["language", "training pairs", "held-out accuracy, to / from", "steps", "joined"]
    corpora = [[one.lang, ", ".join(f"{corpus} {count:,}" for corpus, count in one.corpora.items())] for one in joined]
    excluded = "; ".join(f"{one.lang} {one.test_sentences:,}" for one in joined)
    thresholds = [
        [
            "-".join(one.langs),
            f"{one.threshold:.4f}",
            f"{100 * one.precision:.1f} / {100 * one.recall:.1f}",
            f"{one.cosine:.4f}",
            f"{one.pairs:,}",
        ]
        for one in calibrations
    ]
    columns = ["pair", "threshold of mine", "precision / recall", "cosine of score", "held-out pairs"]
    return [
        *(["\n".join(markdown_table(header, quality))] if quality else []),
        *(["\n".join(markdown_table(["language", "trained on (pairs)"], corpora))] if corpora else []),
        *([f"Distinct test sentences that were excluded: {excluded}."] if joined else []),
        *(["\n".join(markdown_table(columns, thresholds))] if thresholds else []),
    ]


def joined_record(joined: Sequence[dict[str, Any]], new: JoinedLanguage) -> dict[str, Any]:
    """The part of a model's record that lists the languages that joined."""
    return {JOINED_KEY: [*joined, asdict(new)]}

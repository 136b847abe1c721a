"""The card of a model folder: a README.md with front matter that the Hugging Face Hub reads.

Cards are written where models are saved, and completed when they are pushed. What a card already says is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualmoco.core import VERSION
from dualmoco.core.errors import ModelError
from dualmoco.core.storage import read_json, write_text
from dualmoco.models.folder import INT8_FILE, MODEL_CARD, MODULES_FILE, PROMPTS_FILE, ROUTER_FILE, read_model_record
from dualmoco.models.text_normalization import TextConversion
from dualmoco.text.languages import base_language

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

JOINED_KEY = "joined"  # in the record of a model: the languages that `join` added
INHERITED_KEYS = ("license", "license_name", "license_link", "base_model", "datasets")
"""What the card of a model says of the models made of it, too."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
PIPELINE_TAG = "sentence-similarity"
TAGS = ["dualmoco", "sentence-embeddings", "feature-extraction", "cross-lingual", "bitext-mining"]
CARD_MODEL = "MODEL"  # in the examples of a card: the folder, which `push` replaces by the name on the Hub
SNIPPET = """\
## Use
```python
import dualmoco

model = dualmoco.load("{model}")
vectors = model.encode(["A sentence."], lang="{lang}")
```
"""
LIBRARY_SNIPPET = """
In sentence-transformers:
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{model}")
vectors = model.encode(["A sentence."]{task})
```
"""


@dataclass(frozen=True)
class CardSubject:
    """The model that a card describes."""

    folder: Path
    name: str
    languages: Sequence[str]  # none if it takes text of any language
    dimension: int


def write_card(subject: CardSubject, left: TextConversion, base: Path | None = None) -> None:
    """Writes the card of a model that was just saved.

    Args:
        subject: The model.
        left: Text conversion that users of sentence-transformers have to do themselves.
        base: Folder of the model that it was made of, if there is one.
    """
    known = inherited_metadata(base) if base else {}
    if bases := _base_models(read_model_record(subject.folder)):
        known.setdefault("base_model", bases)
    write_text(subject.folder / MODEL_CARD, make_card(subject, left, known))


def make_card(subject: CardSubject, left: TextConversion, known: Mapping[str, Any] | None = None) -> str:
    """The text of a new card; `known` is metadata that the folder does not tell."""
    langs = ", ".join(subject.languages) or "any language"
    space = " in one space" if len(subject.languages) > 1 else ""
    steps = [part for part in (left.card(), _prompt_card(subject.folder)) if part]
    pages = [
        f"# {subject.name}",
        f"Sentences of {langs} to unit vectors of dimension {subject.dimension}{space}. "
        f"dualmoco {VERSION} wrote this model.",
        _usage(subject),
        *(["## How to give sentences to this model\n\n" + "\n".join(steps)] if steps else []),
        *_training(read_model_record(subject.folder)),
    ]
    return complete_card("\n\n".join(page.strip() for page in pages) + "\n", subject, known)


def complete_card(text: str, subject: CardSubject, known: Mapping[str, Any] | None = None) -> str:
    """A card whose front matter has everything that is known; what it already says stays.

    Args:
        text: The card, with or without front matter.
        subject: The model.
        known: Metadata that the folder does not tell.

    Raises:
        ModelError: The front matter cannot be read.
    """
    card = _parse_card(text, subject.folder)
    opens_elsewhere = _opens_elsewhere(subject.folder)
    tags = [*TAGS, "sentence-transformers"] if opens_elsewhere else TAGS
    found = {
        "language": list(dict.fromkeys(map(base_language, subject.languages))) or "multilingual",
        "library_name": "sentence-transformers" if opens_elsewhere else "dualmoco",
        "pipeline_tag": PIPELINE_TAG,
        "tags": tags,
        **(known or {}),
    }
    for key, value in found.items():
        if card.data.get(key) is None:
            card.data[key] = value
    if not card.data.get("eval_results") and (results := list(_results(read_model_record(subject.folder)))):
        card.data["model_name"], card.data["eval_results"] = subject.name, results
    return str(card)


def parse_metadata(text: str, folder: Path) -> dict[str, Any]:
    """The front matter of the card of a folder; ModelError if it cannot be read."""
    metadata: dict[str, Any] = _parse_card(text, folder).data.to_dict()
    return metadata


def inherited_metadata(base: Path) -> dict[str, Any]:
    """What the card of a model says of the models made of it; nothing without a card."""
    path = base / MODEL_CARD
    metadata = parse_metadata(path.read_text(encoding="utf-8"), base) if path.is_file() else {}
    return {key: metadata[key] for key in INHERITED_KEYS if key in metadata}


def card_body(folder: Path) -> str:
    """The card of a model without its front matter; empty without a card."""
    path = folder / MODEL_CARD
    return str(_parse_card(path.read_text(encoding="utf-8"), folder).text).strip() if path.is_file() else ""


def _parse_card(text: str, folder: Path) -> Any:
    """Reads a card as huggingface_hub's ModelCard; ModelError if its front matter is not that of a model."""
    import yaml
    from huggingface_hub import ModelCard

    try:
        return ModelCard(text if text.lstrip().startswith("---\n") else f"---\n{{}}\n---\n{text}")
    except (ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{folder / MODEL_CARD}: front matter cannot be read ({reason}); correct or remove it"
        ) from None


def _opens_elsewhere(folder: Path) -> bool:
    """Whether sentence-transformers opens a folder: its weights are not packed, and it is no hybrid or graph."""
    return (folder / MODULES_FILE).is_file() and not any(folder.rglob(INT8_FILE))


def _usage(subject: CardSubject) -> str:
    lang = next(iter(subject.languages), "en")
    snippet = SNIPPET.format(model=CARD_MODEL, lang=lang)
    if not _opens_elsewhere(subject.folder):
        return snippet
    has_routes = any(subject.folder.rglob(ROUTER_FILE))
    return snippet + LIBRARY_SNIPPET.format(model=CARD_MODEL, task=f', task="{lang}"' if has_routes else "")


def _prompt_card(folder: Path) -> str:
    """How to name the prompts of a saved model in sentence-transformers; empty if one applies to all sentences."""
    path = folder / PROMPTS_FILE
    config = read_json(path) if path.is_file() else {}
    prompts = {} if config.get("default_prompt_name") else config.get("prompts", {})
    steps = [
        f'    model.encode(sentences, task="{lang}", prompt_name="{lang}")  # {prompt!r}\n'
        for lang, prompt in prompts.items()
        if prompt
    ]
    intro = (
        "It was trained with a text before every sentence, its prompt, which differs between the languages.\n"
        "dualmoco puts it there by itself; in sentence-transformers name it:\n\n"
    )
    return intro + "".join(steps) if steps else ""


def _training(record: Mapping[str, Any]) -> Iterator[str]:
    """How a model was trained, as paragraphs; nothing if its record does not tell."""
    settings = record.get("settings")
    if not isinstance(settings, dict):
        return
    yield (
        f"## Training\n`dualmoco train`, objective `{settings['objective']}`, {record.get('step', 0):,} steps of "
        f"{settings['optimizer']['batch_size']:,} pairs. `dualmoco.json` has all settings."
    )
    if found := list(_heldout_accuracies(record)):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found)
        yield f"Held-out sentences whose nearest neighbor is their translation: {shares}."


def _heldout_accuracies(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Directions such as `en to zh`, and the share of held-out sentences that find their translation."""
    heldout, settings = record.get("heldout"), record.get("settings")
    if isinstance(heldout, dict) and isinstance(settings, dict):
        others = [settings["tgt"]["lang"], *(one["encoder"]["lang"] for one in settings.get("languages") or [])]
        src, tgt = settings["src"]["lang"], "/".join(others)
        yield f"{src} to {tgt}", heldout["src_to_tgt"]
        yield f"{tgt} to {src}", heldout["tgt_to_src"]
    joined = record.get(JOINED_KEY)
    for one in joined if isinstance(joined, list) else []:
        yield f"{one['lang']} to {one['known']}", one["to_known"]
        yield f"{one['known']} to {one['lang']}", one["from_known"]


def _results(record: Mapping[str, Any]) -> Iterator[EvalResult]:
    """The results of a model that its record has, as the Hub lists them."""
    from huggingface_hub import EvalResult

    for name, share in _heldout_accuracies(record):
        yield EvalResult(
            task_type="translation",
            task_name="Translation retrieval",
            dataset_type="unknown",
            dataset_name="held-out pairs of its training corpora",
            metric_type="accuracy",
            metric_name=f"accuracy, {name}",
            metric_value=round(share, 4),
        )


def _base_models(record: Mapping[str, Any]) -> list[str]:
    """The hub names of the models that a model was trained or exported from."""
    settings = record.get("settings")
    if isinstance(settings, dict):
        encoders = [settings["src"], settings["tgt"], *(one["encoder"] for one in settings.get("languages") or [])]
        names = [str(encoder.get("name") or "") for encoder in encoders]
    else:
        names = [str(record.get("name") or "")]
    return list(dict.fromkeys(name for name in names if HUB_NAME.fullmatch(name) and not Path(name).exists()))

"""Which languages two documents are in: as they were said to be, or as their text looks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dualmoco.alignment.document import Text
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.languages import base_language, common_language, identify
from dualmoco.models.model import Model

logger = logging.getLogger(__name__)
SAMPLE_CHARACTERS = 4000


def settle_languages(
    texts: tuple[Text, Text], given: tuple[str | None, str | None], model: Model, *, force: bool
) -> tuple[str, str]:
    """The languages of two documents, checked against what they look like.

    Args:
        texts: The documents.
        given: What the user said; None for a side whose language is to be guessed.
        model: Must have both.
        force: Whether sides that look swapped are taken as they are.

    Returns:
        A language of the model for each side.

    Raises:
        ConfigError: A language that cannot be guessed, the same language twice, or sides that look swapped.
        ModelError: A language that the model does not have.
    """
    looks = tuple(looks_like(text.lines) for text in texts)
    said = [lang or _known(look, model, text) for lang, look, text in zip(given, looks, texts, strict=True)]
    src, tgt = said
    if src == tgt:
        raise ConfigError(
            f"{texts[0].name} and {texts[1].name}: both {'are said to be' if all(given) else 'look like'} {src}; "
            "expected two languages: name them with --src and --tgt"
        )
    for lang in said:
        model.backend(lang)
    swapped = looks == (base_language(tgt), base_language(src))
    if swapped and not force:
        raise DataError(
            f"{texts[0].name} looks like {tgt} and {texts[1].name} like {src}; expected {src} and {tgt}: name the "
            "files or the languages the other way round, or add --force"
        )
    for text, lang, look in zip(texts, said, looks, strict=True):
        if look and look != base_language(lang):
            logger.warning(
                "%s: looks like language %s, is aligned as %s; if that is wrong, name the language",
                text.name, look, lang,
            )  # fmt: skip
    return src, tgt


def looks_like(lines: Sequence[str]) -> str:
    """The language that most lines seem to be in, as a two-letter code; empty if that cannot be told."""
    found = common_language(lines)
    if found:
        return found
    text = " ".join(line.strip() for line in lines if any(map(str.isalpha, line)))[:SAMPLE_CHARACTERS]
    return identify(text) if text else ""


def _known(look: str, model: Model, text: Text) -> str:
    """The language of the model that a text looks like."""
    languages = [look] if model.languages is None and look else model.languages or []
    for lang in languages:
        if look and base_language(lang) == look:
            return lang
    expected = "; name it with --src or --tgt" + (f", one of {', '.join(languages)}" if languages else "")
    raise ConfigError(f"{text.name}: looks like language {look or 'unknown'}{expected}")

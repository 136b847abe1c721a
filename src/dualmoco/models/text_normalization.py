"""What a model does to sentences before it cuts them into tokens: the part of their preparation that it must repeat.

A model that was trained on simplified characters does not know traditional ones, so conversion belongs to the model. It
is recorded in the model folder, applied by `Model` before any back-end sees a sentence, and enters the checksum.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import write_text
from dualmoco.text.characters import convert_chinese
from dualmoco.text.languages import OPENCC, Chinese, base_language

CARD = "README.md"
TEXT_KEY = "text"
"""Of the record, for what `TextConversion.to_json` gives."""


@dataclass(frozen=True)
class TextConversion:
    """The conversion of a model's sentences; none unless said otherwise."""

    chinese: Chinese = Chinese.keep
    """The characters that sentences in Chinese are written in."""
    nfkc: bool = False
    """Whether sentences of every language are brought to Unicode NFKC first."""

    def of(self, lang: str) -> TextConversion:
        """What it means for sentences of one language."""
        return self if base_language(lang) == "zh" else replace(self, chinese=Chinese.keep)

    def apply(self, texts: Sequence[str], lang: str) -> list[str]:
        """Converts sentences.

        Args:
            texts: n sentences.
            lang: Their language.

        Returns:
            The n sentences as the model was trained on them.
        """
        converted = [unicodedata.normalize("NFKC", text) for text in texts] if self.nfkc else list(texts)
        script = self.of(lang).chinese
        return converted if script == Chinese.keep else [convert_chinese(text, script) for text in converted]

    def to_json(self) -> dict[str, Any]:
        """What there is to do, such as `{"chinese": "simplified"}`; empty if nothing."""
        chinese = {} if self.chinese == Chinese.keep else {"chinese": self.chinese.value}
        return chinese | ({"nfkc": True} if self.nfkc else {})


NO_CONVERSION = TextConversion()


def parse_conversion(content: Any, place: Path) -> TextConversion:
    """Reads what `TextConversion.to_json` gave.

    Args:
        content: Of a JSON file.
        place: The file, for the error.

    Returns:
        The conversion.

    Raises:
        ModelError: Something else, or a conversion that is not known.
    """
    found = content if isinstance(content, dict) else {TEXT_KEY: content}
    chinese, nfkc = found.get("chinese", Chinese.keep), found.get("nfkc", False)
    if set(found) - {"chinese", "nfkc"} or chinese not in list(Chinese) or not isinstance(nfkc, bool):
        raise ModelError(
            f"{place}: text conversion {json.dumps(content, ensure_ascii=False)}; expected chinese: simplified or "
            "traditional, and nfkc: true or false: save the model again with this version"
        )
    return TextConversion(Chinese(chinese), nfkc)


def read_conversion(record: Path) -> TextConversion:
    """The conversion of a model.

    Args:
        record: `dualmoco.json` of the model folder; a model of others has none.

    Returns:
        What the record says; no conversion if it says nothing.

    Raises:
        ModelError: A record that cannot be read.
    """
    if not record.is_file():
        return NO_CONVERSION
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{record}: not a record of a model ({error}); save the model again") from None
    return parse_conversion(content.get(TEXT_KEY) or {}, record) if isinstance(content, dict) else NO_CONVERSION


def write_card(folder: Path, left: TextConversion) -> None:
    """Says in a model folder what users of plain sentence-transformers must do to their sentences, if anything.

    Args:
        folder: Of the model.
        left: What its tokenizer does not do by itself.

    Raises:
        RunError: The disk is full or not writable.
    """
    steps = ['    sentence = unicodedata.normalize("NFKC", sentence)'] if left.nfkc else []
    if left.chinese != Chinese.keep:
        steps.append(f'    sentence = opencc.OpenCC("{OPENCC[left.chinese]}").convert(sentence)  # Chinese only')
    if steps:
        lines = [
            "# How to give sentences to this model",
            "",
            "It was trained on converted text. dualmoco converts sentences by itself; in sentence-transformers do so",
            "before encoding:",
            "",
            *steps,
        ]
        write_text(folder / CARD, "\n".join(lines) + "\n")

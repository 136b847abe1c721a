"""The text conversion of a model, before tokenization.

A model that was trained on simplified characters does not know traditional ones. So the conversion belongs to the
model: it is recorded in the model folder, `Model` applies it before any back-end runs, and the checksum covers it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualmoco.core.errors import ModelError
from dualmoco.text.characters import convert_chinese
from dualmoco.text.languages import OPENCC, Chinese, base_language


@dataclass(frozen=True)
class TextConversion:
    """How a model converts sentences; not at all by default."""

    chinese: Chinese = Chinese.keep  # the script that Chinese sentences are converted to
    nfkc: bool = False  # whether sentences of every language are normalized to Unicode NFKC first

    def of(self, lang: str) -> TextConversion:
        """The conversion of sentences in one language."""
        return self if base_language(lang) == "zh" else replace(self, chinese=Chinese.keep)

    def apply(self, texts: Sequence[str], lang: str) -> list[str]:
        """The sentences of a language, converted like the training data."""
        converted = [unicodedata.normalize("NFKC", text) for text in texts] if self.nfkc else list(texts)
        script = self.of(lang).chinese
        return converted if script == Chinese.keep else [convert_chinese(text, script) for text in converted]

    def to_json(self) -> dict[str, Any]:
        """The settings that differ from the defaults, such as `{"chinese": "simplified"}`."""
        chinese = {} if self.chinese == Chinese.keep else {"chinese": self.chinese.value}
        return chinese | ({"nfkc": True} if self.nfkc else {})

    def card(self) -> str:
        """How users of plain sentence-transformers must convert sentences; empty if no conversion is needed."""
        steps = ['    sentence = unicodedata.normalize("NFKC", sentence)\n'] if self.nfkc else []
        if self.chinese != Chinese.keep:
            steps.append(f'    sentence = opencc.OpenCC("{OPENCC[self.chinese]}").convert(sentence)  # Chinese only\n')
        intro = (
            "It was trained on converted text. dualmoco converts sentences automatically. In sentence-transformers,\n"
            "convert them before encoding:\n\n"
        )
        return intro + "".join(steps) if steps else ""


NO_CONVERSION = TextConversion()


def parse_conversion(content: Any, place: Path) -> TextConversion:
    """Parses what `TextConversion.to_json` returned; ModelError names the file `place` if it is something else."""
    found = content if isinstance(content, dict) else {"text": content}
    chinese, nfkc = found.get("chinese", Chinese.keep), found.get("nfkc", False)
    if set(found) - {"chinese", "nfkc"} or chinese not in list(Chinese) or not isinstance(nfkc, bool):
        raise ModelError(
            f"{place}: text conversion {json.dumps(content, ensure_ascii=False)}; expected chinese: simplified or "
            "traditional, and nfkc: true or false: save the model again with this version"
        )
    return TextConversion(Chinese(chinese), nfkc)

"""Whether a back-end gives the vectors of the model itself: a fixed set of sentences, and the lowest cosine on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors, unit_vectors

LOWEST_COSINE = {"sentence-transformers": 0.99999, "static": 0.999, "onnx": 0.999, "onnx-int8": 0.99}
SENTENCES = (
    "a",
    "?",
    "。",
    "7",
    "我",
    "Yes.",
    "好的",
    "Thank you.",
    "It's raining again, isn't it?",
    "今天天气很好。",
    "The committee will publish its report on water quality next Thursday.",
    "她把那本旧书放回了图书馆三楼靠窗的书架上。",
    "I don't know what you're talking about!",
    "你为什么不早点告诉我？",
    "HELLO WORLD",
    "e = mc^2; f(x) = x ** 2 + 3 * x - 1",
    "sudo apt install python3-venv && python3 -m venv .venv",
    "https://example.org/a/b?c=1&d=2#e",
    "Der Zug nach München hat heute leider zwanzig Minuten Verspätung.",
    "¿Dónde está la biblioteca más cercana?",
    "Она читает книгу в саду, пока дети играют.",
    "東京の桜は三月の終わりに咲きます。",
    "나는 내일 아침 일찍 떠날 거예요.",
    "قرأت الكتاب الذي أعطيتني إياه.",
    "मुझे चाय पसंद है, कॉफ़ी नहीं।",
    "Η θάλασσα ήταν ήρεμη.",
    "Two 猫 and one dog 在花园里 play together.",
    "😀 great news 🎉🎉",
    "1,234.56 kg (approx. 2,721 lb) @ 35 °C",
    "Although the first results looked promising, the team repeated the whole experiment three times before they "
    "allowed themselves to write about it, because one of the instruments had been replaced in between.",
    "虽然最初的结果看起来很有希望，但由于期间更换过一台仪器，研究小组还是把整个实验重复了三遍，才允许自己把它写下来。",
    "The river was long, and so was the story that the old sailor told about it. " * 40,
)
"""Several lengths and scripts, from one character to more than a network takes."""


def check_agreement(name: str, encode: Callable[[Sequence[str]], Vectors], reference: Vectors) -> float:
    """Compares a back-end with the model it stands for.

    Args:
        name: Of the back-end, a key of LOWEST_COSINE.
        encode: Of the back-end.
        reference: The model's own vectors of SENTENCES.

    Returns:
        The lowest cosine; a sentence without a direction in both counts as agreement.

    Raises:
        ModelError: It is lower than LOWEST_COSINE allows.
    """
    expected, found = unit_vectors(reference), unit_vectors(encode(SENTENCES))
    cosines = np.einsum("nd,nd->n", expected, found, dtype=np.float64)  # (n,)
    cosines[~expected.any(axis=1) & ~found.any(axis=1)] = 1.0
    worst = int(cosines.argmin())
    if not cosines[worst] >= LOWEST_COSINE[name]:
        raise ModelError(
            f"{name}: cosine {cosines[worst]:.4f} with the model itself for {SENTENCES[worst][:40]!r}; expected "
            f"at least {LOWEST_COSINE[name]}: use back-end torch"
        )
    return float(cosines[worst])

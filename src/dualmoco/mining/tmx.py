"""Pairs of texts as TMX 1.4b, the exchange format of translation memories: valid whatever characters the texts hold."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

NOT_XML = re.compile("[^\t\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # and line ends, which no sentence has


@dataclass(frozen=True)
class TranslationUnit:
    """Two texts that translate each other."""

    src: str
    tgt: str
    props: Mapping[str, object]
    """What else is known of them."""
    segtype: str | None = None
    """What they are, sentence or block; None where the header says it."""


def as_tmx(units: Iterable[TranslationUnit], langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    """A whole TMX file.

    Args:
        units: In the order to be written.
        langs: Of the source and of the target.
        origin: Where the units come from; `version` is that of the tool.

    Returns:
        Its bytes.
    """
    stream = io.StringIO()
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n')
    stream.write(
        f'<header creationtool="dualmoco" creationtoolversion={xml_attribute(origin.get("version", ""))} o-tmf="tsv" '
        f'segtype="sentence" adminlang="en" srclang={xml_attribute(langs[0])} datatype="plaintext">\n'
    )
    for name, value in origin.items():
        stream.write(_prop(name, value) + "\n")
    stream.write("</header>\n<body>\n")
    for unit in units:
        stream.write(f"<tu segtype={xml_attribute(unit.segtype)}>" if unit.segtype else "<tu>")
        stream.write("".join(_prop(name, str(value)) for name, value in unit.props.items()))
        for lang, text in zip(langs, (unit.src, unit.tgt), strict=True):
            stream.write(f"<tuv xml:lang={xml_attribute(lang)}><seg>{xml_content(text)}</seg></tuv>")
        stream.write("</tu>\n")
    stream.write("</body>\n</tmx>\n")
    return stream.getvalue().encode()


def xml_content(text: str) -> str:
    """Text between tags, without the characters that XML cannot hold."""
    return escape(NOT_XML.sub("", text))


def xml_attribute(text: str) -> str:
    """Text in quotes as the value of an attribute, without the characters that XML cannot hold."""
    return quoteattr(NOT_XML.sub("", text))


def _prop(name: str, value: str) -> str:
    return f"<prop type={xml_attribute(name)}>{xml_content(value)}</prop>"

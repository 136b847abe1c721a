"""What is aligned and what comes of it: a document as sentences, two documents with their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualmoco.alignment.links import Links


@dataclass(frozen=True)
class Text:
    """A document as lines, before it is split; an empty line ends a paragraph."""

    name: str
    """Of the file, for messages."""
    lines: Sequence[str]
    is_plain: bool = True
    """Whether it may hold one sentence a line: not so for formats with markup, whose lines are paragraphs."""


@dataclass(frozen=True)
class Document:
    """A document as sentences, none of them empty."""

    name: str
    sentences: Sequence[str]
    places: Sequence[str]
    """Where each stands, from 1: the number of its line, or of its paragraph and of itself in it, such as 3.2."""
    lang: str


@dataclass(frozen=True)
class Aligned:
    """Two documents and their links."""

    src: Document
    tgt: Document
    links: Links
    origin: Mapping[str, object]
    """Model, checksums of the texts and every setting."""

"""Links that name the sentences of two XML documents: XCES as OPUS has it, and the form that InterText opens.

Takes `Aligned`, gives the bytes of the links and of each document. Sentences are s1, s2 and so on in both documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from dualmoco.alignment.document import Aligned, Document
from dualmoco.alignment.pairs import one_line
from dualmoco.mining.tmx import xml_attribute, xml_content

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'


def as_xces(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links as XCES.

    Args:
        aligned: The documents and their links.
        src: Name of the file of the source document.
        tgt: Of the target document.

    Returns:
        The bytes of the file; a link's certainty is its confidence.
    """
    documents = f"fromDoc={xml_attribute(src)} toDoc={xml_attribute(tgt)}"
    lines = [f'<cesAlign version="1.0" {documents}>', f'<linkGrp targType="s" {documents}>']
    confidence = aligned.links.confidence.tolist()
    for number, ((of_src, of_tgt), certainty) in enumerate(
        zip(_sentence_ids(aligned), confidence, strict=True), start=1
    ):
        lines.append(
            f'<link id="L{number}" xtargets="{" ".join(of_src)};{" ".join(of_tgt)}" '
            f'type="{len(of_src)}-{len(of_tgt)}" certainty="{certainty:z.4f}" status="auto"/>'
        )
    return _file([*lines, "</linkGrp>", "</cesAlign>"])


def as_intertext(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links as InterText reads and writes them: without a root around them, and the target before the source.

    Args:
        aligned: The documents and their links.
        src: Name of the file of the source document.
        tgt: Of the target document.

    Returns:
        The bytes of the file.
    """
    lines = [f"<linkGrp toDoc={xml_attribute(tgt)} fromDoc={xml_attribute(src)}>"]
    for of_src, of_tgt in _sentence_ids(aligned):
        lines.append(
            f'<link type="{len(of_tgt)}-{len(of_src)}" xtargets="{" ".join(of_tgt)};{" ".join(of_src)}" status="auto"/>'
        )
    return _file([*lines, "</linkGrp>"])


def as_sentences(document: Document) -> bytes:
    """A document as XML, in which every sentence has its name.

    Args:
        document: Of sentences; those that share the number before the dot of their place are one paragraph.

    Returns:
        The bytes of the file.
    """
    lines = [f"<text xml:lang={xml_attribute(document.lang)}>"]
    numbered = enumerate(zip(document.sentences, document.places, strict=True), start=1)
    paragraphs = groupby(numbered, key=lambda item: item[1][1].partition(".")[0])
    for paragraph, (_, members) in enumerate(paragraphs, start=1):
        lines.append(f'<p id="p{paragraph}">')
        lines.extend(f'<s id="s{number}">{xml_content(one_line(text))}</s>' for number, (text, _) in members)
        lines.append("</p>")
    return _file([*lines, "</text>"])


def _sentence_ids(aligned: Aligned) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the names of the sentences of both sides of each link."""
    for src, tgt in zip(aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True):
        yield _names(*src), _names(*tgt)


def _names(first: int, end: int) -> list[str]:
    return [f"s{number + 1}" for number in range(first, end)]


def _file(lines: list[str]) -> bytes:
    return (DECLARATION + "\n".join(lines) + "\n").encode()

"""Takes two aligned documents, writes their links as TSV, Parquet, TMX or XML, with where they come from."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dualmoco.alignment.document import Aligned
from dualmoco.alignment.pairs import AlignedPair, aligned_pairs, count_links, one_line
from dualmoco.alignment.xces import as_intertext, as_sentences, as_xces
from dualmoco.core.storage import write_bytes, write_json
from dualmoco.mining.tmx import TranslationUnit, as_tmx

COLUMNS = ("score", "confidence", "src", "tgt", "src_places", "tgt_places")
INTERTEXT = ".intertext.xml"
ENDINGS = (".tsv", ".parquet", ".tmx", ".xml", INTERTEXT)


def write_aligned(path: Path, aligned: Aligned) -> None:
    """Writes the links, and `PATH.json` with where they come from and how many they are.

    XML only names sentences; the documents that have them are written beside it, as `STEM.src.xml` and `STEM.tgt.xml`.

    Args:
        path: Ends with one of `ENDINGS`.
        aligned: The documents and their links.

    Raises:
        RunError: The disk is full or not writable; an older file is then as it was.
    """
    pairs = aligned_pairs(aligned)
    if path.suffix == ".xml":
        _write_xml(path, aligned)
    else:
        writers = {".tsv": _tsv, ".parquet": _parquet, ".tmx": _tmx}
        write_bytes(path, writers[path.suffix](pairs, aligned))
    write_json(path.with_name(f"{path.name}.json"), {**aligned.origin, **asdict(count_links(pairs))})


def _write_xml(path: Path, aligned: Aligned) -> None:
    is_intertext = path.name.endswith(INTERTEXT)
    stem = path.name.removesuffix(INTERTEXT if is_intertext else ".xml")
    src, tgt = f"{stem}.src.xml", f"{stem}.tgt.xml"
    write_bytes(path.with_name(src), as_sentences(aligned.src))  # first, so that links never name what is not there
    write_bytes(path.with_name(tgt), as_sentences(aligned.tgt))
    write_bytes(path, as_intertext(aligned, src, tgt) if is_intertext else as_xces(aligned, src, tgt))


def _tsv(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    lines = ["\t".join(COLUMNS)]
    for pair in pairs:
        texts = one_line(pair.src), one_line(pair.tgt)
        lines.append("\t".join((_decimals(pair.score), _decimals(pair.confidence), *texts, *_places(pair))))
    return ("\n".join(lines) + "\n").encode()


def _parquet(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [_places(pair) for pair in pairs]
    links = aligned.links
    columns = {
        "score": pa.array([pair.score for pair in pairs], pa.float64()),
        "confidence": pa.array([pair.confidence for pair in pairs], pa.float64()),
        "src": pa.array([pair.src for pair in pairs], pa.string()),
        "tgt": pa.array([pair.tgt for pair in pairs], pa.string()),
        "src_places": pa.array([src for src, _ in places], pa.string()),
        "tgt_places": pa.array([tgt for _, tgt in places], pa.string()),
    }
    for name, document, runs in (("src", aligned.src, links.src), ("tgt", aligned.tgt, links.tgt)):
        sentences = [list(document.sentences[first:end]) for first, end in runs.tolist()]
        columns[f"{name}_sentences"] = pa.array(sentences, pa.list_(pa.string()))
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(_as_text(aligned.origin)), stream, compression="zstd")
    return stream.getvalue()


def _tmx(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    units = (_unit(pair) for pair in pairs if pair.is_linked)
    return as_tmx(units, (aligned.src.lang, aligned.tgt.lang), _as_text(aligned.origin))


def _unit(pair: AlignedPair) -> TranslationUnit:
    src_places, tgt_places = _places(pair)
    props = {
        "score": _decimals(pair.score), "confidence": _decimals(pair.confidence), "src_places": src_places,
        "tgt_places": tgt_places,
    }  # fmt: skip
    segtype = "sentence" if pair.type == "1-1" else "block"
    return TranslationUnit(one_line(pair.src), one_line(pair.tgt), props, segtype)


def _places(pair: AlignedPair) -> tuple[str, str]:
    return " ".join(pair.src_places), " ".join(pair.tgt_places)


def _decimals(number: float | None) -> str:
    return "" if number is None else f"{number:z.4f}"


def _as_text(origin: Mapping[str, object]) -> dict[str, str]:
    """What is no text as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in origin.items()
    }

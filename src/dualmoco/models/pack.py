"""Pack a model: weights as int8 in a quarter of the space, and graphs to run them with onnxruntime.

Tokenizers are written without the spaces of indented JSON, which can be as large as their content.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors.numpy import save_file

from dualmoco.core.storage import new_folder
from dualmoco.models.backends.int8 import write_int8_graphs
from dualmoco.models.backends.st_format import read_tokenizer
from dualmoco.models.folder import INT8_FILE, TOKENIZER_FILE, WEIGHTS_FILE, copy_model, folder_sha256
from dualmoco.models.hybrid import find_part_folder, is_hybrid, read_hybrid, write_hybrid
from dualmoco.models.int8_format import load_tensors, pack_tensors


def pack_model(folder: Path, out: Path) -> None:
    """Packs a model, or every part of a hybrid, into a new or replaced folder; packed weights stay as they are."""
    parts = read_hybrid(folder) if is_hybrid(folder) else []
    with new_folder(out) as new:
        new.rmdir()
        copy_model(folder, new)
        for part in parts:
            if not part.is_package and not (new / part.folder).is_dir():
                copy_model(find_part_folder(folder, part), new / part.folder)
        for weights in new.rglob(WEIGHTS_FILE):
            save_file(pack_tensors(load_tensors(weights)), weights.with_name(INT8_FILE))
            weights.unlink()
        for path in new.rglob(TOKENIZER_FILE):
            read_tokenizer(path.parent).save(str(path), pretty=False)
        inside = [part for part in parts if not part.is_package]
        for part_folder in [new / part.folder for part in inside] or [new]:
            write_int8_graphs(part_folder)
        if parts:
            packed = {part.folder: folder_sha256(new / part.folder) for part in inside}
            write_hybrid(new, [replace(part, sha256=packed.get(part.folder, part.sha256)) for part in parts], {})

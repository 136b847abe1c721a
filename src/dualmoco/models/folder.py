"""A model folder as files: the names of its files, how to find, check, copy and checksum it.

`folder_sha256` is the identity of a model: it covers everything that determines the vectors and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualmoco.core.config_loader import MAX_REASON
from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError, missing_package
from dualmoco.core.storage import file_sha256
from dualmoco.models.embedded import EMBEDDED, embedded_folder
from dualmoco.models.text_normalization import TextConversion, parse_conversion

WEIGHTS_FILE, INT8_FILE = "model.safetensors", "model.int8.safetensors"
MODULES_FILE, ROUTER_FILE, TOKENIZER_FILE = "modules.json", "router_config.json", "tokenizer.json"
HYBRID_FILE = "hybrid.json"
PROMPTS_FILE = "config_sentence_transformers.json"
MODEL_RECORD = "dualmoco.json"  # provenance and, under these keys, what is needed to use the model
TEXT_KEY = "text"  # the text conversion
DIMENSIONS_KEY = "dimensions"  # dimensions that the model was trained for, if there are several
CALIBRATION_FILE = "calibration.json"  # the default threshold of `dualmoco mine`
NLI_FOLDER = "nli"  # the classifier of a model trained on NLI
MODEL_CARD = "README.md"
CHECKPOINT_FILES = (WEIGHTS_FILE, "optimizer.safetensors", "state.json")
TRAINING_FILES = (*CHECKPOINT_FILES[1:], "trainer_state.json")  # training state, which a model does not need
LEGAL_NAMES = ("LICENSE", "NOTICE")  # prefixes of the names of files that a copy must keep
PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle")
CODE_ENDINGS = (".py", ".pyc", ".pyw", ".so", ".dll", ".dylib")
PICKLED_WEIGHTS = "pytorch_model.bin"
SHARDS_FILE, ADAPTER_FILE = "model.safetensors.index.json", "adapter_config.json"
FILE_KEYS = ("tokenizer_file", "vocab_file", "merges_file", "tokenizer_name_or_path")
"""Tokenizer settings that name files to read."""
MODEL_ENDINGS = (".safetensors", ".json", ".txt", ".model", ".spm", ".vocab", ".tiktoken")
"""Extensions of the files that a model is loaded from: weights, settings, vocabularies."""
GRAPH_ENDING, GRAPH_CHECKSUMS = ".onnx", "int8-graphs.sha256"  # graphs of packed weights
TORCH_PACKAGES = ("torch", "transformers", "sentence_transformers", "huggingface_hub")  # packages of the extra torch
HUB_EXCLUDED = ("onnx/*", "openvino/*")  # graphs that other libraries made of the same weights
HUB_TIMEOUT = 5.0  # seconds to wait for the hub before falling back to the cache


def model_folder(name: str) -> Path:
    """The folder of an embedded model, a run, a model folder or a hub model, which is downloaded if necessary."""
    if name in EMBEDDED:
        return embedded_folder(name)
    path = Path(name)
    if path.is_dir():
        if is_checkpoint(path):
            raise ModelError(
                f"{name}: a checkpoint; expected a model: convert it with dualmoco export {name} "
                "--to sentence-transformers --out FOLDER"
            )
        is_run = (path / "config.yaml").is_file() and not (path / MODULES_FILE).is_file()
        if is_run and not (path / "model").is_dir():
            raise ModelError(f"{name}: a run without a model yet; expected a run that was evaluated at least once")
        return path / "model" if is_run else path
    if path.is_file():
        raise ModelError(f"{name}: a file; expected a model folder such as runs/tiny/model, or words:{name}")
    if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
        raise ModelError(f"{name}: no such folder; expected a model folder such as runs/tiny/model, or a hub name")
    return fetch_model(name)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of a training run."""
    return all((folder / name).is_file() for name in CHECKPOINT_FILES)


def portable_name(name: str) -> str:
    """A name that is valid in any working directory: the absolute path if the model is a folder."""
    return str(Path(name).resolve()) if Path(name).exists() and name not in EMBEDDED else name


def fetch_model(name: str) -> Path:
    """The folder of a hub model, downloaded without code and pickles unless it is cached; ModelError if that fails."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    wanted = [*(f"*{ending}" for ending in (*MODEL_ENDINGS, GRAPH_ENDING)), f"*{GRAPH_CHECKSUMS}", MODEL_CARD]
    reason = ""
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)  # snapshot_download has no timeout
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
    except Exception:  # offline mode, or any error of the HTTP library without a network
        reason = "cannot reach the Hugging Face Hub, and the model is not cached"
    try:
        return Path(
            snapshot_download(
                name, allow_patterns=wanted, ignore_patterns=list(HUB_EXCLUDED), local_files_only=bool(reason)
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = reason or str(error).strip().splitlines()[0]
        raise ModelError(f"{name}: neither a model folder nor a hub model that can be loaded: {reason}") from None


@contextmanager
def guard_opening(name: str | Path) -> Iterator[None]:
    """Turns an unexpected exception of the block into a ModelError of one line, with the cause chained."""
    # Errors of dualmoco are passed on, and so is ImportError, which says what to install. A Rust panic is not an
    # Exception.
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in TORCH_PACKAGES:
            raise
        raise missing_package(error.name, "torch", f"The model {name}, with this back-end,") from None
    except (ConfigError, DataError, ModelError, RunError, ImportError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = f"{type(error).__name__} {str(error).strip().partition(chr(10))[0]}".strip()[:MAX_REASON]
        raise ModelError(
            f"{name}: cannot be opened as a model ({reason}); expected a complete folder: save or download it again"
        ) from error


def check_folder(folder: Path) -> None:
    """ModelError if loading a folder could run code or read files elsewhere."""
    # Code means Python files, foreign module classes, remote code and pickles.
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a model folder such as runs/tiny/model")
    check_links(folder)
    for file in sorted(folder.rglob("*")):
        ending = file.suffix.lower()
        if ending in CODE_ENDINGS:
            raise ModelError(f"{file}: code in a model folder is never run; expected weights and JSON only")
        if ending in PICKLE_ENDINGS and not _has_safe_weights(file):
            raise ModelError(f"{file}: pickled weights are never loaded; expected them as {WEIGHTS_FILE}")
        if file.name == ADAPTER_FILE:
            raise ModelError(f"{file}: an adapter to the weights of another model; expected both merged into one model")
        if ending == ".json" and file.is_file():
            with guard_opening(file):
                _check_references(file, folder)


def check_links(folder: Path) -> None:
    """ModelError for links that lead out of a model folder, or to a folder."""
    # The cache of the Hugging Face Hub is an exception: snapshots/REVISION contains links to files in its blobs.
    root = folder.resolve()
    snapshot = next((path for path in (root, *root.parents) if path.parent.name == "snapshots"), None)
    homes = [root, snapshot.parents[1] / "blobs"] if snapshot else [root]
    for path in folder.rglob("*"):
        if path.is_symlink() and (path.is_dir() or not any(path.resolve().is_relative_to(home) for home in homes)):
            raise ModelError(f"{path}: a link to {path.resolve()}; expected the file itself inside the model folder")


def _has_safe_weights(pickled: Path) -> bool:
    """Whether other weights next to a pickled file make every library ignore the pickle."""
    names = (WEIGHTS_FILE, INT8_FILE) if pickled.name == PICKLED_WEIGHTS else (WEIGHTS_FILE, INT8_FILE, SHARDS_FILE)
    return any((pickled.parent / name).is_file() for name in names)


def _check_references(config: Path, folder: Path) -> None:
    """ModelError if a JSON file names classes outside sentence-transformers, or files outside the folder."""
    if config.name not in (MODULES_FILE, ROUTER_FILE, SHARDS_FILE, "config.json", "tokenizer_config.json") and not (
        config.name.startswith("sentence_") and config.name.endswith("_config.json")
    ):
        return
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        types, paths = _named_modules(content) if isinstance(content, list) else _named_parts(content)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{config}: not a model's JSON file ({error}); save or download the model again") from None
    for name in types:
        if not name.startswith("sentence_transformers."):
            raise ModelError(f"{config}: names the class {name}; expected only classes of sentence-transformers")
    _check_paths(config, folder, paths)
    given = [content.get(key) for key in FILE_KEYS] if isinstance(content, dict) else []
    for path in filter(None, given):
        if Path(str(path)).exists():
            raise ModelError(f"{config}: names the file {path!r}; expected no files by path")


def _check_paths(config: Path, folder: Path, paths: list[str]) -> None:
    """ModelError for paths that lead out of a model folder, or to files that its checksum does not cover."""
    for path in paths:
        place = config.parent.relative_to(folder) / path
        if place.is_absolute() or ".." in place.parts or "\\" in path or not _is_covered(place):
            raise ModelError(f"{config}: names the path {path!r}; expected a path inside the model folder")


def _named_modules(content: list[Any]) -> tuple[list[str], list[str]]:
    """The classes and paths of `modules.json`."""
    return [str(module.get("type")) for module in content], [str(module.get("path") or "") for module in content]


def _named_parts(content: Any) -> tuple[list[str], list[str]]:
    """The classes and paths of a router, of shards, or of the settings of a network or tokenizer."""
    types = content.get("types") or {}
    structure = content.get("structure") or {}
    classes = [*map(str, types.values()), *(f"in auto_map: {name}" for name in content.get("auto_map") or {})]
    paths = [*types, *(name for names in structure.values() for name in names)]
    return classes, [*map(str, paths), *map(str, (content.get("weight_map") or {}).values())]


def _is_covered(name: Path) -> bool:
    """Whether the files of a path within a model folder count in its checksum."""
    return not any(part.startswith(".") for part in name.parts) and name.parts[:1] != (NLI_FOLDER,)


def read_conversion(folder: Path) -> TextConversion:
    """The text conversion in the record of a model folder; ModelError if the record cannot be read."""
    return parse_conversion(read_model_record(folder).get(TEXT_KEY) or {}, folder / MODEL_RECORD)


def read_trained_dimensions(folder: Path) -> list[int]:
    """The dimensions that a model was trained for, according to its folder, in descending order; often none."""
    numbers = read_model_record(folder).get(DIMENSIONS_KEY)
    return [number for number in numbers if isinstance(number, int)] if isinstance(numbers, list) else []


def read_model_record(folder: Path) -> dict[str, Any]:
    """What a model folder says about its origin, which may be nothing; ModelError if its record cannot be read."""
    record = folder / MODEL_RECORD
    if not record.is_file():
        return {}
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{record}: not a record of a model ({error}); save the model again") from None
    return content if isinstance(content, dict) else {}


def folder_sha256(folder: Path) -> str:
    """The checksum of a model folder, which does not depend on its path; ModelError if its record is not readable."""
    # It covers names and contents of weights, settings and vocabularies, and the text conversion. It does not cover the
    # rest of dualmoco's record, model cards, hidden files, the calibration and the NLI classifier.
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if _decides(file.relative_to(folder))
    )
    checksum = files_sha256((name, folder / name) for name in names if (folder / name).is_file())
    conversion = read_conversion(folder).to_json()
    return hashlib.sha256(f"{checksum} {json.dumps(conversion)}".encode()).hexdigest() if conversion else checksum


def files_sha256(files: Iterable[tuple[str, Path]]) -> str:
    """One checksum over the names and contents of several files, given as pairs of name and path."""
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{file_sha256(path)}  {name}\n".encode())
    return digest.hexdigest()


def _decides(name: Path) -> bool:
    """Whether a file, by its path within a model folder, can change the vectors."""
    if not _is_covered(name):
        return False
    return name.as_posix() not in (MODEL_RECORD, CALIBRATION_FILE) and name.suffix in MODEL_ENDINGS


def copy_model(folder: Path, out: Path) -> None:
    """Copies a model folder to a new one: everything but pickles, hidden files and the NLI classifier."""

    def unwanted(place: str, names: list[str]) -> list[str]:
        inside = Path(place).relative_to(folder)
        return [name for name in names if not _is_copied(inside / name, is_folder=(folder / inside / name).is_dir())]

    shutil.copytree(folder, out, ignore=unwanted)


def _is_copied(name: Path, *, is_folder: bool) -> bool:
    """Whether a file or folder, by its path within a model folder, belongs in a copy."""
    if is_folder:
        return not name.name.startswith(".") and name.as_posix() != NLI_FOLDER
    is_graph = name.parent == Path() and (name.suffix == GRAPH_ENDING or name.name == GRAPH_CHECKSUMS)
    return (
        _decides(name) or is_graph or name.as_posix() in (MODEL_RECORD, MODEL_CARD) or name.name.startswith(LEGAL_NAMES)
    )


def is_published(name: Path) -> bool:
    """Whether a file, by its path within a model folder, belongs to the model that others download."""
    if any(part.startswith(".") for part in name.parts) or name.name in TRAINING_FILES:
        return False
    is_graph = name.suffix == GRAPH_ENDING and f"{name.parts[0]}/*" not in HUB_EXCLUDED
    is_own = name.name in (MODEL_CARD, GRAPH_CHECKSUMS) or name.name.startswith(LEGAL_NAMES)
    return name.suffix in MODEL_ENDINGS or is_graph or is_own


def check_place(out: Path, sources: Sequence[Path], kind: str, *, replace: bool) -> None:
    """ConfigError if writing a `kind` to `out` would replace a folder (unless `replace`) or one of the sources."""
    if out.is_file():
        raise ConfigError(f"{out}: a file; expected a folder to write")
    if any(source.is_dir() and source.resolve().is_relative_to(out.resolve()) for source in sources):
        raise ConfigError(f"{out}: contains the model itself; expected another folder")
    if out.is_dir() and any(out.iterdir()) and not replace:
        raise ConfigError(
            f"{out}: an existing folder, but not an earlier {kind}; expected a new folder, or --overwrite"
        )

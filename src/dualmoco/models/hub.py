"""Uploads a model to the Hugging Face Hub in one commit: what it is opened from, its licence and its card."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dualmoco.core.config_loader import MAX_REASON
from dualmoco.core.errors import ConfigError, DualmocoError, ModelError, RunError
from dualmoco.core.progress import are_shown
from dualmoco.models.card import CARD_MODEL, CardSubject, complete_card, make_card, parse_metadata
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.folder import MODEL_CARD, guard_opening, is_published, model_folder, read_conversion
from dualmoco.models.hybrid import find_part_folder, is_hybrid, read_hybrid
from dualmoco.models.load import open_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pushed:
    """What was uploaded, or in a dry run what would be."""

    repo: str
    model: str
    sha256: str  # checksum of the model
    files: dict[str, int]  # bytes of each file by its path in the repository
    bytes: int
    url: str  # of the commit; empty in a dry run


def push(model: str | Path, repo: str, *, private: bool = False, dry_run: bool = False) -> Pushed:
    """Uploads a model to the Hugging Face Hub, where everybody opens it by the name of its repository.

    Only files that a model is opened from are uploaded, with its card and licence: no checkpoints, logs or pickles.
    A missing card is made, and the front matter of a card is completed. Other files of the repository stay.

    Args:
        model: A model or run folder, a hybrid, an ONNX export, or the name of a model that comes with dualmoco.
        repo: The repository as OWNER/NAME; created if it does not exist.
        private: Whether only the owner may see a new repository.
        dry_run: Only tell what would be uploaded.

    Returns:
        The files and their sizes, and the address of the commit.

    Raises:
        ConfigError: The name of the repository is invalid, or there is no token.
        ModelError: The folder does not hold a model that can be opened.
        RunError: The Hub cannot be reached or refuses, or the repository is public and should be private.
    """
    _check_repo(repo)
    name = str(model)
    if name not in EMBEDDED and not Path(name).is_dir():
        raise ModelError(f"{name}: no such folder; expected a model or run folder, or one of {', '.join(EMBEDDED)}")
    if not dry_run:
        _check_token()
    opened, folder = open_model(name), model_folder(name)
    files: dict[str, Path | bytes] = {**_find_files(folder)}
    with guard_opening(name):
        title = repo.rpartition("/")[2]
        subject = CardSubject(folder, title, opened.languages or [], opened.dimension)
        files[MODEL_CARD] = _card(subject, repo).encode()
    sizes = {path: len(file) if isinstance(file, bytes) else file.stat().st_size for path, file in files.items()}
    url = "" if dry_run else _commit(files, repo, private=private)
    return Pushed(repo, name, opened.identity.sha256, sizes, sum(sizes.values()), url)


def _check_repo(repo: str) -> None:
    """Refuses an invalid name of a repository with ConfigError."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        if repo.count("/") != 1:
            raise HFValidationError("no owner")
    except HFValidationError:
        raise ConfigError(
            f"repository {repo!r}; expected OWNER/NAME of letters, digits, -, _ and ., such as me/en-zh"
        ) from None


def _check_token() -> None:
    """Refuses to upload without a token, with ConfigError."""
    from huggingface_hub import get_token

    if not get_token():
        raise ConfigError(
            "no token of the Hugging Face Hub; expected the variable HF_TOKEN, or that of `hf auth login`: create one "
            "with the right to write in the settings of your account"
        )


def _find_files(folder: Path) -> dict[str, Path]:
    """The files to upload by their path in the repository; a hybrid takes the embedded models that are its parts."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name.as_posix(): path for name, path in found.items() if is_published(name)}
    for part in read_hybrid(folder) if is_hybrid(folder) else []:
        place = find_part_folder(folder, part)
        if not part.is_package and not place.is_relative_to(folder):
            files |= {f"{part.folder}/{name}": path for name, path in _find_files(place).items()}
    return files


def _card(subject: CardSubject, repo: str) -> str:
    """The card of a model with complete front matter, and the name of the repository in its examples."""
    path = subject.folder / MODEL_CARD
    if path.is_file():
        card = complete_card(path.read_text(encoding="utf-8"), subject)
    else:
        card = make_card(subject, read_conversion(subject.folder))
    if "license" not in parse_metadata(card, subject.folder):
        logger.warning("%s: states no licence; add license: to the front matter of its %s", subject.folder, MODEL_CARD)
    return card.replace(f'("{CARD_MODEL}")', f'("{repo}")')


def _commit(files: dict[str, Path | bytes], repo: str, *, private: bool) -> str:
    """Uploads files in one commit, and returns its address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not are_shown():
        disable_progress_bars()
    api = HfApi(library_name="dualmoco")
    with _guard_hub(repo, api.endpoint):
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise RunError(f"{repo}: exists and is public; expected a private or new repository: nothing was uploaded")
        operations = [
            CommitOperationAdd(path, file if isinstance(file, bytes) else str(file)) for path, file in files.items()
        ]
        return str(api.create_commit(repo, operations, commit_message="Upload the model with dualmoco").commit_url)


@contextmanager
def _guard_hub(repo: str, endpoint: str) -> Iterator[None]:
    """Turns what huggingface_hub raises into a RunError of one line."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except DualmocoError:
        raise
    except Exception as error:  # its HTTP library, xet and LFS have no common base class
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if isinstance(error, HfHubHTTPError) and error.response is not None:
            advice = "check the owner, and that the token has the right to write"
            raise RunError(f"{repo}: {endpoint} refused the upload: {reason[:MAX_REASON]}; {advice}") from error
        advice = "expected a network, and HF_HUB_OFFLINE not set; run the same command again"
        raise RunError(f"{repo}: cannot upload to {endpoint} ({reason[:MAX_REASON]}); {advice}") from error

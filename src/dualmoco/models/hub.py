"""Models on a hub: fetched as files, without code or pickles, into the hub's own cache."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from dualmoco.core.errors import ModelError
from dualmoco.models.folder import DECISIVE

UNWANTED = ("onnx/*", "openvino/*")
PATIENCE = 3.0
"""Seconds to wait for the hub before only the cache is looked at."""


def fetch_model(name: str) -> Path:
    """The folder of a model on the hub, downloaded if the cache does not have it.

    Args:
        name: Such as sentence-transformers/LaBSE.

    Returns:
        A folder that holds its weights, settings and vocabularies.

    Raises:
        ModelError: No such model, or the hub cannot be reached and the cache does not have it.
    """
    reached = hub_answers()
    wanted = [f"*{ending}" for ending in DECISIVE]
    try:
        return Path(snapshot_download(
            name, allow_patterns=wanted, ignore_patterns=list(UNWANTED), local_files_only=not reached
        ))  # fmt: skip
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (
            str(error).strip().splitlines()[0] if reached else "the hub is not reached, its cache has no such model"
        )
        said = "neither a model folder nor a hub name that can be loaded from here"
        raise ModelError(f"{name}: {said}: {reason}") from None


def hub_answers() -> bool:
    """Whether something listens where the hub should be; libraries would try for a minute to find out."""
    if constants.HF_HUB_OFFLINE:
        return False
    address = urlsplit(constants.ENDPOINT)
    if address.scheme in getproxies():
        return True
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True

"""Tests of what is said where an optional package is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dualmoco.core.errors import ConfigError, require


def test_a_package_that_is_there_is_imported() -> None:
    """The module itself is given, also one inside a package."""
    assert require("json", "data", "Nothing") is json
    assert require("os.path", "data", "Nothing").basename("a/b") == "b"


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(module: str) -> None:
    """One line says what needs which package, and what to type."""
    with pytest.raises(ConfigError) as caught:
        require(module, "data", "Parquet")
    assert str(caught.value) == "Parquet needs the package no_such_package; pip install 'dualmoco[data]'"


def test_a_package_that_is_there_but_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a package lacks itself is not blamed on the extra."""
    (tmp_path / "broken_package.py").write_text("import no_such_package\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        require("broken_package", "data", "Parquet")

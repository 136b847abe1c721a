"""Tests of progress bars: shown after two seconds, and moving every second."""

from __future__ import annotations

import re
import time

import pytest

from dualmoco.core import progress
from dualmoco.core.progress import counting, showing, working


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the usual times."""
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.2)
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.1)


def test_a_bar_moves_while_one_unit_takes_long(fast: None, capsys: pytest.CaptureFixture[str]) -> None:
    """It is drawn again and again without any progress, and its line is ended."""
    with counting("waiting", 3):
        time.sleep(1.0)
    shown = capsys.readouterr().err
    assert shown.count("waiting:") >= 3 and shown.endswith("\n")
    with working("counting nothing"):
        time.sleep(1.0)
    shown = capsys.readouterr().err
    assert len(re.findall(r"counting nothing: 00:0\d", shown)) >= 3 and shown.endswith("\n")


def test_short_and_quiet_work_shows_nothing(
    fast: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither work that ends before the delay nor work in silence has a bar."""
    with monkeypatch.context() as patch:
        patch.setattr(progress, "DELAY_SECONDS", 60.0)
        with counting("short", 3), working("short"):
            time.sleep(0.2)
    with showing(False), counting("quiet", 3), working("quiet"):
        time.sleep(0.5)
    assert capsys.readouterr().err == ""

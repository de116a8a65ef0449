"""scripts/ is no package of the product: its modules are imported by path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a module of scripts/validation by its name; child processes find it too."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    return lambda name: importlib.import_module(f"validation.{name}")


@pytest.fixture
def drives(module: Callable[[str], Any]) -> Any:
    drives = module("drive")
    reason = drives.why_no_drive()
    if reason:
        pytest.skip(reason)
    return drives


@pytest.fixture
def drive(drives: Any) -> Iterator[Any]:
    with drives.known_drive(drives.Speed(), size_bytes=128 << 20) as drive:
        yield drive

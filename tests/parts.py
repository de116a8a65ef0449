"""The optional parts: no test names one, but installed parts add cases to the tests that cover all of something."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import dlemu.contrib
from datagen.registry import installed

_GROUPS = ("dlemu.jobs", "dlemu.commands", "dlemu.loaders", "dlemu.foreign")
_ENTRIES = [entry for group in _GROUPS for entry in entry_points(group=group) if entry.name not in installed(group)]
_MISSING = sorted({".".join(entry.module.split(".")[:3]) for entry in _ENTRIES})
needs_all_parts = pytest.mark.skipif(bool(_MISSING), reason=f"is about the whole: without {', '.join(_MISSING)}")


def of_parts(table: str) -> dict[str, Any]:
    """Return the cases that the installed parts add to a table: the tables of that name in their `tests/cases.py`."""
    found: dict[str, Any] = {}
    for file in sorted(Path(dlemu.contrib.__path__[0]).glob("*/tests/cases.py")):
        cases = importlib.import_module(f"dlemu.contrib.{file.parts[-3]}.tests.cases")
        found |= getattr(cases, table, {})
    return found

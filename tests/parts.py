"""The optional parts, of which a test names none: those that are here add to the tests that walk all of something."""

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
    """Return what the parts that are here add to a table of cases: those of that name in their `tests/cases.py`."""
    found: dict[str, Any] = {}
    for file in sorted(Path(dlemu.contrib.__path__[0]).glob("*/tests/cases.py")):
        cases = importlib.import_module(f"dlemu.contrib.{file.parts[-3]}.tests.cases")
        found |= getattr(cases, table, {})
    return found

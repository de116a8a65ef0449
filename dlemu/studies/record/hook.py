"""Makes a command load the hook (dlemu/record.py): as `sitecustomize`, alone in a folder on PYTHONPATH.

The hook is copied, never imported: importing it begins to record.
"""

from __future__ import annotations

import os
from pathlib import Path

import dlemu
from datagen import owned
from datagen.atomic import write_text

HOOK, ROWS = "hook", "rows"
"""Subfolders of a recorded job's folder: for the hook, and for the rows that it writes."""
_SOURCE = Path(dlemu.__file__).with_name("record.py")


def with_hook(folder: str, rows: str, *, steps: int = 0, minutes: float, skip: int = 0) -> dict[str, str]:
    """Write the hook below `folder`; return the environment variables that have a command recorded into `rows`.

    Recording ends after `skip` + `steps` batches of a trainer (0: any number), or after `minutes`.
    """
    owned.claim(folder, HOOK + "/")
    place = os.path.abspath(os.path.join(folder, HOOK))
    write_text(place, "sitecustomize.py", _SOURCE.read_text())
    before = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": place if not before else f"{place}{os.pathsep}{before}",
        "DLEMU_RECORD": os.path.abspath(rows),
        "DLEMU_RECORD_STEPS": str(steps),
        "DLEMU_RECORD_MINUTES": repr(minutes),
        "DLEMU_RECORD_SKIP": str(skip),
    }

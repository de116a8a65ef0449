"""Makes a command load the hook (recorder.py), copied as `sitecustomize.py` to a folder on PYTHONPATH.

The hook is copied, never imported here: importing it starts a recording.
"""

from __future__ import annotations

import os
from pathlib import Path

from dlemu.extend import owned, write_text

HOOK, ROWS = "hook", "rows"
"""Subfolders of a recorded job's folder: for the hook, and for the rows that it writes."""
_SOURCE = Path(__file__).with_name("recorder.py")
_COMPILED = [f"sitecustomize.cpython-3{minor}.pyc" for minor in range(9, 30)]
"""What the job's Python, of any version, leaves beside the hook: dlemu may remove it with the hook."""


def with_hook(folder: str, rows: str, *, steps: int = 0, minutes: float, skip: int = 0) -> dict[str, str]:
    """Write the hook below `folder`; return the environment variables that make a command record into folder `rows`.

    Recording ends after `skip` + `steps` batches of a trainer (`steps` 0: no limit), or after `minutes`.
    """
    owned.claim(folder, HOOK + "/")
    hook_folder = os.path.abspath(os.path.join(folder, HOOK))
    os.makedirs(hook_folder, exist_ok=True)
    owned.claim(hook_folder, "sitecustomize.py", "__pycache__/")
    os.makedirs(os.path.join(hook_folder, "__pycache__"), exist_ok=True)
    owned.claim(os.path.join(hook_folder, "__pycache__"), *_COMPILED)
    write_text(hook_folder, "sitecustomize.py", _SOURCE.read_text())
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [hook_folder, os.environ.get("PYTHONPATH")])),
        "DLEMU_RECORD": os.path.abspath(rows),
        "DLEMU_RECORD_WINDOW": f"{steps and steps + skip} {minutes!r}",
    }

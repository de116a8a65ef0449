"""The page at the end of a command: made by a process of its own, so that it can neither fail it nor hold it up."""

from __future__ import annotations

import os
import subprocess
import sys

from dlemu.report.drawing import missing_packages
from dlemu.report.pages import PAGE

_SECONDS = 60.0
"""How long the page may take: it needs 2 to 3."""


def report_result(wanted: bool, folder: str) -> None:
    """Make the page of a result's folder and say where it is, or in one line why there is none.

    `wanted` is `output.report`.
    """
    if not wanted:
        return
    if missing_packages():
        _note("no page was made: pip install 'dlemu[report]', then: dlemu report " + folder)
        return
    command = [sys.executable, "-m", "dlemu", "report", folder]
    try:
        made = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _note(f"no page was made ({error}); to try again: dlemu report {folder}")
        return
    if made.returncode != 0:
        said = (made.stderr.strip().splitlines() or [f"exit status {made.returncode}"])[-1]
        _note(f"no page was made ({said}); to try again: dlemu report {folder}")
        return
    _note(os.path.join(folder, PAGE))


def _note(text: str) -> None:
    print(f"report: {text}", flush=True)

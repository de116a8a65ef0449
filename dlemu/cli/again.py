"""The command that goes on where this one was interrupted."""

from __future__ import annotations

import shlex
import sys


def again(folder: str) -> str:
    """Return advice with this command line, and the folder of what is finished."""
    words = [word for word in sys.argv[1:] if not word.startswith("output.folder=")]
    return f"go on with `{shlex.join(['dlemu', *words, f'output.folder={folder}'])}`"

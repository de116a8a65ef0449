"""What the ranks of an MPI run leave for the guardian: the launcher may kill them while they speak."""

from __future__ import annotations

import contextlib
import json
import os
import time

from datagen.errors import SpaceError
from dlemu.emulator.files import write_text

_KILLED = "the ranks were killed from outside (a rank died and the launcher ended the others, or a time limit)"


def leave_word(folder: str, rank: int, message: str, *, echo: bool) -> None:
    """Leave this rank's failure in the run's live folder; nothing is left on a host that can't see that folder.

    `echo` says that the failure only follows another rank's. The word has its name when it is whole: the launcher kills
    the ranks at any moment.
    """
    if os.path.isdir(folder):
        with contextlib.suppress(SpaceError):
            write_text(folder, _name(rank), json.dumps({"echo": echo, "at": time.time(), "message": message}))


def cause(folder: str) -> str:
    """Return the first message that is no echo; without any word, that the ranks were killed from outside."""
    names = [name for name in os.listdir(folder) if name.startswith("failure_") and name.endswith(".json")]
    words = [_read(os.path.join(folder, name)) for name in names]
    if not words:
        return _KILLED
    _, _, message = min(words)
    return message


def _name(rank: int) -> str:
    return f"failure_{rank:05d}.json"


def _read(path: str) -> tuple[bool, float, str]:
    with open(path, encoding="utf-8") as lines:
        word = json.load(lines)
    return word["echo"], word["at"], word["message"]

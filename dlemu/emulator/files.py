"""Files that are complete when they have their name: written under a temporary one and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from datagen.errors import SpaceError


def write_text(folder: str, name: str, text: str) -> None:
    """Write a text file (UTF-8) into a folder, which is made when it is missing; raises SpaceError."""
    write_file(folder, name, lambda path: _write(path, text))


def write_file(folder: str, name: str, write: Callable[[str], None]) -> None:
    """Have `write` make the file under a temporary name, then give it its own.

    Raises SpaceError that names the file when the disk is full or the folder can't be written; nothing half-written
    is left behind.
    """
    path = os.path.join(folder, name)
    part = path + ".part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write(part)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise _explain(error, path) from error


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def _explain(error: OSError, path: str) -> SpaceError:
    advice = "the step logs are kept in live/ of the run's folder; set output.folder to a folder you may write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"the disk is full: {path} could not be written; free some space; {advice} on another disk")
    return SpaceError(f"{path} could not be written: {error.strerror}; {advice}")

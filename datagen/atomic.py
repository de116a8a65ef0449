"""Files that are complete when they have their name: written under a temporary one and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from datagen.errors import SpaceError

ELSEWHERE = "write to another folder"


def write_text(folder: str, name: str, text: str, *, advice: str = ELSEWHERE) -> None:
    """Write a text file (UTF-8) into a folder, which is made when it is missing; raises SpaceError with the advice."""

    def write(path: str) -> None:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)

    write_file(folder, name, write, advice=advice)


def write_file(folder: str, name: str, write: Callable[[str], None], *, advice: str = ELSEWHERE) -> None:
    """Have `write` make the file under a temporary name, then give it its own.

    Raises SpaceError that names the file when the disk is full or the folder can't be written, and ends in `advice`:
    what to do instead. Nothing half-written is left behind.
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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"the disk is full: {path} could not be written; free some space, or {advice}"
        else:
            message = f"{path} could not be written: {error.strerror or error}; {advice}"
        raise SpaceError(message) from error

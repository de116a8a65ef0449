"""Writing files that other processes see complete or not at all: under a temporary name, which is then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import BinaryIO

from datagen import owned
from datagen.errors import SpaceError, no_space
from datagen.regular import check_local, check_regular

ELSEWHERE = "write to another folder"


def write_text(folder: str, name: str, text: str, *, advice: str = ELSEWHERE, clean: bool = True) -> None:
    """Write a text file (UTF-8) into a folder, which is created if needed. Raises SpaceError that ends in `advice`."""
    write_file(folder, name, lambda out: out.write(text.encode()), advice=advice, clean=clean)


def write_file(
    folder: str, name: str, write: Callable[[BinaryIO], object], *, advice: str = ELSEWHERE, clean: bool = True
) -> None:
    """Have `write` fill a file under a temporary name, then rename it; remove temporary files of killed writers first.

    They are looked for in the whole folder: for one of many files, `clean` is false, and its caller removes them.
    Nothing is synced to the device: after a power failure, the file may be missing, empty or the earlier one.
    Raises SpaceError that ends in `advice`, what to do instead: the disk is full, or the folder can't be written.
    """
    path = os.path.join(folder, name)
    parent = os.path.dirname(path) or "."
    check_local(path, "the file to write")
    part = ""
    try:
        with contextlib.suppress(FileNotFoundError):
            check_regular(path, os.stat(path).st_mode)  # a device, or a link to one, is never replaced
        os.makedirs(parent, exist_ok=True)
        if clean:
            owned.remove_parts(parent, os.path.basename(path))
        part, descriptor = owned.create_part(path)
        with open(descriptor, "wb") as out:
            write(out)
        os.replace(part, path)
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}; {advice}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"{no_space(error)}: {path} could not be written; free some space, or {advice}"
        raise SpaceError(message) from error
    finally:
        with contextlib.suppress(OSError):  # before it is made, and after the rename, no file has the temporary name
            os.unlink(part)

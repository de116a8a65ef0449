"""Optional libraries (pip's extras), imported only where they are used: dlemu works without them."""

from __future__ import annotations

import importlib
from typing import Any

from datagen.errors import SpaceError, UserError

_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "cannot create shared object descriptor")
"""What the dynamic linker says when a limit on address space is too low for a library."""


def library(name: str, extra: str, needed_by: str = "this format") -> Any:
    """Import a library of one of dlemu's extras.

    Raises:
        UserError: it is not installed; the message names the extra that installs it.
        SpaceError: there is no memory to load it into.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if any(words in str(error).lower() for words in _NO_MEMORY):
            raise SpaceError(
                f"{needed_by} needs the Python package {name.partition('.')[0]!r}, for which this process has no "
                f"memory ({error}): raise its limit (`ulimit -v`), or free some memory"
            ) from error
        raise UserError(
            f"{needed_by} needs the Python package {name.partition('.')[0]!r}, which can't be imported ({error}): "
            f"install it with: pip install 'dlemu[{extra}]'"
        ) from error

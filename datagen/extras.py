"""The libraries that an extra brings: imported where they are used, so that dlemu without its extras stays light."""

from __future__ import annotations

import importlib
from typing import Any

from datagen.errors import UserError


def library(name: str, extra: str, needed_by: str = "this format") -> Any:
    """Import a library of one of dlemu's extras.

    Raises:
        UserError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the Python package {name.partition('.')[0]!r}, which can't be imported ({error}): "
            f"install it with: pip install 'dlemu[{extra}]'"
        ) from error

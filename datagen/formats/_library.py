"""The libraries that a format brings: imported where they are used, so that dlemu without its extras stays light."""

from __future__ import annotations

import importlib
from typing import Any

from datagen.errors import UserError


def library(name: str, extra: str) -> Any:
    """Import a library of one of dlemu's extras.

    Raises:
        UserError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"this format needs the Python package {name.partition('.')[0]!r}, which can't be imported ({error}): "
            f"install it with: pip install 'dlemu[{extra}]'"
        ) from error

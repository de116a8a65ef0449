"""The settings of stat calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from datagen.settings import at_least


@dataclass(frozen=True, kw_only=True)
class StatSettings:
    """Which files are looked at."""

    folder: str = "./files"
    """Folder of the files."""
    rounds: Annotated[int, at_least(1)] = 1
    """How often all of them are looked at."""


SECTION = ("stat", StatSettings)

"""Studies with fake child runs, which take no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from dlemu.runner.run_list import Planned


@dataclass
class Children:
    labels: list[str] = field(default_factory=list)
    """Labels of the runs that were started."""
    stops_at: int = 0
    """Number (from 1) of the run that raises `error`."""
    error: BaseException | None = None

    def watch(self, event: object) -> None:
        if isinstance(event, Planned):
            self.labels.append(event.label)

    def __call__(self) -> None:
        if self.error is not None and len(self.labels) == self.stops_at:
            raise self.error


class Study(NamedTuple):
    run: Callable[[Path, Children, str, pytest.MonkeyPatch], object]
    """Runs the study in a folder, with fake children; another string makes it another question."""
    file: str
    noun: str
    goes_on: bool = False
    """Whether the other children run if one fails; its error is recorded until it has run."""

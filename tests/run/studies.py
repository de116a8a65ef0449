"""Studies whose child runs take no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from dlemu.runner.run_list import Planned


@dataclass
class Children:
    """Child runs that take no time."""

    labels: list[str] = field(default_factory=list)
    """Of those that began."""
    stops_at: int = 0
    """The one that ends in `error`, from 1."""
    error: BaseException | None = None

    def watch(self, event: object) -> None:
        if isinstance(event, Planned):
            self.labels.append(event.label)

    def __call__(self) -> None:
        if self.error is not None and len(self.labels) == self.stops_at:
            raise self.error


class Study(NamedTuple):
    """A list of child runs."""

    run: Callable[[Path, Children, str, pytest.MonkeyPatch], object]
    """Runs it in a folder, with children instead of processes; with another word its question is another."""
    file: str
    noun: str
    goes_on: bool = False
    """Whether a child that fails leaves the others to run; its error is on record until it ran."""

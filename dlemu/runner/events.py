"""The events that a running job reports on rank 0 (`Warned` on any), for terminals, callers and exporters.

`Progress` tells how far the job is, once a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlemu.config.schema import Workload
from dlemu.results.live import Follower, Progress
from dlemu.results.measured import MeasuredRun

if TYPE_CHECKING:  # most jobs make and verify nothing
    from datagen.verify import Damage

LOOK_SECONDS = 1.0  # minimum time between two looks at a run
_COST_SHARE = 0.002  # of rank 0's time for its own looks: a look that takes longer is taken less often


@dataclass(frozen=True)
class JobBegan:
    """All checks have passed: the dataset is made, or the ranks start. A job that makes its dataset begins twice."""

    workload: Workload
    ranks: int
    folder: str = ""
    """The run's folder; empty before the dataset is made."""

    @property
    def is_second(self) -> bool:
        """Whether the dataset has been made since it began."""
        return bool(self.folder) and self.workload.workflow.generate_data


@dataclass(frozen=True, kw_only=True)
class DatasetMade:
    """The dataset is complete: `files` with `bytes` were made now, by all ranks, and `kept_files` existed before."""

    folder: str
    files: int
    bytes: int
    kept_files: int
    seconds: float
    """Time of the slowest rank."""


@dataclass(frozen=True, kw_only=True)
class DatasetVerified:
    """Every byte of the dataset was compared."""

    folder: str
    files: int
    findings: tuple[Damage, ...]
    """Files that are wrong, and how."""


@dataclass(frozen=True)
class PartMeasured:
    """A part of a measurement is done: a cell of a probe, or a number of readers."""

    part: object
    text: str
    """The same as one line of text."""


@dataclass(frozen=True)
class Warned:
    """What the user should read: before a long job begins, or of a rank that failed."""

    message: str


@dataclass(frozen=True)
class Doing:
    """What the job is doing, if neither steps nor files show its progress."""

    what: str


@dataclass(frozen=True)
class Saved:
    """The measurements are saved; summary.json follows when all subscribers, which raise SpaceError, returned."""

    run: MeasuredRun


@dataclass(frozen=True)
class NotSaved:
    """What was measured is complete, but could not be written: the job fails next, and says what to do."""

    kind: str
    answer: object
    """What the command shows of this kind: the summary of a run, the answer of a probe."""
    folder: str = "not saved"


Event = JobBegan | Progress | DatasetMade | DatasetVerified | PartMeasured | Warned | Doing | Saved | NotSaved
OnEvent = Callable[[Event], None]


def ignore(event: object) -> None:
    """Do nothing: a subscriber for callers that want no events."""


def to_all(*subscribers: OnEvent) -> OnEvent:
    """Return a subscriber that passes each event to all of these, in order."""

    def pass_on(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return pass_on


@dataclass
class Reporter:
    """Reports the progress of a run from its rank 0, which calls it at every step or file."""

    follower: Follower
    on_event: OnEvent
    due_seconds: float = 0.0

    def __call__(self) -> None:
        if time.monotonic() >= self.due_seconds:
            self.look()

    def look(self) -> None:
        """Report the progress now."""
        began_seconds, progress = time.monotonic(), None
        with contextlib.suppress(OSError):  # a run goes on, even if its progress can't be read
            progress = self.follower()
        if progress is not None:
            now_seconds = time.monotonic()
            self.due_seconds = now_seconds + max(LOOK_SECONDS, (now_seconds - began_seconds) / _COST_SHARE)
            self.on_event(progress)

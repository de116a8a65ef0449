"""The events by which rank 0 of a running job informs terminals, callers and exporters; any rank may send `Warned`."""

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

REPORT_SECONDS = 1.0  # minimum interval of progress reports
_COST_SHARE = 0.002  # maximum share of rank 0's time for reporting progress: costly reports are made less often


@dataclass(frozen=True)
class JobBegan:
    """All checks have passed: the dataset will be made, or the ranks start. A job that does both reports this twice."""

    workload: Workload
    ranks: int
    folder: str = ""  # the run's; empty before the dataset is made

    @property
    def is_second(self) -> bool:
        """Whether the job has reported `JobBegan` before, when it began to make its dataset."""
        return bool(self.folder) and self.workload.workflow.generate_data


@dataclass(frozen=True, kw_only=True)
class DatasetMade:
    """The dataset is complete: all ranks together made `files` with `bytes` now; `kept_files` existed before."""

    folder: str
    files: int
    bytes: int
    kept_files: int
    seconds: float
    """Time of the slowest rank."""


@dataclass(frozen=True, kw_only=True)
class DatasetVerified:
    """Every byte of the dataset has been compared with what was generated."""

    folder: str
    files: int
    findings: tuple[Damage, ...]  # the damaged files, each with its damage


@dataclass(frozen=True)
class PartMeasured:
    """A part of a measurement is done: one cell of a probe, or one number of readers."""

    part: object  # the result of this part
    text: str  # the same result as one line of text


@dataclass(frozen=True)
class Warned:
    """A message for the user: a caution before a long job begins, or the failure of a rank."""

    message: str


@dataclass(frozen=True)
class Doing:
    """The job's current activity, for times in which neither steps nor files show progress."""

    what: str


@dataclass(frozen=True)
class Saved:
    """The measurements are saved. Subscribers may raise SpaceError; summary.json is written after all have returned."""

    run: MeasuredRun


@dataclass(frozen=True)
class NotSaved:
    """A complete result could not be written; the job then fails, with advice on what to do."""

    kind: str
    answer: object  # the result to show: a run's summary or a probe's answer
    folder: str = "not saved"


Event = JobBegan | Progress | DatasetMade | DatasetVerified | PartMeasured | Warned | Doing | Saved | NotSaved
OnEvent = Callable[[Event], None]


def ignore(event: object) -> None:
    """Do nothing: the subscriber of callers that want no events."""


def to_all(*subscribers: OnEvent) -> OnEvent:
    """Return a subscriber that passes each event to all `subscribers`, in order."""

    def pass_on(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return pass_on


@dataclass
class Reporter:
    """Reports the progress of a run. Rank 0 calls it at every step or file; calls before `due_seconds` do nothing."""

    follower: Follower
    on_event: OnEvent
    due_seconds: float = 0.0

    def __call__(self) -> None:
        if time.monotonic() >= self.due_seconds:
            self.report()

    def report(self) -> None:
        """Report the progress now."""
        began_seconds = time.monotonic()
        progress = None
        with contextlib.suppress(OSError):  # unreadable progress must not end the run
            progress = self.follower()
        if progress is not None:
            now_seconds = time.monotonic()
            self.due_seconds = now_seconds + max(REPORT_SECONDS, (now_seconds - began_seconds) / _COST_SHARE)
            self.on_event(progress)

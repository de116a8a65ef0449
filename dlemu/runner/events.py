"""What a job reports while it goes on: one stream of typed events, for whoever shows or exports it.

A subscriber is a function that takes every event and handles those that it knows. It is called on rank 0, and with
`RankFailed` on any rank of a launcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.results.measured import MeasuredRun

if TYPE_CHECKING:  # most jobs make and verify nothing
    from datagen.thread_pool import Progress
    from datagen.verify import Damage


@dataclass(frozen=True)
class JobBegan:
    """Everything is checked: data is made now, or the ranks start."""

    workload: Workload
    ranks: int


@dataclass(frozen=True, kw_only=True)
class DatasetProgress:
    """How far rank 0 is with a dataset; the other ranks, which share the files, are about as far."""

    verb: Literal["made", "verified"]
    ranks: int
    done: Progress


@dataclass(frozen=True, kw_only=True)
class DatasetMade:
    """The dataset is complete."""

    folder: str
    files: int
    """Made now, by all ranks."""
    bytes: int
    """Of these files."""
    kept_files: int
    """That were there before."""
    seconds: float
    """Of the slowest rank."""


@dataclass(frozen=True, kw_only=True)
class DatasetVerified:
    """Every byte was compared."""

    folder: str
    files: int
    findings: tuple[Damage, ...]
    """What is wrong."""


@dataclass(frozen=True, kw_only=True)
class TrainingBegan:
    """The first epoch begins."""

    epoch_steps: tuple[int, ...]
    """Planned steps of each epoch."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """A training step of rank 0; reported at most twice a second, and at the end of each epoch."""

    epoch: int
    """From 1."""
    epochs: int
    step: int
    """Within its epoch, from 1."""
    steps: int
    """Of its epoch."""
    au_percent: float | None
    """Of the epoch so far on rank 0; None when no step counts yet."""
    mb_per_second: float
    """1e6 bytes/s of the epoch so far; the other ranks are taken to read as much as rank 0."""


@dataclass(frozen=True, kw_only=True)
class CheckpointProgress:
    """How far a checkpoint is; the other ranks are taken to be as far as rank 0. Reported file by file."""

    phase: Literal["write", "read"]
    checkpoint: int
    """From 1."""
    checkpoints: int
    """To be written, or read."""
    bytes: int
    """Done, of all ranks."""
    total_bytes: int


@dataclass(frozen=True)
class PartMeasured:
    """A part of what is measured is done: a cell of a probe, or what so many readers got."""

    part: object
    text: str
    """The same in a line."""


@dataclass(frozen=True)
class OnlyDataMade:
    """The workload needs data alone, and has it."""


@dataclass(frozen=True)
class Warned:
    """What the user should know before it takes its time."""

    message: str


@dataclass(frozen=True)
class Doing:
    """What goes on now that neither steps nor files show."""

    what: str


@dataclass(frozen=True)
class Saved:
    """What was measured is in the run's folder; summary.json follows when every subscriber has returned.

    A subscriber that exports the run raises SpaceError where it can't.
    """

    run: MeasuredRun


@dataclass(frozen=True)
class Refused:
    """Rank 0 of a launcher's ranks found something wrong before any rank began; all leave together."""

    error: UserError


@dataclass(frozen=True)
class RankFailed:
    """Why this rank of a launcher ends; the launcher then ends the others."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Making:
    """A workload that makes first what it reads."""

    workload: Workload
    bytes: int
    """Nominal, to be made at most; 0 where all is there."""
    folder: str
    """Where it will lie."""


Event = (
    JobBegan
    | DatasetProgress
    | DatasetMade
    | DatasetVerified
    | TrainingBegan
    | TrainingStep
    | CheckpointProgress
    | PartMeasured
    | OnlyDataMade
    | Warned
    | Doing
    | Saved
    | Refused
    | RankFailed
)
OnEvent = Callable[[Event], None]


def ignore(event: object) -> None:
    """Show nothing."""


def to_all(*subscribers: OnEvent) -> OnEvent:
    """Return a subscriber that passes each event on, in this order."""

    def pass_on(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return pass_on

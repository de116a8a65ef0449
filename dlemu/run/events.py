"""What a run reports while it goes on, and who listens: the frontend, which shows it in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from datagen.thread_pool import Progress
from datagen.verify import Finding
from dlemu.config.schema import Workload
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.run import Run


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
    findings: tuple[Finding, ...]
    """What is wrong."""


@dataclass(frozen=True, kw_only=True)
class TrainingBegan:
    """The first epoch begins."""

    epoch_steps: tuple[int, ...]
    """Planned steps of each epoch."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """A training step of rank 0; told at most twice a second, and at the end of each epoch."""

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
    """How far a checkpoint is; the other ranks are taken to be as far as rank 0. Told file by file."""

    phase: Literal["write", "read"]
    checkpoint: int
    """From 1."""
    checkpoints: int
    """To be written, or read."""
    bytes: int
    """Done, of all ranks."""
    total_bytes: int


@dataclass(frozen=True)
class OnlyDataMade:
    """The workload asks for data alone, and has it."""


@dataclass(frozen=True)
class Warned:
    """What the user should know before it takes its time."""

    message: str


@dataclass(frozen=True)
class Doing:
    """What goes on now that neither steps nor files show."""

    what: str


@dataclass(frozen=True)
class RankFailed:
    """Why this rank of a launcher ends; the launcher then ends the others."""

    message: str


Event = (
    DatasetProgress
    | DatasetMade
    | DatasetVerified
    | TrainingBegan
    | TrainingStep
    | CheckpointProgress
    | OnlyDataMade
    | Warned
    | Doing
    | RankFailed
)


class Frontend(Protocol):
    """What makes or verifies a dataset, or trains: a command, or a program that uses dlemu as a library."""

    overrides: Sequence[str]
    """What the user asked for, in words; empty when a Workload was given."""

    def load(self) -> Workload:
        """Return the workload; called once, where the ranks are started or on rank 0. Raises UserError."""
        ...

    def tell(self, event: Event) -> None:
        """Take notice; called on rank 0, and with `RankFailed` on any rank of a launcher."""
        ...


class TrainFrontend(Frontend, Protocol):
    """What trains. Its methods are called in the process that prepares the run, on rank 0, or in the one that saves."""

    wants_verdict: bool
    """A run of which no verdict can come is refused."""

    def fit(self, workload: Workload, ranks: int) -> Workload:
        """Return what is run once it is known by how many ranks. Raises UserError."""
        ...

    def advise(self, workload: Workload, ranks: int, files_there: int) -> str:
        """Return what leads these ranks to a verdict: what to do about a dataset that is missing or too small.

        So many files lie in the folder as a dataset already.
        """
        ...

    def begin(self, workload: Workload, ranks: int) -> None:
        """Do what must be done once everything is checked, before data is made and steps are measured."""
        ...

    def write(self, run: Run) -> None:
        """Write the frontend's own files of the run; those of every run follow. Raises SpaceError."""
        ...

    def write_checkpoints(self, run: CheckpointRun) -> None:
        """Write the frontend's own files of a run of checkpoints alone; those of every run follow."""
        ...

"""What searches and sweeps share: a check of the launcher, the runs they start, and what they report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.ranks import detect_launcher
from dlemu.results.kinds import Kind
from dlemu.runner.cold import Treatment
from dlemu.runner.run_list import RunBegan, RunEnded, RunsPlanned
from dlemu.studies.answers import SizeAnswer, SweepAnswer, SweepPoint, Trial


def check_launcher(command: str, launcher: str) -> None:
    """Raise UserError for a launcher without {ranks}, and when this process was itself started by a launcher."""
    if launcher and "{ranks}" not in launcher:
        raise UserError(
            f"launcher={launcher!r} does not say where the count goes: wanted {{ranks}} in it, as in "
            'launcher="mpirun -np {ranks} --hostfile hosts"'
        )
    try:
        shlex.split(launcher.format(ranks=1))
    except (ValueError, LookupError, AttributeError) as error:  # a quote that is not closed, other words in braces
        raise UserError(f"launcher={launcher!r} is no command: {error}") from None
    if detect_launcher() != "none":
        raise UserError(
            f"dlemu {command} was started by mpirun, srun or torchrun: start it once, without a launcher; it "
            f'starts the ranks of each run itself, with launcher="mpirun -np {{ranks}} ..." on several hosts'
        )


@dataclass(frozen=True)
class Child:
    """A run that a study starts as a command of its own."""

    kind: Kind
    workload: Workload
    words: tuple[str, ...]
    """Options and overrides."""
    launcher: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, kind: Kind, workload: Workload, words: Sequence[str], *, config_dir: str | None, launcher: str = ""
    ) -> Self:
        """Return a run with these overrides."""
        options = ("--config-dir", config_dir) if config_dir else ()
        return cls(kind, workload, (*options, *words), tuple(shlex.split(launcher.format(ranks=workload.ranks))))


@dataclass(frozen=True, kw_only=True)
class SearchBegan:
    """The dataset is checked and the storage is probed: the first trial follows."""

    workload: Workload
    page_cache: Treatment
    total_bytes: int
    """Size of the dataset."""
    enough_for: int
    """Accelerators that the dataset has enough samples for."""
    others: str
    """Of other programs that use the cores, as a sentence; empty where they do not."""
    probe_mb_per_second: float
    mb_per_accelerator: float
    """Read rate that one accelerator needs, from the workload's nominal sizes."""
    expected: int
    """The largest number of accelerators that the model of docs/prediction.md expects to pass."""


SizingEvent = RunsPlanned | SearchBegan | RunBegan | RunEnded[Trial, SizeAnswer] | RunEnded[SweepPoint, SweepAnswer]
OnEvent = Callable[[SizingEvent], None]

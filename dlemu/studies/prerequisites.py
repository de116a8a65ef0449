"""What all studies share: the check of the launcher, the runs that they start, and the events that they report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datagen.errors import UserError
from dlemu.config.overrides import take_word
from dlemu.config.schema import Workload
from dlemu.ranks import detect_launcher
from dlemu.results.kinds import Kind
from dlemu.runner.events import Event
from dlemu.runner.run_list import Planned, RunEnded, RunsPlanned
from dlemu.studies.answers import SizeAnswer, SweepAnswer, SweepPoint, Trial


def check_launcher(command: str, launcher: str) -> None:
    """Raise UserError if `launcher` lacks {ranks} or is no command, or if a launcher started this process itself."""
    if launcher and "{ranks}" not in launcher:
        raise UserError(
            f"launcher={launcher!r} does not say where the count goes: wanted {{ranks}} in it, as in "
            'launcher="mpirun -np {ranks} --hostfile hosts"'
        )
    try:
        shlex.split(launcher.format(ranks=1))
    except (ValueError, LookupError, AttributeError) as error:  # an open quote, or a field in braces other than {ranks}
        raise UserError(f"launcher={launcher!r} is no command: {error}") from None
    if detect_launcher() != "none":
        raise UserError(
            f"dlemu {command} was started by mpirun, srun or torchrun: start it once, without a launcher; it "
            f'starts the ranks of each run itself, with launcher="mpirun -np {{ranks}} ..." on several hosts'
        )


def take_launcher(command: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return the value of `launcher` (the command that starts the ranks of each run), and the other overrides."""
    launcher, words = take_word(overrides, "launcher")
    check_launcher(command, launcher)
    return launcher, words


@dataclass(frozen=True)
class Child:
    """A run that a study starts as a separate dlemu command."""

    kind: Kind
    workload: Workload
    argv: tuple[str, ...]  # options and overrides


def config_options(config_dir: str | None) -> tuple[str, ...]:
    return ("--config-dir", config_dir) if config_dir else ()


SizingEvent = Event | RunsPlanned | Planned[Any] | RunEnded[Trial, SizeAnswer] | RunEnded[SweepPoint, SweepAnswer]
OnEvent = Callable[[SizingEvent], None]

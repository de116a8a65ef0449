"""The runs of a rehearsal, one after another, and their record: rehearsal.json, saved after each run.

So a rehearsal goes on where it was interrupted; what is finished stays finished, what failed stays on record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from datagen import owned
from datagen.errors import DlemuError, UserError
from dlemu.comm import Interrupted
from dlemu.mlperf.check.judge import REHEARSAL
from dlemu.mlperf.check.result_rules import GAP_FACTOR
from dlemu.mlperf.check.submission_tree import STAMP_FORMAT
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.run_figures import WARM_UP, Figures, Outcome, RehearsalPlan, read_figures, run_words, sum_up
from dlemu.runner.run_list import Planned, RunBegan, RunEnded, RunList, RunsPlanned

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try of one run."""

    label: str
    stamp: str
    """When it was begun: YYYYMMDD_HHMMSS."""
    folder: str
    """As `dlemu train` left it, below the rehearsal's."""
    seed: int
    failure: str | None = None
    """Its message when it failed."""
    figures: Figures | None = None
    """None when it failed."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a rehearsal is of: one that goes on must be of the same."""

    overrides: tuple[str, ...]
    launcher: str
    edition: str
    division: str
    organisation: str
    system: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """rehearsal.json."""

    schema_version: int = SCHEMA_VERSION
    rehearsal: str = NOTE
    complete: bool
    edition: str
    division: str
    question: Question
    attempts: tuple[Attempt, ...]
    outcome: Outcome | None


RunTraining = Callable[[list[str], str], None]
"""Runs `dlemu train` with overrides into a folder; raises UserError or DlemuError with its message."""
OnEvent = Callable[[RunsPlanned | RunBegan | RunEnded[Attempt, Record]], None]


class Attempts(RunList[str, Attempt, Record]):
    """The runs of a rehearsal, by their labels; failed attempts stay on record."""

    file, noun, runs_in, answer_type, shown_by = REHEARSAL, "rehearsal", "attempts", Record, "mlperf check"

    def __init__(
        self,
        plan: RehearsalPlan,
        question: Question,
        train: RunTraining,
        on_event: OnEvent,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        planned = [
            Planned(
                what=label,
                name=label.replace(" ", "-"),
                label=f"{label} ({number} of {len(plan.labels)}), seed {plan.seed(label)}",
                settings={"train.seed": str(plan.seed(label))},
            )
            for number, label in enumerate(plan.labels, start=1)
        ]
        super().__init__(plan.folder, question, planned, on_event)
        self._plan, self._train, self._now = plan, train, now

    def answer(self, *, complete: bool) -> Record:
        """Return the record of the attempts so far."""
        return Record(
            complete=complete,
            edition=self._plan.edition.name,
            division=self._plan.division,
            question=self.question,
            attempts=tuple(self.runs),
            outcome=sum_up(self.measured) if self.measured else None,
        )

    @property
    def measured(self) -> list[Figures]:
        """What the measured runs showed that finished."""
        return [run.figures for run in self.runs if run.label != WARM_UP and run.figures is not None]

    def is_of(self, run: Attempt, planned: Planned[str]) -> bool:
        """Return whether an attempt on record is one at the planned run."""
        return run.label == planned.what

    def make_folder(self, planned: Planned[str]) -> str:
        """Return the folder of an attempt, named by a time that no other one has."""
        self._stamp = free_stamp((run.stamp for run in self.runs), self._now)
        return owned.fresh_folder(os.path.join(self.folder, "runs"), f"{self._stamp}-{planned.name}")

    def start(self, planned: Planned[str], folder: str) -> Attempt:
        """Run it; one that is interrupted goes on record as failed."""
        attempt = self._attempt(planned, folder)
        try:
            self._train(run_words(self._plan.words, attempt.seed), folder)
        except UserError:
            owned.remove_claimed(folder)
            raise
        except Interrupted as stop:
            self.keep(replace(attempt, failure=f"interrupted by signal {stop.signal_number}"))
            raise
        return replace(attempt, figures=read_figures(folder))

    def failed(self, planned: Planned[str], folder: str, error: DlemuError) -> Attempt | None:
        """Return what goes on record of a run that failed: nothing of a usage error, as nothing was measured."""
        return None if isinstance(error, UserError) else replace(self._attempt(planned, folder), failure=str(error))

    def _attempt(self, planned: Planned[str], folder: str) -> Attempt:
        return Attempt(
            label=planned.what,
            stamp=self._stamp,
            folder=os.path.relpath(folder, self.folder),
            seed=self._plan.seed(planned.what),
        )


def free_stamp(taken: Iterable[str], now: Callable[[], datetime]) -> str:
    """Return the time as the name of a run; where a run that ended within its second has it, wait for the next one."""
    names = set(taken)
    while (stamp := now().strftime(STAMP_FORMAT)) in names:
        time.sleep(0.1)  # a stamp has whole seconds
    return stamp


def late_by(attempts: Iterable[Attempt], now: datetime) -> timedelta | None:
    """Return how long ago the last finished run began when that is too long for the next one to follow; else None."""
    done = [(datetime.strptime(run.stamp, STAMP_FORMAT), run.figures) for run in attempts if run.figures is not None]
    if not done:
        return None
    since = now - max(stamp for stamp, _ in done)
    shortest = min(datetime.fromisoformat(run.end) - datetime.fromisoformat(run.start) for _, run in done)
    return since if since >= GAP_FACTOR * shortest else None

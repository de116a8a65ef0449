"""Runs the training runs of a rehearsal one after another, and saves rehearsal.json after each.

An interrupted rehearsal continues with the run that is missing; failed attempts stay on record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from datagen import owned
from dlemu.contrib.mlperf.check.judge import REHEARSAL
from dlemu.contrib.mlperf.check.result_rules import GAP_FACTOR
from dlemu.contrib.mlperf.check.submission_tree import STAMP_FORMAT
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.run_figures import (
    LABELS,
    WARM_UP,
    Figures,
    Outcome,
    RehearsalPlan,
    read_figures,
    run_words,
    sum_up,
)
from dlemu.extend import DlemuError, Interrupted, Planned, RunBegan, RunEnded, RunList, RunsPlanned, UserError

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one run of the sequence."""

    label: str
    stamp: str
    """When it began: YYYYMMDD_HHMMSS."""
    folder: str
    """Result folder of `dlemu train`, relative to the rehearsal's folder."""
    seed: int
    failure: str | None = None
    """The error's message if it failed."""
    figures: Figures | None = None
    """None if it failed."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a rehearsal was asked for; it can be continued only with the same."""

    overrides: tuple[str, ...]
    launcher: str
    division: str
    organisation: str
    system: str
    hosts: int
    settings_digest: str
    """Of all settings, those in the workload's file included."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Content of rehearsal.json."""

    schema_version: int = SCHEMA_VERSION
    rehearsal: str = NOTE
    complete: bool
    edition: str = EDITION
    division: str
    question: Question
    attempts: tuple[Attempt, ...]
    outcome: Outcome | None


RunTraining = Callable[[list[str], str], None]
"""Runs `dlemu train` with these overrides and this result folder; raises UserError or another DlemuError."""
OnEvent = Callable[[RunsPlanned | RunBegan | RunEnded[Attempt, Record]], None]


class Attempts(RunList[str, Attempt, Record]):
    """The attempts at a rehearsal's runs, which are identified by their labels."""

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
                label=f"{label} ({number} of {len(LABELS)}), seed {plan.seed(label)}",
                settings={"train.seed": str(plan.seed(label))},
            )
            for number, label in enumerate(LABELS, start=1)
        ]
        super().__init__(plan.folder, question, planned, on_event)
        self._plan, self._train, self._now = plan, train, now

    def answer(self, *, complete: bool) -> Record:
        """Return the record of the attempts so far."""
        return Record(
            complete=complete,
            division=self._plan.division,
            question=self.question,
            attempts=tuple(self.runs),
            outcome=sum_up(self.measured) if self.measured else None,
        )

    @property
    def measured(self) -> list[Figures]:
        """Figures of the finished runs, without the warm-up."""
        return [run.figures for run in self.runs if run.label != WARM_UP and run.figures is not None]

    def is_of(self, run: Attempt, planned: Planned[str]) -> bool:
        """Return whether an attempt on record was at the planned run."""
        return run.label == planned.what

    def make_folder(self, planned: Planned[str]) -> str:
        """Create and return an attempt's folder, named by a time that no other attempt has."""
        self._stamp = free_stamp((run.stamp for run in self.runs), self._now)
        return owned.fresh_folder(os.path.join(self.folder, "runs"), f"{self._stamp}-{planned.name}")

    def start(self, planned: Planned[str], folder: str) -> Attempt:
        """Do the run; an interrupted one goes on record as failed."""
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
        """Return the record of a failed run; none for a usage error, as nothing was measured."""
        return None if isinstance(error, UserError) else replace(self._attempt(planned, folder), failure=str(error))

    def _attempt(self, planned: Planned[str], folder: str) -> Attempt:
        return Attempt(
            label=planned.what,
            stamp=self._stamp,
            folder=os.path.relpath(folder, self.folder),
            seed=self._plan.seed(planned.what),
        )


def free_stamp(taken: Iterable[str], now: Callable[[], datetime]) -> str:
    """Return the time as the name of a run; wait for the next second if another run has this one."""
    names = set(taken)
    while (stamp := now().strftime(STAMP_FORMAT)) in names:
        time.sleep(0.1)  # stamps have whole seconds
    return stamp


def late_by(attempts: Iterable[Attempt], now: datetime) -> timedelta | None:
    """Return how long ago the last finished run began if that breaks the rule on gaps (`runs.gap`), else None."""
    done = [(datetime.strptime(run.stamp, STAMP_FORMAT), run.figures) for run in attempts if run.figures is not None]
    if not done:
        return None
    since = now - max(stamp for stamp, _ in done)
    shortest = min(datetime.fromisoformat(run.end) - datetime.fromisoformat(run.start) for _, run in done)
    return since if since >= GAP_FACTOR * shortest else None

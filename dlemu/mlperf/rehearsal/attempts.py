"""The runs of a rehearsal, one after another, and their record: rehearsal.json, saved after each run.

So a rehearsal goes on where it was interrupted; what is finished stays finished, what failed stays on record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta

import msgspec

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import DlemuError, UserError
from dlemu.comm.comm_base import Interrupted
from dlemu.mlperf.check.judge import REHEARSAL
from dlemu.mlperf.check.result_rules import GAP_FACTOR
from dlemu.mlperf.check.submission_tree import STAMP_FORMAT
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.run_figures import WARM_UP, Figures, Outcome, RehearsalPlan, read_figures, run_words, sum_up
from dlemu.results.sent_files import read_sent

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
    """What it said when it failed."""
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
"""Runs `dlemu train` with overrides into a folder; raises UserError or DlemuError with what it said."""


def run_sequence(
    plan: RehearsalPlan,
    done: Iterable[Attempt],
    run: RunTraining,
    before: Callable[[Attempt], None],
    after: Callable[[Sequence[Attempt]], None],
    now: Callable[[], datetime] = datetime.now,
) -> list[Attempt]:
    """Run what is missing of the sequence and return all attempts. `after` gets all so far after each, failed ones too.

    Raises what a failed run raised, and Interrupted. A usage error is no attempt: nothing was measured.
    """
    attempts = list(done)
    for label in plan.labels:
        if finished(attempts, label) is not None:
            continue
        attempt = _begin(plan, label, attempts, now)
        before(attempt)
        path = os.path.join(plan.folder, attempt.folder)
        try:
            run(run_words(plan.words, attempt.seed), path)
        except UserError:
            owned.remove_claimed(path)
            raise
        except (DlemuError, Interrupted) as error:
            failure = str(error) if isinstance(error, DlemuError) else f"interrupted by signal {error.signal_number}"
            after([*attempts, replace(attempt, failure=failure)])
            raise
        attempts.append(replace(attempt, figures=read_figures(path)))
        after(attempts)
    return attempts


def _begin(plan: RehearsalPlan, label: str, attempts: Iterable[Attempt], now: Callable[[], datetime]) -> Attempt:
    """Return an attempt with a time stamp of its own, and make its folder."""
    stamp = free_stamp((attempt.stamp for attempt in attempts), now)
    made = owned.fresh_folder(os.path.join(plan.folder, "runs"), f"{stamp}-{label.replace(' ', '-')}")
    folder = os.path.relpath(made, plan.folder)
    return Attempt(label=label, stamp=stamp, folder=folder, seed=plan.seed(label))


def free_stamp(taken: Iterable[str], now: Callable[[], datetime]) -> str:
    """Return the time as the name of a run; where a run that ended within its second has it, wait for the next one."""
    names = set(taken)
    while (stamp := now().strftime(STAMP_FORMAT)) in names:
        time.sleep(0.1)
    return stamp


def finished(attempts: Iterable[Attempt], label: str) -> Attempt | None:
    """Return the attempt that finished a run, None when there is none yet."""
    return next((attempt for attempt in attempts if attempt.label == label and attempt.failure is None), None)


def late_by(attempts: Iterable[Attempt], now: datetime) -> timedelta | None:
    """Return how long ago the last finished run began when that is too long for the next one to follow; else None."""
    done = [(datetime.strptime(run.stamp, STAMP_FORMAT), run.figures) for run in attempts if run.figures is not None]
    if not done:
        return None
    since = now - max(stamp for stamp, _ in done)
    shortest = min(datetime.fromisoformat(run.end) - datetime.fromisoformat(run.start) for _, run in done)
    return since if since >= GAP_FACTOR * shortest else None


def done_before(folder: str, question: Question) -> list[Attempt]:
    """Return the attempts of an interrupted rehearsal of the same; none when there is no rehearsal in the folder.

    Raises UserError when the folder holds a finished one, or one of something else.
    """
    path = os.path.join(folder, REHEARSAL)
    if not os.path.lexists(path):
        return []
    try:
        saved = msgspec.json.decode(read_sent(path), type=Record)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no record of a rehearsal ({error}); delete it to begin anew") from None
    if saved.complete:
        raise UserError(
            f"{folder} holds a finished rehearsal; set output.folder to a new folder, or look at it with"
            f" `dlemu mlperf check {folder}`"
        )
    differing = [
        f"{field.name} was {getattr(saved.question, field.name)!r}, is {getattr(question, field.name)!r}"
        for field in fields(Question)
        if getattr(saved.question, field.name) != getattr(question, field.name)
    ]
    if differing:
        raise UserError(
            f"{folder} holds an interrupted rehearsal of something else ({'; '.join(differing)}); set output.folder to"
            " a new folder"
        )
    return list(saved.attempts)


def save(plan: RehearsalPlan, question: Question, attempts: Sequence[Attempt], *, complete: bool) -> None:
    """Write rehearsal.json; raises SpaceError."""
    runs = [finished(attempts, label) for label in plan.labels if label != WARM_UP]
    measured = [run.figures for run in runs if run is not None and run.figures is not None]
    record = Record(
        complete=complete,
        edition=plan.edition.name,
        division=plan.division,
        question=question,
        attempts=tuple(attempts),
        outcome=sum_up(measured) if measured else None,
    )
    write_text(plan.folder, REHEARSAL, json.dumps(asdict(record), indent=2) + "\n")

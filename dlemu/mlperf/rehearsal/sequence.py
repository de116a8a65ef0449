"""The runs of a rehearsal, one after another; what is finished stays finished, what failed stays told."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from datagen.errors import DlemuError, UserError
from dlemu.comm.comm_base import Interrupted
from dlemu.mlperf.check.find import STAMP_FORMAT
from dlemu.mlperf.check.runs import GAP_FACTOR
from dlemu.mlperf.rehearsal.outcome import Figures, read_figures
from dlemu.mlperf.rehearsal.plan import Plan, run_words


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


RunTraining = Callable[[list[str], str], None]
"""Runs `dlemu train` with overrides into a folder; raises UserError or DlemuError with what it said."""
Heard = Callable[[Attempt], None]


def rehearse(
    plan: Plan,
    done: Iterable[Attempt],
    run: RunTraining,
    before: Heard,
    after: Heard,
    now: Callable[[], datetime] = datetime.now,
) -> list[Attempt]:
    """Run what is missing of the sequence and return all attempts. `after` hears of each, failed ones too.

    Raises what a failed run raised, and Interrupted. A mistake of the user's is no attempt: nothing was measured.
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
            shutil.rmtree(path, ignore_errors=True)
            raise
        except (DlemuError, Interrupted) as error:
            after(_failed(attempt, error))
            raise
        attempts.append(replace(attempt, figures=read_figures(path)))
        after(attempts[-1])
    return attempts


def finished(attempts: Iterable[Attempt], label: str) -> Attempt | None:
    """Return the attempt that finished a run, None when there is none yet."""
    return next((one for one in attempts if one.label == label and one.failure is None), None)


def late_by(attempts: Iterable[Attempt], now: datetime) -> timedelta | None:
    """Return how long ago the last finished run began when that is too long for the next one to follow; else None."""
    done = [(datetime.strptime(one.stamp, STAMP_FORMAT), one.figures) for one in attempts if one.figures is not None]
    if not done:
        return None
    since = now - max(stamp for stamp, _ in done)
    shortest = min(datetime.fromisoformat(told.end) - datetime.fromisoformat(told.start) for _, told in done)
    return since if since >= GAP_FACTOR * shortest else None


def saved_attempts(record: Mapping[str, Any] | None) -> list[Attempt]:
    """Return the attempts of a saved rehearsal."""
    return [_loaded(one) for one in record["attempts"]] if record else []


def _begin(plan: Plan, label: str, attempts: Iterable[Attempt], now: Callable[[], datetime]) -> Attempt:
    """Return an attempt with a time stamp of its own, and make its folder."""
    taken = {one.stamp for one in attempts}
    while (stamp := now().strftime(STAMP_FORMAT)) in taken:
        time.sleep(0.1)  # an attempt that ended within a second: its time stamp is its name
    folder = os.path.join("runs", f"{stamp}-{label.replace(' ', '-')}")
    os.makedirs(os.path.join(plan.folder, folder))
    return Attempt(label=label, stamp=stamp, folder=folder, seed=plan.seed(label))


def _failed(attempt: Attempt, error: DlemuError | Interrupted) -> Attempt:
    told = str(error) if isinstance(error, DlemuError) else f"interrupted by signal {error.signal_number}"
    return replace(attempt, failure=told)


def _loaded(saved: Mapping[str, Any]) -> Attempt:
    figures = saved["figures"]
    return Attempt(**dict(saved) | {"figures": None if figures is None else Figures(**figures)})


def as_record(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Return attempts as plain data."""
    return [asdict(one) for one in attempts]

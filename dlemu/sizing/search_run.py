"""The search itself: try, look at all trials, try again, until the edge is found and settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from datagen.errors import UserError
from dlemu.sizing.answer import Known, Question, build_answer
from dlemu.sizing.runner import Runner
from dlemu.sizing.search import Limits, next_count
from dlemu.sizing.trial import Trial, together
from dlemu.sizing.verdict import sentence


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Told what goes on; all of it is for the eyes and the disk."""

    before: Callable[[int, int], None]
    """Count of accelerators and number of the trial that begins."""
    after: Callable[[Trial, dict[str, Any]], None]
    """The trial that ended and the answer so far (size.json), which is to be saved."""


def search(
    question: Question, known: Known, limits: Limits, runner: Runner, trials: list[Trial], watcher: Watcher
) -> dict[str, Any]:
    """Return the answer (size.json); `trials` are those that are there already, and grows.

    Raises what a trial raises, but for a count that can't run here when a smaller one can: that ends the range.
    """
    refusal = ""
    while True:
        counts = together(trials, question.threshold_percent, question.confidence_percent / 100)
        wanted = next_count(counts, limits)
        if wanted is None:
            break
        watcher.before(wanted, len(trials) + 1)
        try:
            trial = runner.run(wanted, len(trials) + 1)
        except UserError as error:
            if wanted == 1 or any(trial.accelerators == wanted for trial in trials):
                raise
            limits, refusal = replace(limits, first=wanted // 2, most=wanted - 1), f"{wanted} can't run here: {error}"
            continue
        trials.append(trial)
        watcher.after(trial, build_answer(question, known, trials, stopped_by=refusal))
    answer = build_answer(question, known, trials, stopped_by=refusal)
    return answer | {"complete": True, "verdict": sentence(answer)}

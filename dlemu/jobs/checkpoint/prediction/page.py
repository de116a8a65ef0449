"""A checkpoint prediction on the terminal and on its HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction
from dlemu.jobs.checkpoint.prediction.run_prediction import read_prediction
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration, number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count


def _screen(answer: CheckpointPrediction, folder: str) -> Screen:
    title = f"{answer.question.workload}: predicted, {count(answer.ranks, 'rank')}"
    return Screen(title=title, lines=list(_lines(answer)), notes=answer.issues, folder=folder)


def _lines(answer: CheckpointPrediction) -> Iterator[Said]:
    yield Said("predicted", answer.verdict.removeprefix("predicted: "), tone="strong")
    for label, phase, unknown in (
        ("writes", answer.write, "give a data sheet with `writes`, a probe with --rw write, or a run that wrote"),
        ("reads", answer.read, "so recovery is not predicted"),
    ):
        if phase is None:
            yield Said(label, f"not known of this storage: {unknown}")
            continue
        low, high = (number(seconds) for seconds in phase.seconds_interval)
        speed = rate(phase.gib_per_second * 2**30 / 1e6)
        yield Said(label, f"{speed}, {number(phase.seconds)} s a checkpoint ({low} to {high})")
    cost = answer.training
    if cost is not None and cost.best_interval_seconds is not None:
        best = f"with a failure every {cost.mtbf_hours:g} h best every {duration(cost.best_interval_seconds)}"
        yield Said("costs", f"{best}, then {cost.wasted_percent:.2g} % of the time is lost")
    yield Said("from", answer.source)


PARTS = Parts(read=read_prediction, answer_type=CheckpointPrediction, screen=_screen)

"""A checkpoint prediction on the terminal and on its HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction
from dlemu.jobs.checkpoint.prediction.run_prediction import read_prediction
from dlemu.jobs.checkpoint.wording import cost_line
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import size
from dlemu.results.kinds import Parts
from dlemu.results.wording import count


def _screen(answer: CheckpointPrediction, folder: str) -> Screen:
    what = f"checkpoints of {size(answer.bytes)} by {count(answer.ranks, 'rank')}"
    title = f"{answer.question.workload}: predicted, {what}"
    return Screen(title=title, lines=list(_lines(answer)), notes=answer.issues, folder=folder)


def _lines(answer: CheckpointPrediction) -> Iterator[Said]:
    for label, phase, unknown in (
        ("writes", answer.write, "give a data sheet with `writes`, a probe with --rw write, or a run that wrote"),
        ("reads", answer.read, "so recovery is not predicted"),
    ):
        if phase is None:
            yield Said(label, f"not known of this storage: {unknown}")
            continue
        low, high = map(_seconds, phase.seconds_interval)
        speed = rate(answer.bytes / phase.seconds / 1e6)
        yield Said(label, f"{_seconds(phase.seconds)} s a checkpoint ({low} to {high}), at {speed}", tone="strong")
    if answer.training is not None:
        yield Said("costs", cost_line(answer.training))
    yield Said("from", answer.source)


def _seconds(seconds: float) -> str:
    """Return seconds with three digits, which an uncertainty of 2 % carries."""
    return f"{float(f'{seconds:.3g}'):,g}"


PARTS = Parts(read=read_prediction, answer_type=CheckpointPrediction, screen=_screen)

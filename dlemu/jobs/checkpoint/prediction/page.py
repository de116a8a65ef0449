"""A checkpoint prediction on the terminal and on its HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction, PredictedPhase
from dlemu.jobs.checkpoint.prediction.run_prediction import read_prediction
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Section, Table, columns
from dlemu.report.units import number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure


def _screen(answer: CheckpointPrediction, folder: str) -> Screen:
    lines = [Said("predicted", answer.verdict.removeprefix("predicted: "), tone="strong")]
    for label, phase in (("writes", answer.write), ("reads", answer.read)):
        if phase is not None:
            low, high = (number(seconds) for seconds in phase.seconds_interval)
            speed = rate(phase.gib_per_second * 2**30 / 1e6)
            lines.append(Said(label, f"{speed}, {number(phase.seconds)} s a checkpoint ({low} to {high})"))
    lines += [*(Said("costs", line) for line in _costs(answer)), Said("from", answer.source)]
    return Screen(title=_title(answer), lines=lines, notes=answer.issues, folder=folder)


def _costs(answer: CheckpointPrediction) -> list[str]:
    """Return a line on the cost of failures; [] if the mean time between failures is not set."""
    cost = answer.training
    if cost is None or cost.best_interval_seconds is None or cost.wasted_percent is None:
        return []
    return [
        f"with a failure every {cost.mtbf_hours:g} h: best {cost.best_interval_seconds:,.0f} s between checkpoints, "
        f"then {cost.wasted_percent:.2g} % of the time is lost"
    ]


def _title(answer: CheckpointPrediction) -> str:
    return f"{answer.question.workload}: predicted, {count(answer.ranks, 'rank')}"


def _table(answer: CheckpointPrediction) -> Table:
    def row(name: str, phase: PredictedPhase) -> tuple[str, ...]:
        low, high = phase.seconds_interval
        return name, number(phase.seconds), f"{number(low)} to {number(high)}", number(phase.gib_per_second)

    phases = (("write", answer.write), ("read", answer.read))
    return Table(
        title=_title(answer),
        columns=columns("", "seconds", "interval", "GiB/s", right=range(1, 4)),
        rows=[row(name, phase) for name, phase in phases if phase is not None],
    )


def _sections(answer: CheckpointPrediction, _: str) -> Iterator[Section]:
    yield _table(answer)


def _charts(answer: CheckpointPrediction, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.checkpoint.prediction.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, answer)


PARTS = Parts(
    read=read_prediction,
    answer_type=CheckpointPrediction,
    screen=_screen,
    sections=_sections,
    charts=_charts,
)

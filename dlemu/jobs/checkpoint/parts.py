"""The code of checkpoints as a kind of job; that of predictions is imported by these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.measured import exported
from dlemu.jobs.checkpoint.metrics import conditions, figures
from dlemu.jobs.checkpoint.page import screen
from dlemu.jobs.checkpoint.result import CheckpointRun, read_checkpoint_run
from dlemu.jobs.checkpoint.run import Checkpoints
from dlemu.jobs.checkpoint.summary import CATALOGUE, CheckpointSummary
from dlemu.results.kinds import JobParts

if TYPE_CHECKING:
    from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction
    from dlemu.report.figure_base import Figure
    from dlemu.runner.prediction_request import PredictionRequest


def _charts(run: CheckpointRun, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.checkpoint.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


def _predict(
    source: Sequence[str] | Workload, request: PredictionRequest
) -> tuple[CheckpointPrediction, str, Workload]:
    from dlemu.jobs.checkpoint.prediction.run_prediction import run_prediction

    return run_prediction(source, request)


PARTS = JobParts(
    read=read_checkpoint_run,
    answer_type=CheckpointSummary,
    screen=screen,
    charts=_charts,
    job=Checkpoints(),
    catalogue=CATALOGUE,
    figures=figures,
    conditions=conditions,
    predict=_predict,
    exported=exported,
)

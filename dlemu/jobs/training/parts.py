"""The code of training as a kind of job. What few commands need is imported by these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlemu.config.schema import Workload
from dlemu.jobs.training.live import LiveTraining
from dlemu.jobs.training.measured import exported
from dlemu.jobs.training.metrics import CATALOGUE, conditions, figures
from dlemu.jobs.training.result import Run, read_run
from dlemu.jobs.training.run import Training
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.wording import screen
from dlemu.results.kinds import JobParts
from dlemu.runner.job import NoVerdictError

if TYPE_CHECKING:
    from dlemu.jobs.training.prediction.prediction import Prediction
    from dlemu.report.figure_base import Figure
    from dlemu.runner.prediction_request import PredictionRequest


def _charts(run: Run, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.training.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


def _advise(error: NoVerdictError, command: Sequence[str], overrides: Sequence[str], config_dir: str | None) -> str:
    from dlemu.jobs.training.advice import advise

    return advise(error, command, overrides, config_dir)


def _predict(source: Sequence[str] | Workload, request: PredictionRequest) -> tuple[Prediction, str, Workload]:
    from dlemu.jobs.training.prediction.run_prediction import run_prediction

    return run_prediction(source, request)


def _host_checks() -> Mapping[str, Any]:
    from dlemu.jobs.training.host_checks import CHECKS

    return CHECKS


PARTS = JobParts(
    read=read_run,
    answer_type=Summary,
    screen=screen,
    charts=_charts,
    job=Training(),
    catalogue=CATALOGUE,
    figures=figures,
    conditions=conditions,
    advise=_advise,
    predict=_predict,
    follow=LiveTraining,
    host_checks=_host_checks,
    exported=exported,
)

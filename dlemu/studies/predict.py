"""`dlemu predict`: the result of a job on a storage, predicted by its kind; without a storage, the needs of jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from datagen.errors import UserError
from dlemu.config import load, load_received
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import with_rates
from dlemu.jobs.training.prediction.needs import jobs_without_storage, needs
from dlemu.results import CONFIG
from dlemu.results.kinds import Kind, kind_needed, kind_of, read_figures
from dlemu.runner.prediction_request import PredictionRequest


def predict(source: Sequence[str] | Workload, request: PredictionRequest) -> tuple[Any, str, Workload]:
    """Return the prediction, its folder and the workload; without a storage, what the jobs need. Raises UserError."""
    request = with_rates(request)
    jobs = jobs_without_storage(source, request)
    predictors = []
    for kind in [kind_needed(job) for job in jobs] or [_kind_of(source, request)]:
        predict_job = kind.load_job().predict
        if not predict_job:
            raise UserError(f"`dlemu predict` can't predict {kind.noun}: measure it with `dlemu {kind.command}`")
        predictors.append(predict_job)
    return needs(jobs, source, request) if jobs else predictors[0](source, request)


def known_workload(request: PredictionRequest) -> Workload | None:
    """Return the workload of the run given with --from, None if options describe the storage; raises UserError."""
    folder = request.from_folder
    if folder is None:
        return None
    path = os.path.join(folder, CONFIG)
    foreign_run = request.read_foreign(folder) if request.read_foreign else None
    if foreign_run is None and os.path.lexists(path):
        return load_received(path)
    run = foreign_run or read_figures(folder)[0].facts  # a killed run may have no config.yaml
    workload: Workload = run.workload
    return workload


def _kind_of(source: Sequence[str] | Workload, request: PredictionRequest) -> Kind:
    """Return the kind of job to predict: that of the run given with --from, unless a workload or overrides name one."""
    if isinstance(source, Workload):
        return kind_needed(source)
    names_workload = any(override.lstrip("+").startswith("workload=") for override in source)
    if request.from_folder is not None and not names_workload:
        kind = kind_of(request.from_folder)
        if kind is None:  # a run of another tool
            return kind_needed(known_workload(request) or Workload())
        if kind.is_job:
            return kind
    return kind_needed(load(source, config_dir=request.config_dir))  # a prediction's folder names no job

"""`dlemu predict`: what a job would show on a storage, answered by the kind of job in question."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from datagen.errors import UserError
from dlemu.config import load, load_received
from dlemu.config.schema import Workload
from dlemu.results.file_names import CONFIG
from dlemu.results.kinds import Kind, kind_of, kind_requested, read_result
from dlemu.runner.prediction_request import PredictionRequest


def predict(source: Sequence[str] | Workload, request: PredictionRequest) -> tuple[Any, str, Workload]:
    """Predict what overrides, or a workload, request; return the answer, the folder that holds it, and the settings.

    Raises UserError.
    """
    kind = _kind_of(source, request)
    if not kind.predicts:
        raise UserError(f"`dlemu predict` knows no {kind.name}: run it, by `dlemu {kind.command}`")
    predicted: tuple[Any, str, Workload] = kind.part("predicts")(source, request)
    return predicted


def known_workload(request: PredictionRequest) -> Workload | None:
    """Return the settings of the run whose storage is taken, None for a storage that is described; raises UserError."""
    folder = request.from_folder
    if folder is None:
        return None
    foreign = request.read_foreign(folder) if request.read_foreign is not None else None
    path = os.path.join(folder, CONFIG)
    if foreign is None and os.path.lexists(path):
        return load_received(path)
    known: Workload = foreign.workload if foreign is not None else read_result(folder).facts.workload  # of a killed run
    return known


def _kind_of(source: Sequence[str] | Workload, request: PredictionRequest) -> Kind:
    """Return the kind of job that a workload needs; where none is named, that of the run whose storage is taken."""
    if isinstance(source, Workload):
        return kind_requested(source)
    if request.from_folder is not None and not any(word.lstrip("+").startswith("workload=") for word in source):
        found = kind_of(request.from_folder)
        if found is not None and found.predicts:
            return found
    return kind_requested(load(source, config_dir=request.config_dir))

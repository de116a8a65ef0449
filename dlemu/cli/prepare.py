"""From a configuration to a job: dataset found, folder named, everything checked before anything is measured."""

from __future__ import annotations

import os
from datetime import datetime

from datagen.inspection import inspect
from datagen.registry import find
from dlemu.config import check_runnable, datagen_command
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job, make_job
from dlemu.loaders.loader_base import Loader
from dlemu.report.folder import make_folder


def prepare_job(workload: Workload, ranks: int) -> Job:
    """Check the workload and its dataset, make the run's folder and return the job; raises UserError."""
    check_runnable(workload)
    found = inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
    now = datetime.now().astimezone()
    folder = workload.output.folder or new_folder(workload.model.name)
    job = make_job(workload, ranks, found, folder=folder, started_at=now.isoformat(timespec="seconds"))
    make_folder(folder)
    return job


def loader_class(workload: Workload) -> type[Loader]:
    """Return the loader; imports its framework."""
    loader: type[Loader] = find("dlemu.loaders", workload.reader.data_loader, "Loader")
    return loader


def new_folder(name: str, prefix: str = "") -> str:
    """Return results/NAME/PREFIXTIME, with a number behind it when two runs begin in one second."""
    first = os.path.join("results", name, prefix + datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder, number = first, 1
    while os.path.exists(folder):
        number += 1
        folder = f"{first}-{number}"
    return folder

"""A small run by the command line, for tests of what users plug in: 2 ranks, reader threads, a few small files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from datagen.errors import UserError
from dlemu.jobs.training.result import Run, read_run
from tests.e2e.harness import dlemu

SMALL = (
    "dataset.format=npz",
    "dataset.num_files_train=16",
    "dataset.record_length_bytes=4096",
    "reader.data_loader=threads",
    "reader.batch_size=2",
    "metric.ceiling_seconds=0",
    "metric.scaling_seconds=0",
    "telemetry.enabled=false",
    "output.report=false",
    "ranks=2",
)


def run_dlemu(folder: Path, *overrides: str) -> Run:
    """Make a dataset in `folder`, train on it, and return the run; modules in `folder` can be named in settings.

    Raises UserError with what the command said when it exits with 2.
    """
    words = (*SMALL, f"dataset.data_folder={folder / 'data'}", *overrides)
    path = os.pathsep.join([str(folder), *sys.path])
    for command in (["datagen"], ["train", f"output.folder={folder / 'run'}"]):
        ended = dlemu(*command, *words, cwd=folder, PYTHONPATH=path)
        if ended.status == UserError.exit_status:
            raise UserError(ended.err)
        assert ended.ran, ended.err
    return read_run(str(folder / "run"))

"""Each user of a crew as a program whose workers hang or raise: `python -m tests.run.crews ROLE FOLDER hang|fail`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
from PIL import Image

from datagen.errors import DlemuError
from dlemu.comm import Interrupted
from dlemu.comm.failure import Role
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit import audited_run
from dlemu.contrib.pack import process as pack_process
from dlemu.contrib.pack import worker as pack_worker
from dlemu.jobs.probe import requests
from dlemu.jobs.training import pattern
from dlemu.runner.crew import Worker, run_crew
from tests.runs import make_job

STOPPED_SECONDS = 1.0
Work = Callable[..., Any]


def hang(*_: object, **__: object) -> NoReturn:
    """Work for ever."""
    while True:
        time.sleep(60)


def fail(*_: object, **__: object) -> NoReturn:
    """Raise what nobody foresaw."""
    raise ValueError("odd")


def worker(work: Work, folder: Path) -> None:
    """Be a crew of nothing else."""

    def be(worker: Worker, order: int) -> None:
        worker.ready()
        work()

    run_crew(be, range(3), Role("worker", "use fewer workers"), timeout_seconds=STOPPED_SECONDS)


def packer(work: Work, folder: Path) -> None:
    """Pack images that nobody can prepare."""
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    patch.object(pack_worker, "prepare", work).start()
    patch.object(Workload, "timeout_seconds", STOPPED_SECONDS).start()
    target = str(folder / "packed")
    words = (f"source={folder}", f"target={target}", "processes=2", "images_per_file=1", "evict=false")
    pack_process.pack_here(pack_process.Order(words=words, target=target), str(folder))


def reader(work: Work, folder: Path) -> None:
    """Read a workload's pattern."""
    patch.object(pattern, "BatchMaker", lambda *_: SimpleNamespace(make=work)).start()
    job = make_job(ranks=1)
    job = replace(job, workload=replace(job.workload, timeout_seconds=STOPPED_SECONDS))
    spec, _ = pattern.reading_spec(job)
    pattern._level(job, spec, 3, 6, 600.0)


def job(work: Work, folder: Path) -> None:
    """Make requests."""
    patch.object(requests, "_STALL_SECONDS", STOPPED_SECONDS).start()
    streams: Any = ("first", "second")
    requests._run_jobs(work, streams, 600.0)


def auditor(work: Work, folder: Path) -> None:
    """Audit runs."""
    patch.object(audited_run, "_audit_or_report_failure", work).start()
    patch.object(audited_run, "_STOPPED_SECONDS", STOPPED_SECONDS).start()
    patch.object(audited_run, "find_runs", lambda trees: [f"run {number}" for number in range(17)]).start()
    audited_run.audit_trees([str(folder)], processes=2)


CREWS = {made.__name__: made for made in (worker, packer, reader, job, auditor)}
"""By the name of their workers."""


def main(role: str, folder: str, what: str) -> None:
    """Be the program."""
    try:
        CREWS[role](fail if what == "fail" else hang, Path(folder))
    except DlemuError as error:
        print(f"dlemu: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except Interrupted as stop:
        sys.exit(stop.exit_status)


if __name__ == "__main__":
    main(*sys.argv[1:])

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

from datagen.errors import DlemuError
from dlemu.jobs.probe import requests
from dlemu.jobs.probe.result import CellSpec
from dlemu.jobs.training import pattern
from dlemu.ranks import Comm, Interrupted
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from tests.parts import of_parts
from tests.runs import make_job

STOPPED_SECONDS = 1.0
Work = Callable[..., Any]


def hang(*_: object, **__: object) -> NoReturn:
    while True:
        time.sleep(60)


def fail(*_: object, **__: object) -> NoReturn:
    raise ValueError("odd")


def worker(work: Work, folder: Path, stopped_seconds: float) -> None:
    def be(comm: Comm, order: int) -> None:
        work()

    run_crew(be, range(3), Role("worker", "use fewer workers"), timeout_seconds=stopped_seconds)


def reader(work: Work, folder: Path, stopped_seconds: float) -> None:
    patch.object(pattern, "BatchMaker", lambda *_: SimpleNamespace(make=work)).start()
    job = make_job(ranks=1)
    job = replace(job, workload=replace(job.workload, timeout_seconds=stopped_seconds))
    spec, _ = pattern.reading_spec(job)
    pattern._level(job, spec, 3, 6, 600.0)


def job(work: Work, folder: Path, stopped_seconds: float) -> None:
    patch.multiple(requests, _STALL_SECONDS=stopped_seconds, run_threads=work).start()
    cell = CellSpec(access="read", size_bytes=4096, depth=1, jobs=2)
    requests.measure_cell(cell, "", 8192, 600.0, "threads")


CREWS = {"worker": worker, "reader": reader, "job": job, **of_parts("CREWS")}
"""By the name of their workers."""


def main(role: str, folder: str, what: str) -> None:
    try:
        CREWS[role](fail if what == "fail" else hang, Path(folder), STOPPED_SECONDS)
    except DlemuError as error:
        print(f"dlemu: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except Interrupted as stop:
        sys.exit(stop.exit_status)


if __name__ == "__main__":
    main(*sys.argv[1:])

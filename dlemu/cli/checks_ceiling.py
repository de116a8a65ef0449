"""The emulator's own ceiling for a workload on this host: its ranks, loader and steps on storage that costs nothing."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import replace

from datagen.errors import DlemuError
from datagen.inspection import Found
from datagen.layout import layouts, nominal_sample_bytes
from dlemu.cli.checks import Check
from dlemu.comm import Comm, first_failure, run_ranks
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job, make_job
from dlemu.emulator.preflight import check_host
from dlemu.emulator.run import measure_ceiling
from dlemu.loaders.loader_base import Loader
from dlemu.metrics.demand import demand
from dlemu.run.prepare import loader_class

_NAME = "ceiling"


def checks(workload: Workload, found: Found | None) -> Iterator[Check]:
    """Measure the ceiling, for `metric.ceiling_seconds` and at least five steps; no dataset is needed."""
    if workload.metric.ceiling_seconds <= 0 or demand("", workload).mb_per_second is None:
        yield Check(name=_NAME, level="ok", seen="not measured: nothing computes, or metric.ceiling_seconds is 0")
        return
    try:
        job = make_job(workload, workload.ranks, found or imagined(workload), folder=os.devnull, started_at="")
        check_host(job, job.ranks)
        yield judge(workload, run(job, loader_class(workload)))
    except Exception as error:  # a broken framework raises what it likes
        yield Check(name=_NAME, level="fail", seen=str(error), wanted="ranks that run")


def imagined(workload: Workload) -> Found:
    """Return a dataset that is not there, large enough for one step of every rank."""
    spec, reader = workload.dataset, workload.reader
    files = max(spec.num_files_train, -(-workload.ranks * reader.batch_size // spec.num_samples_per_file))
    spec = replace(spec, num_files_train=files)
    train, valid = layouts(spec)
    size = nominal_sample_bytes(spec)
    return Found(
        spec=spec,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=size,
        max_sample_bytes=size,
        total_bytes=files * spec.num_samples_per_file * size,
    )


def run(job: Job, make_loader: type[Loader]) -> float:
    """Fork the ranks and return their ceiling in percent; DlemuError when they fail."""
    shared = mmap.mmap(-1, 8)
    ends = run_ranks(
        job.ranks, lambda comm: _rank(job, make_loader, comm, shared), timeout_seconds=job.workload.timeout_seconds
    )
    failure = first_failure(ends)
    if failure:
        raise DlemuError(failure.message)
    (percent,) = struct.unpack("d", shared)
    return float(percent)


def judge(workload: Workload, percent: float) -> Check:
    """Compare the ceiling with the threshold."""
    one = demand(workload.model.name, workload)
    asked = (one.mb_per_second or 0) * workload.ranks
    what = f"{workload.ranks} x {workload.accelerator or 'accelerator'}"
    seen = f"{percent:.2f} % AU for {what} on this host without storage; they ask the storage for {asked:,.1f} MB/s"
    wanted = f"{one.au_threshold_percent:g} % or more"
    if percent < one.au_threshold_percent:
        advice = "fewer ranks on this host, or a host with more cores: a run would give no verdict on the storage"
        return Check(name=_NAME, level="fail", seen=seen, wanted=wanted, advice=advice)
    return Check(name=_NAME, level="ok", seen=seen, wanted=wanted)


def _rank(job: Job, make_loader: type[Loader], comm: Comm, shared: mmap.mmap) -> int:
    percent = measure_ceiling(job, comm, make_loader)
    if percent is not None:
        struct.pack_into("d", shared, 0, percent)
    return 0

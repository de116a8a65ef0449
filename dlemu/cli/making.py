"""Making and verifying datasets with all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from datagen.errors import DatasetError
from datagen.generate import Made, Progress, finish, generate, prepare
from datagen.verify import Finding, verify
from dlemu.cli.launcher import forked, under_mpi
from dlemu.comm import Comm, detect_launcher
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.report.progress import DatagenProgress


def make_with_ranks(overrides: Sequence[str], config_dir: str | None, fsync: bool) -> int:
    """Make the dataset and return the exit status."""
    return _with_ranks(overrides, config_dir, partial(make_dataset, fsync=fsync))


def verify_with_ranks(overrides: Sequence[str], config_dir: str | None) -> int:
    """Verify the dataset and return the exit status."""
    return _with_ranks(overrides, config_dir, verify_dataset)


def _with_ranks(overrides: Sequence[str], config_dir: str | None, main: Callable[[Workload, Comm], int]) -> int:
    if detect_launcher() == "mpi":
        return under_mpi(overrides, lambda comm: main(_broadcast(comm, overrides, config_dir), comm))
    workload = load(overrides, config_dir=config_dir)
    failure = forked(workload.ranks, partial(main, workload), workload.timeout_seconds)
    return 0 if failure is None else failure.status


def _broadcast(comm: Comm, overrides: Sequence[str], config_dir: str | None) -> Workload:
    workload: Workload = comm.broadcast(load(overrides, config_dir=config_dir) if comm.rank == 0 else None)
    comm.set_timeout(workload.timeout_seconds)
    return workload


def make_dataset(workload: Workload, comm: Comm, *, fsync: bool) -> int:
    """Make what is missing of the dataset, with all ranks; raises UserError."""
    spec, storage = workload.dataset, workload.storage_spec
    if comm.rank == 0:
        prepare(spec, storage)
    comm.broadcast(None)
    made = generate(
        spec,
        storage,
        rank=comm.rank,
        ranks=comm.size,
        threads=_threads(comm),
        fsync=fsync,
        progress=_progress(comm, "made"),
    )
    parts = comm.gather(made)
    if parts is not None:
        finish(spec, storage)
        print(_made_line(workload, parts))
    return 0


def verify_dataset(workload: Workload, comm: Comm) -> int:
    """Compare every byte with what was generated, list what is wrong; raises DatasetError when something is."""
    found = verify(
        workload.dataset,
        workload.storage_spec,
        rank=comm.rank,
        ranks=comm.size,
        threads=_threads(comm),
        progress=_progress(comm, "verified"),
    )
    parts = comm.gather(found)
    if parts is not None:
        _tell_findings(workload, [finding for part in parts for finding in part])
    return 0


def _tell_findings(workload: Workload, findings: list[Finding]) -> None:
    dataset = workload.dataset
    for finding in findings:
        print(f"{finding.severity} {finding.kind} {finding.path}: {finding.message}")
    files = f"{dataset.num_files_train + dataset.num_files_eval} files in {dataset.data_folder}"
    if findings:
        raise DatasetError(
            f"{len(findings)} findings among {files}; delete the files named above and run `dlemu datagen` with the "
            "same settings to make them again"
        )
    print(f"{files}: every byte is as generated")


def _progress(comm: Comm, verb: str) -> Callable[[Progress], None] | None:
    """Return what shows the progress on rank 0, None on the others."""
    return DatagenProgress(Console(stderr=True), ranks=comm.size, verb=verb).update if comm.rank == 0 else None


def _threads(comm: Comm) -> int:
    """Return this rank's share of the cores it may use."""
    return max(1, len(os.sched_getaffinity(0)) // comm.local_size)


def _made_line(workload: Workload, parts: list[Made]) -> str:
    files, size_bytes = sum(made.files for made in parts), sum(made.bytes for made in parts)
    kept = sum(made.kept_files for made in parts)
    seconds = max(made.seconds for made in parts)
    rate = f", {size_bytes / 1e6 / seconds:.0f} MB/s" if size_bytes else ""
    there = f"; {kept} were there already" if kept else ""
    return f"made {files} files, {size_bytes / 1e9:.2f} GB, in {workload.dataset.data_folder}{rate}{there}"

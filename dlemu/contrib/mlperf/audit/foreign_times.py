"""Reads a result of DLIO or MLPerf Storage as input for `dlemu predict`: its settings, and the times of its epochs."""

from __future__ import annotations

import os

from dlemu.config import load, workload_names
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_run, find_runs, shipped_accelerator_settings
from dlemu.contrib.mlperf.audit.own_result import is_own
from dlemu.contrib.mlperf.audit.tolerant import number
from dlemu.contrib.mlperf.rules.core_config import effective
from dlemu.extend import ForeignRun, UserError
from dlemu.results.wording import count


def foreign_run(folder: str) -> ForeignRun | None:
    """Return the DLIO run in a folder; raises UserError if its settings or times are not known.

    dlemu's own run, or no runs           None
    results/summary.json, ...             the run
    runs/a/summary.json, runs/b/...       UserError: name one of the runs
    sweep/train-1/dlio/summary.json, ...  UserError: name one run of dlemu, such as sweep/train-1
    """
    if is_own(folder):
        return None
    folders = find_runs([folder])
    if not folders:
        return None
    parent = os.path.dirname(folders[0])
    # A run of dlemu also wrote DLIO's files, which have less: for a folder above such runs, ask for one of them.
    if is_own(parent) and not os.path.samefile(folders[0], folder):
        raise UserError(f"{folder} holds {count(len(folders), 'run')}: name one, such as {parent}")
    if len(folders) > 1:
        raise UserError(f"{folder} holds {len(folders)} runs of DLIO: name one, such as {folders[0]}")
    run = audit_run(folders[0], shipped_accelerator_settings())
    if not run.accelerators or not run.times.training_seconds_by_epoch:
        raise UserError(
            f"{folder} does not say how many accelerators ran for how long: wanted DLIO's summary.json and "
            "per_epoch_stats.json with the time stamps of training"
        )
    return ForeignRun(
        folder=folder,
        workload=load(_settings(run)),
        ranks=run.accelerators,
        hosts=run.printed.hosts or 1,
        epoch_seconds=run.times.training_seconds_by_epoch,
        first_seconds=first_batch_waits(run),
    )


def _settings(run: AuditedRun) -> list[str]:
    """Return a run's settings as `key=value` for dlemu; raises UserError if a required one is not known."""
    setup = run.setup
    required = {
        "workload": setup.workload,
        "accelerator": setup.accelerator or "",  # empty: not the workload file's default, which has another step time
        "dataset.num_files_train": setup.num_files,
        "reader.batch_size": setup.batch_size,
        "reader.read_threads": setup.read_threads,
        "train.computation_time": setup.computation_seconds,
        "train.epochs": setup.epochs,
    }
    missing = [key for key, value in required.items() if value is None]
    if missing:
        raise UserError(f"{run.path} lacks {', '.join(missing)}: wanted its config.yaml, as DLIO writes it")
    if setup.workload not in workload_names():  # a name in a foreign file could be the path of any file
        raise UserError(f"{run.path} has workload {setup.workload!r}: wanted one of {', '.join(workload_names())}")
    config = effective(setup.config or {})
    optional = ["reader.prefetch_size", "dataset.num_samples_per_file"]
    optional += ["dataset.record_length_bytes", "dataset.record_length_bytes_stdev"]
    settings = required | {key: config[key] for key in optional if number(config.get(key)) is not None}
    return [f"{key}={value}" for key, value in settings.items()] + ["workflow.checkpoint=false"]


def first_batch_waits(run: AuditedRun) -> tuple[float, ...]:
    """Return each epoch's wait for its first batch, in seconds, as recorded or else derived from AU; empty if unknown.

    The AU of DLIO in v1.0 leaves out the first step, both its wait and its computation. For an epoch of K steps of c
    seconds in T seconds, AU = 100 (K - 1) c / (T - wait - c) percent (docs/metrics.md), which is solved for the wait.
    """
    times, steps, compute = run.times, run.recomputed.steps_per_epoch, run.setup.computation_seconds
    if times.first_batch_seconds_by_epoch:
        return times.first_batch_seconds_by_epoch
    printed = [au for au in run.printed.au_by_epoch if au > 0]  # no wait follows from an AU of 0
    if run.printed_by != "dlio_v1" or not steps or not compute or len(printed) != len(times.training_seconds_by_epoch):
        return ()
    return tuple(
        max(0.0, seconds - compute - 100 * (steps - 1) * compute / au)
        for seconds, au in zip(times.training_seconds_by_epoch, printed, strict=True)
    )

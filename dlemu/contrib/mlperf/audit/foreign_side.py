"""Reads results of DLIO and MLPerf Storage as one side of `dlemu compare`, with recomputed numbers."""

from __future__ import annotations

import math
import os
import shlex
import statistics
from collections.abc import Sequence
from typing import Literal

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_trees
from dlemu.extend import UserError
from dlemu.results.figures import Conditions, JobFigures, Value, half_width_of, value_of

COMPARED_AU = "dlio"  # AU of all runs is by the formula of DLIO 2.x, whatever version of DLIO printed it

Settings = tuple[tuple[str, str], ...]  # the settings in which a run differs from others: (("run", "a/20250711"),)
Side = tuple[dict[Settings, JobFigures], dict[Settings, Conditions]]


def foreign_side(folder: str) -> Side:
    """Return the figures and the conditions of the training runs below a folder.

    Both have a key for each run: its path in the folder, as the setting `run`, or () if the folder has only one run.
    AU is by DLIO 2.x's formula; samples/s are over whole epochs, first steps included, as in dlemu; MB/s are nominal:
    samples/s x record length. Raises UserError if no run's numbers can be recomputed, and for several workloads.
    """
    runs = [run for run in audit_trees([folder]) if run.recomputed.basis != "nothing" and run.accelerators]
    if not runs:
        raise UserError(
            f"{folder} holds no run whose numbers can be recomputed: wanted DLIO's or MLPerf Storage's summary.json and"
            f" per_epoch_stats.json; `dlemu audit {shlex.quote(folder)}` says what is missing"
        )
    names = sorted({_workload(run) for run in runs})
    if len(names) > 1:
        raise UserError(f"{folder} holds runs of {', '.join(names)}: name a folder below it with runs of one workload")
    warnings = tuple(_warnings(runs))
    figures: dict[Settings, JobFigures] = {}
    conditions: dict[Settings, Conditions] = {}
    for run in runs:
        key: Settings = () if len(runs) == 1 else (("run", os.path.relpath(run.path, folder)),)
        work = {
            "num_files_train": run.setup.num_files,
            "num_samples_per_file": run.setup.samples_per_file,
            "batch_size": run.setup.batch_size,
        }
        known_work = {name: value for name, value in work.items() if value is not None}
        figures[key] = _figures(run)
        conditions[key] = Conditions(title=names[0], work=known_work, warnings=warnings)
    return figures, conditions


def _workload(run: AuditedRun) -> str:
    return run.setup.workload or run.printed.model or "a workload without a name"


def _figures(run: AuditedRun) -> JobFigures:
    setup, times, au = run.setup, run.times, run.au_percent
    outcome: Literal["pass", "fail"] | None = None
    if au is not None:
        outcome = "pass" if au >= setup.au_threshold_percent else "fail"
    rates = _rates(run)
    record_mb = None if setup.record_bytes is None else setup.record_bytes / 1e6
    formula = run.recomputed.formulas.get(COMPARED_AU)
    metrics = {
        "total_seconds": value_of(times.total_seconds),
        "au_percent": _mean(formula.au_by_epoch) if formula else None,
        "au_whole_percent": value_of(run.recomputed.au_whole_percent or None),
        "samples_per_second": _mean(rates),
        "app_mb_per_second": None if record_mb is None else _mean([rate * record_mb for rate in rates]),
        "time_to_first_batch_seconds": _mean(times.first_batch_seconds_by_epoch),
        "training_seconds": value_of(sum(times.training_seconds_by_epoch) or None),
    }
    return JobFigures(
        kind="training",
        workload=_workload(run),
        accelerator=setup.accelerator,
        ranks=run.accelerators,
        epochs=run.recomputed.epochs,
        outcome=outcome,
        threshold_percent=setup.au_threshold_percent,
        metrics={name: value for name, value in metrics.items() if value is not None},
    )


def _rates(run: AuditedRun) -> Sequence[float]:
    """Return samples/s of each epoch, first steps included: by all ranks' blocks, or else by rank 0's time stamps."""
    whole = run.recomputed.formulas.get("dlio_v1")
    if whole is not None and whole.samples_per_second is not None:
        return whole.samples_per_second_by_epoch
    steps, batch_size = run.recomputed.steps_per_epoch, run.setup.batch_size
    if steps is None or batch_size is None:
        return ()
    return [steps * batch_size * run.accelerators / seconds for seconds in run.times.training_seconds_by_epoch]


def _mean(by_epoch: Sequence[float]) -> Value | None:
    if not by_epoch or not all(map(math.isfinite, by_epoch)):
        return None
    return Value(statistics.fmean(by_epoch), half_width_of(by_epoch))


def _warnings(runs: Sequence[AuditedRun]) -> list[str]:
    """Return caveats on the numbers of these runs, as sentences."""
    warnings = ["numbers are recomputed from DLIO's files; AU is by DLIO 2.x's formula, MB/s are nominal"]
    without_steps = sum(run.recomputed.basis == "blocks" for run in runs)
    if without_steps:
        warnings.append(f"{without_steps} of {len(runs)} runs kept no steps: only their AU of whole epochs is known")
    with_errors = sum(run.errors > 0 for run in runs)
    if with_errors:
        warnings.append(f"{with_errors} of {len(runs)} runs contradict themselves; `dlemu audit` lists how")
    return warnings

"""Trees of runs, audited in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import resources
from typing import Any

import yaml

from datagen.errors import DlemuError, UserError
from dlemu.config.names import SUFFIX, workload_names
from dlemu.mlperf.audit.by_rules import Rulebook
from dlemu.mlperf.audit.folders import find_runs
from dlemu.mlperf.audit.run import AuditedRun, audit_run, failed_run
from dlemu.mlperf.audit.setup import Shipped

_ALONE = 16
"""Runs that one process audits sooner than others are started."""
_CHUNK = 8


def audit_trees(trees: Iterable[str], processes: int | None = None, book: Rulebook | None = None) -> list[AuditedRun]:
    """Return every run in the trees, audited, in the order of their paths; with a rulebook also by its rules.

    Raises UserError for a tree that is no folder, or when none of them holds a run.
    """
    trees = list(trees)
    for tree in trees:
        if not os.path.isdir(tree):
            raise UserError(f"{tree} is no folder that can be read: wanted a folder with results below it")
    runs = find_runs(trees)
    if not runs:
        raise UserError(
            f"no run in {', '.join(trees)}: wanted a folder below that holds summary.json, per_epoch_stats.json or"
            " R_output.json, as DLIO writes them"
        )
    audit = partial(_guarded, shipped=shipped_pairs(), book=book)
    workers = min(processes or len(os.sched_getaffinity(0)), -(-len(runs) // _CHUNK))
    if workers == 1 or len(runs) <= _ALONE:
        return [audit(run) for run in runs]
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("forkserver")) as pool:
            return list(pool.map(audit, runs, chunksize=_CHUNK))
    except BrokenProcessPool as error:
        raise DlemuError("a process of the audit was killed (out of memory?); give fewer runs at a time") from error


def _guarded(folder: str, shipped: Shipped, book: Rulebook | None) -> AuditedRun:
    try:
        return audit_run(folder, shipped, book)
    except Exception as error:  # one folder must not end the audit of hundreds
        return failed_run(folder, error)


def shipped_pairs() -> dict[str, dict[str, Any]]:
    """Return workload -> accelerator -> {batch_size, computation_time} of the workloads that come with dlemu."""
    folder = resources.files("dlemu.configs") / "workload"
    loaded = {name: yaml.safe_load((folder / f"{name}{SUFFIX}").read_text()) for name in workload_names()}
    return {name: content["accelerators"] for name, content in loaded.items() if content.get("accelerators")}

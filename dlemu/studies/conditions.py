"""The conditions under which the runs of a study were measured, read from the summaries in their folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from datagen.errors import UserError
from dlemu.report.any_run import keys_of
from dlemu.report.table import Table
from dlemu.report.units import plain
from dlemu.results import FACTS, SUMMARY
from dlemu.results.answer_files import decode_versioned
from dlemu.results.figures import Conditions
from dlemu.results.kinds import JobParts, kind_of

# Fields of `HostFacts`: the host's name, and what affects measurements of storage.
HOST_FACTS = ("host", "processor", "cpu_usable", "memory_bytes", "kernel", "dlemu", "packages")


def conditions_of(parts: JobParts, summary: Any, facts: Any) -> Conditions:
    """Return the conditions of a run; for an incomplete run, the first warning says so."""
    conditions = parts.conditions(summary, facts)
    warnings = conditions.warnings
    if summary.failure is not None:
        warnings = (f"this run is incomplete: {summary.failure.splitlines()[0]}", *warnings)
    return replace(conditions, started_at=summary.started_at, environment=summary.environment, warnings=warnings)


def conditions_in(folders: Iterable[str]) -> Iterator[Conditions]:
    """Yield the conditions of each run whose folder still exists; raises UserError for a damaged run."""
    for folder in folders:
        kind = kind_of(folder)
        if kind is not None and kind.is_job:
            parts = kind.load_job()
            facts = decode_versioned(f"{folder}/{FACTS}", parts.job.facts_type)
            yield conditions_of(parts, decode_versioned(f"{folder}/{SUMMARY}", parts.answer_type), facts)


def settings_of(run: Conditions) -> dict[str, str]:
    """Return the conditions that must agree for two storages to be comparable, as text: hosts, work and settings."""
    hosts = {name: sorted({plain(getattr(host, name), name) for host in run.environment.hosts}) for name in HOST_FACTS}
    settings = hosts | run.work | run.how
    return {key.replace("_", " "): plain(value, key) for key, value in settings.items() if value is not None}


def background(folder: str, runs: Iterable[str]) -> Iterator[Table]:
    """Yield tables of the conditions of a study: those of the first run in the subfolders `runs` that can be read."""
    for name in runs:
        with contextlib.suppress(UserError):  # skips a damaged run, as the study has its own copy of the numbers
            for run in conditions_in([os.path.join(folder, name)]):
                yield from keys_of("How it was measured", run.facts | run.work | run.how)
                yield from keys_of("Environment", run.environment)
                return

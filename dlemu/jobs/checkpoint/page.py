"""What is said of a run of checkpoints: its first screen, and its tables below."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dlemu.checkpoints.stored import folder_name
from dlemu.jobs.checkpoint.metrics import CATALOGUE, metrics_of
from dlemu.jobs.checkpoint.summary import CheckpointSummary, PhaseSummary
from dlemu.jobs.checkpoint.wording import RELIEF
from dlemu.report.any_run import keys_of, listed
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Section, Table, columns
from dlemu.report.units import duration, number, size, value_with_interval
from dlemu.results.wording import count


def screen(summary: CheckpointSummary, folder: str) -> Screen:
    """Return what is said first of a run whose results are in a folder."""
    what, storage = summary.what, summary.environment.storage
    below = f" ({storage.file_system} on {storage.device.rpartition('/')[2]})" if storage and storage.device else ""
    title = f"{summary.title}: each {size(what.bytes)} in {count(what.files, 'file')}, in {what.folder}{below}"
    lines = []
    if not summary.complete:
        lines.append(Said("INCOMPLETE", summary.verdict.removeprefix("INCOMPLETE: "), tone="bad"))
    lines += [*_phase(summary.write, "writes", summary.ceiling_gb_per_second), *_phase(summary.read, "reads", None)]
    if (cost := summary.training) is not None:
        best = ""
        if cost.best_interval_seconds is not None:
            each = f"with a failure every {cost.mtbf_hours:g} h best every {duration(cost.best_interval_seconds)}"
            best = f"; {each}, which loses {cost.wasted_percent:.2g} %"
        every = duration(cost.interval_seconds)
        lines.append(Said("costs", f"{cost.percent:.2g} % of a training that saves every {every}{best}"))
    if what.kept:
        lines.append(Said("kept", kept_line(summary)))
    return Screen(title=title, lines=lines, notes=summary.issues, folder=folder)


def _phase(phase: PhaseSummary | None, verb: str, ceiling_gb_per_second: float | None) -> Iterator[Said]:
    """Yield the rate of the slowest rank, for which training waits, with what limited it; and what would help."""
    if phase is None:
        return
    speed = rate(phase.slowest_gib_per_second * 2**30 / 1e6)
    most = max(one.slowest_seconds for one in phase.checkpoints)
    against = f"; the emulator alone can {rate(1e3 * ceiling_gb_per_second)}" if ceiling_gb_per_second else ""
    if phase.from_storage_percent is not None:
        against = f"; {phase.from_storage_percent:.0f} % of the bytes came from storage"
    value = f"{speed} by the slowest rank, {number(phase.slowest_seconds)} s a checkpoint (at most {number(most)} s)"
    yield Said(verb, value + against, tone="strong")
    if (limit := phase.limited_by) is not None:
        relief = f"; {RELIEF[limit.what]}" if RELIEF[limit.what] else ""
        yield Said("", f"limited by {limit.what}, confidence {limit.confidence}{relief}")


def kept_line(summary: CheckpointSummary) -> str:
    """Return which checkpoints a run left on the storage, and how to remove them."""
    what, kept = summary.what, summary.what.kept
    left = f"{count(len(kept), 'checkpoint')}, {size(len(kept) * what.bytes)}, in {what.folder}"
    if summary.requests is not None:  # `rm` can't remove objects
        return left
    name = folder_name(kept[0]) if len(kept) == 1 else folder_name(f"{{{kept[0]}..{kept[-1]}}}")
    own = ", on each host" if what.how["node_local"] and len(summary.environment.hosts) > 1 else ""
    return f"{left}; to remove them{own}: rm -r {shlex.quote(what.folder.rstrip('/'))}/{name}"


def sections(summary: CheckpointSummary, _: str) -> Iterator[Section]:
    """Yield what is said of a run below its first screen."""
    found = metrics_of(summary)
    rows = [
        (metric.title, f"{value_with_interval(found[metric.name], metric.unit)} {metric.unit}", metric.meaning)
        for metric in CATALOGUE
        if metric.name in found
    ]
    yield Table(title=summary.title, columns=columns("metric", "value", "what it is", whole=(0,)), rows=rows)
    if summary.requests is not None:
        yield from keys_of("Requests", summary.requests)
    for name, phase in (("Written", summary.write), ("Read", summary.read)):
        if phase is not None:
            yield from listed(f"{name}: each checkpoint", phase.checkpoints)
            yield from listed(f"{name}: the slowest ranks", phase.slowest_ranks)

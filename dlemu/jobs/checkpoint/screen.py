"""The first screen of a run of checkpoints: how fast, what limits it, what it costs a training, what is left."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.checkpoint.summary import CheckpointSummary, PhaseSummary
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration, number, size
from dlemu.results.wording import count


def screen(summary: CheckpointSummary, folder: str) -> Screen:
    """Return what is said first of a run whose results are in a folder."""
    lines = [
        *([] if summary.complete else [Said("INCOMPLETE", f"{summary.failure}", tone="bad")]),
        *_phase(summary.write, "writes", 1e3 * (summary.ceiling_gb_per_second or 0)),
        *_phase(summary.read, "reads", 0.0),
        *_training(summary),
    ]
    if kept := summary.what.kept:
        left = f"{count(kept, 'checkpoint')}, {size(kept * summary.what.bytes)}, in {summary.what.folder}"
        lines.append(Said("kept", left))
    notes = [*summary.loud_issues, *(issue for issue in summary.issues if issue not in summary.loud_issues)]
    return Screen(title=_title(summary), lines=lines, notes=notes, folder=folder)


def _title(summary: CheckpointSummary) -> str:
    what, storage = summary.what, summary.environment.storage
    below = f" ({storage.file_system} on {storage.device.rpartition('/')[2]})" if storage and storage.device else ""
    return f"{summary.title}: {count(what.files, 'file')}, {size(what.bytes)} each, in {what.folder}{below}"


def _phase(phase: PhaseSummary | None, verb: str, ceiling_mb_per_second: float) -> Iterator[Said]:
    """Yield the rate of the slowest rank, for which training waits, with what limited it; and what would help."""
    if phase is None or phase.slowest_gib_per_second is None or phase.slowest_seconds is None:
        return
    seconds, speed = phase.slowest_seconds, rate(phase.slowest_gib_per_second.mean * 2**30 / 1e6)
    against = f"; the emulator alone can {rate(ceiling_mb_per_second)}" if ceiling_mb_per_second else ""
    if phase.from_storage_percent is not None:
        against = f"; {min(100.0, phase.from_storage_percent):.0f} % of the bytes came from storage"
    value = f"{speed} by the slowest rank, {number(seconds.mean)} s a checkpoint (at most {number(seconds.max)} s)"
    yield Said(verb, value + against, tone="strong")
    if (limit := phase.limited_by) is not None:
        advice = f"; {limit.advice[0]}" if limit.advice else ""
        yield Said("", f"limited by {limit.what}, confidence {limit.confidence}{advice}")


def _training(summary: CheckpointSummary) -> Iterator[Said]:
    cost = summary.training
    if cost is None:
        return
    best = ""
    if cost.best_interval_seconds is not None and cost.wasted_percent is not None:
        best = (
            f"; with a failure every {cost.mtbf_hours:g} h best every {duration(cost.best_interval_seconds)}, which "
            f"loses {cost.wasted_percent:.2g} %"
        )
    yield Said("costs", f"{cost.percent:.2g} % of a training that saves every {duration(cost.interval_seconds)}{best}")

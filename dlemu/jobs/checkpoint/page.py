"""What is said of a run of checkpoints on its first screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dlemu.checkpoints.stored import folder_name
from dlemu.jobs.checkpoint.summary import CheckpointSummary, PhaseSummary, metrics_of
from dlemu.jobs.checkpoint.wording import RELIEF, cost_line
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration, size
from dlemu.results.wording import count


def screen(summary: CheckpointSummary, folder: str) -> Screen:
    """Return what is said first of a run whose results are in a folder."""
    storage = summary.environment.storage
    below = f" ({storage.file_system} on {storage.device.rpartition('/')[2]})" if storage and storage.device else ""
    title = f"{summary.title}: each {size(summary.bytes)} in {count(summary.files, 'file')}, in {summary.folder}{below}"
    lines = []
    if not summary.complete:
        lines.append(Said("INCOMPLETE", summary.verdict.removeprefix("INCOMPLETE: "), tone="bad"))
    found = metrics_of(summary)
    for verb, part, phase in (("writes", "write", summary.write), ("reads", "read", summary.read)):
        known = found.get(f"{part}_slowest_gib_per_second")
        lines += _phase(phase, verb, known.half_width if known else None)
    limits = [phase.limited_by for phase in (summary.write, summary.read) if phase and phase.limited_by]
    for relief in dict.fromkeys(RELIEF[limit.what] for limit in limits if RELIEF[limit.what]):
        lines.append(Said("to do", relief))
    if summary.training is not None:
        lines.append(Said("costs", cost_line(summary.training)))
    if summary.kept:
        lines.append(Said("kept", kept_line(summary)))
    return Screen(title=title, lines=lines, notes=summary.issues, folder=folder)


def _phase(phase: PhaseSummary | None, verb: str, half_width: float | None) -> Iterator[Said]:
    """Yield the rate of the slowest rank, for which training waits, with what limited it.

    `half_width` is that of the rate's interval, in GiB/s; None where too few checkpoints tell it.
    """
    if phase is None:
        return
    gib_per_second = phase.slowest_gib_per_second
    percent = 100 * half_width / gib_per_second if half_width and gib_per_second else 0.0
    sure = f" ± {max(1.0, percent):.0f} %" if percent else ""
    each = f"{_seconds(phase.slowest_seconds)} a checkpoint"
    if len(phase.checkpoints) > 1:
        each += f", at most {_seconds(max(one.slowest_seconds for one in phase.checkpoints))}"
    if phase.from_storage_percent is not None:
        each += f"; {phase.from_storage_percent:.0f} % of the bytes came from storage"
    yield Said(verb, f"{rate(gib_per_second * 2**30 / 1e6)}{sure} by the slowest rank", each, tone="strong")
    if (limit := phase.limited_by) is not None:
        spent = {
            "in calls": phase.call_percent,
            "in fsync": phase.fsync_percent,
            "without a core": phase.cpu_wait_percent,
        }
        why = ", ".join(f"{percent:.0f} % {what}" for what, percent in spent.items() if percent >= 1)
        yield Said("", f"limited by {limit.what}, confidence {limit.confidence}: threads were {why}")


def _seconds(seconds: float) -> str:
    return f"{float(f'{seconds:.2g}'):g} s" if seconds < 100 else duration(seconds)


def kept_line(summary: CheckpointSummary) -> str:
    """Return which checkpoints a run left on the storage, and how to remove them."""
    kept, folder = summary.kept, summary.folder
    left = f"{count(len(kept), 'checkpoint')}, {size(len(kept) * summary.bytes)}, in {folder}"
    if summary.requests is not None:  # `rm` can't remove objects
        return left
    name = folder_name(kept[0]) if len(kept) == 1 else folder_name(f"{{{kept[0]}..{kept[-1]}}}")
    own = ", on each host that has some" if len(summary.environment.hosts) > 1 else ""
    return f"{left}; to remove them{own}: rm -r {shlex.quote(folder.rstrip('/'))}/{name}"

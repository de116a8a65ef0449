"""The first screen of a checkpoint run (docs/checkpoints.md shows one)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dlemu.checkpoints.stored import folder_name
from dlemu.jobs.checkpoint.summary import CheckpointSummary, PhaseSummary
from dlemu.jobs.checkpoint.wording import RELIEF, cost_line
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration, size
from dlemu.results.figures import half_width_of
from dlemu.results.wording import count


def screen(summary: CheckpointSummary, folder: str) -> Screen:
    """Return the first screen of a run whose results are in `folder`."""
    storage = summary.environment.storage
    drive = f" ({storage.file_system} on {storage.device.rpartition('/')[2]})" if storage and storage.device else ""
    title = f"{summary.title}: each {size(summary.bytes)} in {count(summary.files, 'file')}, in {summary.folder}{drive}"
    lines = []
    if not summary.complete:
        lines.append(Said("INCOMPLETE", summary.verdict.removeprefix("INCOMPLETE: "), tone="bad"))
    for verb, phase in (("writes", summary.write), ("reads", summary.read)):
        if phase is not None:
            lines += _phase(phase, verb)
    advice = [RELIEF[phase.limited_by.what] for phase in (summary.write, summary.read) if phase and phase.limited_by]
    lines += [Said("to do", text) for text in dict.fromkeys(advice) if text]
    if summary.training is not None:
        real_size = ""
        if summary.scale and summary.write is not None:
            mb_per_second = summary.write.slowest_gib_per_second * 2**30 / 1e6
            predicts = f"dlemu predict workload={summary.workload} --mb-per-second {mb_per_second:.0f}"
            real_size = f"such small ones; of real size: {predicts}"
        lines.append(Said("costs", cost_line(summary.training), real_size))
    if summary.kept:
        lines.append(Said("kept", kept_line(summary)))
    return Screen(title=title, lines=lines, notes=summary.issues, folder=folder)


def _phase(phase: PhaseSummary, verb: str) -> Iterator[Said]:
    """Yield the rate of the slowest rank, for which training waits, with what limited it."""
    gib_per_second = phase.slowest_gib_per_second
    half_width = half_width_of([one.slowest_gib_per_second for one in phase.checkpoints])
    speed = rate(gib_per_second * 2**30 / 1e6)
    if half_width and gib_per_second:
        speed += f" ± {max(1.0, 100 * half_width / gib_per_second):.0f} %"
    each = f"{_seconds(phase.slowest_seconds)} a checkpoint"
    if len(phase.checkpoints) > 1:
        each += f", at most {_seconds(max(one.slowest_seconds for one in phase.checkpoints))}"
    if phase.from_storage_percent is not None:
        each += f"; {phase.from_storage_percent:.0f} % of the bytes came from storage"
    yield Said(verb, f"{speed} by the slowest rank", each, tone="strong")
    if (limit := phase.limited_by) is None:
        return
    times = {"in calls": phase.call_percent, "in fsync": phase.fsync_percent, "without a core": phase.cpu_wait_percent}
    shares = ", ".join(f"{percent:.0f} % {where}" for where, percent in times.items() if percent >= 1)
    evidence = f": threads were {shares}" if shares else ""
    yield Said("", f"limited by {limit.what}, confidence {limit.confidence}{evidence}")


def _seconds(seconds: float) -> str:
    return f"{float(f'{seconds:.2g}'):g} s" if seconds < 100 else duration(seconds)


def kept_line(summary: CheckpointSummary) -> str:
    """Return which checkpoints a run left on the storage, and how to remove them."""
    kept, folder = summary.kept, summary.folder
    line = f"{count(len(kept), 'checkpoint')}, {size(len(kept) * summary.bytes)}, in {folder}"
    if summary.requests is not None:  # `rm` can't remove objects
        return line
    if len(kept) == 1:
        name = folder_name(kept[0])
    elif kept[-1] - kept[0] < len(kept):
        name = folder_name(f"{{{kept[0]}..{kept[-1]}}}")
    else:  # the checkpoints between them are another run's
        name = folder_name(f"{{{','.join(map(str, kept))}}}")
    return f"{line}; to remove them: rm -r {shlex.quote(folder.rstrip('/'))}/{name}"

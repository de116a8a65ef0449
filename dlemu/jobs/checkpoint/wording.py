"""The texts of a checkpoint run: verdict, findings, advice, and the first screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from dlemu.checkpoints.io_rows import IoRows
from dlemu.checkpoints.stored import folder_name, folder_of
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts
from dlemu.jobs.checkpoint.summary import Cause, Caveat, CheckpointSummary, PhaseSummary, TrainingCost
from dlemu.metrics.findings import Code, Finding
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration, size
from dlemu.results import KILLED
from dlemu.results.figures import half_width_of
from dlemu.results.wording import Wording, count, sentences

# Advice for each limit; findings add details
RELIEF: dict[Cause, str] = {
    "storage": "",
    "host CPU": "more cores",
    "emulator": "this does not judge the storage: more cores, fewer ranks or more hosts",
    "page cache": "this does not judge the storage",
}
_FINDINGS: Wording[str] = {
    Code.NO_DATA_FROM_STORAGE: "MEASURED MEMORY, NOT STORAGE: the checkpoints are on {file_system}",
    Code.PAGE_CACHE: "MEASURED MEMORY, NOT STORAGE: only {from_storage_percent:.0f} % of the bytes read came from it; "
    "{would_help}=true reads from storage",
    Code.MEASUREMENT_INCOMPLETE: "telemetry of {telemetry_of} ends early or is missing: its recorder was stopped",
    Caveat.NO_FSYNC: "checkpoint.fsync=false: writing ended when the page cache had the bytes, not the storage",
    Code.STORAGE_NOT_STEADY: "the last five checkpoints had {first_gib_per_second:.2f} GiB/s, then "
    "{last_gib_per_second:.2f}: no steady state, so write more: checkpoint.num_checkpoints_write",
    Code.EMULATOR_CEILING: "these hosts generate content at {ceiling_gb_per_second:.1f} GB/s, and "
    "{gb_per_second:.1f} GB/s were written: whether the storage can take more is unknown",
    Code.CPU_QUOTA: "the CPU limit (cgroup) held processes back in {throttled_percent:.0f} % of its periods: raise it",
    Code.NETWORK_FULL: "the busiest network link was {link_percent:.0f} % used: a faster link, or more hosts",
    Caveat.TOO_FEW_THREADS: "each thread is busy copying (now {threads}): use more of them, by {setting}",
}


def cost_line(cost: TrainingCost) -> str:
    """Return the share of training's time that checkpoints cost and, if failures are expected, the best interval."""
    line = f"{rounded(cost.percent)} % of a training that saves every {duration(cost.interval_seconds)}"
    if cost.best_interval_seconds is None:
        return line
    line += f", {rounded(cost.wasted_percent_now)} % with a failure every {rounded(cost.mtbf_hours, 3)} h"
    return f"{line}; best every {duration(cost.best_interval_seconds)}: {rounded(cost.wasted_percent)} %"


def rounded(value: float | None, digits: int = 2) -> str:
    """Return a known number with so many significant digits, and never with an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.9f}".rstrip("0").rstrip(".")


def issue_lines(findings: Sequence[Finding], notes: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the loud findings as sentences, then the notes of the plan, then the other findings."""
    loud = [finding for finding in findings if finding.severity == "loud"]
    quiet = [finding for finding in findings if finding.severity != "loud"]
    return (*sentences(loud, _FINDINGS), *notes, *sentences(quiet, _FINDINGS))


def verdict_line(write: PhaseSummary | None, read: PhaseSummary | None) -> str:
    """Return the result of a complete run as one line: the throughput of each phase."""
    lines = []
    for verb, phase in (("WRITE", write), ("READ", read)):
        if phase is not None:
            speed = f"{phase.slowest_gib_per_second:.3f} GiB/s by the slowest rank"
            limit = f", limited by: {phase.limited_by.what}" if phase.limited_by else ""
            lines.append(f"{verb}: {speed}, {phase.slowest_seconds:.2f} s per checkpoint{limit}")
    return "; ".join(lines) or "NOTHING: no checkpoint was requested"


def incomplete_line(facts: CheckpointRunFacts, files: IoRows, kept: Sequence[int]) -> str:
    """Return why a run is incomplete, what it kept, and the checkpoint in progress, of which `files` were complete."""
    settings, under_way = facts.workload.checkpoint, facts.journal.under_way
    clauses = [f"INCOMPLETE: {facts.failure}"]
    if kept:
        noun = "checkpoint" if len(kept) == 1 else "checkpoints"
        clauses.append(f"complete and kept: {noun} {', '.join(map(str, kept))}")
    elif settings.num_checkpoints_write > 0:
        clauses.append("no checkpoint is complete")
    if under_way is not None:
        verb = "written" if under_way.phase == "write" else "read"
        complete = f"{len(files)} of {facts.written.files} files, {files['bytes'].sum() / 2**30:.3f} GiB, were complete"
        clauses.append(f"checkpoint {under_way.checkpoint} was being {verb}: {complete}")
        if facts.failure == KILLED and under_way.phase == "write":
            folder = folder_of(settings.checkpoint_folder, under_way.checkpoint)
            clauses.append(f"{folder} holds it: delete it, or let the next run replace it")
    return "; ".join(clauses)


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
        scaled = "such small ones; `dlemu predict` says what those of real size cost" if summary.scale else ""
        lines.append(Said("costs", cost_line(summary.training), scaled))
    if summary.kept:
        lines.append(Said("kept", kept_line(summary)))
    return Screen(title=title, lines=lines, notes=summary.issues, folder=folder)


def _phase(phase: PhaseSummary, verb: str) -> Iterator[Said]:
    """Yield the rate of the slowest rank, for which training waits, and the limit of the phase."""
    gib_per_second = phase.slowest_gib_per_second
    half_width = half_width_of([times.slowest_gib_per_second for times in phase.checkpoints])
    speed = rate(gib_per_second * 2**30 / 1e6)
    if half_width and gib_per_second:
        speed += f" ± {max(1.0, 100 * half_width / gib_per_second):.0f} %"
    details = f"{_seconds(phase.slowest_seconds)} a checkpoint"
    if len(phase.checkpoints) > 1:
        details += f", at most {_seconds(max(times.slowest_seconds for times in phase.checkpoints))}"
    if phase.from_storage_percent is not None:
        details += f"; {phase.from_storage_percent:.0f} % of the bytes came from storage"
    yield Said(verb, f"{speed} by the slowest rank", details, tone="strong")
    if (limit := phase.limited_by) is None:
        return
    percent, state = max((phase.fsync_percent, "in fsync"), (phase.call_percent, "in calls"))
    if limit.what == "host CPU":
        percent, state = phase.cpu_wait_percent, "waiting for a core"
    elif limit.what == "emulator":
        percent, state = phase.starved_percent, "waiting for content"
    evidence = f": {percent:.0f} % of the time {state}" if percent >= 1 else ""
    yield Said("", f"limited by {limit.what}, confidence {limit.confidence}{evidence}")


def _seconds(seconds: float) -> str:
    return f"{rounded(seconds)} s" if seconds < 100 else duration(seconds)


def kept_line(summary: CheckpointSummary) -> str:
    """Return which checkpoints a run keeps on the storage, and the command that removes them."""
    kept, folder, storage = summary.kept, summary.folder, summary.environment.storage
    line = f"{count(len(kept), 'checkpoint')}, {size(len(kept) * summary.bytes)}, in {folder}"
    if storage is None or storage.total_bytes is None:  # an object store, which `rm` doesn't reach
        return line
    numbers = f"{{{kept[0]}..{kept[-1]}}}" if len(kept) > 1 else kept[0]  # the run's last ones, as a shell pattern
    return f"{line}; to remove them: rm -r {shlex.quote(folder.rstrip('/'))}/{folder_name(numbers)}"

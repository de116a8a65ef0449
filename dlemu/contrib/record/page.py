"""Shows a recorded job on the terminal and on its page. Neither names a path or a file of the user's data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from dlemu.contrib.record.answer import STEP_PARTS, VERDICTS, RecordAnswer, Recording, Replay, read_record
from dlemu.contrib.record.run import Recorded
from dlemu.report.screen import Said, Screen, print_screen
from dlemu.report.table import Section, Table, columns, print_lines, print_section
from dlemu.report.units import number, percent, size
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_SOURCES = {
    "device": "by events on the accelerator",
    "ready steps": "from steps whose batch was ready",
    "all steps": "from all steps: few batches were ready",
    "nothing": "not known",
}


_COMPARED = {
    "samples_per_second": ("samples/s", 1),
    "wait_p50": ("wait p50, ms", 1000),
    "wait_p99": ("wait p99, ms", 1000),
    "calls_per_sample": ("calls per sample", 1),
    "worker_cpu_per_sample": ("CPU of a worker per sample, ms", 1000),
}


def print_record(recorded: Recorded, console: Console, *, details: bool) -> None:
    answer = recorded.answer
    print_screen(_screen(answer, recorded.folder), console)
    print_lines([f"recipe: {recorded.recipe}"], console)
    if answer.replayable is None:
        print_lines([f"to verify it on a quiet host: {recorded.verify}"], console)
    if answer.replayable is not False:
        replay = f"dlemu train workload={shlex.quote(recorded.recipe)} dataset.data_folder=/mnt/drive/data --make"
        print_lines([f"next, on another drive: {replay}"], console)
    for section in _sections(answer, recorded.folder) if details else ():
        print_section(section, console)


def _screen(answer: RecordAnswer, folder: str) -> Screen:
    recording, facts = answer.recording, dict(_facts(answer))
    state, says = _verdict(answer)
    parts = recording.parts
    shares = ((label, 100 * getattr(parts, name) / parts.step) for name, label in STEP_PARTS.items())
    spent = ", ".join(f"{label} {share:.0f} %" for label, share in shares if share >= 1)
    lines = [
        Said(state, says, tone="good" if answer.replayable else "open"),
        Said("a step", f"{number(1000 * parts.step)} ms: {spent}"),
        Said("a sample", f"reads {facts['reads per sample']}"),
        *(Said(name, facts[name]) for name in ("dataset",) if name in facts),
    ]
    return Screen(title=_title(answer), lines=lines, notes=recording.notes, folder=folder)


def _title(answer: RecordAnswer) -> str:
    recording = answer.recording
    rate = f"{number(recording.samples_per_second)} samples/s"
    return f"A recorded job on {count(recording.ranks, 'accelerator')}, {rate}"


def _charts(answer: RecordAnswer, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.contrib.record.figures import step_parts
    from dlemu.report.figure_base import drawn

    return drawn([step_parts], answer)


def _verdict(answer: RecordAnswer) -> tuple[str, str]:
    state = VERDICTS[answer.replayable]
    if not answer.replayable:
        return state, answer.reason
    error = answer.replays[-1].error_percent(answer.recording)
    return state, f"its replay on the same storage differs by {error:+.1f} % in samples/s"


def _source(recording: Recording) -> str:
    source, added = _SOURCES[recording.computation_from], recording.hand_over_added
    if not added:
        return source
    how = "less" if added > 0 else "more"
    in_recipe = number(1000 * recording.computation.mean)
    return f"{source}; {in_recipe} in the recipe, whose replay takes {how} time to receive a batch"


def _measured_computation(recording: Recording) -> float:
    """Return the seconds that were measured; `computation` is corrected by what a replay takes to receive a batch."""
    mean = recording.computation.mean
    return mean - recording.hand_over_added if mean else 0.0  # nothing was left of it: how much there was is not kept


def _sections(answer: RecordAnswer, _: str) -> Iterator[Section]:
    recording = answer.recording
    parts, cached = recording.parts, recording.cached_percent
    who = "the workers" if recording.loading.workers else "the trainer, which reads by itself,"
    more = [f"{cached} % of the data came from memory (the page cache), not from storage"] if cached else []
    yield Table(
        title="Where a step's time goes",
        columns=columns("", "ms", "share", right=(1, 2)),
        rows=[
            (label, number(1000 * getattr(parts, name)), percent(100 * getattr(parts, name) / parts.step))
            for name, label in STEP_PARTS.items()
        ],
        notes=[f"waits are split by what {who} did meanwhile: blocked, queueing for a core, or computing", *more],
    )
    yield Table(title="What was recorded", columns=columns("", "", whole=(0,)), rows=list(_facts(answer)))
    if answer.replays:
        yield _replay_table(recording, answer.replays)


def _facts(answer: RecordAnswer) -> Iterator[tuple[str, str]]:
    recording, loading = answer.recording, answer.recording.loading
    yield (
        "batches",
        f"{recording.steps} of {recording.batch_size} samples per rank, {recording.ready_steps} of them ready",
    )
    yield "computing", f"{number(1000 * _measured_computation(recording))} ms per batch, {_source(recording)}"
    yield "the trainer's own CPU", f"{number(1000 * recording.step_cpu.mean)} ms per batch"
    if recording.gradient_accumulation_steps > 1:
        yield "gradient accumulation", f"{recording.gradient_accumulation_steps} batches per step"
    kind = "iterable" if loading.iterable else "map"
    ahead = f"{count(loading.workers, 'worker')} ({loading.start_method}), {loading.prefetch} batches ahead each"
    if recording.loaders_per_rank > 1:
        yield "loaders", f"{recording.loaders_per_rank}, a batch of each for every step; all together:"
    yield "loader", f"{kind} dataset, {ahead if loading.workers else 'read by the trainer itself'}"
    if recording.ranks_that_read == "first":
        yield "who reads", "rank 0, for all ranks"
    yield "CPU of a worker", f"{number(1000 * recording.worker_cpu_per_sample)} ms per sample"
    read, device = recording.read_bytes_per_sample, size(round(recording.device_bytes_per_sample))
    device = "an unknown number" if recording.cached_percent is None else device
    how = f"{number(recording.calls_per_sample)} calls, {size(round(read))}" if read else "from mapped files"
    yield "reads per sample", f"{how}; {device} from devices" if read or recording.mapped else "none while it trains"
    if loading.iterable and recording.fill_bytes > read * recording.read_batch_size:
        yield "before the first batch", f"each worker reads {size(recording.fill_bytes)} more: it fills a buffer"
    if answer.data is not None:
        data = answer.data
        samples = f"{number(data.samples_per_file)} samples each"
        if (files := recording.files_per_sample) > 1:
            samples = f"{files} for each sample"
        yield "dataset", f"{count(data.files, 'file')} ({data.format}), {size(data.bytes)}, {samples}"
    if recording.saves is not None:
        saves = recording.saves
        yield "checkpoints", f"{saves.count} of {size(saves.bytes)}, {number(saves.seconds)} s each"
    if recording.evaluations:
        yield "left out", f"{recording.evaluations} passes that do not train"
    yield "reads that were seen", percent(recording.coverage_percent)
    yield (
        "host",
        f"{recording.cores} cores, {recording.memory_gib:g} GiB, torch {recording.torch}, Python {recording.python}",
    )


def _replay_table(recording: Recording, replays: tuple[Replay, ...]) -> Table:
    measured: Sequence[Recording | Replay] = (recording, *replays)
    rows = [
        (label, *(number(factor * getattr(one, name)) for one in measured))
        for name, (label, factor) in _COMPARED.items()
    ]
    if recording.cached_percent is not None:
        shown = (f"{one.device_bytes_per_sample:,.0f}" for one in measured)
        rows.append(("bytes from devices per sample", *shown))
    names = ("recorded", *(f"{one.folder} ({one.engine})" for one in replays))
    return Table(
        title="Recorded and replayed on the same storage",
        columns=columns("", *names, right=range(1, len(names) + 1)),
        rows=rows,
        notes=["the last replay decides whether the recipe is replayable"],
    )


PARTS = Parts(read=read_record, answer_type=RecordAnswer, screen=_screen, sections=_sections, charts=_charts)

"""Shows a recorded job on the terminal and on its page; neither names a path of the user's data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Console

from dlemu.contrib.record.answer import VERDICTS, JobRun, RecordAnswer
from dlemu.contrib.record.run import Recorded
from dlemu.extend import cache
from dlemu.report.any_run import item_table, keys_of
from dlemu.report.screen import Said, Screen, print_screen
from dlemu.report.table import Table, print_lines
from dlemu.report.units import number, size
from dlemu.results.kinds import Parts
from dlemu.results.wording import count


def print_record(recorded: Recorded, console: Console) -> None:
    answer = recorded.answer
    print_screen(_screen(answer, recorded.folder), console)
    lines = [f"recipe: {recorded.recipe}"]
    if answer.replayable is None:
        lines.append(f"to verify it on a quiet host: {recorded.verify}")
    if answer.replayable is not False:
        evicts = cache.eviction(answer.data.format if answer.data else "")
        settings = f"dataset.data_folder=/mnt/drive/data --make {evicts}"
        lines.append(f"next, on another drive: dlemu train workload={shlex.quote(recorded.recipe)} {settings}")
    print_lines(lines, console)


def _screen(answer: RecordAnswer, folder: str) -> Screen:
    recording, data, reason = answer.recording, answer.data, answer.reason
    if answer.replayable:
        error = answer.replays[-1].error_percent(recording)
        reason = f"its replay on the same storage differs by {error:+.1f} % in samples/s"
    step = recording.parts.step
    waits = [(100 * seconds / step, name) for name, seconds in vars(recording.parts).items() if name != "computing"]
    causes = ", ".join(f"{name.replace('_', ' ')} {share:.0f} %" for share, name in waits if share >= 1)
    waited = f"{sum(share for share, _ in waits):.0f} % of a step of {number(1000 * step)} ms: {causes or 'none'}"
    advice = "more free cores, lighter preprocessing or smaller batches: faster storage would not help"
    if max(waits)[1] == "storage":
        advice = "faster storage, or more read ahead (num_workers, prefetch_factor)"
    lines = [Said("waits", waited, tone="strong")]
    if causes:
        lines.append(Said("to do", advice, tone="strong"))
    verdict = Said("replay", f"{VERDICTS[answer.replayable]} {reason}", tone="good" if answer.replayable else "open")
    lines += [Said("a sample", _reads(recording)), verdict]
    if data is not None:
        files = f"{count(data.files, 'file')} ({data.format}), {size(data.bytes)}"
        lines.append(Said("dataset", f"{files}, {number(data.samples_per_file)} samples each"))
    rate = f"{number(recording.samples_per_second)} samples/s"
    title = f"A recorded job on {count(recording.ranks, 'accelerator')}, {rate}"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


def _reads(recording: JobRun) -> str:
    read, device = recording.read_bytes_per_sample, recording.device_bytes_per_sample
    if not read and not recording.mapped:
        return "reads none while it trains"
    how = f"{number(recording.calls_per_sample)} calls, {size(round(read))}" if read else "from mapped files"
    device_bytes = size(round(device)) if device or recording.device_bytes_counted else "an unknown number"
    return f"reads {how}; {device_bytes} from devices"


def _sections(answer: RecordAnswer, _: str) -> Iterator[Table]:
    yield from keys_of("What was recorded", answer.recording)
    if answer.replays:  # the last one decides whether the recipe is replayable
        yield from item_table("Replays on the same storage", answer.replays)


PARTS = Parts(answer_type=RecordAnswer, screen=_screen, sections=_sections)

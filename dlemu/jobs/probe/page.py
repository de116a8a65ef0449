"""The result of a probe as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console

from dlemu.jobs.probe.result import Fed, ProbeAnswer, ProbeCell
from dlemu.jobs.probe.run import read_probe, read_rates
from dlemu.metrics.cache import IN_MEMORY
from dlemu.report.page import Opened, Page, Words
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Cell, Line, Table, columns, print_lines, print_table
from dlemu.report.units import number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

_SHOWN_FEEDS = 2


def size_name(size_bytes: int) -> str:
    """Return a size as fio writes it: 4k, 128k, 1m; sizes that are no multiple of 1 KiB as a fraction of KiB."""
    if size_bytes % (1 << 20) == 0:
        return f"{size_bytes >> 20}m"
    return f"{size_bytes >> 10}k" if size_bytes % 1024 == 0 else f"{size_bytes / 1024:.4g} KiB"


def print_probe(answer: ProbeAnswer, folder: str, console: Console) -> None:
    """Print a table of the cells, and all notes."""
    print_table(_cells_table(answer), console)
    print_lines([*_notes(answer), *(_feeds(fed) for fed in answer.feeds), f"results: {folder}"], console, wrap=True)


def _screen(answer: ProbeAnswer, folder: str) -> Screen:
    """Return each access's cells with the most bytes and the most requests/s, and the accelerators it would feed."""
    most = {}
    for cell in sorted(answer.cells, key=lambda cell: cell.mb_per_second):
        most[cell.access, "bytes"] = cell
    for cell in sorted(answer.cells, key=lambda cell: cell.iops):
        most[cell.access, "requests"] = cell
    cells = dict.fromkeys(most[key] for key in sorted(most))
    lines = [Said(cell.access, _speed(answer, cell), tone="strong") for cell in cells]
    lines += [Said("feeds", _feeds(fed)) for fed in answer.feeds[:_SHOWN_FEEDS]]
    notes = [note.text.removeprefix("- ") for note in _notes(answer) if isinstance(note, Line)]
    return Screen(title=f"{_title(answer)}: {answer.question.target}", lines=lines, notes=notes, folder=folder)


def _speed(answer: ProbeAnswer, cell: ProbeCell) -> str:
    many = count(cell.jobs, "reader") if answer.question.workload else f"{cell.in_flight} in flight"
    latency = f", {number(cell.latency_ms.mean)} ms each" if cell.latency_ms else ""
    return f"{rate(cell.mb_per_second)}, {cell.iops:,.0f} /s of {size_name(cell.size_bytes)}{latency} ({many})"


def probe_page(answer: ProbeAnswer, source: str) -> Page:
    """Return the HTML page of a probe."""
    sections = []
    if answer.feeds:
        sections.append(Words("Accelerators fed: rate / (threshold x demand)", [_feeds(fed) for fed in answer.feeds]))
    if notes := [note.text if isinstance(note, Line) else note for note in _notes(answer)]:
        sections.append(Words("How it was measured", notes))
    tables = [_cells_table(answer)]
    if any(cell.power for cell in answer.cells):
        tables.append(_power_table(answer))
    return Page(
        title=_title(answer),
        lead=f"{answer.started_at}. {answer.question.target}.",
        state="open",
        verdict=("", _title(answer)),
        said=_screen(answer, "").lines,
        words=sections,
        tables=tables,
        source=source,
    )


def axis_title(answer: ProbeAnswer) -> str:
    """Return the title of the x axis of a probe's figures."""
    return "readers" if answer.question.workload else "requests in flight"


def cell_line(answer: ProbeAnswer, cell: ProbeCell) -> str:
    """Return the name of the line that a cell is on: access and size, and jobs if both jobs and depth vary."""
    if answer.question.workload:
        return answer.question.workload
    varied = len({other.depth for other in answer.cells}) > 1 and len({other.jobs for other in answer.cells}) > 1
    return f"{cell.access} {size_name(cell.size_bytes)}" + (f", {count(cell.jobs, 'job')}" if varied else "")


def _title(answer: ProbeAnswer) -> str:
    question = answer.question
    what = f"{question.workload}'s own reads" if question.workload else question.preset or "requests"
    return f"Probe: {what} on {answer.host.host}"


def _notes(answer: ProbeAnswer) -> Iterator[Cell]:
    note = f" ({answer.engine_note})" if answer.engine_note else ""
    engines = {
        "fio": f"{answer.extra.get('fio', 'fio')}, libaio, direct",
        "threads": "dlemu's own requests by threads, direct",
        "batches": "a loader's readers, each sample once",
        "s3": "dlemu's S3 client, GET of ranges, one connection per request in flight",
    }
    yield f"measured by {engines[answer.engine]}{note}; through host memory"
    if not any(cell.power for cell in answer.cells):
        yield "no power meter was found, so there is no GB/s per watt"
    storage = answer.storage
    if storage is not None and storage.file_system in IN_MEMORY:
        yield Line(f"- {storage.folder} is {storage.file_system}, which is memory: no storage was measured", "caution")
    yield from (Line(f"- {issue}", "caution") for issue in answer.issues)


def _feeds(fed: Fed) -> str:
    return (
        f"{fed.accelerators} x {fed.kind}: each needs "
        f"{number(fed.threshold_percent / 100 * fed.mb_per_second_each)} MB/s at {fed.threshold_percent:g} %"
    )


def _cells_table(answer: ProbeAnswer) -> Table:
    gets = any(cell.first_byte_ms for cell in answer.cells)

    def row(cell: ProbeCell) -> tuple[Cell, ...]:
        latency, first = cell.latency_ms, cell.first_byte_ms
        return (
            cell.access if not answer.question.workload else "batches",
            size_name(cell.size_bytes),
            str(cell.jobs),
            str(cell.depth),
            number(cell.mb_per_second),
            f"{cell.iops:,.0f}",
            *(
                (number(value) for value in (latency.mean, latency.p50, latency.p99, latency.p999))
                if latency
                else "----"
            ),
            number(cell.cpu_seconds_per_gb),
            *((number(first.p50), number(first.p99)) if first else "--" if gets else ""),
        )

    names: tuple[str, ...] = (
        "access",
        "size",
        "jobs",
        "depth",
        "MB/s",
        "/s",
        "mean\nms",
        "p50",
        "p99",
        "p99.9",
        "CPU\ns/GB",
    )
    names = (*names, "first byte\np50 ms", "p99") if gets else names
    head = columns(*names, right=range(1, len(names)), whole=range(len(names)))
    return Table(title=_title(answer), columns=head, rows=[row(cell) for cell in answer.cells])


def _power_table(answer: ProbeAnswer) -> Table:
    rows = [
        (
            cell_line(answer, cell),
            str(cell.in_flight),
            meter.source,
            number(meter.watts),
            number(1 / meter.gb_per_second_per_watt),
            number(meter.gb_per_second_per_watt),
        )
        for cell in answer.cells
        for meter in cell.power
    ]
    head = columns("cell", "in flight", "meter", "W", "J/GB", "GB/s per W", right=(1, 3, 4, 5))
    return Table(title="Power", columns=head, rows=rows)


def open_page(folder: str) -> Opened:
    """Return the probe in a folder with its page; raises UserError."""
    answer = read_probe(folder)
    assert answer is not None  # the folder is known by its file
    return Opened(answer, probe_page(answer, os.path.basename(os.path.abspath(folder))), "dlemu.jobs.probe.figures")


PARTS = Parts(
    read=read_probe, answer_type=ProbeAnswer, open_page=open_page, rates=read_rates, screen=_screen, show=print_probe
)

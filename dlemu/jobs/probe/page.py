"""The result of a probe as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.probe.result import Fed, ProbeAnswer, ProbeCell, cell_line, size_name
from dlemu.jobs.probe.run import read_probe, read_rates
from dlemu.metrics.cache import IN_MEMORY
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Cell, Section, Table, Words, columns
from dlemu.report.units import number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Canvas, Figure

_SHOWN_FEEDS = 2


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
    notes = [*_memory(answer), *answer.issues]
    return Screen(title=f"{_title(answer)}: {answer.question.target}", lines=lines, notes=notes, folder=folder)


def _speed(answer: ProbeAnswer, cell: ProbeCell) -> str:
    many = count(cell.jobs, "reader") if answer.question.workload else f"{cell.in_flight} in flight"
    latency = f", {number(cell.latency_ms.mean)} ms each" if cell.latency_ms else ""
    return f"{rate(cell.mb_per_second)}, {cell.iops:,.0f} /s of {size_name(cell.size_bytes)}{latency} ({many})"


def _sections(answer: ProbeAnswer, _: str) -> Iterator[Section]:
    if answer.feeds:
        yield Words("Accelerators fed: rate / (threshold x demand)", [_feeds(fed) for fed in answer.feeds])
    yield _cells_table(answer)
    if any(cell.power for cell in answer.cells):
        yield _power_table(answer)
    yield Words("How it was measured", list(_method(answer)))


def _charts(answer: ProbeAnswer, folder: str, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.probe.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, answer, canvas)


def _title(answer: ProbeAnswer) -> str:
    question = answer.question
    what = f"{question.workload}'s own reads" if question.workload else question.preset or "requests"
    return f"Probe: {what} on {answer.host.host}"


def _method(answer: ProbeAnswer) -> Iterator[str]:
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


def _memory(answer: ProbeAnswer) -> Iterator[str]:
    storage = answer.storage
    if storage is not None and storage.file_system in IN_MEMORY:
        yield f"{storage.folder} is {storage.file_system}, which is memory: no storage was measured"


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


PARTS = Parts(
    read=read_probe,
    answer_type=ProbeAnswer,
    screen=_screen,
    sections=_sections,
    charts=_charts,
    rates=read_rates,
)

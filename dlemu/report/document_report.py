"""A vendor's document made again: its tables, for the terminal and for its page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from datagen.errors import UserError
from dlemu.packing.pack_answer import PackPoint
from dlemu.probing.probe_answers import ProbeAnswer
from dlemu.probing.run_probe import read_probe
from dlemu.report.pack_report import OpenedPack, open_pack
from dlemu.report.page import Page, Words
from dlemu.report.table import Cell, Table, columns, print_lines, print_table
from dlemu.report.units import short_names
from dlemu.reproduction.run_steps import REPRODUCED, Reproduced
from dlemu.results.answer_files import read_answer
from dlemu.results.folder import read_run
from dlemu.results.run import Run
from dlemu.sizing.answers import SWEEP, RunFigures, SweepAnswer
from dlemu.sizing.compare_sides import PLANNED_EPOCHS, YEAR_DAYS, YEAR_HOURS

METRICS: dict[str, Callable[[RunFigures], float | None]] = {
    "accelerator utilisation, %": lambda figures: figures.au_percent.mean if figures.au_percent else None,
    "samples/s": lambda figures: figures.samples_per_second.mean if figures.samples_per_second else None,
    "average I/O throughput, MB/s": lambda figures: (
        figures.device_mb_per_second.mean if figures.device_mb_per_second else None
    ),
    "maximum I/O throughput, MB/s": lambda figures: figures.max_device_mb_per_second,
    "average read latency, ms": lambda figures: figures.mean_device_read_latency_ms,
    "total training time, s": lambda figures: figures.total_seconds,
}
"""KIOXIA's six, with the units of their axes."""
_READERS: dict[str, Callable[[str], Any]] = {
    "train": read_run,
    "sweep": lambda folder: read_answer(folder, SWEEP, SweepAnswer),
    "pack": open_pack,
    "probe": read_probe,
}
_CUT = (
    "scale=laptop: datasets and times are cut so that this takes minutes. The figures show the document's shape on "
    "this storage, not its numbers; scale=full has its sizes."
)


@dataclass(frozen=True)
class OpenedDocument:
    """A document with the results of its steps."""

    folder: str
    answer: Reproduced
    results: dict[str, Any]
    """By the steps' names; those that make data have none."""

    @property
    def document(self) -> str:
        """Return its name."""
        return self.answer.question.document

    @property
    def drives(self) -> list[str]:
        """Return what the drives are called: the parts in which their folders differ."""
        drives = self.answer.question.drives
        names = short_names(drives)
        return [names[drive] for drive in drives]

    def sweep_figures(self, name: str = "sweep") -> Iterator[tuple[str, RunFigures]]:
        """Yield drive and figures of each point of a sweep that ran."""
        swept: SweepAnswer | None = self.results.get(name)
        for point in swept.points if swept is not None else ():
            if point.figures is not None:
                yield self.drive_of(point.settings.get("dataset.data_folder")), point.figures

    def drive_of(self, data_folder: str | None) -> str:
        """Return the drive on which a folder lies; the first one where nothing is said."""
        for drive, name in zip(self.answer.question.drives, self.drives, strict=True):
            if data_folder is not None and os.path.dirname(data_folder) == drive:
                return name
        return self.drives[0]

    def probes(self) -> Iterator[tuple[str, ProbeAnswer]]:
        """Yield drive and probe of each."""
        for number, drive in enumerate(self.drives, start=1):
            probed = self.results.get(f"probe-{number}")
            if probed is not None:
                yield drive, probed

    def packing(self, name: str) -> OpenedPack | None:
        """Return a packing."""
        packed: OpenedPack | None = self.results.get(name)
        return packed

    def run(self, name: str) -> Run | None:
        """Return a run."""
        run: Run | None = self.results.get(name)
        return run

    def watts(self, drive: str) -> float | None:
        """Return the power that the user gave for a drive."""
        given = self.answer.question.watts
        return given[self.drives.index(drive)] if given else None


def open_document(folder: str) -> OpenedDocument:
    """Read a document and what its steps left; raises UserError."""
    answer = read_answer(folder, REPRODUCED, Reproduced)
    if answer is None:
        raise UserError(f"{folder} has no {REPRODUCED}")
    steps = [step for step in answer.steps if step.command in _READERS]
    return OpenedDocument(
        folder, answer, {step.name: _READERS[step.command](os.path.join(folder, step.place)) for step in steps}
    )


def print_document(answer: Reproduced, folder: str, console: Console) -> None:
    """Print a document's tables."""
    opened = open_document(folder)
    for table in _tables(opened):
        print_table(table, console)
    notes: list[Cell] = [_CUT] if answer.question.laptop else []
    print_lines([*notes, f"results: {folder}"], console)


def document_page(opened: OpenedDocument) -> Page:
    """Return what stands on a document's page, but for its figures."""
    answer = opened.answer
    commands = [" ".join(["dlemu", step.command, *step.words]) for step in answer.steps]
    drives = ", ".join(f"{name}: {path}" for name, path in zip(opened.drives, answer.question.drives, strict=True))
    return Page(
        title=answer.title,
        lead=f"{answer.about} Here: {drives}.",
        state="passed" if answer.complete else "open",
        verdict=("MADE AGAIN", f" on {len(opened.drives)} storage{'s' * (len(opened.drives) != 1)}"),
        words=[Words("How", commands)],
        tables=list(_tables(opened)),
        source=os.path.join(opened.folder, REPRODUCED),
        warning=_CUT if answer.question.laptop else "",
    )


def _tables(opened: OpenedDocument) -> Iterator[Table]:
    makers = {
        "kioxia": _kioxia,
        "micron-9400": _micron_9400,
        "amax": _amax,
        "colfax": _colfax,
        "micron-6550": _micron_6550,
    }
    if opened.document not in makers:
        raise UserError(f"{opened.folder} is of a document {opened.document!r}, wanted one of {', '.join(makers)}")
    yield from makers[opened.document](opened)


def _table(title: str, names: list[str], rows: list[list[str]], notes: tuple[str, ...] = ()) -> Table:
    head = columns(*names, right=range(1, len(names)), whole=range(len(names)))
    return Table(title=title, columns=head, rows=rows, notes=notes, dense=len(names) > 6)


def _digits(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _kioxia(opened: OpenedDocument) -> Iterator[Table]:
    """Yield each of the six metrics by accelerators, and what they come to in a year."""
    known = {(drive, figures.ranks): figures for drive, figures in opened.sweep_figures()}
    counts = sorted({count for _, count in known})
    if not counts:
        return
    rows = []
    for title, value in METRICS.items():
        for drive in opened.drives:
            found = [known.get((drive, count)) for count in counts]
            rows.append([f"{title}, {drive}", *(_digits(value(one) if one else None, 2) for one in found)])
    yield _table("Six metrics by accelerators", ["", *map(str, counts)], rows)
    if len(opened.drives) == 2:
        yield _time_saved(opened, known, counts)


def _time_saved(opened: OpenedDocument, known: dict[tuple[str, int], RunFigures], counts: list[int]) -> Table:
    first, second = opened.drives
    rows = []
    for count in counts:
        pair = [known.get((drive, count)) for drive in (first, second)]
        times = [one.total_seconds / one.epochs if one and one.total_seconds else None for one in pair]
        a, b = times
        if a is None or b is None:
            continue
        hours = [PLANNED_EPOCHS * seconds / 3600 for seconds in (a, b)]
        rows.append(
            [
                str(count),
                f"{100 * (1 - a / b):+.1f}",
                f"{YEAR_DAYS * (1 - a / b):+.1f}",
                *(f"{hour:,.2f}" for hour in hours),
                *(f"{YEAR_HOURS / hour:,.0f}" for hour in hours),
            ]
        )
    names = ["accelerators", f"{first} faster, %", "days saved a year"]
    names += [f"hours of {PLANNED_EPOCHS} epochs, {drive}" for drive in (first, second)]
    names += [f"models a year, {drive}" for drive in (first, second)]
    return _table("Time saved", names, rows)


def _micron_9400(opened: OpenedDocument) -> Iterator[Table]:
    rows = []
    for name, result in opened.results.items():
        run: Run = result
        depths = run.device_series("block", "mean_queue_depth")
        deepest = max((float(series.values.max()) for series in depths if len(series.values)), default=None)
        metrics = run.summary.metrics
        mean = metrics.device_mb_per_second.mean if metrics.device_mb_per_second else None
        rows.append(
            [
                name.removeprefix("ranks-"),
                _digits(run.summary.au.mean if run.summary.au else None, 2),
                _digits(mean * 1e6 / 2**20 if mean is not None else None),
                _digits(_most_mib(run)),
                _digits(deepest),
            ]
        )
    names = ["accelerators", "AU, %", "mean MiB/s", "largest MiB/s", "largest mean depth"]
    yield _table("One accelerator and fifteen", names, rows)


def _most_mib(run: Run) -> float | None:
    series = run.device_series("block", "read_mb_per_second")
    return max((float(one.values.max()) * 1e6 / 2**20 for one in series if len(one.values)), default=None)


def _amax(opened: OpenedDocument) -> Iterator[Table]:
    epochs = {(drive, figures.ranks): figures.total_seconds for drive, figures in opened.sweep_figures()}
    counts = sorted({count for _, count in epochs})
    cells = {drive: probed.best for drive, probed in opened.probes()}
    question = opened.answer.question
    rows = []
    for number, drive in enumerate(opened.drives):
        cell, capacity = cells.get(drive), opened.answer.capacity_tb[number]
        price = question.price[number] if question.price else None
        rows.append(
            [
                drive,
                *(_digits(epochs.get((drive, count))) for count in counts),
                _digits(cell.mb_per_second if cell else None),
                _digits(cell.iops if cell else None, 0),
                _digits(cell.latency_ms.mean if cell and cell.latency_ms else None, 2),
                _digits(price / capacity if price is not None and capacity else None),
            ]
        )
    first = [f"first epoch, s ({count} accelerator{'s' * (count != 1)})" for count in counts]
    names = ["storage", *first, "random reads 128 KiB, MB/s", "IOPS", "mean latency, ms", "price of a TB"]
    engines = {probed.engine for _, probed in opened.probes()}
    notes = [f"Random reads: {', '.join(sorted(engines))}, depth 32, past the page cache."] if engines else []
    if question.price:
        notes.append("Price of a TB: --price by the size of the file system.")
    yield _table("Tables 3 and 4", names, rows, tuple(notes))


def _colfax(opened: OpenedDocument) -> Iterator[Table]:
    for name in ("table-2", "table-3", "table-4"):
        packed = opened.packing(name)
        if packed is None:
            continue
        axis = "images" if name == "table-4" else "processes"
        known = {(_pack_drive(opened, point), int(point.settings[axis])): figures for point, figures in packed.known}
        places = sorted({place for _, place in known})
        names = [axis]
        for drive in opened.drives:
            names += [f"{drive}, MB/s", f"{drive}, s"]
        rows = []
        for place in places:
            row = [str(place)]
            for drive in opened.drives:
                figures = known.get((drive, place))
                row.append(_digits(figures.read_mb_per_second if figures else None))
                row.append(_digits(figures.seconds if figures else None, 2))
            rows.append(row)
        yield _table(name.replace("-", " ").capitalize(), names, rows)


def _pack_drive(opened: OpenedDocument, point: PackPoint) -> str:
    return opened.drive_of(point.settings.get("dataset.data_folder"))


def _micron_6550(opened: OpenedDocument) -> Iterator[Table]:
    for drive, probed in opened.probes():
        sizes = sorted({cell.size_bytes for cell in probed.cells})
        rows = []
        for workers in sorted({cell.in_flight for cell in probed.cells}):
            row = [str(workers)]
            for size in sizes:
                cells = [cell for cell in probed.cells if (cell.size_bytes, cell.in_flight) == (size, workers)]
                row.append(_digits(cells[0].mb_per_second / 1000 if cells else None, 3))
                watts = watts_of(opened, drive, cells[0]) if cells else None
                row.append(_digits(cells[0].mb_per_second / 1000 / watts if watts else None, 4))
            rows.append(row)
        names = ["workers"]
        for size in sizes:
            names += [f"{size >> 10} KiB, GB/s", "GB/s/W"]
        yield _table(f"Transfers by workers, {drive}", names, rows, (f"Requests by {probed.engine}.",))


def watts_of(opened: OpenedDocument, drive: str, cell: Any) -> float | None:
    """Return the power while a cell was measured: as the user gave it, else of the first meter; None without either."""
    given = opened.watts(drive)
    if given is not None:
        return given
    watts: float | None = cell.power[0].watts if cell.power else None
    return watts

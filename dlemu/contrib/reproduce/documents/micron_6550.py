"""Micron: 6550 ION with gdsio: transfers of four sizes by up to 512 workers, in GB/s and GB/s per watt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.opened import OpenedDocument, digits, table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step
from dlemu.report.table import Table

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.jobs.probe.result import ProbeCell
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "Micron 6550: transfer sizes by workers"
ABOUT = (
    "Their figures: GB/s and GB/s per watt of 4, 16, 128 and 1024 KiB by 1 to 512 workers with one request each, "
    "random reads with O_DIRECT. Theirs went straight into GPU memory; these go through the host's."
)


def steps(question: DocumentQuestion) -> list[Step]:
    """Return a probe of each drive."""
    cut = ("--seconds", "1", "--file-size", "2g") if question.laptop else ("--seconds", "30", "--file-size", "512g")
    return [
        Step(
            name=f"probe-{number}",
            command="probe",
            words=(drive, "--preset", "micron-6550", *cut),
            says=f"transfers of {drive}",
        )
        for number, drive in enumerate(question.drives, start=1)
    ]


def tables(opened: OpenedDocument) -> Iterator[Table]:
    for drive, probed in opened.probes():
        sizes = sorted({cell.size_bytes for cell in probed.cells})
        rows = []
        for workers in sorted({cell.in_flight for cell in probed.cells}):
            row = [str(workers)]
            for size in sizes:
                cells = [cell for cell in probed.cells if (cell.size_bytes, cell.in_flight) == (size, workers)]
                row.append(digits(cells[0].mb_per_second / 1000 if cells else None, 3))
                watts = _watts(opened, drive, cells[0]) if cells else None
                row.append(digits(cells[0].mb_per_second / 1000 / watts if watts else None, 4))
            rows.append(row)
        names = ["workers"]
        for size in sizes:
            names += [f"{size >> 10} KiB, GB/s", "GB/s/W"]
        yield table(f"Transfers by workers, {drive}", names, rows, (f"Requests by {probed.engine}.",))


def _watts(opened: OpenedDocument, drive: str, cell: ProbeCell) -> float | None:
    """Return the power while a cell was measured: as the user gave it, else of the first meter; None without either."""
    given = opened.watts(drive)
    if given is not None:
        return given
    watts: float | None = cell.power[0].watts if cell.power else None
    return watts


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield GB/s and GB/s per watt by workers, for each transfer size."""
    from dlemu.contrib.reproduce.figures._panels import grid, lines
    from dlemu.report.figure_base import Figure

    cells = [(drive, cell) for drive, probed in opened.probes() for cell in probed.cells]
    panels = []
    for size in sorted({cell.size_bytes for _, cell in cells}):
        own = [(drive, cell, cell.mb_per_second / 1000) for drive, cell in cells if cell.size_bytes == size]
        known = [(drive, cell, rate / watts) for drive, cell, rate in own if (watts := _watts(opened, drive, cell))]
        for values, unit in ((own, "GB/s"), (known, "GB/s per watt")):
            rows = [{"at": cell.in_flight, "drive": drive, "value": value} for drive, cell, value in values]
            if rows:
                panels.append(lines(rows, "workers", f"{unit}, {size >> 10} KiB", opened.drives, canvas))
    if panels:
        says = "Random reads with O_DIRECT into the host's memory, one request of each worker at a time."
        if not any(_watts(opened, drive, cell) for drive, cell in cells):
            says += " No power meter was found: --watts gives GB/s per watt."
        yield "micron_6550_rates", Figure("Transfer sizes by workers", says, grid(panels, canvas))

"""Micron: 6550 ION with gdsio: transfers of four sizes by up to 512 workers, in GB/s and GB/s per watt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.page import OpenedDocument, Panel, panel_table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step, probes
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
    return probes(question, "micron-6550", laptop=(1, "2g"), full=(30, "512g"))


def _panels(opened: OpenedDocument) -> list[Panel]:
    """Return GB/s and GB/s per watt by workers, for each transfer size."""
    cells = [(drive, cell) for drive, probe in opened.probes() for cell in probe.cells]
    panels = []
    for size in sorted({cell.size_bytes for _, cell in cells}):
        own = [(drive, cell) for drive, cell in cells if cell.size_bytes == size]
        rates = {(drive, cell.in_flight): cell.mb_per_second / 1000 for drive, cell in own}
        per_watt = {
            (drive, cell.in_flight): cell.mb_per_second / 1000 / watts
            for drive, cell in own
            if (watts := _watts(opened, drive, cell)) is not None
        }
        panels.append(Panel(f"GB/s, {size >> 10} KiB", "workers", rates))
        panels.append(Panel(f"GB/s per watt, {size >> 10} KiB", "workers", per_watt))
    return panels


def _watts(opened: OpenedDocument, drive: str, cell: ProbeCell) -> float | None:
    """Return the power while a cell was measured: as the user gave it, else of the first meter; None without either."""
    given = opened.answer.question.watts
    if given:
        return given[opened.drives.index(drive)]
    return cell.power[0].watts if cell.power else None


def tables(opened: OpenedDocument) -> Iterator[Table]:
    panels = _panels(opened)
    for drive, probe in opened.probes():
        yield panel_table(f"Transfers by workers, {drive}, by {probe.engine}", panels, [drive])


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield GB/s and GB/s per watt by workers, for each transfer size."""
    from dlemu.contrib.reproduce.figures._panels import grid

    panels = _panels(opened)
    says = "Random reads with O_DIRECT into the host's memory, one request of each worker at a time."
    if not any(panel.values for panel in panels[1::2]):
        says += " No power meter was found: --watts gives GB/s per watt."
    title = "Transfer sizes by workers"
    yield from grid("micron_6550_rates", title, says, panels, opened, canvas, lines=True)

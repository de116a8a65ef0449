"""Colfax: large images read, rescaled and appended to TFRecord files by 1 to 100 processes, an SSD and a hard disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.page import OpenedDocument, Panel, panel_table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step, datagen, scaled
from dlemu.report.table import Table

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "Colfax: packing large images"
ABOUT = (
    "Their tables 2 to 4 and the figures of them: MB/s and seconds by processes, by processes around the best count, "
    "and by images."
)
_LAPTOP = {
    "table-2": "processes=1,2,3,4,6,8,12,16",
    "table-3": "processes=6,7,8,9,10",
    "table-4": "images=1,2,4,8,16,32,64,128,256",
}
_FULL = {
    "table-2": "processes=1,2,3,4,6,8,10,14,18,22,26,30,40,50,60,70,80,90,100",
    "table-3": "processes=91,92,93,94,95,96,97,98,99",
    "table-4": "images=1,2,4,8,16,32,64,128,256,512,1000",
}
_PROCESSES = {"laptop": 8, "full": 96}
"""Processes of table 4, by scale."""
_TITLES = {
    "table-2": "Table 2: MB/s and seconds by processes",
    "table-3": "Table 3: MB/s and seconds around the best count of processes",
    "table-4": "Table 4: MB/s and seconds by images",
}


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the steps: images on each drive, and a packing (`dlemu pack`) for each table."""
    data = scaled(question, "workload=colfax")
    folders = ",".join(question.folders("colfax"))
    made = datagen(question, "colfax", data)
    for name, axis in (_LAPTOP if question.laptop else _FULL).items():
        words = [*data, "resize=256x256", f"drives={folders}", axis]
        words += [f"processes={_PROCESSES[question.scale]}", "images_per_file=1"] if name == "table-4" else []
        says = f"{name.replace('-', ' ')}: packing with {axis}"
        made.append(Step(name=name, command="pack", words=tuple(words), says=says))
    return made


def _panels(opened: OpenedDocument) -> Iterator[tuple[str, list[Panel]]]:
    """Yield each table's name, with MB/s and seconds over what it varies."""
    for name in _TITLES:
        packing = opened.results.get(name)
        axis = "images" if name == "table-4" else "processes"
        known = {
            (opened.drive_of(point.settings), int(point.settings[axis])): point.figures
            for point in (packing.points if packing is not None else ())
            if point.figures is not None
        }
        if known:
            rates = {place: figures.read_mb_per_second for place, figures in known.items()}
            seconds = {place: figures.seconds for place, figures in known.items()}
            yield name, [Panel("MB/s", axis, rates), Panel("s", axis, seconds)]


def tables(opened: OpenedDocument) -> Iterator[Table]:
    for name, panels in _panels(opened):
        yield panel_table(name.replace("-", " ").capitalize(), panels, opened.drives)


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield each table as a figure."""
    from dlemu.contrib.reproduce.figures._panels import grid

    says = "Bytes of the images' files (1e6) by the time until the last packed byte was on the device."
    for name, panels in _panels(opened):
        figure_name = f"colfax_{name.replace('-', '_')}"
        yield from grid(figure_name, _TITLES[name], says, panels, opened, canvas, lines=True)

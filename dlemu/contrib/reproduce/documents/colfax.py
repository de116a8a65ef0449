"""Colfax: large images read, rescaled and appended to TFRecord files by 1 to 100 processes, an SSD and a hard disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from datagen.registry import find
from dlemu.contrib.reproduce.opened import OpenedDocument, digits, table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step, datagen, scaled
from dlemu.report.page import Opened
from dlemu.report.table import Table
from dlemu.results.kinds import kind_of_command

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "Colfax: packing large images"
ABOUT = (
    "Their tables 2 to 4 and the figures of them: MB/s and seconds by processes, by processes around the best count, "
    "and by images."
)
_RESIZE = "resize=256x256"
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
"""Titles of the tables drawn as figures."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the steps: images on each drive, and a packing (`dlemu pack`) for each table."""
    data = scaled(question, "workload=colfax")
    folders = ",".join(question.folders("colfax"))
    made = datagen(question, "colfax", data)
    for name, axis in (_LAPTOP if question.laptop else _FULL).items():
        words = [*data, _RESIZE, f"drives={folders}", axis]
        words += [f"processes={_PROCESSES[question.scale]}", "images_per_file=1"] if name == "table-4" else []
        says = f"{name.replace('-', ' ')}: packing with {axis}"
        made.append(Step(name=name, command="pack", words=tuple(words), says=says))
    return made


def tables(opened: OpenedDocument) -> Iterator[Table]:
    for name in _LAPTOP:
        packed = opened.results.get(name)
        if packed is None:
            continue
        axis = "images" if name == "table-4" else "processes"
        known = {
            (opened.drive_of(point.settings.get("dataset.data_folder")), int(point.settings[axis])): point.figures
            for point in packed.points
            if point.figures is not None
        }
        places = sorted({place for _, place in known})
        names = [axis]
        for drive in opened.drives:
            names += [f"{drive}, MB/s", f"{drive}, s"]
        rows = []
        for place in places:
            row = [str(place)]
            for drive in opened.drives:
                figures = known.get((drive, place))
                row.append(digits(figures.read_mb_per_second if figures else None))
                row.append(digits(figures.seconds if figures else None, 2))
            rows.append(row)
        yield table(name.replace("-", " ").capitalize(), names, rows)


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield each table as a figure: MB/s and seconds over what the table varies."""
    for step in opened.answer.steps:
        if step.name not in _TITLES or step.name not in opened.results:
            continue
        packing: Opened = kind_of_command(step.command).part("page")(os.path.join(opened.folder, step.folder))
        figure = find(packing.figures, "pack_rates", "draw")(packing.result, canvas)
        if figure is not None:
            yield f"colfax_{step.name.replace('-', '_')}", replace(figure, title=_TITLES[step.name])

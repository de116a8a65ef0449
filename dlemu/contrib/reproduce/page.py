"""A reproduced vendor document, on the terminal and on its page: tables and figures from the results of its steps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from datagen.registry import find
from dlemu.contrib.reproduce.run import DOCUMENTS, REPRODUCED, Reproduced, module_of, read_reproduced
from dlemu.report.page import Opened, Page, Words
from dlemu.report.table import Cell, Table, columns, print_lines, print_table
from dlemu.report.units import number, short_names
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import Parts, kind_of, kind_of_command
from dlemu.results.wording import count

if TYPE_CHECKING:  # reading a document imports only the kinds of job that it ran
    from dlemu.jobs.probe.result import ProbeAnswer

_REDUCED = (
    "scale=laptop: datasets and times are reduced so that this takes minutes. The figures show the shape of the "
    "document's figures on this storage, not their numbers; scale=full uses the document's sizes."
)


@dataclass(frozen=True)
class OpenedDocument:
    """A document with the results of its steps."""

    folder: str
    answer: Reproduced
    results: dict[str, Any]
    """Step name -> result; steps that make data have none, nor has one whose folder is gone."""

    @property
    def gaps(self) -> list[str]:
        """Return a sentence, without its full stop, for each step whose results are gone."""
        return [
            f"{os.path.join(self.folder, step.folder)} holds no result of `dlemu {step.command}`: what it showed is "
            "missing"
            for step in self.answer.steps
            if step.command != "datagen" and step.name not in self.results
        ]

    @property
    def drives(self) -> list[str]:
        """Return short names of the drives: the parts in which their paths differ."""
        return list(short_names(self.answer.question.drives).values())

    def drive_of(self, settings: Mapping[str, str]) -> str:
        """Return the drive of a point of a sweep or packing; with one drive, its folder does not vary."""
        drive = os.path.dirname(settings.get("dataset.data_folder", ""))
        names = short_names(self.answer.question.drives)
        return names.get(drive, self.drives[0])

    def sweep_figures(self) -> Iterator[tuple[str, JobFigures]]:
        """Yield drive and figures of each completed point of the sweep."""
        sweep = self.results.get("sweep")
        for point in sweep.points if sweep is not None else ():
            if point.figures is not None:
                yield self.drive_of(point.settings), point.figures

    def probes(self) -> Iterator[tuple[str, ProbeAnswer]]:
        """Yield each drive that was probed, with its probe."""
        for position, drive in enumerate(self.drives, start=1):
            probe = self.results.get(f"probe-{position}")
            if probe is not None:
                yield drive, probe


@dataclass(frozen=True)
class Panel:
    """A quantity of a document, for each drive."""

    title: str
    """Name and unit."""
    across: str
    """What the document varies, such as accelerators."""
    values: Mapping[tuple[str, Any], float]
    """(drive, value of what is varied) -> quantity."""


def table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], notes: tuple[str, ...] = ()) -> Table:
    """Return a table whose first column names the rows and whose other columns hold numbers."""
    head = columns(*names, right=range(1, len(names)), whole=range(len(names)))
    return Table(title=title, columns=head, rows=rows, notes=notes, dense=len(names) > 6)


def panel_table(title: str, panels: Sequence[Panel], drives: Sequence[str]) -> Table:
    """Return a table of panels that vary the same: what is varied goes down, or across where that is shorter."""
    places = sorted({place for panel in panels for _, place in panel.values})
    many = len(drives) > 1
    series = [(panel.title + f", {drive}" * many, panel.values, drive) for panel in panels for drive in drives]
    across = panels[0].across
    if len(places) > len(series):
        rows = [
            [f"{place:g}", *(number(values.get((drive, place))) for _, values, drive in series)] for place in places
        ]
        return table(title, [across, *(name.replace(", ", ",\n") for name, *_ in series)], rows)
    rows = [[name, *(number(values.get((drive, place))) for place in places)] for name, values, drive in series]
    return table(title, [across, *(f"{place:g}" for place in places)], rows)


def open_document(folder: str) -> OpenedDocument:
    """Read a reproduced document and the results of its steps; raises UserError."""
    answer = read_reproduced(folder)
    results = {
        step.name: kind_of_command(step.command).load().read(place)
        for step in answer.steps
        if step.command != "datagen" and kind_of(place := os.path.join(folder, step.folder)) is not None
    }
    return OpenedDocument(folder, answer, results)


def print_document(answer: Reproduced, folder: str, console: Console) -> None:
    """Print the tables of a reproduced document."""
    opened = open_document(folder)
    for shown in _tables(opened):
        print_table(shown, console)
    reduced: list[Cell] = [_REDUCED] if answer.question.laptop else []
    print_lines([*opened.gaps, *reduced, f"results: {folder}"], console)


def document_page(opened: OpenedDocument) -> Page:
    """Return the page of a reproduced document, without its figures."""
    answer = opened.answer
    is_whole = answer.complete and not opened.gaps
    drives = ", ".join(f"{name}: {path}" for name, path in zip(opened.drives, answer.question.drives, strict=True))
    return Page(
        title=answer.title,
        lead=f"{answer.about} Here: {drives}.",
        state="passed" if is_whole else "open",
        verdict=("REPRODUCED" if is_whole else "INCOMPLETE", f" on {count(len(opened.drives), 'storage')}"),
        words=[Words("How", [shlex.join(["dlemu", step.command, *step.words]) for step in answer.steps])],
        tables=_tables(opened),
        source=os.path.join(opened.folder, REPRODUCED),
        warning=" ".join([*(f"{gap}." for gap in opened.gaps), *([_REDUCED] if answer.question.laptop else [])]),
    )


def _tables(opened: OpenedDocument) -> list[Table]:
    return list(find(DOCUMENTS, module_of(opened.answer.question.document), "tables")(opened))


def open_page(folder: str) -> Opened:
    """Return the document in a folder with its page; raises UserError."""
    opened = open_document(folder)
    return Opened(opened, document_page(opened), f"{DOCUMENTS}.{module_of(opened.answer.question.document)}")


PARTS = Parts(read=read_reproduced, answer_type=Reproduced, open_page=open_page, show=print_document)

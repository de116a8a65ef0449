"""A reproduced vendor document with the results of its steps, from which its tables and figures are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlemu.contrib.reproduce.run import Reproduced
from dlemu.report.table import Table, columns
from dlemu.report.units import short_names
from dlemu.results.figures import JobFigures
from dlemu.studies.answers import SweepAnswer

if TYPE_CHECKING:  # reading a document imports only the kinds of job that it ran
    from dlemu.jobs.probe.result import ProbeAnswer
    from dlemu.jobs.training.result import Run


@dataclass(frozen=True)
class OpenedDocument:
    """A document with the results of its steps."""

    folder: str
    answer: Reproduced
    results: dict[str, Any]
    """Step name -> result; steps that make data have none, nor has one whose folder is gone."""

    @property
    def document(self) -> str:
        """Return the document's name."""
        return self.answer.question.document

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
        drives = self.answer.question.drives
        names = short_names(drives)
        return [names[drive] for drive in drives]

    def sweep_figures(self, name: str = "sweep") -> Iterator[tuple[str, JobFigures]]:
        """Yield drive and figures of each completed point of a sweep."""
        swept: SweepAnswer | None = self.results.get(name)
        for point in swept.points if swept is not None else ():
            if point.figures is not None:
                yield self.drive_of(point.settings.get("dataset.data_folder")), point.figures

    def drive_of(self, data_folder: str | None) -> str:
        """Return the drive that contains a data folder; the first drive where none does."""
        for drive, name in zip(self.answer.question.drives, self.drives, strict=True):
            if data_folder is not None and os.path.dirname(data_folder) == drive:
                return name
        return self.drives[0]

    def probes(self) -> Iterator[tuple[str, ProbeAnswer]]:
        """Yield each drive that was probed, with its probe."""
        for number, drive in enumerate(self.drives, start=1):
            probed = self.results.get(f"probe-{number}")
            if probed is not None:
                yield drive, probed

    def run(self, name: str) -> Run | None:
        """Return the result of a training step; None where there is none."""
        run: Run | None = self.results.get(name)
        return run

    def watts(self, drive: str) -> float | None:
        """Return the power that the user gave for a drive with --watts; None where not given."""
        given = self.answer.question.watts
        return given[self.drives.index(drive)] if given else None


def table(title: str, names: list[str], rows: list[list[str]], notes: tuple[str, ...] = ()) -> Table:
    """Return a table whose first column names the rows and whose other columns hold numbers."""
    head = columns(*names, right=range(1, len(names)), whole=range(len(names)))
    return Table(title=title, columns=head, rows=rows, notes=notes, dense=len(names) > 6)


def digits(value: float | None, places: int = 1) -> str:
    """Return a number with `places` digits after the point; a dash for None."""
    return "-" if value is None else f"{value:,.{places}f}"

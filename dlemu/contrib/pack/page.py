"""The result of a packing as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from dlemu.contrib.pack.result import PACK, PackAnswer, PackFigures, PackPoint
from dlemu.contrib.pack.run import PackEvent, PackProgress
from dlemu.extend import RunBegan, RunEnded, RunsPlanned, UserError
from dlemu.report.page import Opened, Page, Text, Words, tiles
from dlemu.report.table import Cell, Line, Table, columns, print_lines, print_table
from dlemu.report.units import short_names, size
from dlemu.results.answer_files import read_answer
from dlemu.results.wording import count

_COLUMNS = (
    *("time\ns", "images\n/s", "read\nMB/s", "write\nMB/s", "CPU\n%", "read\n%", "comp.\n%", "core\n%", "write\n%"),
    *("idle\n%", "limited by"),
)
_TILES = (
    ("images", "figures.images", "", "packed by this run"),
    ("read", "figures.read_mb_per_second", "MB/s", "bytes of the images' files"),
    ("written", "figures.write_mb_per_second", "MB/s", "bytes of packed files, on the device"),
    ("images/s", "figures.images_per_second", "", "by all processes together"),
    ("time", "figures.seconds", "s", "until the last byte was on the device"),
    ("CPU", "figures.cpu_percent", "%", "of all cores, used by the processes"),
)
_SHARES = (
    "read, comp., core, write, idle: how the processes spent their time - blocked in reads, computing, waiting for a "
    "core, blocked in writes, without an image."
)


class PackShown:
    """Prints the progress of a packing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.folder = ""
        self.points = 0

    def __call__(self, event: PackEvent) -> None:
        """Print an event."""
        match event:
            case RunsPlanned():
                self.folder, self.points = event.folder, event.runs or 0
                if self.points > 1:
                    self._print(f"results: {event.folder}; {event.runs} points, {event.finished_runs} of them done")
            case RunBegan():
                self._print(f"{event.label} ...")
            case PackProgress():
                if self._console.is_terminal:
                    done = f"{event.images} of {event.total_images} images, {size(event.read_bytes)} read"
                    self._console.print(f"  {done}", end="\r", highlight=False)
            case RunEnded():
                pass  # the table at the end has all points

    def _print(self, line: Cell) -> None:
        print_lines([line], self._console)


def print_pack(answer: PackAnswer, folder: str, console: Console) -> None:
    """Print a table with a line per point; for a single packing also what limited it, and how to train on it."""
    print_table(_table(answer), console)
    print_lines(_lines(answer), console)
    print_lines([f"results: {folder}"], console)


def _lines(answer: PackAnswer) -> Iterator[Cell]:
    for point in answer.points:
        if point.failure:
            named = f"{_label(point)} failed: " if point.settings else ""
            yield Line(f"{named}{point.failure}", "bad")
    known = [point.figures for point in answer.points if point.figures is not None]
    if len(answer.points) > 1:
        yield _SHARES
        for warning in dict.fromkeys(warning for figures in known for warning in figures.warnings):
            yield Line(f"- {warning}", "caution")
        return
    for figures in known:
        yield from _figure_cells(figures)
        yield f"packed: {answer.target}, {count(figures.files, 'file')}"
        if figures.train:
            yield f"train on it: {figures.train}"


def _figure_cells(figures: PackFigures) -> Iterator[Cell]:
    limit = figures.limited_by
    yield f"limited by: {limit.what} ({limit.confidence} confidence)"
    yield from (f"- {sentence}" for sentence in limit.evidence)
    yield from (f"- advice: {sentence}" for sentence in limit.advice)
    if figures.kept_images:
        yield f"- {count(figures.kept_images, 'image')} packed earlier, by the interrupted run that this one continued"
    yield from (Line(f"- {warning}", "caution") for warning in figures.warnings)
    yield from (f"  {path}" for path in figures.skipped_paths)


def _label(point: PackPoint) -> str:
    return " ".join(f"{key}={value}" for key, value in point.settings.items())


def _table(answer: PackAnswer, title: str = "", notes: Sequence[str] = ()) -> Table:
    axes = list(answer.points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in answer.points) for axis in axes}
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *_COLUMNS]
    rows: list[tuple[Cell, ...]] = [
        (*(short[axis][point.settings[axis]] for axis in axes), *_cells(point.figures)) for point in answer.points
    ]
    return Table(
        columns=columns(*names, right=range(len(names) - 1), whole=range(len(names))),
        rows=rows,
        dense=True,
        title=title,
        notes=notes,
    )


def _cells(figures: PackFigures | None) -> list[Cell]:
    if figures is None:
        return [*["-"] * (len(_COLUMNS) - 1), Line("failed", "bad")]
    shares = figures.shares
    numbers = [
        f"{figures.seconds:,.1f}",
        f"{figures.images_per_second:,.1f}",
        f"{figures.read_mb_per_second:,.1f}",
        f"{figures.write_mb_per_second:,.1f}",
        f"{figures.cpu_percent:.0f}",
    ]
    parts = (shares.reading, shares.computing, shares.wanting_core, shares.writing, shares.idle)
    return [*numbers, *(f"{part:.0f}" for part in parts), figures.limited_by.what]


@dataclass(frozen=True)
class OpenedPack:
    """A packing with its folder."""

    folder: str
    answer: PackAnswer

    @property
    def axis(self) -> str:
        """The setting on the x axis of figures: processes or images if varied, else the first setting that varies."""
        varied = self._varied()
        return next((key for key in ("processes", "images") if key in varied), varied[0] if varied else "processes")

    @property
    def known(self) -> list[tuple[PackPoint, PackFigures]]:
        """The points that were packed, with their figures."""
        return [(point, point.figures) for point in self.answer.points if point.figures is not None]

    def line(self, point: PackPoint) -> str:
        """Return the name of the line that a point is on: the settings that vary, other than the axis."""
        shown = []
        for key in self._varied():
            if key != self.axis:
                value = point.settings[key]
                names = short_names(sorted({other.settings[key] for other in self.answer.points}))
                shown.append(names[value] if "/" in value else f"{key}={value}")
        return ", ".join(shown) or "packing"

    def position(self, point: PackPoint, figures: PackFigures) -> float | str:
        """Return a point's value on the x axis."""
        if self.axis == "processes":
            return figures.processes
        return figures.images + figures.skipped if self.axis == "images" else point.settings[self.axis]

    def _varied(self) -> list[str]:
        settings = self.answer.points[0].settings if self.answer.points else {}
        return [key for key in settings if len({point.settings[key] for point in self.answer.points}) > 1]


def open_pack(folder: str) -> OpenedPack:
    """Read the packing in a folder; raises UserError."""
    answer = read_answer(folder, PACK, PackAnswer)
    if answer is None:
        raise UserError(f"{folder} has no {PACK}")
    return OpenedPack(folder, answer)


def pack_page(opened: OpenedPack) -> Page:
    """Return the HTML page of a packing, without its figures."""
    answer = opened.answer
    known = [figures for _, figures in opened.known]
    best = max(known, key=lambda figures: figures.read_mb_per_second, default=None)
    failed = [point for point in answer.points if point.failure]
    if best is None:
        verdict = ("FAILED", f": {failed[0].failure if failed else 'nothing was packed'}")
    else:
        rest = f": {best.read_mb_per_second:,.1f} MB/s read by {count(best.processes, 'process')}"
        verdict = (f"LIMITED BY {best.limited_by.what.upper()}", rest)
    measured_storage = best is not None and best.limited_by.what == "storage"
    alone = [point for point, _ in opened.known] if len(answer.points) == 1 else []
    sections = [] if best is None else [Words("What limited it", [*best.limited_by.evidence, *best.limited_by.advice])]
    warnings = list(dict.fromkeys(warning for figures in known for warning in figures.warnings))
    if warnings:
        sections.append(Words("Notes on these numbers", warnings))
    if best is not None and len(answer.points) == 1 and best.train:
        sections.append(Words("Train on it", [best.train]))
    return Page(
        title="Packing images",
        lead=f"{len(answer.points)} packing{'s' * (len(answer.points) != 1)}: dlemu pack "
        + " ".join(answer.question.overrides),
        state="failed" if failed else "passed" if answer.complete and measured_storage else "open",
        verdict=verdict,
        tiles=tiles(alone[0], _TILES) if alone else [],
        words=sections,
        tables=[_table(answer, "Every packing", [_SHARES])],
        texts=[Text("Failures", "\n\n".join(f"{_label(p)}: {p.failure}" for p in failed))] if failed else [],
        source=os.path.join(opened.folder, PACK),
        warning="" if answer.complete else "INCOMPLETE: interrupted before its last point.",
    )


def open_page(folder: str) -> Opened:
    """Return the packing in a folder with its page; raises UserError."""
    opened = open_pack(folder)
    return Opened(opened, pack_page(opened), "dlemu.contrib.pack.figures")

"""A packing as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console

from dlemu.contrib.pack.process import PackProgress
from dlemu.contrib.pack.result import PACK, PackAnswer, PackFigures, PackPoint
from dlemu.contrib.pack.run import PackEvent, read_pack
from dlemu.extend import RunBegan, RunsPlanned
from dlemu.report.page import Opened, Page, State, Text, Words, tiles
from dlemu.report.table import Cell, Line, Table, columns, print_lines, print_table
from dlemu.report.units import short_names, size
from dlemu.results.kinds import Parts
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
    """Prints the progress of a packing; the table at the end has its points."""

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
                    done = f"{event.runs} points, {event.finished_runs} of them done"
                    print_lines([f"results: {event.folder}; {done}"], self._console)
            case RunBegan():
                print_lines([f"{event.label} ..."], self._console)
            case PackProgress() if self._console.is_terminal:
                done = f"{event.images} of {event.total_images} images, {size(event.read_bytes)} read"
                self._console.print(f"  {done}", end="\r", highlight=False)


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
        yield from (Line(f"- {warning}", "caution") for warning in _warnings(answer))
        return
    for figures in known:
        limit = figures.limited_by
        yield f"limited by: {limit.what} ({limit.confidence} confidence)"
        yield from (f"- {sentence}" for sentence in limit.evidence)
        yield from (f"- advice: {sentence}" for sentence in limit.advice)
        if figures.kept_images:
            images = count(figures.kept_images, "image")
            yield f"- {images} packed earlier, by the interrupted run that this one continued"
        yield from (Line(f"- {warning}", "caution") for warning in figures.warnings)
        yield from (f"  {path}" for path in figures.skipped_paths)
        yield f"packed: {answer.target}, {count(figures.files, 'file')}"
        if figures.train:
            yield f"train on it: {figures.train}"


def _warnings(answer: PackAnswer) -> list[str]:
    """Return the warnings of all points, each once."""
    known = [point.figures for point in answer.points if point.figures is not None]
    return list(dict.fromkeys(warning for figures in known for warning in figures.warnings))


def _label(point: PackPoint) -> str:
    return " ".join(f"{key}={value}" for key, value in point.settings.items())


def _table(answer: PackAnswer, title: str = "", notes: Sequence[str] = ()) -> Table:
    axes = list(answer.points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in answer.points) for axis in axes}
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *_COLUMNS]
    rows: list[tuple[Cell, ...]] = [
        (*(short[axis][point.settings[axis]] for axis in axes), *_cells(point.figures)) for point in answer.points
    ]
    head = columns(*names, right=range(len(names) - 1), whole=range(len(names)))
    return Table(columns=head, rows=rows, dense=True, title=title, notes=notes)


def _cells(figures: PackFigures | None) -> list[Cell]:
    if figures is None:
        return [*["-"] * (len(_COLUMNS) - 1), Line("failed", "bad")]
    rates = (figures.seconds, figures.images_per_second, figures.read_mb_per_second, figures.write_mb_per_second)
    shares = figures.shares
    parts = (shares.reading, shares.computing, shares.wanting_core, shares.writing, shares.idle)
    return [
        *(f"{rate:,.1f}" for rate in rates),
        *(f"{percent:.0f}" for percent in (figures.cpu_percent, *parts)),
        figures.limited_by.what,
    ]


def open_page(folder: str) -> Opened:
    """Return the packing in a folder with its page; raises UserError."""
    answer = read_pack(folder)
    return Opened(answer, _page(answer, os.path.join(folder, PACK)), "dlemu.contrib.pack.figures")


def _page(answer: PackAnswer, source: str) -> Page:
    known = [point.figures for point in answer.points if point.figures is not None]
    failed = [point for point in answer.points if point.failure]
    state: State = "failed"
    sections, shown = [], []
    if known:
        best = max(known, key=lambda figures: figures.read_mb_per_second)
        limit = best.limited_by
        state = "passed" if answer.complete and limit.what == "storage" else "open"
        rest = f": {best.read_mb_per_second:,.1f} MB/s read by {count(best.processes, 'process')}"
        verdict = (f"LIMITED BY {limit.what.upper()}", rest)
        sections.append(Words("What limited it", [*limit.evidence, *limit.advice]))
        if warnings := _warnings(answer):
            sections.append(Words("Notes on these numbers", warnings))
        if len(answer.points) == 1:
            shown = tiles(answer.points[0], _TILES)
            if best.train:
                sections.append(Words("Train on it", [best.train]))
    else:
        verdict = ("FAILED", f": {failed[0].failure if failed else 'nothing was packed'}")
    return Page(
        title="Packing images",
        lead=f"{count(len(answer.points), 'packing')}: dlemu pack " + " ".join(answer.question.overrides),
        state="failed" if failed else state,
        verdict=verdict,
        tiles=shown,
        words=sections,
        tables=[_table(answer, "Every packing", [_SHARES])],
        texts=[Text("Failures", "\n\n".join(f"{_label(p)}: {p.failure}" for p in failed))] if failed else [],
        source=source,
        warning="" if answer.complete else "INCOMPLETE: interrupted before its last point.",
    )


PARTS = Parts(read=read_pack, answer_type=PackAnswer, open_page=open_page, show=print_pack)

"""A packing as text: its first screen, and a table of all points."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from dlemu.contrib.pack.api import read_pack
from dlemu.contrib.pack.result import ADVICE, PackAnswer
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Cell, Line, Section, Table, columns
from dlemu.report.units import duration, short_names
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

_COLUMNS = {
    "time\ns": "seconds",
    "images\n/s": "images_per_second",
    "read\nMB/s": "read_mb_per_second",
    "write\nMB/s": "write_mb_per_second",
    "CPU\n%": "cpu_percent",
    "read\n%": "shares.reading",
    "comp.\n%": "shares.computing",
    "core\n%": "shares.wanting_core",
    "write\n%": "shares.writing",
    "idle\n%": "shares.idle",
}
_SHARES = (
    "read, comp., core, write, idle: how the processes spent their time - blocked in reads, computing, waiting for a "
    "core, blocked in writes, without an image."
)


def _screen(answer: PackAnswer, folder: str) -> Screen:
    several = len(answer.points) > 1
    title = f"Packing images: the fastest of {len(answer.points)} points" if several else "Packing images"
    lines = [Said("failed", f"{one.label} {one.failure}".strip(), tone="bad") for one in answer.points if one.failure]
    del lines[3:]
    notes = [] if answer.complete else ["interrupted before the last point"]
    known = [(one.label, one.figures) for one in answer.points if one.figures is not None]
    for label, best in sorted(known, key=lambda one: one[1].read_mb_per_second)[-1:]:
        speed = f"{rate(best.read_mb_per_second)}, {best.images_per_second:,.1f} images/s"
        limit = best.limited_by
        lines += [
            *([Said("point", label)] if several else []),
            Said("read", speed, f"by {count(best.processes, 'process')}, in {duration(best.seconds)}", tone="strong"),
            Said("written", rate(best.write_mb_per_second)),
            Said("limit", f"{limit.what}, {limit.confidence} confidence: {ADVICE[limit.advice]}"),
            *([] if several else [Said("train", best.train)]),
        ]
    notes += dict.fromkeys(warning for _, figures in known for warning in figures.warnings)
    return Screen(title=title, lines=lines, notes=notes, folder=folder)


def _sections(answer: PackAnswer, _: str) -> Iterator[Section]:
    axes = list(answer.points[0].settings) if answer.points else []
    short = {axis: short_names(point.settings[axis] for point in answer.points) for axis in axes}
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *_COLUMNS, "limited by"]
    rows: list[list[Cell]] = []
    for point in answer.points:
        cells: list[Cell] = [*["-"] * len(_COLUMNS), Line(f"failed: {point.failure}", "bad")]
        if point.figures is not None:
            values = {name: attrgetter(path)(point.figures) for name, path in _COLUMNS.items()}
            cells = [f"{value:,.{0 if '%' in name else 1}f}" for name, value in values.items()]
            cells.append(point.figures.limited_by.what)
        rows.append([*(short[axis][point.settings[axis]] for axis in axes), *cells])
    head = columns(*names, right=range(len(names) - 1), whole=range(len(names)))
    yield Table(columns=head, rows=rows, dense=True, title="Every packing", notes=[_SHARES])


PARTS = Parts(read=read_pack, answer_type=PackAnswer, screen=_screen, sections=_sections)

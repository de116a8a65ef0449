"""A packing as text: its first screen, and all of it for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dlemu.contrib.pack.api import read_pack
from dlemu.contrib.pack.result import PackAnswer, PackFigures, PackPoint
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Cell, Line, Section, Table, Words, columns
from dlemu.report.units import duration, short_names
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

_COLUMNS: dict[str, Callable[[PackFigures], float]] = {
    "time\ns": lambda figures: figures.seconds,
    "images\n/s": lambda figures: figures.images_per_second,
    "read\nMB/s": lambda figures: figures.read_mb_per_second,
    "write\nMB/s": lambda figures: figures.write_mb_per_second,
    "CPU\n%": lambda figures: figures.cpu_percent,
    "read\n%": lambda figures: figures.shares.reading,
    "comp.\n%": lambda figures: figures.shares.computing,
    "core\n%": lambda figures: figures.shares.wanting_core,
    "write\n%": lambda figures: figures.shares.writing,
    "idle\n%": lambda figures: figures.shares.idle,
}
_SHARES = (
    "read, comp., core, write, idle: how the processes spent their time - blocked in reads, computing, waiting for a "
    "core, blocked in writes, without an image."
)


def _screen(answer: PackAnswer, folder: str) -> Screen:
    known = [(point, point.figures) for point in answer.points if point.figures is not None]
    failed = [
        Said("failed", f"{_label(one)} {one.failure}".strip(), tone="bad") for one in answer.points if one.failure
    ]
    lines, notes, title = [], list(_warnings(answer)), "Packing images"
    if known:
        point, best = max(known, key=lambda one: one[1].read_mb_per_second)
        of_all = f"by {count(best.processes, 'process')}, in {duration(best.seconds)}"
        several = len(answer.points) > 1
        title += f": the fastest of {len(answer.points)} points" if several else f" into {answer.target}"
        if several:
            lines.append(Said("point", _label(point)))
        elif best.kept_images:
            notes.insert(0, f"{count(best.kept_images, 'image')} packed earlier, by the run that this one continued")
        speed = f"{rate(best.read_mb_per_second)}, {best.images_per_second:,.1f} images/s"
        lines += [Said("read", speed, of_all, tone="strong"), Said("written", rate(best.write_mb_per_second))]
        limit = best.limited_by
        lines.append(Said("limit", f"{limit.what}, {limit.confidence} confidence: {'; '.join(limit.advice)}"))
        if best.train and not several:
            lines.append(Said("train", best.train))
    if not answer.complete:
        notes.insert(0, "interrupted before the last point")
    return Screen(title=title, lines=[*failed[:3], *lines], notes=notes, folder=folder)


def _sections(answer: PackAnswer, _: str) -> Iterator[Section]:
    yield Words("What limited it", list(_lines(answer)))
    if answer.points:
        yield _table(answer)


def _lines(answer: PackAnswer) -> Iterator[Cell]:
    for point in answer.points:
        if point.failure:
            yield Line(f"{_label(point)} failed: {point.failure}".strip(), "bad")
        elif point.figures is not None:
            limit = point.figures.limited_by
            yield f"{_label(point)} limited by {limit.what}: {'; '.join([*limit.evidence, *limit.advice])}".strip()


def _warnings(answer: PackAnswer) -> dict[str, None]:
    """Return the warnings of all points, each once."""
    known = [point.figures for point in answer.points if point.figures is not None]
    return dict.fromkeys(warning for figures in known for warning in figures.warnings)


def _label(point: PackPoint) -> str:
    return " ".join(f"{key}={value}" for key, value in point.settings.items())


def _table(answer: PackAnswer) -> Table:
    axes = list(answer.points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in answer.points) for axis in axes}
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *_COLUMNS, "limited by"]
    rows: list[list[Cell]] = []
    for point in answer.points:
        row: list[Cell] = [short[axis][point.settings[axis]] for axis in axes]
        if point.figures is None:
            row += [*["-"] * len(_COLUMNS), Line("failed", "bad")]
        else:
            values = {name: value(point.figures) for name, value in _COLUMNS.items()}
            row += [f"{value:,.{0 if '%' in name else 1}f}" for name, value in values.items()]
            row.append(point.figures.limited_by.what)
        rows.append(row)
    head = columns(*names, right=range(len(names) - 1), whole=range(len(names)))
    return Table(columns=head, rows=rows, dense=True, title="Every packing", notes=[_SHARES])


PARTS = Parts(read=read_pack, answer_type=PackAnswer, screen=_screen, sections=_sections)

"""Writes a result's HTML page and its figures as files, for `dlemu report` and the commands that measure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO

from datagen import owned
from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.report.any_run import Opened, open_result
from dlemu.report.drawing import check_packages, figures, picture_file, pictures
from dlemu.report.page import Page, render
from dlemu.report.series import Point, RunSeries, point_of
from dlemu.results.kinds import JobParts, kind_of, read_result
from dlemu.results.measured import MeasuredRun
from dlemu.studies.series.page import series_charts, series_screen, series_sections

PAGE = "report.html"


def write_page(folders: Sequence[str], output: str | None = None) -> str:
    """Write the page of one result, or of several side by side; return its path.

    It goes to `output`, by default into the first folder. Raises UserError: a package is missing, or a folder holds no
    result.
    """
    check_packages()
    path = output or os.path.join(folders[0], PAGE)
    opened = _open(folders)
    html = render(opened.page, pictures(opened.draw))
    write_text(os.path.dirname(path), os.path.basename(path), html, advice=_elsewhere(folders))
    return path


def _elsewhere(folders: Sequence[str]) -> str:
    return f"`{shlex.join(['dlemu', 'report', *folders])} --output FILE` writes elsewhere"


def write_pictures(folders: Sequence[str], kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.KIND (png or svg) into the folder `output`; return their paths."""
    check_packages()
    opened, written = _open(folders), []
    drawn = figures(opened.draw)
    _check_names(output, [f"{name}.{kind}" for name, _ in drawn])
    for name, figure in drawn:
        write_file(output, f"{name}.{kind}", partial(_write, picture_file(figure, kind)), advice=_elsewhere(folders))
        written.append(os.path.join(output, f"{name}.{kind}"))
    return written


def _check_names(folder: str, names: Sequence[str]) -> None:
    """Claim file names in a folder that may be a user's; raises UserError where a file that is not dlemu's has one.

    Nor is a link followed: in a received result it leads to whatever folder its author chose.
    """
    if os.path.islink(folder):
        raise UserError(f"{folder} is a link: remove it, or write the report elsewhere with --output")
    ours = owned.claimed(folder)
    theirs = next((name for name in names if name not in ours and os.path.lexists(os.path.join(folder, name))), None)
    if theirs is not None:
        raise UserError(
            f"{os.path.join(folder, theirs)} exists, and dlemu did not write it: move it, or write the "
            "report elsewhere with --output"
        )
    try:
        os.makedirs(folder, exist_ok=True)
        owned.claim(folder, *names)
    except OSError as error:
        raise UserError(
            f"{folder} could not be written: {error.strerror}; write the report elsewhere with --output"
        ) from error


def _open(folders: Sequence[str]) -> Opened:
    """Read the results in the folders; several results become points on one page."""
    if len(folders) > 1:
        series = open_together(folders)
        page = Page(screen=series_screen(series), sections=list(series_sections(series)), source=series.folder)
        return Opened(page, lambda canvas: series_charts(series, canvas))
    kind = kind_of(folders[0])
    if kind is None:
        read_result(folders[0])  # raises UserError with what is missing
    assert kind is not None
    return open_result(kind, folders[0])


def open_together(folders: Sequence[str]) -> RunSeries:
    """Read several results as one series; the points of a search or sweep are named after its folder.

    Raises UserError for a result without points, and for runs of different kinds.
    """
    points: list[Point] = []
    common: MeasuredRun | None = None
    for folder in folders:
        series = points_of(folder)
        common = common or series.run
        if series.is_run:
            points += [replace(point, folder=folder) for point in series.points]
        else:
            name = os.path.basename(os.path.abspath(folder))
            points += [_named(point, name, folder) for point in series.points]
    kinds = sorted({point.figures.kind for point in points})
    if len(kinds) > 1:
        raise UserError(f"{', '.join(folders)} hold different kinds of runs ({', '.join(kinds)}): make one page each")
    return RunSeries(", ".join(folders), tuple(points), None, common)


def points_of(folder: str) -> RunSeries:
    """Return the points of the result in a folder; raises UserError for a result that has none."""
    kind = kind_of(folder)
    if kind is None:
        read_result(folder)  # says what is missing
    assert kind is not None
    parts = kind.load()
    if parts.points is not None:
        series: RunSeries = parts.points(folder)
        return series
    if not isinstance(parts, JobParts):
        raise UserError(f"{folder} holds {kind.noun}, which can't share a page: name it alone in `dlemu report`")
    run = parts.read(folder)
    where = {"folder": data} if (data := parts.conditions(run.summary).facts.get("folder")) else {}
    return RunSeries(folder, (point_of(parts.figures(run), where),), None, run)


def _named(point: Point, name: str, folder: str) -> Point:
    line = ": ".join(filter(None, [name, point.line]))
    return replace(point, line=line, folder=os.path.join(folder, point.folder))


def _write(content: bytes, out: BinaryIO) -> None:
    out.write(content)

"""Results in, page and pictures out: what `dlemu report` and the commands that measure call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from dlemu.emulator.files import write_file, write_text
from dlemu.report.drawing import check_packages, figures, picture_file, pictures
from dlemu.report.page import render
from dlemu.report.result import Run
from dlemu.report.run_page import run_page
from dlemu.report.series import Series, open_result, open_together
from dlemu.report.series_page import series_page

PAGE = "report.html"


def write_page(folders: Sequence[str], output: str | None = None) -> str:
    """Write the page of a result's folder, or of several side by side; return its path.

    It goes into the folder of the only one unless `output` says where.

    Raises UserError: a package is missing, or a folder holds no result.
    """
    check_packages()
    path = output or os.path.join(folders[0], PAGE)
    found = _open(folders)
    page = run_page(found) if isinstance(found, Run) else series_page(found)
    write_text(os.path.dirname(path), os.path.basename(path), render(page, pictures(found)))
    return path


def write_pictures(folders: Sequence[str], kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.png or NAME.svg into the folder `output`; return their paths."""
    from dlemu.report.figures.base import DESK

    check_packages()
    written = []
    for name, figure in figures(_open(folders), DESK):
        write_file(output, f"{name}.{kind}", partial(_write, picture_file(figure, kind)))
        written.append(os.path.join(output, f"{name}.{kind}"))
    return written


def _open(folders: Sequence[str]) -> Run | Series:
    return open_result(folders[0]) if len(folders) == 1 else open_together(folders)


def _write(content: bytes, path: str) -> None:
    with open(path, "wb") as out:
        out.write(content)

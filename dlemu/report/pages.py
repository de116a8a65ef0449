"""Results in, page and pictures out: what `dlemu report` and the commands that measure call."""

from __future__ import annotations

import os
from functools import partial

from dlemu.emulator.files import write_file, write_text
from dlemu.report.drawing import check_packages, figures, picture_file, pictures
from dlemu.report.page import render
from dlemu.report.result import open_run
from dlemu.report.run_page import run_page

PAGE = "report.html"


def write_page(folder: str, output: str | None = None) -> str:
    """Write the page of a result's folder, into it unless told where, and return its path.

    Raises UserError: a package is missing, or the folder holds no result.
    """
    check_packages()
    path = output or os.path.join(folder, PAGE)
    run = open_run(folder)
    write_text(os.path.dirname(path), os.path.basename(path), render(run_page(run), pictures(run)))
    return path


def write_pictures(folder: str, kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.png or NAME.svg into the folder `output`; return their paths."""
    from dlemu.report.figures.base import DESK

    check_packages()
    written = []
    for name, figure in figures(open_run(folder), DESK):
        write_file(output, f"{name}.{kind}", partial(_write, picture_file(figure, kind)))
        written.append(os.path.join(output, f"{name}.{kind}"))
    return written


def _write(content: bytes, path: str) -> None:
    with open(path, "wb") as out:
        out.write(content)

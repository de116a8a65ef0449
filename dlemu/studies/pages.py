"""Writes a result's HTML page and its figures as files, for `dlemu report` and the commands that measure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from operator import methodcaller

from datagen import owned
from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.report.page import Page, check_packages, figures, open_result, picture_file, pictures, render
from dlemu.results.kinds import kind_named, kind_of

PAGE = "report.html"


def write_page(folder: str, output: str | None = None) -> str:
    """Write the page of a result; return its path.

    It goes to `output`, by default into the folder. Raises UserError: a package is missing, or there is no result.
    """
    check_packages()
    path = output or os.path.join(folder, PAGE)
    page = open_page(folder)
    html = render(page, pictures(page))
    write_text(os.path.dirname(path), os.path.basename(path), html, advice=_advice(folder))
    return path


def write_pictures(folder: str, file_format: str, output: str) -> list[str]:
    """Write each figure as a png or svg file into the folder `output`; return their paths."""
    check_packages()
    images = {f"{name}.{file_format}": figure for name, figure in figures(open_page(folder))}
    _claim_names(output, images)
    for name, figure in images.items():
        write = methodcaller("write", picture_file(figure, file_format))
        write_file(output, name, write, advice=_advice(folder))
    return [os.path.join(output, name) for name in images]


def _advice(folder: str) -> str:
    return f"`{shlex.join(['dlemu', 'report', folder])} --output FILE` writes elsewhere"


def _claim_names(folder: str, names: Iterable[str]) -> None:
    """Claim file names in a folder that may be a user's; raises UserError for a name that a user's file has.

    A link to a folder is refused: in a received result, it leads to whatever folder its author chose.
    """
    if os.path.islink(folder):
        raise UserError(f"{folder} is a link: remove it, or write the report elsewhere with --output")
    claimed = owned.claimed(folder)
    for name in names:
        path = os.path.join(folder, name)
        if name not in claimed and os.path.lexists(path):
            raise UserError(
                f"{path} exists, and dlemu did not write it: move it, or write the report elsewhere with --output"
            )
    try:
        os.makedirs(folder, exist_ok=True)
        owned.claim(folder, *names)
    except OSError as error:
        raise UserError(
            f"{folder} could not be written: {error.strerror}; write the report elsewhere with --output"
        ) from error


def open_page(folder: str) -> Page:
    """Return the page of the result in a folder; raises UserError."""
    kind = kind_of(folder) or kind_named("training")  # the reader of training says what is missing in a folder
    return open_result(kind, folder)

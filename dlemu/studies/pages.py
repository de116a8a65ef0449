"""Writes a result's HTML page and its figures as files, for `dlemu report` and the commands that measure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
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
    write_text(os.path.dirname(path), os.path.basename(path), html, advice=_elsewhere(folder))
    return path


def _elsewhere(folder: str) -> str:
    return f"`{shlex.join(['dlemu', 'report', folder])} --output FILE` writes elsewhere"


def write_pictures(folder: str, kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.KIND (png or svg) into the folder `output`; return their paths."""
    check_packages()
    drawn, written = figures(open_page(folder)), []
    _check_names(output, [f"{name}.{kind}" for name, _ in drawn])
    for name, figure in drawn:
        write = methodcaller("write", picture_file(figure, kind))
        write_file(output, f"{name}.{kind}", write, advice=_elsewhere(folder))
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


def open_page(folder: str) -> Page:
    """Return the page of the result in a folder; raises UserError."""
    kind = kind_of(folder) or kind_named("training")  # whose reader says what is missing
    return open_result(kind, folder)

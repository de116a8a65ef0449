"""Results in, page and pictures out: what `dlemu report` and the commands that measure call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.report.audit import AUDIT, Audit, open_audit
from dlemu.report.audit_page import audit_page
from dlemu.report.comparison import COMPARE, Comparison, open_comparison
from dlemu.report.comparison_page import comparison_page
from dlemu.report.drawing import check_packages, figures, picture_file, pictures
from dlemu.report.page import Page, render
from dlemu.report.result import Run
from dlemu.report.run_page import run_page
from dlemu.report.series import Series, open_result, open_together
from dlemu.report.series_page import series_page

PAGE = "report.html"

_Kind = tuple[type, Callable[[Any], Page], str]
_KINDS: tuple[_Kind, ...] = (
    (Run, run_page, "dlemu.report.figures"),
    (Comparison, comparison_page, "dlemu.report.compare_figures"),
    (Series, series_page, "dlemu.report.series_figures"),
    (Audit, audit_page, "dlemu.report.audit_figures"),
)
"""Of each kind of result: what its page says, and the folder of its figures."""


def write_page(folders: Sequence[str], output: str | None = None) -> str:
    """Write the page of a result's folder, or of several side by side; return its path.

    It goes into the folder of the only one unless `output` says where.

    Raises UserError: a package is missing, or a folder holds no result.
    """
    check_packages()
    path = output or os.path.join(folders[0], PAGE)
    found = _open(folders)
    _, describe, drawn = _kind(found)
    write_text(os.path.dirname(path), os.path.basename(path), render(describe(found), pictures(found, drawn)))
    return path


def write_pictures(folders: Sequence[str], kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.png or NAME.svg into the folder `output`; return their paths."""
    from dlemu.report.figures.figure_base import DESK

    check_packages()
    found, written = _open(folders), []
    for name, figure in figures(found, _kind(found)[2], DESK):
        write_file(output, f"{name}.{kind}", partial(_write, picture_file(figure, kind)))
        written.append(os.path.join(output, f"{name}.{kind}"))
    return written


def _kind(found: Any) -> _Kind:
    return next(kind for kind in _KINDS if isinstance(found, kind[0]))


_ALONE: dict[str, Callable[[str], Comparison | Audit]] = {COMPARE: open_comparison, AUDIT: open_audit}
"""Results that share their page with no other, by the file that each has."""


def _open(folders: Sequence[str]) -> Run | Series | Comparison | Audit:
    alone = [(folder, name) for folder in folders for name in _ALONE if os.path.exists(os.path.join(folder, name))]
    if not alone:
        return open_result(folders[0]) if len(folders) == 1 else open_together(folders)
    folder, name = alone[0]
    if len(folders) > 1:
        raise UserError(f"{folder} holds {name}, which no page shares; make it a page of its own")
    return _ALONE[name](folder)


def _write(content: bytes, path: str) -> None:
    with open(path, "wb") as out:
        out.write(content)

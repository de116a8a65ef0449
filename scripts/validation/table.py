"""docs/validation.md: the sections between its markers are what was measured, one a group."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import date

import psutil

from datagen.errors import UserError
from validation.check import HEADER, Check


def line(check: Check) -> str:
    """Return a check as a line of the terminal."""
    case, what, theory, measured, off, cpu_wait, verdict = check.cells
    return f"{case:<50} {what:<34} {measured:>14}   theory {theory:<14} {off:<28} CPU wait {cpu_wait:<6} {verdict}"


def markdown(checks: Sequence[Check]) -> str:
    """Return the checks as a table, with when and where it was measured."""
    rows = [HEADER, ["---"] * len(HEADER), *(check.cells for check in checks)]
    missed = sum(not check.holds for check in checks)
    summary = f"{len(checks) - missed} of {len(checks)} hold. {date.today()}, {machine()}."
    return "\n".join([summary, "", *(f"| {' | '.join(row)} |" for row in rows)])


def check_argument(parser: argparse.ArgumentParser, page: str | None, groups: Sequence[str]) -> None:
    """End with the parser's usage where the page asked for can't take the tables of these groups."""
    if page is None:
        return
    try:
        for group in groups:
            _split(page, group)
    except UserError as error:
        parser.error(str(error))


def put(path: str, group: str, text: str) -> None:
    """Replace a group's section of the page by `text`; raises UserError when the page has none."""
    before, after = _split(path, group)
    with open(path + ".part", "w") as lines:
        lines.write(f"{before}\n{text}\n{after}")
    os.rename(path + ".part", path)


def _split(path: str, group: str) -> tuple[str, str]:
    """Return the page up to and from the lines between which a group's table stands."""
    begin, end = f"<!-- {group} -->", f"<!-- end of {group} -->"
    try:
        with open(path) as lines:
            page = lines.read()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: wanted a page such as docs/validation.md") from None
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise UserError(f"{path} has no place for {group}: wanted the lines {begin} and {end}")
    return before + begin, end + after


def machine() -> str:
    """Return what it was measured on, in a line."""
    memory_gb = psutil.virtual_memory().total / 1e9
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cores} cores, {memory_gb:.0f} GB, Linux {platform.release()}, load at the end {load:.1f}"

"""Saves measurements as the data files of docs/evidence, from which scripts/docs makes pages."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Protocol

import psutil

FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
STATUSES = ("ok", "MISSED", "for information", "not compared")


class Line(Protocol):
    """One measurement, as a line in the terminal and a row of a table."""

    @property
    def text(self) -> str:
        """The line in the terminal."""

    @property
    def columns(self) -> Sequence[str]:
        """Headings of the cells; neighbouring lines with the same headings form a table."""

    @property
    def cells(self) -> Sequence[str]:
        """The row of the table."""

    @property
    def status(self) -> str:
        """One of `STATUSES`."""


class Row:
    """A line that shows the cells of its row in the terminal, too."""

    @property
    def cells(self) -> Sequence[str]:
        """The row of the table."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        return " | ".join(self.cells)


def save(folder: str, name: str, lines: Sequence[Line], *, minutes: float) -> None:
    """Write the file of a group: how many checks hold, when and where it was measured, and its tables."""
    held, missed = (sum(line.status == status for line in lines) for status in ("ok", "MISSED"))
    summary = f"{held} of {held + missed} hold. {machine()}, {minutes:.1f} minutes."
    tables = [(list(columns), [list(line.cells) for line in rows]) for columns, rows in _tables(lines)]
    write(Path(folder, f"{name}.json"), summary, tables)


def write(path: Path, summary: str, tables: Sequence[tuple[list[str], list[list[str]]]]) -> None:
    """Write a JSON file of evidence with one line per row, so that a diff shows the rows that changed."""
    texts = [
        f'  {{"columns": {json.dumps(columns)}, "rows": [\n'
        + ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
        + "\n  ]}"
        for columns, rows in tables
    ]
    whole = f'{{"summary": {json.dumps(summary, ensure_ascii=False)},\n "tables": [\n' + ",\n".join(texts) + "\n]}\n"
    os.makedirs(path.parent, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(whole)
    temporary.rename(path)


def machine() -> str:
    """Return the time, the machine and its load, for the summary of a measurement."""
    memory_gb = psutil.virtual_memory().total / 1e9
    return (
        f"{datetime.now().astimezone():%Y-%m-%d %H:%M}, {len(os.sched_getaffinity(0))} cores, {memory_gb:.0f} GB, "
        f"{platform.machine()}, Linux {platform.release()}, load of the last minute {os.getloadavg()[0]:.1f}"
    )


def _tables(lines: Sequence[Line]) -> list[tuple[tuple[str, ...], list[Line]]]:
    return [(columns, list(rows)) for columns, rows in groupby(lines, key=lambda line: tuple(line.columns))]

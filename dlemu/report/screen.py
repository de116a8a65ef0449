"""The first screen of a result: a title and a few lines, with which the result's page begins as well."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding

from dlemu.report.table import Line, Table, Tone, print_table, rich_text

MAX_NOTES = 2  # on the first screen; --details has all notes
_NARROW = 60  # columns; a narrower terminal gets no explanations in parentheses


@dataclass(frozen=True)
class Said:
    """A line of a first screen: a label, a text, and an explanation in parentheses."""

    label: str
    value: str
    explained: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The content of a first screen."""

    title: str
    lines: Sequence[Said]
    notes: Sequence[str] = ()  # warnings and remarks, the most important first
    folder: str  # of the result, to which the last line refers; empty if nothing is saved
    table: Table | None = None  # above the lines if a table is the answer; with --details it is one of the sections

    def shown_lines(self, *, details: bool = False) -> list[Said]:
        """Return the lines below the title, with at most MAX_NOTES notes; all notes with `details`."""
        notes = [Said("note", text, tone="caution") for text in self.notes]
        if details:
            return [*self.lines, *notes, Said("results", self.folder)]
        if len(notes) > MAX_NOTES:
            notes[MAX_NOTES:] = [Said("", f"and {len(notes) - MAX_NOTES} more: --details")]
        lines = [*self.lines, *notes]
        if self.folder:
            lines.append(Said("more", f"dlemu report {shlex.quote(self.folder)} --details"))
        return lines


def print_screen(screen: Screen, console: Console, *, details: bool = False) -> None:
    """Print a first screen: wrapped at words on a terminal, without line breaks elsewhere."""
    console.print(rich_text(Line(screen.title, "strong"), console), soft_wrap=not console.is_terminal)
    if screen.table is not None and not details:
        print_table(screen.table, console)
    lines = screen.shown_lines(details=details)
    width = max(len(line.label) for line in lines) + 2
    for line in lines:
        explained = f"   ({line.explained})" if line.explained and console.width >= _NARROW else ""
        rendered = rich_text(Line(f"{line.label:<{width}}{line.value}{explained}", line.tone), console)
        if console.is_terminal:
            console.print(Padding(rendered, (0, 0, 0, 2)))
        else:
            console.print("  ", rendered, sep="", soft_wrap=True)


def rate(mb_per_second: float) -> str:
    """Return a rate in MB/s or GB/s, with three digits."""
    value, unit = (mb_per_second / 1e3, "GB/s") if mb_per_second >= 1000 else (mb_per_second, "MB/s")
    digits = 0 if value >= 100 else 1
    return f"{value:.{digits}f} {unit}"

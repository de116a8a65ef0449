"""The progress of a run: a line that a terminal redraws, and that is else printed now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from dlemu.results.wording import VISIBLE

PLAIN_SECONDS = 10.0  # between lines, at least, where there is no terminal


class ProgressLine:
    """The caller draws the line, so that no thread disturbs a rank; the cursor is always on the line below."""

    def __init__(
        self, console: Console, now: Callable[[], float] = time.monotonic, plain_seconds: float = PLAIN_SECONDS
    ) -> None:
        self._console, self._now, self._plain_seconds = console, now, plain_seconds
        self._redraws = console.is_terminal and not console.is_dumb_terminal
        self._is_drawn, self._due, self._is_over = False, now() + plain_seconds, False

    def show(self, line: str, *, last: bool = False) -> None:
        """Replace the line that is shown; without a terminal print it if it is time, and the `last` one, once."""
        if (last and self._is_over) or not (self._redraws or last or self._now() >= self._due):
            return
        self._is_over = last
        shown = line.translate(VISIBLE)
        if self._redraws:  # a line that wraps would take two
            shown = shown[: self._console.width - 1]
        back = "\x1b[1F\x1b[J" if self._is_drawn else ""
        self._console.file.write(f"{back}{shown}\n")
        self._console.file.flush()
        self._is_drawn = self._redraws and not last
        self._due = self._now() + self._plain_seconds

    def leave(self) -> None:
        """Let the line stand: another message follows."""
        self._is_drawn = False

"""Lines of progress on the terminal: redrawn in place; elsewhere printed now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from dlemu.results.wording import VISIBLE

PLAIN_SECONDS = 10.0
"""Minimum time between lines where there is no terminal."""


class ProgressLines:
    """The caller draws them, so that no thread disturbs a rank; the cursor is always on the line below."""

    def __init__(
        self, console: Console, plain_seconds: float = PLAIN_SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._plain_seconds, self._now = console, plain_seconds, now
        self._redraws = console.is_terminal and not console.is_dumb_terminal
        self._drawn, self._due, self._is_over = 0, now() + plain_seconds, False

    def show(self, lines: Sequence[str], *, last: bool = False) -> None:
        """Replace the lines that are shown; without a terminal print them if it is time, and the `last` ones, once."""
        if (last and self._is_over) or not (self._redraws or last or self._now() >= self._due):
            return
        self._is_over = last
        shown = [line.translate(VISIBLE) for line in lines]
        if self._redraws:  # a line that wraps would take two
            shown = [line[: self._console.width - 1] for line in shown]
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        self._console.file.write("".join([back, *(f"{line}\n" for line in shown)]))
        self._console.file.flush()
        self._drawn = len(shown) if self._redraws and not last else 0
        self._due = self._now() + self._plain_seconds

    def leave(self) -> None:
        """Let the lines stand: another message follows."""
        self._drawn = 0

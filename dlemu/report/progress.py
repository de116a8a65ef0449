"""Shows the progress of a run in a line, redrawn on a terminal and printed at intervals elsewhere; writes log.txt."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable

from rich.console import Console

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.report.any_run import show
from dlemu.results import ADVICE
from dlemu.results.kinds import kind_named, kind_to_run
from dlemu.results.wording import VISIBLE
from dlemu.runner.events import Event, JobBegan, OnEvent, Saved

PLAIN_SECONDS = 10.0  # minimum between printed lines where there is no terminal


class ProgressLine:
    """A line that the caller redraws, because a thread would disturb the ranks. The cursor stays on the line below."""

    def __init__(
        self, console: Console, now: Callable[[], float] = time.monotonic, plain_seconds: float = PLAIN_SECONDS
    ) -> None:
        self._console, self._now, self._plain_seconds = console, now, plain_seconds
        self._redraws = console.is_terminal and not console.is_dumb_terminal
        self._is_drawn, self._next_print, self._has_ended = False, now() + plain_seconds, False

    def show(self, line: str, *, last: bool = False) -> None:
        """Replace the line on a terminal; elsewhere print it every `plain_seconds`, and the `last` line once."""
        is_due = self._redraws or last or self._now() >= self._next_print
        if not is_due or (last and self._has_ended):
            return
        self._has_ended = last
        text = line.translate(VISIBLE)
        if self._redraws:  # a line that wraps would not be cleared as a whole
            text = text[: self._console.width - 1]
        clear = "\x1b[1F\x1b[J" if self._is_drawn else ""
        self._console.file.write(f"{clear}{text}\n")
        self._console.file.flush()
        self._is_drawn = self._redraws and not last
        self._next_print = self._now() + self._plain_seconds

    def leave(self) -> None:
        """Keep the line on the screen: the next call of `show` begins a new one, below other messages."""
        self._is_drawn = False


def log_writer(command: str) -> OnEvent:
    """Return an event handler that writes log.txt when a run is saved; `command` is its first line."""

    def write(event: Event) -> None:
        if isinstance(event, Saved):
            run, text = event.run, io.StringIO()
            show(kind_named(run.facts.kind), run.summary, run.folder, Console(width=100, file=text), details=True)
            write_text(run.folder, "log.txt", f"$ {command}\n\n{text.getvalue()}", advice=ADVICE)
        elif isinstance(event, JobBegan):
            # Rank 0, which is forked next, and later this process show the result: import the code for both here.
            with contextlib.suppress(UserError):  # if a command names the kind, the settings need not fit any kind
                kind_to_run(event.workload).load()

    return write

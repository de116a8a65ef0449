"""How far a run or a generation is: one line that is redrawn on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from dlemu.results.wording import count

if TYPE_CHECKING:  # most runs make no dataset
    from datagen.thread_pool import Progress as Made

REDRAW_SECONDS = 0.25
"""Least time between two redraws on a terminal: drawing costs milliseconds of the CPU that the workers need."""
PLAIN_SECONDS = 10.0
"""Least time between two lines where there is no terminal."""

Monotonic = Callable[[], float]


class TrainingProgress:
    """Epoch, step, AU so far, MB/s and time left, from rank 0's calls; to be closed by the last step or `close`."""

    def __init__(self, console: Console, epoch_steps: Sequence[int], *, now: Monotonic = time.monotonic) -> None:
        self._epoch_steps, self._total = epoch_steps, sum(epoch_steps)
        self._before = [sum(epoch_steps[:index]) for index in range(len(epoch_steps))]
        self._line, self._now = _line(console, now), now
        self._began: tuple[float, int] | None = None

    def step(self, epoch: int, step: int, au_percent: float, mb_per_second: float) -> None:
        """Report a step (epoch and step from 1). AU and MB/s are those of the epoch so far, NaN when there is none."""
        steps = self._epoch_steps[epoch - 1]
        done = self._before[epoch - 1] + step
        if self._began is None:
            self._began = self._now(), done
        if self._line.due(always=step == steps):
            au = "" if math.isnan(au_percent) else f"AU {au_percent:.2f} %"
            head = f"epoch {epoch}/{len(self._epoch_steps)} step {step}/{steps}"
            self._line.show(done / self._total, head, au, _mb(mb_per_second), self._left(done))
        if done == self._total:
            self.close()

    def close(self) -> None:
        """Leave the last line standing; more than once is allowed."""
        self._line.close()

    def _left(self, done: int) -> str:
        assert self._began is not None  # set by the first step
        began, first = self._began
        return _time_left(self._now() - began, done - first, self._total - done)


class DatagenProgress:
    """Files, bytes, MB/s and time left of a dataset that is being made (or verified: `verb`)."""

    def __init__(
        self, console: Console, *, ranks: int = 1, verb: str = "made", now: Monotonic = time.monotonic
    ) -> None:
        """Of several ranks the calling one is watched and the others are taken to be as far: they share the files."""
        self._line, self._ranks, self._verb = _line(console, now), ranks, verb
        self._first: Made | None = None

    def update(self, made: Made) -> None:
        """Report how far the calling rank is."""
        if self._first is None:
            self._first = made  # what was there already says nothing about the speed
        done = made.files >= made.total_files
        if self._line.due(always=done):
            seconds, fresh = made.seconds - self._first.seconds, made.bytes - self._first.bytes
            rate = self._ranks * fresh / 1e6 / seconds if seconds > 0 else math.nan
            share = min(1.0, made.bytes / made.total_bytes) if made.total_bytes else 1.0
            of_all = _of(self._ranks * made.bytes, self._ranks * made.total_bytes)
            head = f"{count(self._ranks * made.files, 'file')} {self._verb}"
            self._line.show(share, head, of_all, _mb(rate), _time_left(seconds, fresh, made.total_bytes - made.bytes))
        if done:
            self.close()

    def close(self) -> None:
        """Leave the last line standing; more than once is allowed."""
        self._line.close()


class CheckpointsProgress:
    """Which checkpoint is written or read, and how far it is."""

    def __init__(self, console: Console, *, now: Monotonic = time.monotonic) -> None:
        self._line, self._now = _line(console, now), now

    def update(self, phase: str, checkpoint: int, checkpoints: int, done: int, total: int) -> None:
        """Report how many bytes of all ranks are done of one checkpoint; `phase` is write or read."""
        if self._line.due(always=checkpoint == checkpoints and done >= total):
            verb = "written" if phase == "write" else "read"
            head = f"checkpoint {checkpoint}/{checkpoints} {verb}"
            self._line.show(done / max(1, total), head, _of(done, total))

    def close(self) -> None:
        """Leave the last line standing; more than once is allowed."""
        self._line.close()


def _of(done_bytes: int, total_bytes: int) -> str:
    """Return both in the unit that suits the total."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if total_bytes >= unit:
            return f"{done_bytes / unit:,.1f}/{total_bytes / unit:,.1f} {name}"
    return f"{done_bytes}/{total_bytes} bytes"


def _mb(mb_per_second: float) -> str:
    return "" if math.isnan(mb_per_second) else f"{mb_per_second:,.0f} MB/s"


def _time_left(seconds: float, done: int, to_do: int) -> str:
    if done <= 0 or seconds <= 0 or to_do <= 0:
        return ""
    left = round(seconds / done * to_do)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"


class _Plain:
    """A line of its own at most every PLAIN_SECONDS."""

    def __init__(self, console: Console, now: Monotonic) -> None:
        self._console, self._now, self._next = console, now, now() + PLAIN_SECONDS
        self._closed = False

    def due(self, *, always: bool) -> bool:
        return not self._closed and (always or self._now() >= self._next)

    def show(self, share: float, head: str, *parts: str) -> None:
        self._next = self._now() + PLAIN_SECONDS
        text = ", ".join([f"{100 * share:3.0f} % {head}", *filter(None, parts)])
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        self._closed = True


class _Bar(Progress):
    """Rich's progress with an empty line below it: a message from elsewhere begins a line of its own there."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if not self.finished:
            yield Text("")


class _Redrawn:
    """One line drawn again at most every REDRAW_SECONDS, by the caller alone: no thread beside a rank's loop."""

    def __init__(self, console: Console, now: Monotonic) -> None:
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn(20)]
        columns += [TextColumn("{task.fields[facts]}", markup=False)]
        self._bar = _Bar(*columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bar.add_task("", total=1.0, facts="")
        self._console, self._now, self._next, self._state = console, now, 0.0, "new"

    def due(self, *, always: bool) -> bool:
        return self._state != "closed" and (always or self._now() >= self._next)

    def show(self, share: float, head: str, *parts: str) -> None:
        self._next = self._now() + REDRAW_SECONDS
        self._bar.update(self._task, completed=share, description=head, facts="  ".join(filter(None, parts)))
        if self._state == "new":
            self._bar.start()
            self._console.show_cursor(True)  # a rank that is killed could not give it back
            self._state = "drawn"
        self._bar.refresh()

    def close(self) -> None:
        if self._state == "drawn":
            self._bar.stop()
        self._state = "closed"


def _line(console: Console, now: Monotonic) -> _Plain | _Redrawn:
    return _Redrawn(console, now) if console.is_terminal and not console.is_dumb_terminal else _Plain(console, now)

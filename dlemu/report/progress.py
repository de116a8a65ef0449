"""Progress of a run or of dataset generation: a redrawn line on a terminal, an occasional plain line elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from dlemu.results.wording import count

if TYPE_CHECKING:  # most runs generate no dataset
    from datagen.thread_pool import Progress as Made

REDRAW_SECONDS = 0.25
"""Minimum time between redraws on a terminal: drawing takes milliseconds of the CPU that the workers need."""
PLAIN_SECONDS = 10.0
"""Minimum time between lines where there is no terminal."""

Monotonic = Callable[[], float]


class TrainingProgress:
    """Shows epoch, step, AU so far, MB/s and time left, as reported by rank 0, until the last step."""

    def __init__(self, console: Console, epoch_steps: Sequence[int], *, now: Monotonic = time.monotonic) -> None:
        self._epoch_steps, self._total = epoch_steps, sum(epoch_steps)
        self._before = [sum(epoch_steps[:index]) for index in range(len(epoch_steps))]
        self._line, self._now = _line(console, now), now
        self._began: tuple[float, int] | None = None

    def step(self, epoch: int, step: int, au_percent: float, mb_per_second: float) -> None:
        """Report a step (epoch and step count from 1). AU and MB/s are those of the epoch so far, NaN if unknown."""
        steps = self._epoch_steps[epoch - 1]
        done = self._before[epoch - 1] + step
        if self._began is None:
            self._began = self._now(), done
        if self._line.due(always=step == steps):
            au = "" if math.isnan(au_percent) else f"AU {au_percent:.2f} %"
            head = f"epoch {epoch}/{len(self._epoch_steps)} step {step}/{steps}"
            began, first = self._began
            left = _time_left(self._now() - began, done - first, self._total - done)
            self._line.show(done / self._total, head, au, _mb_text(mb_per_second), left)
        if done == self._total:
            self._line.close()


class DatagenProgress:
    """Shows files, bytes, MB/s and time left of a dataset that is being made (or verified: `verb`)."""

    def __init__(
        self, console: Console, *, ranks: int = 1, verb: str = "made", now: Monotonic = time.monotonic
    ) -> None:
        """Of several ranks it shows the calling one, rank 0: what the others do is not known until the end."""
        self._line = _line(console, now)
        self._who = f"rank 0 of {ranks}: " if ranks > 1 else ""
        self._verb = "in place" if verb == "made" else verb  # files that existed count too
        self._first: Made | None = None

    def update(self, made: Made) -> None:
        """Report the progress of the calling rank."""
        if self._first is None:
            self._first = made  # files that existed before do not count for the rate
        done = made.files >= made.total_files
        if self._line.due(always=done):
            seconds, added = made.seconds - self._first.seconds, made.bytes - self._first.bytes
            rate = added / 1e6 / seconds if seconds > 0 else math.nan
            share = min(1.0, made.bytes / made.total_bytes) if made.total_bytes else 1.0
            head = f"{self._who}{count(made.files, 'file')} {self._verb}"
            left = _time_left(seconds, added, made.total_bytes - made.bytes)
            self._line.show(share, head, _amounts(made.bytes, made.total_bytes), _mb_text(rate), left)
        if done:
            self._line.close()


class CheckpointsProgress:
    """Shows which checkpoint is being written or read, and its bytes so far."""

    def __init__(self, console: Console, *, now: Monotonic = time.monotonic) -> None:
        self._line, self._now = _line(console, now), now

    def update(self, phase: str, checkpoint: int, checkpoints: int, done: int, total: int) -> None:
        """Report the bytes of a checkpoint that all ranks have written or read; `phase` is write or read."""
        if self._line.due(always=checkpoint == checkpoints and done >= total):
            verb = "written" if phase == "write" else "read"
            head = f"checkpoint {checkpoint}/{checkpoints} {verb}"
            self._line.show(done / max(1, total), head, _amounts(done, total))

    def close(self) -> None:
        """Leave the last line standing; more than once is allowed."""
        self._line.close()


def _amounts(done_bytes: int, total_bytes: int) -> str:
    """Return done and total bytes, in a unit that suits the total."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if total_bytes >= unit:
            return f"{done_bytes / unit:,.1f}/{total_bytes / unit:,.1f} {name}"
    return f"{done_bytes}/{total_bytes} bytes"


def _mb_text(mb_per_second: float) -> str:
    return "" if math.isnan(mb_per_second) else f"{mb_per_second:,.0f} MB/s"


def _time_left(seconds: float, done: int, to_do: int) -> str:
    if done <= 0 or seconds <= 0 or to_do <= 0:
        return ""
    left = round(seconds / done * to_do)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"


class _PlainLine:
    """Prints a new line, at most every PLAIN_SECONDS."""

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
    """Rich's progress with an empty line below, so that messages printed meanwhile begin on a new line."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if not self.finished:
            yield Text("")


class _LiveLine:
    """A line redrawn in place, at most every REDRAW_SECONDS; by the caller, so that no thread disturbs a rank."""

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
            self._console.show_cursor(True)  # not hidden, because a killed rank could not show it again
            self._state = "drawn"
        self._bar.refresh()

    def close(self) -> None:
        if self._state == "drawn":
            self._bar.stop()
        self._state = "closed"


def _line(console: Console, now: Monotonic) -> _PlainLine | _LiveLine:
    return _LiveLine(console, now) if console.is_terminal and not console.is_dumb_terminal else _PlainLine(console, now)

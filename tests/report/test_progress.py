"""Progress is told often enough to follow and seldom enough to cost nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dlemu.report.progress import PLAIN_SECONDS, ProgressLine


class Time:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def shown(console: Console) -> str:
    """Show 200 steps of a second, of which one is interrupted by a message; return what was written."""
    clock = Time()
    line = ProgressLine(console, now=clock)
    for step in range(1, 201):
        clock.seconds += 1
        line.show(f"step {step}/200, longer than the terminal: {'x' * 200}", last=step == 200)
        if step == 100:
            line.leave()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then_and_the_last() -> None:
    lines = shown(Console(file=io.StringIO(), width=100)).splitlines()
    assert len(lines) == pytest.approx(200 / PLAIN_SECONDS, abs=2)
    assert lines[-1].startswith("step 200/200")
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_it_is_redrawn_in_place() -> None:
    drawn = shown(Console(file=io.StringIO(), width=100, force_terminal=True))
    assert drawn.count("\x1b[1F\x1b[J") == 200 - 2, "neither at first, nor over a message"
    assert max(len(line) for line in drawn.replace("\x1b[1F\x1b[J", "").splitlines()) < 100, "wrapped ones would stay"

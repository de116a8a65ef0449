"""Progress is told often enough to follow and seldom enough to cost nothing."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from datagen.thread_pool import Progress
from dlemu.report.progress import (
    PLAIN_SECONDS,
    REDRAW_SECONDS,
    DatagenProgress,
    TrainingProgress,
)


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def train(console: Console, clock: Time, step_seconds: float, steps: tuple[int, ...] = (100, 100)) -> str:
    progress = TrainingProgress(console, steps, now=clock)
    for epoch, count in enumerate(steps, start=1):
        for step in range(1, count + 1):
            clock.seconds += step_seconds
            progress.step(epoch, step, 97.25, 1234.0)
    return text_of(console)


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_an_epoch() -> None:
    lines = train(plain(), Time(), step_seconds=1.0).splitlines()
    assert len(lines) == pytest.approx(200 / PLAIN_SECONDS, abs=2)
    assert lines[-1] == "100 % epoch 2/2 step 100/100, AU 97.25 %, 1,234 MB/s"
    assert any(line.startswith(" 50 % epoch 1/2 step 100/100") for line in lines)
    quick = train(plain(), Time(), step_seconds=0.01).splitlines()
    assert len(quick) == 2


def test_a_terminal_is_redrawn_at_most_four_times_a_second() -> None:
    drawn = train(terminal(), Time(), step_seconds=0.01)
    redraws = drawn.count("epoch 1/2 step") + drawn.count("epoch 2/2 step")
    assert 4 <= redraws <= 2 / REDRAW_SECONDS + 4
    assert drawn.endswith("\n\x1b[?25h")
    assert "97.25 %" in drawn


def test_a_message_from_elsewhere_begins_a_line_of_its_own() -> None:
    console, clock = terminal(), Time()
    progress = TrainingProgress(console, [100], now=clock)
    clock.seconds += 1
    progress.step(1, 1, math.nan, math.nan)
    frame = text_of(console).rpartition("epoch 1/1")[2]
    assert "\n" in frame
    assert not frame.rpartition("\n")[2].strip(" \r"), "the cursor stands on an empty line"
    assert text_of(console).rfind("\x1b[?25h") > text_of(console).rfind("\x1b[?25l"), "and it can be seen"


def test_datagen_tells_files_bytes_rate_and_time_left_of_rank_0() -> None:
    """Shares differ by a file, and another's may fail: what rank 0 has is not multiplied."""
    console, clock = plain(), Time()
    progress = DatagenProgress(console, ranks=2, now=clock)
    for tenth in range(11):
        progress.update(Progress(tenth * 5, tenth * 100_000_000, 1_000_000_000, 50, tenth * 2.0))
        clock.seconds += 6
    lines = text_of(console).splitlines()
    assert lines[0] == " 20 % rank 0 of 2: 10 files in place, 0.2/1.0 GB, 50 MB/s, 0:00:16 left"
    assert lines[-1] == "100 % rank 0 of 2: 50 files in place, 1.0/1.0 GB, 50 MB/s"


def test_what_a_resumed_dataset_had_already_does_not_count_as_speed() -> None:
    console, clock = plain(), Time()
    progress = DatagenProgress(console, now=clock)
    progress.update(Progress(90, 900_000_000, 1_000_000_000, 100, 0.0))
    clock.seconds += 11
    progress.update(Progress(91, 910_000_000, 1_000_000_000, 100, 10.0))
    assert text_of(console).endswith("1 MB/s, 0:01:30 left\n")

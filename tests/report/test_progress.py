"""Progress is told often enough to follow and seldom enough to cost nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from datagen.thread_pool import Progress
from dlemu.report.progress import PLAIN_SECONDS, REDRAW_SECONDS, DatagenProgress, TrainingProgress


class Time:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def console(**terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=100, color_system=None, **terminal)  # type: ignore[arg-type]


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
    lines = train(console(), Time(), step_seconds=1.0).splitlines()
    assert len(lines) == pytest.approx(200 / PLAIN_SECONDS, abs=2)
    assert lines[-1] == "100 % epoch 2/2 step 100/100, AU 97.25 %, 1,234 MB/s"
    assert any(line.startswith(" 50 % epoch 1/2 step 100/100") for line in lines)
    quick = train(console(), Time(), step_seconds=0.01).splitlines()
    assert len(quick) == 2


def test_a_terminal_is_redrawn_at_most_four_times_a_second() -> None:
    drawn = train(console(force_terminal=True), Time(), step_seconds=0.01)
    redraws = drawn.count("epoch 1/2 step") + drawn.count("epoch 2/2 step")
    assert 4 <= redraws <= 2 / REDRAW_SECONDS + 4
    assert drawn.endswith("\n\x1b[?25h")
    assert "97.25 %" in drawn


def test_what_a_resumed_dataset_had_already_does_not_count_as_speed() -> None:
    shown, clock = console(), Time()
    progress = DatagenProgress(shown, now=clock)
    progress.update(Progress(90, 900_000_000, 1_000_000_000, 100, 0.0))
    clock.seconds += 11
    progress.update(Progress(91, 910_000_000, 1_000_000_000, 100, 10.0))
    assert text_of(shown).endswith("1 MB/s, 0:01:30 left\n")

"""No work is done for a single row: large results are shown in as many calls as small ones."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from dlemu.jobs.training import deeper_queue
from dlemu.jobs.training.result import read_run
from dlemu.metrics import changes
from dlemu.report.page import open_page
from tests.parts import of_parts
from tests.runs import whole_run, write_run

RANKS, EPOCHS = 4, 2
STEPS = {"small": 1200, "large": 3600}
"""From about 1,000 steps on the windows in which changes of speed are searched no longer become more."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {name: str(tmp_path_factory.mktemp(name)) for name in STEPS}
    for name, steps in STEPS.items():
        write_run(whole_run(folder=folders[name], ranks=RANKS, epochs=EPOCHS, steps=steps))
    return folders


@pytest.fixture(autouse=True)
def as_if_it_were_large(monkeypatch: pytest.MonkeyPatch) -> None:
    row_count = RANKS * EPOCHS * STEPS["small"] // 2
    monkeypatch.setattr(changes, "MAX_ROWS", changes.MAX_ROWS * row_count // 10**7)
    monkeypatch.setattr(deeper_queue, "MAX_ROWS", deeper_queue.MAX_ROWS * row_count // 10**7)


def show(path: str) -> None:
    open_page(path)
    assert read_run(path).read_mb_per_second is not None


@pytest.mark.parametrize("command", [show, *of_parts("READERS").values()])
def test_nothing_is_called_for_each_row(results: dict[str, str], command: Any) -> None:
    command(results["small"])
    calls = {name: _calls(command, path) for name, path in results.items()}
    more_rows = RANKS * EPOCHS * (STEPS["large"] - STEPS["small"])
    assert calls["large"] - calls["small"] < more_rows / 100


def _calls(command: Any, path: str) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        command(path)
    finally:
        sys.setprofile(None)
    return count

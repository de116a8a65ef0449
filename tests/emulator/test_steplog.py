"""A rank's rows outlive it, and only whole ones count."""

from __future__ import annotations

import mmap
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from dlemu.jobs.training.steplog import STEP_COLUMNS, StepLog, read_log
from tests.emulator.fakes import numbered


@pytest.mark.parametrize("kill", range(4))
def test_a_row_counts_only_once_all_its_columns_are_there(kill: int, tmp_path: Path) -> None:
    """A kill comes anywhere between two stores, so most of the kills meet a half-written row."""
    path = str(tmp_path / "rank_00000.steps")
    capacity = 200_000
    if (child := os.fork()) == 0:
        log = StepLog(capacity, path)
        for step in range(1, capacity + 1):
            log.add(*numbered(step))
        signal.pause()
    while not os.path.exists(path) or not os.path.getsize(path):
        time.sleep(0.001)
    while len(read_log(path)) < 10 + kill:
        time.sleep(0.0001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    rows = read_log(path)
    for name in STEP_COLUMNS:
        assert (rows[name] == np.arange(1, len(rows) + 1)).all(), name


def test_a_long_log_does_not_stay_in_the_ranks_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "rank_00000.steps")
    log = StepLog(30_000, path)
    for step in range(1, 20_481):
        log.add(*numbered(step))
        if step % 5_000 == 0:
            assert log.rows["step"].max() == step
    (mapped,) = [part for part in psutil.Process().memory_maps() if part.path == path]
    assert mapped.size == pytest.approx(os.path.getsize(path), abs=mmap.PAGESIZE)
    assert mapped.rss < mapped.size / 3
    assert (log.rows["met_ns"] == np.arange(1, 20_481)).all(), "what was given back is in the file"

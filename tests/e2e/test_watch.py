"""`dlemu watch` beside a real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import dlemu, small_run, start, until, wait

pytestmark = pytest.mark.slow


def test_a_run_is_watched_to_its_end(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = small_run(folder, dataset, "train.computation_time=0.2", "train.epochs=3")
    run = start("train", *words)
    until((folder / "live" / "facts.json").exists, "the run has begun")
    watched = dlemu("watch", str(folder))
    ended = wait(run)
    assert ended.status in COMPLETED, ended.err
    assert watched.status == ended.status
    assert "epoch 3/3, step" in watched.out
    assert watched.out.splitlines()[-1] in ended.out

"""The jobs of `scripts/validate real` are scripts that run, and its lines say what was seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.tests.made_rows import Trainer, steady

JOBS = Path(__file__).parents[2] / "scripts" / "validation" / "jobs"


@pytest.mark.proof
def test_each_job_trains_on_the_files_made_for_it(module: Callable[[str], Any], tmp_path: Path) -> None:
    for job in module("real").JOBS:
        folder = tmp_path / job.script
        if not folder.exists():
            subprocess.run([sys.executable, str(JOBS / "data.py"), job.script, str(folder), "9"], check=True)
        argv = replace(job, batch=2, workers=1).command(str(tmp_path), 3)
        ran = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=240)
        assert float(ran.stdout.split()[-2]) > 0, ran.stdout


@pytest.mark.parametrize(
    ("wait_ms", "blocked_ms", "limit"), [(0.2, 0.0, "nothing"), (30, 28.0, "storage"), (2.5, 0.0, "host CPU")]
)
def test_a_job_is_limited_by_what_it_waited_for(
    module: Callable[[str], Any], wait_ms: float, blocked_ms: float, limit: str
) -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=wait_ms, body_ms=20, blocked_ms=blocked_ms)
    assert module("real").limit_of(analyse(trainer.processes, 10)) == limit


def test_a_line_holds_where_rate_and_limit_are_the_jobs(module: Callable[[str], Any]) -> None:
    real = module("real")
    row = real.Row(
        job="crops",
        drive="40 MB/s",
        real=20.0,
        replayed=21.9,
        predicted=30.0,
        real_limit="storage",
        replayed_limit="loader",
        predicted_limit="nothing",
        core_wait_percent=3.0,
    )
    assert row.status == "ok"
    assert "(+9.5 %)" in row.text
    assert replace(row, replayed=22.1).status == "MISSED"
    assert replace(row, replayed_limit="nothing").status == "MISSED"
    mean, same = real.together([row, replace(row, replayed=20.0, replayed_limit="host CPU")])
    assert (mean.measured, mean.holds) == (pytest.approx(4.75), True)
    assert (same.measured, same.holds) == (50.0, False)

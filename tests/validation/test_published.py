"""What was published is predicted where it is at hand, and its absence is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.prediction.test_from_times import write_dlio_run

DRIVES = """item,kioxia_cm7r,vendor_a,unit,note
total_time_18acc_5ep,2552,2906,s,
faster_17acc_pct,11.9,,%,
faster_16acc_pct,8.9,,%,
faster_8acc_pct,1.3,,%,
dataset_files,24000,24000,,
"""


def test_without_what_was_published_it_says_so(tmp_path: Path, module: Callable[[str], Any]) -> None:
    assert "published-runs and seeds/kioxia_cm7.csv are not in" in module("published").why_no_published(tmp_path)


def test_every_figure_is_predicted_from_another(tmp_path: Path, module: Callable[[str], Any]) -> None:
    published = module("published")
    write_dlio_run(tmp_path / published.RUNS / "a-run")
    (tmp_path / "seeds").mkdir()
    (tmp_path / published.DRIVES).write_text(DRIVES)
    assert published.why_no_published(tmp_path) is None
    checks = list(published.checks(tmp_path))
    assert len(checks) == 5
    assert all(check.holds for check in checks)

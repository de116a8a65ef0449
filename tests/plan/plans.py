"""Makes small plans of an epoch's samples; keyword arguments replace their fields."""

from __future__ import annotations

from typing import Any

from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan


def make_plan(**changes: Any) -> Plan:
    """Return a plan of 50 files of 4 samples, which 4 ranks read unshuffled in batches of 5."""
    shuffles = {"file_shuffle": False, "sample_shuffle": False, "seed": 123, "seed_change_epoch": True}
    sizes = {"num_files": 50, "num_samples_per_file": 4, "batch_size": 5, "ranks": 4}
    return Plan(**(sizes | shuffles | changes))


def make_stream_plan(**changes: Any) -> StreamPlan:
    """Return a plan of 6 files of 10 samples, of which 2 ranks read two files at a time, in batches of 4."""
    shuffles = {"file_shuffle": True, "sample_shuffle": True, "seed": 11, "seed_change_epoch": True}
    sizes = {"num_files": 6, "num_samples_per_file": 10, "batch_size": 4, "ranks": 2, "cycle": 2}
    return StreamPlan(**(sizes | shuffles | changes))

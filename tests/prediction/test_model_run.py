"""A run of the model: how much of it is simulated, on which part of storage and hosts, and what its rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dlemu.config.duration import Duration
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.batches import batch_bytes
from dlemu.jobs.training.prediction.calibration import CurvePoint, given_speed
from dlemu.jobs.training.prediction.model_run import MIN_STEPS, Model
from dlemu.plan.samples import Plan, RankPlan
from tests.prediction.test_calibration import workload
from tests.prediction.test_make_prediction import DEMAND

FAST = given_speed(10_000.0, cores=2)


def epochs(count: int, *, ranks: int = 2, steps: int = 10) -> Workload:
    asked = workload(ranks=ranks, steps=steps)
    return replace(asked, train=replace(asked.train, epochs=count))


@pytest.mark.parametrize("changes", [{}, {"worker_streams": 3}, {"worker_streams": 3, "file_shuffle": True}])
def test_a_batch_has_the_bytes_of_the_files_that_the_plan_gives_it(changes: dict[str, Any]) -> None:
    shuffles = {"file_shuffle": False, "sample_shuffle": False, "seed_change_epoch": True}
    plan = Plan(num_files=60, num_samples_per_file=2, batch_size=4, ranks=2, seed=7, **shuffles | changes)
    by_file = np.arange(60.0) ** 2
    planned = [
        [by_file[RankPlan(plan, rank).sample_ids(2, step) // 2].sum() for step in range(1, 11)] for rank in (0, 1)
    ]
    assert batch_bytes(plan, by_file, 2, 10).tolist() == planned


@pytest.mark.parametrize(("preprocess", "took_ms"), [("sleep", 20), ("burn", 40)])
def test_only_preprocessing_that_burns_shares_the_cores_with_decoding(preprocess: Any, took_ms: float) -> None:
    """Two ranks of a worker each, one core: 4 x 5 ms a batch asleep, or on a core that both want."""
    asked = workload(steps=30, step_seconds=0.001, read_threads=1, preprocess=preprocess)
    asked = replace(asked, reader=replace(asked.reader, preprocess_time=Duration(mean=0.005)))
    decodes = replace(given_speed(10_000.0, cores=1), decode_seconds_per_sample=1e-6)
    rows = Model(asked, decodes).run(2).rows
    assert np.median(rows["finished_ns"] - rows["started_ns"]) / 1e6 == pytest.approx(took_ms, rel=0.05)


def test_a_part_of_the_accelerators_has_its_part_of_files_storage_and_hosts() -> None:
    """20 of 40, each of which decodes as long as 0.8 of its part of a core allows."""
    asked = workload(ranks=40, steps=200)
    curve = (
        CurvePoint(readers=8, mb_per_second=0.4 * 40 * DEMAND),
        CurvePoint(readers=60, mb_per_second=0.7 * 40 * DEMAND),
    )
    known = replace(FAST, curve=curve)
    whole, part = (Model(asked, known).run(40, most_rows=640, shrinks=one) for one in (False, True))
    assert (whole.ranks, part.ranks) == (40, 20)
    assert part.planned_steps == whole.planned_steps == 200
    assert part.simulated_steps == MIN_STEPS + 2
    assert part.outcome.au_whole_percent == pytest.approx(whole.outcome.au_whole_percent, abs=3)
    assert 2 * part.outcome.samples_per_second == pytest.approx(whole.outcome.samples_per_second, rel=0.03)
    decoding = replace(known, decode_seconds_per_sample=0.01, cores=24.0)
    both = [Model(asked, decoding).run(40, most_rows=640, shrinks=one) for one in (False, True)]
    assert both[1].outcome.au_whole_percent == pytest.approx(both[0].outcome.au_whole_percent, abs=3)
    assert Model(asked, known).run(40, most_rows=641, shrinks=True).ranks == 40


@pytest.mark.parametrize(("decode_ms", "au"), [(10.0, 62.5), (1.0, 100.0), (40.0, 25.0)])
def test_a_trainer_that_waits_leaves_its_core_to_the_readers(decode_ms: float, au: float) -> None:
    """One core: 40 ms of each step for the trainer, and as much for each of the batch's 4 samples as a reader decodes.

    So a step takes the sum of both, or the 50 ms of its computation; beside a trainer that never waits, readers have
    a fifth of the core.
    """
    asked = workload(ranks=1, steps=400, read_threads=4)
    asked = replace(asked, train=replace(asked.train, step_cpu_time=Duration(mean=0.040)))
    decoding = replace(FAST, decode_seconds_per_sample=decode_ms / 1000, cores=1.0)
    found = Model(asked, decoding).run(1).outcome.au_whole_percent
    assert found == pytest.approx(min(100.0, 100 * 0.050 / (0.040 + 4 * decode_ms / 1000)), abs=3)
    assert found == pytest.approx(au, abs=3)

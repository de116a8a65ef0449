"""What the times of epochs tell of a storage where no reads were kept, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import dlemu
from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.jobs.training.prediction.calibration import Calibration, given_speed
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.model_run import Model
from tests.prediction.test_calibration import workload

DEMAND = 2 * 4 / 0.05
"""MB/s of the two accelerators of `workload`."""


def synchronous() -> Workload:
    asked = workload(steps=200)
    return replace(asked, train=replace(asked.train, synchronous=True))


def timed(known: Calibration, *, first: bool = True) -> ForeignRun:
    """The times of a run whose storage and host are known."""
    asked = synchronous()
    outcome = Model(asked, known).run(2).outcome
    waits = (outcome.time_to_first_batch_seconds,) * 3 if first else ()
    return ForeignRun(
        folder="x",
        workload=asked,
        ranks=2,
        hosts=1,
        epoch_seconds=tuple(outcome.training_seconds * np.array([0.99, 1.0, 1.01])),
        first_seconds=waits,
    )


def test_a_storage_that_limits_is_found_by_the_time_of_epochs() -> None:
    for first in (True, False):
        found = calibrate_from_times(timed(given_speed(0.7 * DEMAND, cores=4), first=first))
        assert found.saturated
        assert found.curve[0].mb_per_second == pytest.approx(0.7 * DEMAND, rel=0.02)
        assert 0.5 < found.half_width_percent < 5


def test_a_storage_that_does_not_limit_is_found_by_the_first_step_and_the_rest_is_the_hosts() -> None:
    given = given_speed(2 * DEMAND, cores=4)
    found = calibrate_from_times(timed(replace(given, costs=replace(given.costs, step_seconds=0.01))))
    assert found.curve[0].mb_per_second == pytest.approx(2 * DEMAND, rel=0.05)
    assert found.costs.step_seconds == pytest.approx(0.01, rel=0.1)
    assert found.saturated
    assert found.source == "the times of 3 epochs of x (2 accelerators)"


def test_a_run_that_never_waited_says_no_upper_end() -> None:
    assert not calibrate_from_times(timed(given_speed(50 * DEMAND, cores=4), first=False)).saturated


def test_times_that_no_storage_could_give_are_refused() -> None:
    run = timed(given_speed(2 * DEMAND, cores=4))
    with pytest.raises(UserError, match="not those it ran with"):
        calibrate_from_times(replace(run, epoch_seconds=(1.0,)))


def write_dlio_run(folder: Path, *, epochs: int = 3, au: float = 76.5) -> None:
    """Files as DLIO 1.0 leaves them: 4 accelerators, 50 steps of 0.323 s in 25 s: 8.2 GB/s."""
    (folder / "configs").mkdir(parents=True)
    config = {
        "model": "unet3d",
        "dataset": {"num_files_train": 1400, "num_samples_per_file": 1, "record_length": 146600628},
        "reader": {"batch_size": 7, "read_threads": 8},
        "train": {"epochs": epochs, "computation_time": 0.323},
    }
    (folder / "configs" / "config.yaml").write_text(yaml.safe_dump({"workload": config}))
    (folder / "configs" / "overrides.yaml").write_text(yaml.safe_dump(["workload=unet3d_h100"]))
    rate = 1400 / 25
    metric = {
        "train_au_percentage": [au] * epochs,
        "train_au_mean_percentage": au,
        "train_throughput_samples_per_second": [rate] * epochs,
        "train_throughput_mean_samples_per_second": rate,
    }
    summary = {"start": "2026-01-01T00:00:00", "num_accelerators": 4, "num_hosts": 1, "metric": metric}
    (folder / "summary.json").write_text(json.dumps(summary))
    stats = {
        str(epoch): {
            "start": f"2026-01-01T00:{epoch:02}:00",
            "block1": {"start": f"2026-01-01T00:{epoch:02}:00.000000", "end": f"2026-01-01T00:{epoch:02}:25.000000"},
            "end": f"2026-01-01T00:{epoch:02}:25",
        }
        for epoch in range(1, epochs + 1)
    }
    (folder / "per_epoch_stats.json").write_text(json.dumps(stats))


def test_dlios_results_are_what_a_prediction_is_made_of(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_dlio_run(run)
    answer = dlemu.predict(
        [
            "workload=unet3d",
            "accelerator=h100",
            "dataset.num_files_train=1400",
            "ranks=4",
            f"output.folder={tmp_path / 'p'}",
        ],
        from_folder=run,
    )
    known = foreign_run(str(run))
    assert known is not None
    assert known.epoch_seconds == (25.0, 25.0, 25.0)
    assert known.first_seconds == pytest.approx([25 - 0.323 - 49 * 0.323 / 0.765] * 3)
    assert answer.samples_per_second == pytest.approx(1400 / 25, rel=0.03)
    assert "3 epochs" in answer.calibration.source


def test_a_folder_of_several_runs_or_of_none_is_said(tmp_path: Path) -> None:
    assert foreign_run(str(tmp_path)) is None
    for name in ("a", "b"):
        write_dlio_run(tmp_path / name)
    with pytest.raises(UserError, match="holds 2 runs"):
        foreign_run(str(tmp_path))
    (tmp_path / "a" / "configs" / "config.yaml").unlink()
    with pytest.raises(UserError, match="lacks"):
        foreign_run(str(tmp_path / "a"))

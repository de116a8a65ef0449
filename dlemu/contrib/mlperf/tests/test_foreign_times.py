"""The times of epochs in DLIO's results, of which a prediction is made; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import dlemu
from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run


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
    words = ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=1400", "ranks=4"]
    answer = dlemu.predict([*words, f"output.folder={tmp_path / 'p'}"], from_folder=run)
    known = foreign_run(str(run))
    assert known is not None
    assert known.epoch_seconds == (25.0, 25.0, 25.0)
    assert known.first_seconds == pytest.approx([25 - 0.323 - 49 * 0.323 / 0.765] * 3)
    assert answer.shown.samples_per_second == pytest.approx(1400 / 25, rel=0.03)
    assert "3 epochs" in answer.source


def test_a_folder_of_several_runs_or_of_none_is_said(tmp_path: Path) -> None:
    assert foreign_run(str(tmp_path)) is None
    for name in ("a", "b"):
        write_dlio_run(tmp_path / name)
    with pytest.raises(UserError, match="holds 2 runs"):
        foreign_run(str(tmp_path))
    (tmp_path / "a" / "configs" / "config.yaml").unlink()
    with pytest.raises(UserError, match="lacks"):
        foreign_run(str(tmp_path / "a"))

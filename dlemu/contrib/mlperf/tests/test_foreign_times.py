"""The times of epochs in DLIO's results, of which a prediction is made; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlemu
from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.contrib.mlperf.tests.changes import put
from dlemu.contrib.mlperf.tests.foreign_runs import C, play, write_run
from dlemu.contrib.mlperf.tests.golden import edit


def test_dlios_results_are_what_a_prediction_is_made_of(tmp_path: Path) -> None:
    """Of v1.0, without steps: the wait for an epoch's first batch follows from its AU."""
    run, epochs = tmp_path / "run", play(1, 3, 50, 0)
    summary = write_run(run, ranks=1, epochs=3, steps=50, kept=0)
    edit(run / "configs/config.yaml", put("workload/reader/read_threads", 8))
    answer = dlemu.predict(
        ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=350", f"output.folder={tmp_path / 'p'}"],
        from_folder=run,
    )
    known = foreign_run(str(run))
    assert known is not None
    assert known.epoch_seconds == pytest.approx([rank.end - rank.start for (rank,) in epochs], abs=1e-5)
    assert known.first_seconds == pytest.approx([rank.proc[0] - C for (rank,) in epochs], abs=1e-4)
    rate = summary["metric"]["train_throughput_mean_samples_per_second"]
    assert answer.shown.samples_per_second == pytest.approx(rate, rel=0.03)
    assert "3 epochs" in answer.source


def test_a_folder_of_several_runs_or_of_none_is_said(tmp_path: Path) -> None:
    assert foreign_run(str(tmp_path)) is None
    for name in ("a", "b"):
        write_run(tmp_path / name, ranks=1)
    with pytest.raises(UserError, match="holds 2 runs"):
        foreign_run(str(tmp_path))
    (tmp_path / "a" / "configs" / "config.yaml").unlink()
    with pytest.raises(UserError, match="lacks"):
        foreign_run(str(tmp_path / "a"))

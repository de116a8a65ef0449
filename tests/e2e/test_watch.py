"""`dlemu watch` beside a real run, and the file for Prometheus that the run writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.metrics.verdict import COMPLETED
from tests.datasets import make_dataset
from tests.e2e.harness import dlemu, small_run, start, until, wait

pytestmark = pytest.mark.slow


def test_a_run_is_watched_to_its_end(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", num_files_train=48, record_length_bytes=20_000, record_length_bytes_stdev=5_000)
    folder, metrics = tmp_path / "run", tmp_path / "dlemu.prom"
    words = small_run(
        folder, tmp_path / "data", "train.computation_time=0.2", "train.epochs=6", f"output.openmetrics={metrics}"
    )
    run = start("train", *words)
    until((folder / "live" / "facts.json").exists, "the run has begun")
    until(lambda: metrics.exists() and "dlemu_au_ratio" in metrics.read_text(), "figures are written")
    assert 'dlemu_active{workload="default"' in metrics.read_text()
    watched = dlemu("watch", str(folder), "--ranks")
    ended = wait(run)
    assert ended.status in COMPLETED, ended.err
    assert watched.status == ended.status
    assert "rank 2  au " in watched.out
    assert "epoch 6/6, step" in watched.out
    assert watched.out.splitlines()[-1] in ended.out
    assert metrics.read_text().splitlines()[-2].endswith(" 0"), "it says that the run has ended"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "and nothing half written is left"


def test_a_file_of_somebody_else_is_refused_before_the_run(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", num_files_train=48, record_length_bytes=20_000, record_length_bytes_stdev=5_000)
    (tmp_path / "notes.txt").write_text("mine")
    words = small_run(tmp_path / "run", tmp_path / "data", f"output.openmetrics={tmp_path / 'notes.txt'}")
    ended = dlemu("train", *words)
    assert ended.status == 2
    assert "a file that dlemu did not write" in ended.err
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "run").exists()

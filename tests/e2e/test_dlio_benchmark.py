"""`dlio_benchmark` as scripts and MLCommons' mlpstorage use it: its files, its lines, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import DLIO, Ended, start, summary, wait

MPIRUN = str(Path(sys.executable).parent / "mpirun")
MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE", "")
"""A checkout of https://github.com/mlcommons/storage at v2.0."""

pytestmark = pytest.mark.slow


def configs(folder: Path, workflow: dict[str, bool], **reader: Any) -> str:
    """A folder of DLIO's workload files, as mlpstorage has one."""
    (folder / "workload").mkdir(parents=True)
    workload = {
        "model": {"name": "unet3d", "type": "cnn", "model_size": 100_000},
        "framework": "pytorch",
        "workflow": workflow,
        "dataset": {
            "data_folder": "nowhere",
            "format": "npz",
            "num_files_train": 32,
            "num_samples_per_file": 1,
            "record_length_bytes": 20_000,
        },
        "reader": {"data_loader": "pytorch", "batch_size": 2, "read_threads": 1} | reader,
        "train": {"epochs": 2, "computation_time": 0.01},
        "checkpoint": {"checkpoint_after_epoch": 2},
        "metric": {"au": 0.9},
    }
    (folder / "workload" / "small_h100.yaml").write_text(yaml.safe_dump(workload))
    return str(folder)


def benchmark(leaf: Path, config: str, *settings: str, ranks: int = 2) -> Ended:
    """Call it as mlpstorage does."""
    words = [
        "workload=small_h100",
        f"++hydra.run.dir={leaf}",
        "++hydra.output_subdir=dlio_config",
        *(f"++workload.{setting}" for setting in settings),
        f"--config-dir={config}",
    ]
    return wait(start(*words, program=DLIO, launcher=[MPIRUN, "-n", str(ranks), "-host", f"127.0.0.1:{ranks}"]))


@pytest.mark.mpi
@pytest.mark.skipif(not os.path.exists(MPIRUN), reason="no mpirun in the environment; scripts/env dev installs one")
def test_datagen_and_training_leave_what_dlio_leaves(tmp_path: Path) -> None:
    data, made_in, leaf = tmp_path / "data" / "unet3d", tmp_path / "datagen", tmp_path / "run"
    for name in ("train", "valid", "test"):  # mlpstorage makes them
        (data / name).mkdir(parents=True)
    only_data = configs(tmp_path / "a", {"generate_data": True, "train": False, "checkpoint": False})
    made = benchmark(made_in, only_data, f"dataset.data_folder={data}")
    assert made.status == 0, made.err
    assert len(list((data / "train").iterdir())) == 32
    assert sorted(path.name for path in made_in.iterdir()) == ["dlio.log", "dlio_config"]
    # Each batch takes 0.1 s of a worker's time: the run completes, and does not pass.
    slow = configs(tmp_path / "b", {"generate_data": False, "train": True, "checkpoint": True}, preprocess_time=0.05)
    ended = benchmark(
        leaf,
        slow,
        f"dataset.data_folder={data}",
        f"checkpoint.checkpoint_folder={tmp_path / 'saved'}",
        "output.report=false",
        "metric.ceiling_seconds=0",
        "train.epochs=2",
    )
    assert ended.status == 0, ended.err
    told = json.loads((leaf / "summary.json").read_text())
    assert (told["num_accelerators"], told["metric"]["train_au_meet_expectation"]) == (2, "fail")
    assert "save_checkpoint_duration_mean_seconds" in told["metric"]
    mean = told["metric"]["train_au_mean_percentage"]
    assert f"[METRIC] Training Accelerator Utilization [AU] (%): {mean:.4f} (" in ended.out
    assert "[METRIC] train_au_meet_expectation: fail" in ended.out
    overrides = yaml.safe_load((leaf / "dlio_config" / "overrides.yaml").read_text())
    assert overrides[0] == "workload=small_h100"
    assert overrides[-1] == "++workload.train.epochs=2"
    files = {path.name for path in leaf.iterdir()}
    assert files >= {"0_output.json", "1_output.json", "0_per_epoch_stats.json", "1_per_epoch_stats.json", "dlio.log"}
    assert summary(leaf / "dlemu")["passed"] is not True


def test_a_mistake_is_dlemus_kind_of_mistake_and_touches_no_earlier_results(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    for setting, said in (
        ("reader.batchsize=4", "did you mean reader.batch_size?"),
        ("workflow.train=False", "workflow.train is false"),
        ("dataset.data_folder=nowhere", "nowhere"),
    ):
        words = ("workload=unet3d_h100", f"++hydra.run.dir={tmp_path}", f"++workload.{setting}")
        ended = wait(start(*words, program=DLIO, cwd=tmp_path))
        assert ended.status == 2
        assert said in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.mpi
@pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE names no checkout of mlcommons/storage v2.0")
def test_the_real_mlpstorage_runs_it_and_reports_on_it(tmp_path: Path) -> None:
    """Tiny records, so mlpstorage calls the run invalid: what counts is that it starts, reads and lists it."""
    shared = [
        *("--open", "--allow-invalid-params", "--results-dir", str(tmp_path / "results")),
        *("--data-dir", str(tmp_path / "data"), "--dlio-bin-path", str(Path(DLIO).parent), "--model", "unet3d"),
    ]
    tiny = ["dataset.record_length_bytes=20000", "dataset.record_length_bytes_stdev=0"]
    params = ["--params", "dataset.num_files_train=56", *tiny]
    run = ["--num-accelerators", "2", "--accelerator-type", "h100", "--client-host-memory-in-gb", "1"]
    _mlpstorage(tmp_path, "training", "datagen", "--num-processes", "2", *shared, *params)
    _mlpstorage(tmp_path, "training", "run", *run, *shared, *params, "train.epochs=1")
    report = _mlpstorage(tmp_path, "reports", "reportgen", "--results-dir", str(tmp_path / "results"))
    assert "Model: unet3d" in report
    assert "train_au_meet_expectation: success" in report
    (listed,) = json.loads((tmp_path / "results" / "results.json").read_text())
    assert listed["benchmark_type"] == "training"


def _mlpstorage(home: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "mlpstorage.main", *words],
        cwd=MLPSTORAGE,
        env=os.environ | {"HOME": str(home), "PATH": f"{Path(MPIRUN).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return ended.stdout

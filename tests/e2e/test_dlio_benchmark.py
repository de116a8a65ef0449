"""`dlio_benchmark` as scripts and MLCommons' mlpstorage use it: its files, its lines, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlemu.dlio.command import load_command
from dlemu.dlio.export import export_run
from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import DLIO, MPIRUN, UNDER_MPI, Ended, start, summary, wait
from tests.runs import whole_run

MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE", "")
"""A checkout of https://github.com/mlcommons/storage at v2.0."""

mpi, needs_mpirun = UNDER_MPI

pytestmark = pytest.mark.slow


def configs(folder: Path, workflow: dict[str, bool], **reader: Any) -> str:
    """A folder of DLIO's workload files, as mlpstorage has one."""
    (folder / "workload").mkdir(parents=True)
    workload = {
        "model": {"name": "unet3d", "type": "cnn", "model_size": 100_000},
        "framework": "pytorch",
        "workflow": workflow,
        "dataset": {"data_folder": "nowhere", "format": "npz", "num_files_train": 32, "record_length_bytes": 20_000},
        "reader": {"data_loader": "pytorch", "batch_size": 2, "read_threads": 1} | reader,
        "train": {"epochs": 2, "computation_time": 0.01},
        "checkpoint": {"checkpoint_after_epoch": 2},
        "metric": {"au": 0.9},
    }
    (folder / "workload" / "small_h100.yaml").write_text(yaml.safe_dump(workload))
    return str(folder)


def benchmark(leaf: Path, config: str, *settings: str, ranks: int = 2) -> Ended:
    words = ["workload=small_h100", f"++hydra.run.dir={leaf}", "++hydra.output_subdir=dlio_config"]
    words += [*(f"++workload.{setting}" for setting in settings), f"--config-dir={config}"]
    launcher = [MPIRUN, "-n", str(ranks), "-host", f"127.0.0.1:{ranks}"]
    return wait(start(*words, program=DLIO, launcher=launcher))


@mpi
@needs_mpirun
def test_datagen_and_training_leave_what_dlio_leaves(tmp_path: Path) -> None:
    data, made_in, leaf = tmp_path / "data" / "unet3d", tmp_path / "datagen", tmp_path / "run"
    for name in ("train", "valid", "test"):  # mlpstorage makes them
        (data / name).mkdir(parents=True)
    only_data = configs(tmp_path / "a", {"generate_data": True, "train": False, "checkpoint": False})
    benchmark(made_in, only_data, f"dataset.data_folder={data}").assert_ended(0)
    assert len(list((data / "train").iterdir())) == 32
    assert sorted(path.name for path in made_in.iterdir()) == ["dlio.log", "dlio_config"]
    # Each batch takes 0.1 s of a worker's time: the run completes, and does not pass.
    slow = configs(tmp_path / "b", {"generate_data": False, "train": True, "checkpoint": True}, preprocess_time=0.05)
    places = (f"dataset.data_folder={data}", f"checkpoint.checkpoint_folder={tmp_path / 'saved'}")
    ended = benchmark(leaf, slow, *places, "output.report=false", "metric.ceiling_seconds=0", "train.epochs=2")
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
    assert summary(leaf / "dlemu")["outcome"] != "pass"


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=UNDER_MPI)])
def test_a_mistake_is_dlemus_kind_of_mistake_and_touches_no_earlier_results(ranks: int, tmp_path: Path) -> None:
    launcher = [MPIRUN, "-n", str(ranks)] if ranks > 1 else []
    (tmp_path / "summary.json").write_text("{}")
    for setting, said in (
        ("reader.batchsize=4", "did you mean reader.batch_size?"),
        ("model.vocab_size=8", "it belongs at model.transformer.vocab_size"),
        ("dataset.data_folder=nowhere", "nowhere"),
    ):
        words = ("workload=unet3d_h100", f"++hydra.run.dir={tmp_path}", f"++workload.{setting}")
        wait(start(*words, program=DLIO, cwd=tmp_path, launcher=launcher)).assert_ended(2, said)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_data_alone_is_made_of_a_workload_that_checkpoints_in_training(tmp_path: Path) -> None:
    """As DLIO does: its default is no checkpoint but those inside training."""
    tiny = ("dataset.record_length_bytes=20000", "dataset.record_length_bytes_stdev=0", "dataset.num_files_train=14")
    flow = ("workflow.generate_data=True", "workflow.train=False", f"dataset.data_folder={tmp_path / 'data'}")
    words = ["workload=unet3d_h100", f"++hydra.run.dir={tmp_path / 'run'}"]
    wait(start(*words, *(f"++workload.{one}" for one in tiny + flow), program=DLIO)).assert_ended(0)
    assert len(list((tmp_path / "data" / "train").iterdir())) == 14
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_run_that_fails_leaves_the_folders_that_mlpstorage_made(tmp_path: Path) -> None:
    """It makes the run's folder before the call and writes its own files there after it."""
    config = configs(tmp_path / "a", {"generate_data": True, "train": False, "checkpoint": False})
    words = ("workload=small_h100", f"++workload.dataset.data_folder={tmp_path / 'data'}", f"--config-dir={config}")
    assert wait(start(*words, f"++hydra.run.dir={tmp_path / 'datagen'}", program=DLIO)).status == 0
    for path in (tmp_path / "data" / "train").iterdir():
        path.write_bytes(bytes(path.stat().st_size))  # no worker can read them
    leaf = tmp_path / "results" / "run" / "20261121_134501"
    leaf.mkdir(parents=True)
    train = ("++workload.workflow.generate_data=False", "++workload.workflow.train=True")
    ended = wait(start(*words, *train, f"++hydra.run.dir={leaf}", "++hydra.output_subdir=dlio_config", program=DLIO))
    assert ended.status not in COMPLETED, ended.out
    assert "Traceback" not in ended.err
    assert leaf.is_dir()
    assert {"dlio.log", "dlio_config"} <= {path.name for path in leaf.iterdir()}
    assert not (leaf / "summary.json").exists()


def test_what_the_tool_of_v3_adds_by_itself_is_understood() -> None:
    added = ("num_files_generated=32", "skip_listing=True", "listing_validation_interval=1", "num_files_train=16")
    workload, _ = load_command(["workload=unet3d_h100", *(f"++workload.dataset.{one}" for one in added)], None)
    assert (workload.unsupported, workload.dataset.num_files_train) == ((), 16)


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


@pytest.mark.mpi
@pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE names no checkout of mlcommons/storage v2.0")
def test_the_real_mlpstorage_runs_checkpoints_and_reports_on_them(tmp_path: Path) -> None:
    """A llama3-8b whose layers are small: written and read by its 8 processes."""
    results = ["--results-dir", str(tmp_path / "results")]
    run = ["--model", "llama3-8b", "--num-processes", "8", "--client-host-memory-in-gb", "1", "--allow-invalid-params"]
    run += ["--num-checkpoints-write", "2", "--num-checkpoints-read", "1", "--dlio-bin-path", str(Path(DLIO).parent)]
    shape = ["transformer.hidden_size=256", "transformer.ffn_hidden_size=256", "transformer.vocab_size=1000"]
    params = ["model.num_layers=2", *(f"model.{one}" for one in shape), "checkpoint.time_between_checkpoints=0"]
    folder = tmp_path / "checkpoints"
    words = [*run, *results, "--checkpoint-folder", str(folder), "--params", *params]
    _mlpstorage(tmp_path, "checkpointing", "run", *words)
    (step,) = {name.name for name in folder.glob("llama3-8b/*_step1")}
    assert len(list((folder / "llama3-8b" / step).glob("zero_pp_rank_*.pt"))) == 16
    report = _mlpstorage(tmp_path, "reports", "reportgen", *results)
    assert "Benchmark Type: checkpointing" in report
    assert "load_checkpoint_io_mean_GB_per_second" in report


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


@pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE names no checkout of mlcommons/storage v2.0")
@pytest.mark.parametrize(
    ("files", "also", "category"),
    [(3500, (), "CLOSED"), (3500, ("++workload.reader.data_loader=pytorch",), "OPEN"), (3400, (), "INVALID")],
)
def test_the_real_mlpstorage_judges_a_run_of_full_size(
    files: int, also: tuple[str, ...], category: str, tmp_path: Path
) -> None:
    """500 steps on one accelerator, of a host with 64 GiB: the numbers of the dataset, not its bytes, are judged."""
    leaf = tmp_path / "results" / "training" / "unet3d" / "run" / "20260102_030405"
    words = ["workload=unet3d_h100", f"++workload.dataset.num_files_train={files}", *also]
    words += [f"++hydra.run.dir={leaf}", "++hydra.output_subdir=dlio_config"]
    workload, place = load_command(words, f"{MLPSTORAGE}/configs/dlio")
    sections = {field.name: getattr(workload, field.name) for field in fields(workload) if field.name != "ranks"}
    export_run(place, whole_run(ranks=1, **sections))
    (leaf / "training_20260102_030405_metadata.json").write_text("{}")  # mlpstorage's own
    report = _mlpstorage(tmp_path, "reports", "reportgen", "--results-dir", str(tmp_path / "results"))
    found = {part.split(" ", 1)[0]: "RunID" in part for part in report.split("------- ")[1:]}
    assert [name for name, has_run in found.items() if has_run] == [category]
    (listed,) = json.loads((tmp_path / "results" / "results.json").read_text())
    summary = json.loads((leaf / "summary.json").read_text())
    assert listed["metrics"] == summary["metric"]

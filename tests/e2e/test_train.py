"""The main job, from dataset to verdict, with real ranks, workers and files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from datagen.owned import MARKER
from dlemu.config import load
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.verdict import EXIT_STATUSES
from tests.e2e.harness import (
    CEILING,
    MPIRUN,
    PYTORCH,
    SLOW,
    UNDER_MPI,
    dlemu,
    dlemu_with,
    small_run,
    start,
    steps,
    summary,
    wait,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run, and an exit status that says whether it passed."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    ended = dlemu("train", *small_run(folder, dataset, CEILING, PYTORCH))
    assert ended.ran, ended.err
    assert ended.status == EXIT_STATUSES[summary(folder)["outcome"]]
    assert ("PASS" in ended.out or "dlemu works here: " in ended.out) == (ended.status == 0)
    assert str(folder) in ended.out
    assert "computing the result of 48 steps ...\n" in ended.err, "nobody waits in silence between 100 % and the table"
    return folder


def test_the_folder_holds_everything_and_nothing_half_done(run: Path, dataset: Path) -> None:
    files = {"config.yaml", "facts.json", "summary.json", "steps.parquet", "telemetry.parquet", "log.txt", "dlio"}
    assert {path.name for path in run.iterdir()} == files | {MARKER}
    assert not list(run.rglob("*.part"))
    assert (run / "dlio" / "2_output.json").exists()
    assert load([f"workload={run / 'config.yaml'}"]) == load(small_run(run, dataset, CEILING, PYTORCH))
    metrics = summary(run)["metrics"]
    assert au_percent(kept_rows(steps(run), 1, 0)) == pytest.approx(metrics["au_percent"]["mean"], abs=1e-12)


def test_the_columns_add_up_for_every_rank(run: Path) -> None:
    rows = steps(run)
    for rank in range(3):
        for epoch in (1, 2):
            mine = np.sort(rows[(rows["rank"] == rank) & (rows["epoch"] == epoch)], order="step")
            assert mine["step"].tolist() == list(range(1, 9))
            spent = mine["wait_ns"] + mine["compute_ns"] + mine["sync_ns"]
            assert (mine["free_ns"][1:] == (mine["free_ns"] + spent)[:-1]).all()
    for epoch in (1, 2):
        at_step = rows[(rows["epoch"] == epoch) & (rows["step"] == 5)]
        assert len(set(at_step["free_ns"].tolist())) == 1, "all accelerators begin a step together"


def test_the_bytes_of_every_file_are_counted_once_an_epoch(run: Path, dataset: Path) -> None:
    told = summary(run)
    on_disk = sum(path.stat().st_size for path in (dataset / "train").iterdir())
    assert told["metrics"]["app_bytes"] == pytest.approx(2 * on_disk, rel=1e-3), "np.load leaves out gaps of a zip"
    assert steps(run)["read_calls"].sum() > 2 * 48, "and reads its directory, its header and its data"
    assert told["each_sample_once"] == [True, True]


@pytest.mark.parametrize(
    "changes",
    [
        ["train.synchronous=true", "train.computation_time={type: uniform, min: 0.01, max: 0.03}"],
        ["reader.read_threads=0", PYTORCH],
    ],
)
def test_other_ways_of_reading_deliver_the_same_samples(
    changes: list[str], run: Path, dataset: Path, tmp_path: Path
) -> None:
    dlemu("train", *small_run(tmp_path / "run", dataset, *changes, "metric.au=0.01")).assert_ran()

    def hashes(folder: Path) -> list[int]:
        told: list[int] = np.sort(steps(folder), order=("rank", "epoch", "step"))["sample_hash"].tolist()
        return told

    assert hashes(tmp_path / "run") == hashes(run)
    assert summary(tmp_path / "run")["each_sample_once"] == [True, True]


def test_reading_past_the_page_cache(dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, "reader.odirect=true", "reader.verify=true"))
    if "O_DIRECT" in ended.err:
        pytest.skip(f"the file system of {dataset} has no O_DIRECT")
    assert ended.ran, ended.err
    on_disk = sum(path.stat().st_size for path in (dataset / "train").iterdir())
    assert summary(tmp_path / "run")["metrics"]["app_bytes"] == 2 * on_disk


def test_evicted_pages_are_read_from_storage_in_each_epoch(dataset: Path, tmp_path: Path) -> None:
    """What is published of the cache is what the kernel counted, and eviction makes the second epoch read again."""
    shares = {}
    for when in ("never", "epochs"):
        dlemu("train", *small_run(tmp_path / when, dataset, f"reader.evict_page_cache={when}")).assert_ran()
        cache = summary(tmp_path / when)["page_cache"]
        shares[when] = cache["from_storage_percent"]["per_epoch"]
        rows = steps(tmp_path / when)
        assert sum(summary(tmp_path / when)["loss_percent"].values()) == pytest.approx(100 - au_percent(rows), abs=1e-9)
    if None in shares["never"] or shares["epochs"][0] < 50:
        pytest.skip(f"the file system of {dataset} keeps no books of what it fetches, or is memory")
    assert shares["never"][1] < 50, "a host may take pages back meanwhile, if only some"
    assert shares["epochs"][1] > 90


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        (SLOW, 1, "fail"),
        # Three ranks that compute for 50 us a step: handing a batch over takes longer than that on any host.
        ((CEILING, "train.computation_time=0.00005", "train.epochs=1", "metric.au=0.99"), 4, "emulator_too_slow"),
        # No storage can even these out.
        (
            (CEILING, "train.computation_time={mean: 0.01, stdev: 0.01}", "train.epochs=1", "metric.au=0.9"),
            4,
            "uneven_computation",
        ),
    ],
    ids=["slow", "emulator", "uneven"],
)
def test_a_run_that_does_not_pass_says_so_by_its_exit_status(
    changes: tuple[str, ...], status: int, code: str, dataset: Path, tmp_path: Path
) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, *changes))
    assert ended.status == status, ended.err
    assert ("FAIL" if status == 1 else "NO VERDICT") in ended.out
    told = summary(tmp_path / "run")
    assert told["complete"] is True
    assert told["outcome"] == ("fail" if status == 1 else "no verdict")
    assert told["verdict_code"] == code


def test_a_ceiling_that_is_cut_short_leaves_the_run_as_it_is(dataset: Path, tmp_path: Path) -> None:
    """Batches of it that nobody took are on their way when the first epoch begins."""
    impatient = dlemu_with(tmp_path, "dlemu.jobs.training.trainer.CEILING_PATIENCE_SECONDS", 0.3)
    words = small_run(tmp_path / "run", dataset, "metric.ceiling_seconds=60", PYTORCH)
    wait(start("train", *words, program=impatient)).assert_ran()
    assert summary(tmp_path / "run")["each_sample_once"] == [True, True]


def test_the_checkpoint_is_written_synced_timed_and_outside_the_au(dataset: Path, tmp_path: Path) -> None:
    saving = ("workflow.checkpoint=true", f"checkpoint.checkpoint_folder={tmp_path / 'checkpoints'}")
    every = ("checkpoint.steps_between_checkpoints=5", "model.model_size_bytes=30000001")
    words = small_run(tmp_path / "run", dataset, *saving, *every, "train.epochs=1", "metric.au=0.1")
    dlemu("train", *words).assert_ran()
    (file,) = [path for path in (tmp_path / "checkpoints").rglob("[!.]*") if path.is_file()]
    assert file.stat().st_size == 30000001
    told, journal = (json.loads((tmp_path / "run" / name).read_text()) for name in ("summary.json", "facts.json"))
    (saved,), (stamps,) = told["checkpoints"], journal["journal"]["checkpoints"]
    assert saved["bytes"] == 30000001
    rows = steps(tmp_path / "run")
    assert sorted(set(rows["block"].tolist())) == [1, 2]
    before, after = rows[rows["block"] == 1], rows[rows["block"] == 2]
    ends = before["free_ns"] + before["wait_ns"] + before["compute_ns"] + before["sync_ns"]
    assert after["free_ns"].min() >= stamps["ended_ns"] > stamps["started_ns"] >= ends.max()
    assert told["metrics"]["training_seconds"] < told["metrics"]["total_seconds"] - saved["seconds"] + 1e-3


def test_evaluation_reads_the_validation_set(tmp_path: Path) -> None:
    settings = ["workflow.evaluation=true", "workflow.generate_data=true", "dataset.num_files_eval=12"]
    settings += ["reader.batch_size_eval=2", "evaluation.eval_time=0.01", "evaluation.eval_after_epoch=2"]
    dlemu("train", *small_run(tmp_path / "run", tmp_path / "data", *settings)).assert_ran()
    rows = steps(tmp_path / "run")
    evaluated = rows[rows["phase"] == 1]
    assert set(evaluated["epoch"].tolist()) == {2}
    assert len(evaluated) == 3 * 2
    on_disk = sum(path.stat().st_size for path in (tmp_path / "data" / "valid").iterdir())
    assert evaluated["app_bytes"].sum() == on_disk
    assert summary(tmp_path / "run")["evaluation"]["samples"] == 12


@pytest.mark.parametrize("launcher", [[], pytest.param([MPIRUN, "-np", "2"], marks=UNDER_MPI)], ids=["forked", "mpi"])
def test_a_file_that_asks_for_data_alone_makes_it(launcher: list[str], tmp_path: Path) -> None:
    file = tmp_path / "workload" / "mine_datagen.yaml"
    file.parent.mkdir()
    file.write_text("workflow: {generate_data: true, train: false, checkpoint: false}\n")
    settings = [f"workload={file}", *small_run(tmp_path / "run", tmp_path / "data")[1:]]
    ended = dlemu("train", *settings, launcher=launcher)
    assert ended.status == 0, ended.err
    assert "made 48 files" in ended.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "workload"], "nothing was trained"
    assert dlemu("datagen", "verify", *settings).status == 0


def test_files_that_are_too_few_for_a_verdict_are_made_with_a_warning(tmp_path: Path) -> None:
    shape = ("num_files_train=8", "record_length_bytes=1000", f"data_folder={tmp_path / 'data'}")
    made = dlemu("datagen", *(f"dataset.{one}" for one in shape), "train.computation_time=0.01", "ranks=2")
    made.assert_ended(0)
    assert "8 files are too few for a verdict with 2 ranks" in made.err

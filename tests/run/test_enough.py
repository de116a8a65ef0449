"""What a dataset is enough for is known before a run: what is refused could not be judged, and only that."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError, UserError
from datagen.generate import prepare as prepare_dataset
from dlemu.config import load
from dlemu.config.schema import Metric
from dlemu.jobs.training.preflight import (
    check_before_making,
    check_verdict_possible,
    dataset_for_verdict,
    gives_verdict,
    nominal_bytes,
    steps_per_epoch,
    workload_for_making,
)
from dlemu.jobs.training.result import TRAINING
from dlemu.runner.datasets import run_datagen
from dlemu.runner.job import JobRequest, prepare
from tests.runs import make_job, make_log, make_run, with_blocks

NOTHING = "no computation to judge"


@settings(max_examples=50)
@given(
    steps=st.integers(1, 4),
    left_out=st.tuples(st.integers(0, 4), st.integers(0, 2)),
    verdict=st.sampled_from(["sustained", "au", "rules"]),
    every=st.integers(0, 3),
)
def test_what_is_refused_gets_no_verdict_and_what_counts_steps_gets_one(
    steps: int, left_out: tuple[int, int], verdict: Any, every: int
) -> None:
    start, end = left_out
    metric = Metric(verdict=verdict, exclude_start_steps=start, exclude_end_steps=end)
    job = make_job(ranks=2, epochs=2, steps=steps, metric=metric, **(with_blocks(every) if every else {}))
    said = make_run(job, make_log(job)).summary.verdict
    assert gives_verdict(job.workload, steps) != (NOTHING in said)
    if any(block.steps > start + end for epoch in job.schedule for block in epoch.blocks):
        assert NOTHING not in said


@pytest.mark.parametrize(
    ("words", "ranks", "files", "gigabytes"),
    [([], 18, 2520, 369.4), (["scale=laptop"], 36, 5040, 2.9), (["metric.exclude_start_steps=11"], 18, 3780, 554.1)],
)
def test_what_unet3d_needs_on_h100s(words: list[str], ranks: int, files: int, gigabytes: float) -> None:
    need = dataset_for_verdict(load(["workload=unet3d", *words]), ranks)
    assert (need.num_files_train, round(nominal_bytes(need) / 1e9, 1)) == (files, gigabytes)


def test_the_literal_first_command_is_refused_and_words_that_mean_it_are_not() -> None:
    def run(ranks: int, *words: str) -> None:
        workload = load(["workload=unet3d", *words])
        check_verdict_possible(workload, ranks, workload.dataset.num_files_train, existing_files=0)

    with pytest.raises(DatasetError, match=r"(?s)1 step per epoch.*\n.*train\.total_training_steps=5"):
        run(18)
    with pytest.raises(DatasetError, match="can't fill one step of 36 ranks"):
        run(36)
    run(12)
    for meant in ("train.total_training_steps=5", "metric.exclude_start_steps=0", "train.computation_time=0"):
        run(18, meant)


def small(folder: Path, *words: str) -> list[str]:
    shape = ("dataset.record_length_bytes=1000", "reader.batch_size=4", "train.computation_time=0.01")
    return ["workload=default", f"dataset.data_folder={folder}", "dataset.num_files_train=8", *shape, *words]


def test_a_missing_dataset_and_one_too_small_are_refused_and_take_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datagen.storage.posix.Storage.memory_kind", lambda *_: "")
    workload = load(small(tmp_path / "data", "dataset.format=mmap_indexed_binary"))
    refused = []
    for problem, look in (
        ("there is no dataset", partial(prepare, TRAINING)),
        ("1 step per epoch", check_before_making),
        ("1 step per epoch", partial(prepare, TRAINING)),
    ):
        with pytest.raises(DatasetError, match=problem) as caught:
            look(workload, 2, wants_verdict=True)
        refused.append(str(caught.value))
        run_datagen(JobRequest(load=lambda: workload), lambda event: None)
    wanted, needed = "Wanted 160 files (", "for 2 ranks x batch 4; add to the command\n    --make"
    assert all(wanted in told and needed in told and "reader.evict_page_cache=start" in told for told in refused)
    assert "\nTo run anyway" in refused[1]
    assert [f"dataset.data_folder={tmp_path}/data-160" in told for told in refused] == [False, False, True]


def test_own_files_that_are_too_few_are_not_made(tmp_path: Path) -> None:
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(4 << 20)
    words = ["dataset.source=folder", f"dataset.data_folder={tmp_path}", "train.computation_time=0.01"]
    workload = load(words)
    with pytest.raises(DatasetError, match=r"1 file can't fill one step of 2 ranks\..*mmap_indexed_binary") as few:
        prepare(TRAINING, workload, 2, wants_verdict=True)
    assert "2 ranks x batch 4 get 0 steps per epoch: lower ranks or reader.batch_size" in str(few.value)
    assert "--make" not in str(few.value)
    missing = replace(workload, dataset=replace(workload.dataset, data_folder=str(tmp_path / "missing")))
    with pytest.raises(UserError, match=r"is not a folder: set .* to the folder of your files"):
        prepare(TRAINING, missing, 2, wants_verdict=True)


@pytest.mark.parametrize(("group_rows", "batch", "fits"), [(10, 32, False), (200, 32, True), (10, 3, True)])
def test_own_tables_whose_shuffled_rows_lie_in_too_many_row_groups_are_refused(
    group_rows: int, batch: int, fits: bool, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"x": list(range(400))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=group_rows)
    words = ["dataset.source=folder", f"dataset.data_folder={tmp_path}", f"reader.batch_size={batch}"]
    workload = load([*words, "reader.sample_shuffle=seed", f"output.folder={tmp_path}/result"])
    with nullcontext() if fits else pytest.raises(UserError, match=rf"{batch} shuffled rows .* set it to off"):
        prepare(TRAINING, workload, 1)


def test_nothing_is_offered_to_be_made_among_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"mine")
    with pytest.raises(UserError, match="holds files that dlemu did not make, such as"):
        workload_for_making(load([*small(tmp_path), f"dataset.data_folder={tmp_path}"]), 2, size_is_given=True)
    with pytest.raises(UserError, match="are only read"):
        workload_for_making(load(["dataset.source=folder", f"dataset.data_folder={tmp_path}"]), 2, size_is_given=False)


def test_what_is_made_is_what_the_ranks_need_or_what_the_user_says_or_what_lies_there(tmp_path: Path) -> None:
    workload = load(small(tmp_path))
    made, missing_bytes = workload_for_making(workload, 2, size_is_given=False)
    assert made.workflow.generate_data
    assert made.dataset.num_files_train == 160
    assert missing_bytes == nominal_bytes(dataset_for_verdict(workload, 2))
    assert workload_for_making(workload, 2, size_is_given=True)[0].dataset.num_files_train == 8
    prepare_dataset(workload.dataset)
    assert workload_for_making(workload, 1, size_is_given=False)[0].dataset.num_files_train == 8, "kept: 2 steps"
    few = r"8 files are too few .* with 2 ranks, .* wanted .*=160 or more .* in another dataset\.data_folder$"
    with pytest.raises(UserError, match=few):
        workload_for_making(workload, 2, size_is_given=False)
    with pytest.raises(UserError, match=r"^checkpoint\.steps_between_checkpoints=1 leaves .*: set it to 2 or more$"):
        workload_for_making(replace(workload, **with_blocks(1)), 1, size_is_given=False)
    assert steps_per_epoch(workload, 2, 160) == 20

"""The shipped workloads: what the benchmark's own rules and files say of them, and that each loads in every choice."""

from __future__ import annotations

from functools import cache

import pytest

from datagen.layout import stored_sample_bytes
from dlemu.checkpoints.checkpoint_plan import checkpoint_sizes
from dlemu.config import load, workload_names
from dlemu.config.schema import Workload
from dlemu.metrics.demand import demand

PUBLISHED = [
    ("unet3d", "v100", 2.940, 431.1),
    ("unet3d", "a100", 11.006, 1613.5),
    ("unet3d", "h100", 21.672, 3177.1),
    ("unet3d", "b200", 43.210, 6334.6),
    ("bert", "v100", 49.59, 0.124),
    ("resnet50", "v100", 328.2, 37.6),
    ("resnet50", "a100", 919.5, 105.4),
    ("resnet50", "h100", 1785.7, 204.7),
    ("cosmoflow", "v100", 106.8, 302.2),
    ("cosmoflow", "a100", 181.5, 513.3),
    ("cosmoflow", "h100", 285.7, 808.1),
    ("retinanet", "b200", 504.7, 163.0),
    ("retinanet", "mi355", 504.7, 163.0),
    ("flux", "b200", 35.6, 77.0),
    ("flux", "mi355", 35.6, 77.0),
    ("dlrm", "b200", 43.69e6, 1.25 * 6990.5),
    ("dlrm", "mi355", 29.13e6, 1.25 * 4660.3),
    ("megatron_deepspeed", "", 6.56, 0.0134),
]
"""Samples/s and MB/s of one busy accelerator: batch / time, times the record length that MLPerf Storage or DLIO states.

Of dlrm's records of 761 bytes its file reads 40 columns: 5 of 8 bytes, 27 of 4, 4 of 2 and 4 of 1, which are 160 bytes.
They are read 1.25 times: batches of 16384 rows have rows of 3 1/3 row groups of 6144, and only 2 2/3 groups' worth.
"""


@cache
def shipped(name: str, *words: str) -> Workload:
    return load([f"workload={name}", *words])


SHAPE_PERCENT = 1.2
"""DLIO makes square records, so a file holds up to this much less than the stated record length."""


@pytest.mark.parametrize(("name", "accelerator", "samples_per_second", "mb_per_second"), PUBLISHED)
def test_the_demand_is_the_published_one(
    name: str, accelerator: str, samples_per_second: float, mb_per_second: float
) -> None:
    asked = demand(name, shipped(name, *([f"accelerator={accelerator}"] if accelerator else [])))
    assert asked.samples_per_second == pytest.approx(samples_per_second, rel=2e-3)
    assert asked.mb_per_second == pytest.approx(mb_per_second, rel=SHAPE_PERCENT / 100)


def test_every_pair_that_is_shipped_is_checked_above() -> None:
    pairs = {(name, kind) for name in TRAINED for kind in shipped(name).accelerators or [""]}
    assert pairs - {("default", ""), ("colfax", "")} == {(name, kind) for name, kind, _, _ in PUBLISHED}


WORKFLOWS = {name: shipped(name).workflow for name in workload_names()}
TRAINED = [name for name, workflow in WORKFLOWS.items() if workflow.train]
CHECKPOINTED = [name for name, workflow in WORKFLOWS.items() if workflow.checkpoint and not workflow.train]
THRESHOLDS = {"cosmoflow": 0.70, "dlrm": 0.70, "retinanet": 0.85}


@pytest.mark.parametrize("name", TRAINED)
def test_every_workload_loads_small_and_large_and_is_possible(name: str) -> None:
    full = shipped(name)
    small = shipped(name, "scale=laptop") if full.scales else full
    assert full.metric.au == THRESHOLDS.get(name, 0.90)
    assert not full.notes, "a workload of ours says nothing that has no effect"
    assert not full.unsupported
    assert (small.reader, small.train.computation_time) == (full.reader, full.train.computation_time)
    assert demand(name, small).dataset_gb < 2.5
    samples = small.dataset.num_files_train * small.dataset.num_samples_per_file
    assert samples >= 18 * 10 * full.reader.batch_size or name == "default"


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_every_workload_of_checkpoints_loads_small_and_large(name: str) -> None:
    full, small = shipped(name), shipped(name, "scale=laptop")
    assert (full.notes, full.unsupported, full.workflow.checkpoint) == ((), (), True)
    saves = full.checkpoint
    assert (saves.num_checkpoints_write, saves.num_checkpoints_read, saves.fsync) == (10, 10, True)
    large, cut = checkpoint_sizes(full), checkpoint_sizes(small)
    assert (large.ranks, cut.ranks_of_job) == (large.ranks_of_job, large.ranks_of_job), "the same job"
    assert cut.ranks == 8
    assert small.checkpoint.num_checkpoints_write * cut.tensor_bytes < 2e9
    some = shipped(name, "ranks=8", f"checkpoint.job_ranks={large.ranks_of_job}")
    assert cut.files == checkpoint_sizes(some).files, "the shape is kept"


def test_checkpoints_inside_training_are_the_published_ones() -> None:
    bert, megatron = shipped("bert"), shipped("megatron_deepspeed")
    assert (bert.workflow.checkpoint, bert.checkpoint.steps_between_checkpoints) == (True, 250)
    assert bert.model.model_size_bytes == 4_034_713_312
    assert (megatron.checkpoint.type, megatron.checkpoint.steps_between_checkpoints) == ("all_ranks", 1000)
    assert megatron.model.model_size_bytes / 2**30 == pytest.approx(5.239 + 0.305, rel=1e-3)
    assert not shipped("resnet50").workflow.checkpoint


def test_the_columns_of_dlrm_make_the_published_row() -> None:
    workload = shipped("dlrm")
    columns = workload.dataset.parquet.columns
    assert (len(columns), sum(column.read for column in columns)) == (200, 40)
    assert stored_sample_bytes(workload.dataset) == workload.dataset.record_length_bytes == 761
    assert demand("dlrm", workload).dataset_gb == pytest.approx(1024 * 4718592 * 761 / 1e9)

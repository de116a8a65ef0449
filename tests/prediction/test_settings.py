"""What `dlemu predict` makes of every setting of training: it is modelled, irrelevant to the answer, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlemu
from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.run_prediction import (
    _AS_MEASURED,
    _CACHED,
    _IN_MEMORY,
    _NOT_IN_A_SPEED,
    _NOT_SIMULATED,
)
from tests.prediction.test_run_prediction import write_measured

MODELLED = """
    ranks accelerator scale accelerators scales workflow.checkpoint reader.data_loader reader.batch_size
    reader.read_threads reader.prefetch_size reader.file_shuffle reader.sample_shuffle reader.worker_streams
    reader.preprocess_time reader.preprocess train.epochs train.computation_time
    train.step_cpu_time
    train.total_training_steps train.seed train.seed_change_epoch train.synchronous checkpoint.checkpoint_after_epoch
    checkpoint.epochs_between_checkpoints checkpoint.steps_between_checkpoints metric.au metric.verdict
    metric.exclude_start_steps metric.exclude_end_steps dataset.format dataset.num_files_train
    dataset.num_samples_per_file dataset.record_length_bytes dataset.record_length_bytes_stdev
    dataset.record_length_bytes_quantiles dataset.record_dims dataset.record_element_type dataset.parquet.columns
    dataset.parquet.row_group_size dataset.hdf5.num_dset_per_record recorded.hand_over_seconds
"""
"""Simulated, or in the plan and the sizes of the simulated run."""
PROBED = """
    dataset.data_folder dataset.source dataset.num_subfolders_train dataset.enable_chunking dataset.chunk_size
    dataset.hdf5.chunk_dims dataset.hdf5.max_shape dataset.compression_level storage reader.computation_threads
    reader.shuffle_size reader.multiprocessing_context reader.nice
"""
"""Where and how the same bytes are found: the source of the speed answers for it."""
IRRELEVANT = """
    timeout_seconds framework model workflow.generate_data workflow.train workflow.evaluation evaluation
    reader.batch_size_eval metric.ceiling_seconds metric.scaling_seconds telemetry output recorded notes unsupported
    kinds dataset.num_files_eval dataset.num_subfolders_eval dataset.file_prefix dataset.seed
    dataset.record_length_bytes_resize checkpoint.checkpoint_folder checkpoint.type checkpoint.fsync checkpoint.mode
    checkpoint.job_ranks checkpoint.first_rank checkpoint.format checkpoint.num_checkpoints_write
    checkpoint.num_checkpoints_read checkpoint.time_between_checkpoints checkpoint.rank_sync
    checkpoint.recovery_rank_shift checkpoint.randomize_tensor checkpoint.odirect checkpoint.writers
    checkpoint.transfer_size checkpoint.read_as checkpoint.readers checkpoint.evict_page_cache checkpoint.verify
    checkpoint.keep_last checkpoint.interval_seconds checkpoint.gpu_mtbf_hours
    checkpoint.snapshot_gb_per_second
"""
"""No AU depends on it, or only that of the emulator's own work."""
REFUSED = {*_IN_MEMORY, *_AS_MEASURED, *_CACHED, *_NOT_IN_A_SPEED, *_NOT_SIMULATED}
"""With values that neither the model nor the source of the speed knows."""
WORDS = ["workload=unet3d", "accelerator=h100", "ranks=2", "output.report=false"]
CACHED = ["reader.evict_page_cache=start", "metric.cached=true"]


def settings(value: Any, name: str = "") -> Iterator[str]:
    if not dataclasses.is_dataclass(value) or hasattr(value, "to_value"):
        yield name
        return
    for part in dataclasses.fields(value):
        yield from settings(getattr(value, part.name), f"{name}.{part.name}".lstrip("."))


def test_every_setting_is_modelled_irrelevant_or_refused() -> None:
    known = {*MODELLED.split(), *PROBED.split(), *IRRELEVANT.split(), *REFUSED}
    names = list(settings(Workload()))
    above = {name: {name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)} for name in names}
    assert [name for name in names if not above[name] & known] == []
    assert known <= set().union(*above.values()), "a setting that there is no more"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ["metric.cached=true"],
            r"metric.cached is true, .*: wanted false, or a measurement with it \(`dlemu train`\)",
        ),
        (CACHED, "metric.cached is true"),
        ([*CACHED, "reader.page_cache_percent=50"], "reader.page_cache_percent is 50"),
        (["reader.decode=full"], "reader.decode is full, and neither the model nor a speed knows"),
        (["reader.verify=true"], "reader.verify is true"),
        (["reader.tensors=2", "reader.tensor_bytes=1000"], "reader.tensors is 2"),
        (["checkpoint.asynchronous=true"], "checkpoint.asynchronous is true"),
        (
            ["dataset.format=npz", "dataset.compression=zip", "dataset.compressibility=0.5"],
            "dataset.compression is zip",
        ),
    ],
)
def test_what_no_speed_says_is_refused(words: list[str], named: str, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    with pytest.raises(UserError, match=named):
        dlemu.predict([*WORDS, *words, f"output.folder={folder}"], mb_per_second=9000.0)
    assert not folder.exists()


@pytest.mark.parametrize("word", ["reader.odirect=true", "reader.engine=library", "metric.cached=true"])
def test_a_run_s_speed_is_of_the_settings_it_was_measured_with(word: str, tmp_path: Path) -> None:
    words = ["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"]
    for name, own in (("without", words), ("with", [*words, word])):
        write_measured(tmp_path / name, load(own))
    again = [word, f"output.folder={tmp_path / 'p'}", "output.report=false"]
    with pytest.raises(
        UserError, match=f"{word.partition('=')[0]} is .*, and neither the model nor {tmp_path / 'without'}"
    ):
        dlemu.predict(again, from_folder=tmp_path / "without")
    assert dlemu.predict(again, from_folder=tmp_path / "with").shown.au_percent > 0


def test_evaluations_are_left_out_with_a_word(tmp_path: Path) -> None:
    words = [*WORDS, "workflow.evaluation=true", "dataset.num_files_eval=50", f"output.folder={tmp_path / 'p'}"]
    assert "evaluations are not included" in " ".join(dlemu.predict(words, mb_per_second=9000.0).issues)

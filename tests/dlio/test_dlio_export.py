"""An exported file says to DLIO, and to dlemu, what the configuration said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from datagen.errors import UserError
from dlemu.cli.job_command import job_command
from dlemu.config import load, workload_names
from dlemu.dlio.config import dlio_yaml
from dlemu.results.kinds import kind_named

SECTIONS = ("model", "framework", "workflow", "dataset", "reader", "train", "evaluation", "checkpoint", "metric")


def exported(*words: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(dlio_yaml(load(words)))
    return tree


@pytest.mark.parametrize("name", sorted({*workload_names()} - {"colfax"}))  # DLIO has no tiff
def test_every_shipped_workload_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    table = load([f"workload={name}"]).accelerators
    for accelerator in table or [""]:
        workload = load([f"workload={name}", *([f"accelerator={accelerator}"] if accelerator else [])])
        path = tmp_path / f"{name}_{accelerator}.yaml"
        path.write_text(dlio_yaml(workload))
        again = load([f"workload={path}"])
        assert {key: getattr(again, key) for key in SECTIONS} == {key: getattr(workload, key) for key in SECTIONS}
        assert again.unsupported == workload.unsupported


def test_keys_stand_where_dlio_reads_them() -> None:
    tree = exported("workload=unet3d", "accelerator=h100", "metric.exclude_end_steps=1", "metric.au=0.8")
    assert tree["model"]["model_size_bytes"] == 499153191
    assert tree["metric"] == {"au": 0.8}
    assert tree["output"]["metric"] == {"exclude_start_steps": 1, "exclude_end_steps": 1}
    assert "transfer_size" not in tree["reader"], "0 would be no buffer at all"
    assert exported("workload=resnet50", "reader.transfer_size=262144")["reader"]["transfer_size"] == 262144
    hdf5 = ("dataset.format=hdf5", "dataset.record_dims=[4,8]", "dataset.hdf5.num_dset_per_record=2")
    assert exported(*hdf5)["dataset"]["hdf5"] == {"chunk_dims": [], "num_dset_per_record": 2, "max_shape": []}
    assert "hdf5" not in exported("workload=unet3d")["dataset"]


def test_what_dlio_has_no_setting_for_is_told_and_not_written() -> None:
    text = dlio_yaml(load(["workload=unet3d", "reader.engine=library", "train.synchronous=true"]))
    lines = [line for line in text.splitlines() if line.startswith("# DLIO has no setting")]
    assert lines[0].endswith("reader.engine=library, train.synchronous=true")
    assert "synchronous" not in yaml.safe_load(text)["train"]


def test_what_dlio_can_not_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"reader\.data_loader is 'threads'.*pytorch, tensorflow"):
        exported("reader.data_loader=threads")
    with pytest.raises(UserError, match=r"dataset\.compression is 'zstd'.*none, gzip, zip"):
        exported("dataset.format=parquet", "dataset.compression=zstd")


def test_the_option_writes_the_file_and_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workload" / "unet3d_h100.yaml"
    lines = CliRunner().invoke(
        job_command(kind_named("training")), ["workload=unet3d", "accelerator=h100", "--export-dlio", str(path)]
    )
    assert lines.exit_code == 0, lines.output
    assert yaml.safe_load(path.read_text())["train"]["computation_time"] == 0.323
    assert [one.name for one in tmp_path.iterdir()] == ["workload"]


def test_checkpoints_alone_have_no_dataset() -> None:
    tree = exported("workload=llama3_405b", "checkpoint.rank_sync=true", "checkpoint.format=raw")
    assert set(tree) == {"model", "framework", "workflow", "checkpoint"}
    assert tree["checkpoint"]["rank_sync"] is True
    assert tree["model"]["parallelism"] == {"pipeline": 32, "tensor": 8, "zero_stage": 1}
    text = dlio_yaml(load(["workload=qwen3_235b", "checkpoint.format=raw"]))
    lines = next(line for line in text.splitlines() if line.startswith("# DLIO has no setting"))
    for setting in ("checkpoint.format=raw", "model.transformer.num_experts=128", "model.parallelism.expert=8"):
        assert setting in lines

"""What jobs need of a storage that is not there yet: arithmetic that an architect can do again by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.jobs.training.prediction.calibration import requests_of
from dlemu.jobs.training.prediction.needs import Needs, _nvidia_class, ports
from dlemu.metrics.demand import demand
from dlemu.results.kinds import read_result


def asked(folder: Path, *words: str, status: int = 0) -> str:
    result = CliRunner().invoke(command, [*words, f"output.folder={folder}"])
    assert result.exit_code == status, result.output
    return result.stdout


def test_a_training_needs_what_its_accelerators_take(tmp_path: Path) -> None:
    words = ["workload=unet3d", "accelerator=h100", "ranks=1024"]
    began = time.monotonic()
    needs = json.loads(asked(tmp_path / "n", *words, "--json"))["total"]
    assert time.monotonic() - began < 2
    one = demand("unet3d", load(words))
    assert one.mb_per_second is not None
    assert needs["read_gb_per_second"] == pytest.approx(0.9 * 1024 * one.mb_per_second / 1e3)
    assert needs["read_gb_per_second"] == pytest.approx(2928, rel=0.001), "as published beside NVIDIA's classes"
    request_bytes, _ = requests_of(load(words), one.sample_bytes)
    assert needs["requests_per_second"] * request_bytes == pytest.approx(needs["read_gb_per_second"] * 1e9)
    assert needs["first_step_gb_per_second"] == pytest.approx(4 * 1024 * one.mb_per_second / 1e3), "4 readers a rank"
    assert needs["first_step_seconds"] == pytest.approx(4 * one.computation_seconds / 0.9)
    assert needs["mlperf_dataset_gb"] == pytest.approx(128 * 5 * 2048 * 2**30 / 1e9)
    assert needs["dataset_gb"] == pytest.approx(one.dataset_gb)
    found = read_result(str(tmp_path / "n"))
    assert (found.nvidia_class, ports(found.total.most_gb_per_second)) == ("above", "235 x 100 Gb/s or 59 x 400 Gb/s")
    assert found.times_class == pytest.approx(5.86, abs=0.01)
    assert str(dlemu.load_result(tmp_path / "n")) == str(found)


def test_checkpoints_are_written_before_the_next_and_read_in_time(tmp_path: Path) -> None:
    words = ["workload=llama3_405b", "ranks=1024", "checkpoint.interval_seconds=600", "--restart-minutes", "10"]
    needs = json.loads(asked(tmp_path / "n", *words, "--json"))["total"]
    gb = needs["checkpoint_gb"]
    assert gb == pytest.approx(5683, rel=0.001)
    assert needs["drain_gb_per_second"] == needs["restart_gb_per_second"] == pytest.approx(gb / 600)
    assert needs["write_gb_per_second"] == pytest.approx(gb / (600 * 5 / 95)), "5 % of the time"
    assert needs["read_gb_per_second"] == needs["mlperf_dataset_gb"] == 0
    rarely = dlemu.predict([*words[:2], "checkpoint.interval_seconds=1e5", f"output.folder={tmp_path / 'r'}"])
    assert rarely.total.write_gb_per_second == pytest.approx(gb / 600), "NCCL's watchdog waits no longer"


def test_several_jobs_need_the_sum(tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("jobs:\n- workload=unet3d accelerator=h100 ranks=64\n- workload=llama3_70b ranks=512\n")
    shown = asked(tmp_path / "m", str(mix))
    for text in ("64", "512", "22.9 GB/s a node", "each node 2 x 100 Gb/s"):  # of unet3d, which reads most
        assert text in shown
    found = read_result(str(tmp_path / "m"))
    assert [job.workload for job in found.jobs] == ["unet3d", "llama3_70b"]
    assert (found.total.accelerators, found.total.nodes) == (576, 72)
    for name in ("read_gb_per_second", "drain_gb_per_second", "checkpoint_gb", "dataset_gb"):
        assert getattr(found.total, name) == pytest.approx(sum(getattr(job, name) for job in found.jobs))
    for text in ("jobs: workload=unet3d", "jobs: []"):
        mix.write_text(text)
        with pytest.raises(UserError, match="jobs"):
            dlemu.predict([str(mix)])
    with pytest.raises(UserError, match=r"has several values: .* predict jobs\.yaml"):
        dlemu.predict(["workload=unet3d,llama3_70b", "ranks=8"])


@pytest.mark.parametrize(
    ("accelerators", "read", "write", "name", "times"),
    [
        (8, 4.0, 1.0, "good", 1.0),
        (8, 40.0, 0.0, "best", 1.0),
        (256, 40.0, 1.0, "better", 1.0),
        (256, 1.0, 21.0, "best", 21 / 62.5),
        (1024, 500.0, 250.0, "best", 1.0),
        (1024, 2928.0, 0.0, "above", 5.856),
    ],
)
def test_a_class_is_that_of_a_node_or_of_the_units(
    accelerators: int, read: float, write: float, name: str, times: float
) -> None:
    needs = Needs(workload="x", accelerators=accelerators, read_gb_per_second=read, drain_gb_per_second=write)
    found, share = _nvidia_class(needs)
    assert found == name
    assert share == pytest.approx(times)


def test_a_storage_that_is_named_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no dataset"):
        dlemu.predict(["workload=unet3d", "accelerator=h100", f"dataset.data_folder={tmp_path / 'none'}"])

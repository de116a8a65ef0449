"""`dlemu mlperf datasize` prints commands that work when pasted, and its exit status is its verdict."""

from __future__ import annotations

import json
import shlex

from click.testing import CliRunner, Result

from dlemu.cli.mlperf import command
from dlemu.config import load

PAIR = ("workload=unet3d", "accelerator=h100", "ranks=8", "dataset.data_folder=/nowhere/with a space/unet3d")


def datasize(*words: str) -> Result:
    return CliRunner().invoke(command, ["datasize", *words])


def test_the_datagen_command_makes_the_dataset_that_is_advised() -> None:
    told = datasize(*PAIR, "--hosts", "2", "--memory-gib", "512")
    assert told.exit_code == 0, told.output
    (pasted,) = [line for line in told.output.splitlines() if line.startswith("  dlemu datagen")]
    dataset = load(shlex.split(pasted)[2:]).dataset
    least = -(-5 * 2 * 512 * 2**30 // 146600628)
    assert f"{least:,} files" in told.output
    assert least < dataset.num_files_train <= 1.01 * least + 1
    assert dataset.num_subfolders_train == 4
    assert dataset.data_folder == "/nowhere/with a space/unet3d"
    assert "NOT ENOUGH" in told.output


def test_memory_is_measured_when_it_is_not_given() -> None:
    told = json.loads(datasize(*PAIR, "--json").output)
    with open("/proc/meminfo") as lines:
        (total_kib,) = [int(line.split()[1]) for line in lines if line.startswith("MemTotal")]
    assert told["memory_gib_per_host"] == total_kib / 2**20
    assert told["bound"]["files"] >= 500 * 7 * 8
    assert told["datagen"].startswith("dlemu datagen workload=unet3d")


def test_settings_that_break_a_rule_are_told_by_the_exit_status() -> None:
    told = datasize(*PAIR, "train.epochs=1")
    assert told.exit_code == 1
    assert "error settings.changed: train.epochs=1; wanted 5" in told.output

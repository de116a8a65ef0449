"""`dlemu workloads` lists every workload on every accelerator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlemu.cli.workloads import command
from dlemu.config import load, workload_names


def test_every_shipped_pair_is_listed_once() -> None:
    listed = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    pairs = [(one["workload"], one["accelerator"]) for one in listed]
    wanted = [(name, kind) for name in workload_names() for kind in load([f"workload={name}"]).accelerators or [""]]
    assert pairs == wanted
    h100 = next(one for one in listed if (one["workload"], one["accelerator"]) == ("unet3d", "h100"))
    assert h100["mb_per_second"] == pytest.approx(3177, rel=1e-3)


def test_the_table_says_what_is_asked_for() -> None:
    told = CliRunner().invoke(command).stdout
    assert "unet3d" in told
    line = next(line for line in told.splitlines() if "unet3d" in line and "b200" in line)
    assert line.split() == ["unet3d", "b200", "7", "0.162", "43.2", "6,333.7", "90", "%"]
    assert "\u2026" not in told, "nothing is cut off"
    assert max(map(len, told.splitlines())) <= 80


def test_a_folder_of_ones_own_is_listed_too(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text("train: {computation_time: 0}\n")
    told = CliRunner().invoke(command, ["--config-dir", str(tmp_path)]).stdout
    assert "no limit" in next(line for line in told.splitlines() if "mine" in line and "limit" in line)

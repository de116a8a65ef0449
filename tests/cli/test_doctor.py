"""`dlemu doctor` and `dlemu workloads`: what they print, and how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dlemu.cli import doctor
from dlemu.cli.workloads import command
from dlemu.config import load, workload_names
from dlemu.doctor.check_base import Check, Facts
from tests.datasets import make_dataset
from tests.doctor.test_contract import CHECKS
from tests.doctor.workloads import small


@pytest.mark.parametrize(("levels", "status"), [(["ok", "warn"], 0), (["ok", "fail"], 2)])
def test_the_exit_status_shows_whether_something_fails(
    levels: list[Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check(name="one", level=level, observed="this", wanted="that", advice="do so") for level in levels]
    monkeypatch.setattr("dlemu.doctor.examine", lambda _: iter(checks))
    result = CliRunner().invoke(doctor.command)
    assert result.exit_code == status
    assert result.stdout.count("wanted: that") == 2
    assert "to do: do so" in result.stdout
    result = CliRunner().invoke(doctor.command, ["--json"])
    assert result.exit_code == status
    assert [Check(**one) for one in json.loads(result.stdout)] == checks


@pytest.mark.slow
def test_the_doctor_looks_at_everything_and_raises_nothing(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    shape = ["dataset.num_files_train=24", "dataset.record_length_bytes=40000"]
    shape += ["dataset.record_length_bytes_stdev=15000", f"dataset.data_folder={tmp_path}"]
    result = CliRunner().invoke(doctor.command, shape)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for name in ("configuration", "MPI", "cores", "O_DIRECT", "dataset", "ranks fit"):
        assert name in result.stdout


# `dlemu workloads`


def test_every_shipped_pair_is_listed_once_and_a_folder_of_ones_own_too(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text("train: {computation_time: 0}\n")
    listed = json.loads(CliRunner().invoke(command, ["--json", "--config-dir", str(tmp_path)]).stdout)
    (mine,) = [one for one in listed if one["workload"] == "mine"]
    assert mine["mb_per_second"] is None, "no limit"
    assert re.search(r"mine .*no limit", CliRunner().invoke(command, ["--config-dir", str(tmp_path)]).stdout)
    listed.remove(mine)
    pairs = [(one["workload"], one["accelerator"]) for one in listed if "accelerator" in one]
    workloads = {name: load([f"workload={name}"]) for name in workload_names()}
    trained = {name: each for name, each in workloads.items() if each.workflow.train}
    assert pairs == [(name, kind) for name, each in trained.items() for kind in each.accelerators or [""]]
    sizes = {one["workload"]: one for one in listed if "accelerator" not in one}
    assert set(sizes) == set(workloads) - set(trained)
    assert (sizes["llama3_405b"]["files"], sizes["llama3_405b"]["ranks"]) == (1544, 512)
    assert sizes["llama3_8b"]["tensor_bytes"] / 2**30 == 104.70452117919922
    for name, one in sizes.items():
        shown, printed = (CliRunner().invoke(command, [name, *more]).stdout for more in ([], ["--json"]))
        assert json.loads(printed) == [one]
        assert "one accelerator" not in shown
        assert (f"dlemu {one['command']} w" if "command" in one else "size of one checkpoint") in shown
    h100 = next(one for one in listed if (one["workload"], one["accelerator"]) == ("unet3d", "h100"))
    assert h100["mb_per_second"] == pytest.approx(3177, rel=1e-3)


def test_a_workload_that_can_not_be_loaded_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "broken.yaml").write_text("train: {computation_tim: 0}\n")
    listing = CliRunner().invoke(command, ["--json", "--config-dir", str(tmp_path)])
    assert "broken is not listed: " in listing.stderr
    assert "unet3d" in {one["workload"] for one in json.loads(listing.stdout)}
    assert CliRunner().invoke(command, ["broken", "--config-dir", str(tmp_path)]).exit_code != 0


def test_a_file_of_ones_own_is_shown_with_its_demand(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for number in range(10):
        (tmp_path / "images" / "cat" / f"{number}.jpg").write_bytes(bytes(1000 * (number + 1)))
    (tmp_path / "my.yaml").write_text(
        f"dataset: {{source: folder, data_folder: {tmp_path}/images}}\n"
        "reader: {batch_size: 8, read_threads: 2, preprocess_time: 0.001}\ntrain: {computation_time: 0.02}\n"
    )
    shown = re.sub(r"\s+", " ", CliRunner().invoke(command, [str(tmp_path / "my.yaml")]).output)
    for words in ("num files 10", "5,500 bytes", "400 samples/s", "mb per second 2.2", "cores 0.4"):
        assert words in shown


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_a_check_that_finds_something_says_what_is_wanted(there: bool, tmp_path: Path) -> None:
    if there:
        make_dataset(tmp_path / "data")
    quick = ("train.computation_time=0.01", "reader.data_loader=threads", "metric.ceiling_seconds=0.1")
    for name, check in CHECKS:
        found = check(Facts(small(tmp_path / "data", *quick)))
        if found is not None:
            assert found.observed, name
            assert found.level == "ok" or found.wanted or found.advice or found.observed.count(" ") > 3, name

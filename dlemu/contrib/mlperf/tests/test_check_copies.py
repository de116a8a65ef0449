"""`dlemu mlperf check` on copies, forged sums and other hosts, and on what only looks like it."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.tests import foreign_runs, golden
from dlemu.contrib.mlperf.tests.changes import META, first, of_the_first, put, runs, summary
from dlemu.contrib.mlperf.tests.foreign_runs import Rank
from dlemu.contrib.mlperf.tests.forging.kinds import drives, stamp
from dlemu.contrib.mlperf.tests.golden import edit, make_tree, moved
from dlemu.contrib.mlperf.tests.test_check import told

RATE = "train_throughput_mean_samples_per_second"
AU = "train_au_mean_percentage"


def shift(run: Path, seconds: float, *left: str) -> None:
    """Move all that a run's files tell of its time, but for those of such names."""
    for path in run.glob("*.json"):
        if not any(name in path.name for name in ("output", *left)):
            path.write_text(json.dumps(moved(json.loads(path.read_text()), timedelta(seconds=seconds))))


def test_sums_may_be_a_table_and_are_named_by_where_they_stand(golden: Path, tmp_path: Path) -> None:
    """A row of a list may be any run's; what stands below a run's name is that run's."""
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    (path,) = root.rglob("run/results.json")
    metrics = [json.loads((run / "summary.json").read_text())["metric"] for run in runs(root)]

    def differs(content: Any) -> str | None:
        path.write_text(json.dumps(content))
        found = [one for one in check_folder(str(root)).findings if one.rule == "results.differ"]
        return found[0].seen if found else None

    rows = [{key: metric[key] for key in (RATE, AU)} for metric in metrics]
    last = runs(root)[-1].name
    assert differs(rows) is None
    assert differs({"workloads": {"unet3d": rows}}) is None
    assert differs({"runs": {last: rows[-1]}}) is None
    rate = metrics[0][RATE]
    assert differs([*rows, {RATE: 999.0}]) == f"{RATE} is 999; the runs give {fmean_rate(metrics):.10g}"
    assert (
        differs({"runs": {last: {**rows[-1], RATE: rows[0][RATE]}}})
        == f"runs.{last}.{RATE} is {rate:.10g}; the runs give {metrics[-1][RATE]:.10g}"
    )
    assert differs({RATE: metrics[-1][RATE]}) == f"{RATE} is {metrics[-1][RATE]:.10g}; the runs give " + (
        f"{fmean_rate(metrics):.10g}"
    ), "a sum is no run's"
    lists = {key: metrics[-1][key] for key in ("train_au_percentage", "train_throughput_samples_per_second")}
    assert differs([{"run_id": last, "metrics": lists}]) is None, "some versions write each run's metrics"
    assert differs({"of": "nothing known"}) == "no AU and no samples/s"


def fmean_rate(metrics: list[dict[str, float]]) -> float:
    """Of the measured runs: all but the warm-up."""
    return fmean(metric[RATE] for metric in metrics[1:])


def test_figures_of_few_digits_may_be_the_same_by_chance(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
    for path in root.rglob("*_output.json"):
        path.unlink()
    for run in runs(root):
        metric = json.loads((run / "summary.json").read_text())["metric"]
        for key, value in ((key, value) for key, value in metric.items() if isinstance(value, list)):
            edit(run / "summary.json", put(f"metric/{key}", [97.5] * len(value)))
    assert ("error", "runs.copied") not in told(check_folder(str(root)))


@pytest.mark.parametrize(("noise", "severity"), [(0.0, "error"), (0.02, "warning")])
def test_a_run_made_of_anothers_waits_is_found_though_all_its_papers_agree(
    tmp_path: Path, noise: float, severity: str
) -> None:
    honest = vars(golden)["_play"]

    def play(seconds: float, number: int, *rest: int) -> list[list[Rank]]:
        epochs, draw = honest(seconds, number, *rest), random.Random(7)
        if number != 1:
            return list(epochs)
        source = honest(seconds, 0, *rest)
        return [
            [
                replace(rank, load=[1.01 * wait * draw.uniform(1 - noise, 1 + noise) for wait in other.load])
                for rank, other in pair
            ]
            for pair in (zip(*each, strict=True) for each in zip(epochs, source, strict=True))
        ]

    with patch.object(golden, "_play", play):
        make_tree(tmp_path / str(noise), "3.0")
    assert told(check_folder(str(tmp_path))) == {(severity, "runs.copied")}


# What only looks wrong.


def test_memory_that_a_control_group_limits_and_the_description_says_so_is_no_finding(
    golden: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
    summary("host_memory_GB", [500.0])(root)
    summary("host_meminfo", {"MemTotal": f"{500 * 2**20} kB"})(root)
    (path,) = root.glob("*/acme/systems/box.yaml")
    edit(path, put("system_under_test/clients", [{"quantity": 1, "chassis": {"memory_capacity": 500}}]))
    assert ("error", "dataset.size") in told(check_folder(str(root)))
    limit = ["mkdir /sys/fs/cgroup/mlperf && echo 32G > /sys/fs/cgroup/mlperf/memory.max"]
    edit(path, put("system_under_test/config_options", limit))
    checked = check_folder(str(root))
    assert told(checked) == set()
    (seen,) = {one.seen for one in checked.findings if one.rule == "dataset.limited"}
    assert "32 GiB" in seen
    edit(path, put("system_under_test/config_options", ["echo 400G > /sys/fs/cgroup/mlperf/memory.max"]))
    assert ("error", "dataset.size") in told(check_folder(str(root))), "5 times the limit is still wanted"


@pytest.mark.parametrize(
    ("share", "hosts", "named"), [(0.4, 1, True), (0.6, 1, False), (0.01, 1, False), (0.4, 2, False)]
)
def test_drives_that_read_less_than_half_are_asked_about_where_they_held_the_data(
    golden: Path, tmp_path: Path, share: float, hosts: int, named: bool
) -> None:
    """What the page cache may have served, other machines' drives, and hosts without counters are no finding."""
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    stated = json.loads((first(root) / "summary.json").read_text())
    dataset = yaml.safe_load((first(root) / "dlio_config/config.yaml").read_text())["workload"]["dataset"]
    read_bytes = stated["num_files_train"] * stated["epochs"] * float(dataset["record_length_bytes"])
    of_the_first(META, "cluster_snapshots", drives(share * read_bytes / 2**30))(root)
    of_the_first("summary.json", "num_hosts", hosts)(root)
    assert (("warning", "data.device") in told(check_folder(str(root)))) == named


def test_code_is_known_by_its_content_and_its_test_data_are_no_runs(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
    (code,) = root.glob("*/acme/code")
    data = code.rename(code.with_name("v2.0.0_code")) / "storage" / "dlio_benchmark" / "tests" / "test_data"
    data.mkdir(parents=True)
    (data.parents[1] / "setup.py").write_text("")
    foreign_runs.write_run(data)
    checked = check_folder(str(root))
    assert told(checked) == set()
    assert len(checked.results) == 1


def test_files_that_reviewers_took_out_are_not_broken(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    for path in [*root.rglob("*_output.json"), *root.rglob("dlio.log")]:
        path.write_text("PRUNED BY STAFF\n")
    checked = check_folder(str(root))
    assert told(checked) == set()
    assert {one.rule for one in checked.findings} >= {"file.pruned", "unknown.steps"}


def test_ranks_in_another_time_zone_than_the_launcher_are_no_finding(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    for run in runs(root):
        shift(run, 8 * 3600, "metadata")
    assert told(check_folder(str(root))) == set()


# Benchmarks that are not training.


def test_trees_of_other_benchmarks_alone_are_judged_and_not_called_empty(tmp_path: Path) -> None:
    for path in (
        "kv_cache/llama3.1-8b/run/20260712_182110/option_1",
        "vector_database/milvus/DISKANN/run/20260712_182111",
    ):
        (tmp_path / "closed/acme/results/box" / path).mkdir(parents=True)
    found = told(check_folder(str(tmp_path)))
    assert {("error", "submission.folders"), ("error", "submission.code")} <= found, "rules on every tree"
    assert ("error", "kv.missing") in found
    assert ("error", "tree.empty") not in found


@pytest.mark.parametrize(("overlap_seconds", "named"), [(1.0, False), (1.5, True)])
def test_runs_overlap_from_a_second_on(golden: Path, tmp_path: Path, overlap_seconds: float, named: bool) -> None:
    """Stamps of some papers have whole seconds."""
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
    before, run = runs(root)[1:3]
    ended, began = (
        datetime.fromisoformat(json.loads((each / "summary.json").read_text())[key])
        for each, key in ((before, "end"), (run, "start"))
    )
    shift(run, (ended - began).total_seconds() - overlap_seconds)
    assert (("error", "runs.overlap") in told(check_folder(str(root)))) == named


def test_provenance_that_agrees_with_the_tree_is_no_finding(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    stamp(root)
    assert told(check_folder(str(root))) == set()

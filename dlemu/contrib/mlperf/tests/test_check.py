"""`dlemu mlperf check`: a valid tree has no finding, and each broken rule its own, copies and forged sums too."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.audit_answer import write_csv
from dlemu.contrib.mlperf.check import provenance_rules
from dlemu.contrib.mlperf.check.judge import Checked, check_folder, check_report, finding_rows
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, known_rules
from dlemu.contrib.mlperf.tests import foreign_runs, golden
from dlemu.contrib.mlperf.tests.changes import META, config, first, of_the_first, put, runs, summary
from dlemu.contrib.mlperf.tests.foreign_runs import Rank
from dlemu.contrib.mlperf.tests.forging.kinds import drives, stamp, waiting
from dlemu.contrib.mlperf.tests.golden import STAMP, config_folder, edit, make_tree, moved

PUBLISHED = Path(__file__).parents[5] / "shared" / "published-runs"
EDITIONS = ("2.0", "3.0")


def well_formed(checked: Checked) -> None:
    """Every finding says what was seen where, what was wanted and what to do, by a rule that is described."""
    for one in checked.findings:
        assert all((one.seen, one.wanted, one.fix)), one
        assert one.severity in SEVERITIES
        assert one.rule in known_rules()
        assert Path(one.path).exists(), one
        assert Path(one.path).is_relative_to(checked.root), one


Tree = Callable[[str], Path]


@pytest.fixture
def tree(golden: Path, tmp_path: Path) -> Tree:
    return lambda edition: shutil.copytree(golden / edition, tmp_path / "tree")


def told(checked: Checked) -> set[tuple[str, str]]:
    """What was found, without what the reader must merely know."""
    well_formed(checked)
    return {(one.severity, one.rule) for one in checked.findings if one.severity != "info"}


@pytest.mark.parametrize(("longer_us", "wide"), [(0, True), (1, False)])
def test_a_gap_of_exactly_twice_the_shortest_run_is_too_wide(tree: Tree, longer_us: int, wide: bool) -> None:
    root = tree("2.0")
    begun = [datetime.strptime(run.name, STAMP) for run in runs(root)]
    gap = max(second - first for first, second in pairwise(begun))
    for run in runs(root):
        start = datetime.fromisoformat(json.loads((run / "summary.json").read_text())["start"])
        end = start + gap / 2 + timedelta(microseconds=longer_us)
        edit(run / "summary.json", put("end", end.isoformat(timespec="microseconds")))
    assert (("warning", "runs.gap") in told(check_folder(str(root)))) == wide


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("above", ["", "closed", "open"])
def test_a_valid_tree_has_no_finding_and_is_judged_alike_from_inside_and_from_outside(
    golden: Path, tmp_path: Path, edition: str, above: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(golden / edition, tmp_path / above / "tree")
    training = runs(root)[0].parent
    inside = [folder for folder in (training, *training.parents) if folder.is_relative_to(root)]
    for folder in inside:
        monkeypatch.chdir(folder)
        checked = check_folder(".")
        assert (told(checked), checked.valid) == (set(), True), folder
        (result,) = checked.results
        assert (result.edition.name, result.division, len(result.measured)) == (edition, "closed", 5)
        assert result.warm_up is not None


@pytest.mark.parametrize("edition", ["2.0", "3.0"])
def test_a_copied_workload_keeps_its_runs_together(golden: Path, tmp_path: Path, edition: str) -> None:
    copied = shutil.copytree(runs(golden / edition)[0].parents[1], tmp_path / "copied")
    checked = check_folder(str(tmp_path))
    assert told(checked) == set()
    (result,) = checked.results
    assert len(result.measured) == 5
    shutil.rmtree(runs(copied)[3])
    assert "runs.count" in {rule for _, rule in told(check_folder(str(copied)))}


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_folder_that_is_a_link_is_not_read_and_not_valid(golden: Path, tmp_path: Path, depth: int) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    folder = (runs(root)[2], *runs(root)[2].parents)[depth]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    (linked,) = [one for one in check_folder(str(root)).findings if one.rule == "tree.link"]
    assert (linked.path, linked.seen) == (str(folder), f"a link to {tmp_path}/elsewhere, which is not read")


def test_divisions_are_named_in_lower_case_wherever_the_check_begins(tree: Tree) -> None:
    root = tree("3.0")
    (root / "closed").rename(root / "Closed")
    for folder in (root, root / "Closed", root / "Closed/acme"):
        assert told(check_folder(str(folder))) == {("error", "submission.top")}


def test_an_open_submission_in_a_folder_named_closed_is_open(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "closed/round")
    (root / "closed").rename(root / "open")
    preloads = "mpirun -n 4 -x LD_PRELOAD=/opt/nosync.so -host n:4 dlio_benchmark"
    edit(sorted(root.rglob("run/*/*_metadata.json"))[-1], put("executed_command", preloads))
    checked = check_folder(str(root))
    assert told(checked) == {("warning", "division.differs"), ("warning", "command.preload")}
    divisions = [result.division for result in checked.results] + [each.division for each in checked.submissions]
    assert set(divisions) == {"open"}
    (root / "closed/acme/systems").mkdir(parents=True)
    with patch.object(provenance_rules, "tree_hashes", return_value={"other"}) as hashes:
        assert len(check_folder(str(root)).submissions) == 2
    hashes.assert_called_once_with(str(next(root.glob("acme/code-*"))))


def test_figures_that_dlio_always_writes_can_not_be_left_out(golden: Path, tmp_path: Path) -> None:
    path = shutil.copytree(runs(golden / "3.0")[-1], tmp_path / "run") / "summary.json"
    for steps in path.parent.glob("*_output.json"):
        steps.unlink()  # they take most of the time of a check
    whole = json.loads(path.read_text())
    places = [(whole, key) for key in whole if key not in ("metric", "host_meminfo", "num_files_eval")]
    for section, key in [*places, *((whole["metric"], key) for key in whole["metric"])]:
        kept = section.pop(key)
        path.write_text(json.dumps(whole))
        assert ("error", "summary.incomplete") in told(check_folder(str(path.parent), "3.0")), key
        section[key] = kept


def test_the_warm_up_must_not_pass_where_only_the_text_of_the_rules_counts(golden: Path, tmp_path: Path) -> None:
    for edition, severity in (("2.0", "warning"), ("3.0", "error")):
        root = tmp_path / edition
        shutil.copytree(golden / edition, root)
        for path in first(root).glob("*_output.json"):
            path.unlink()
        edit(first(root) / "summary.json", lambda content: content["metric"].update(train_au_mean_percentage=50.0))
        assert (severity, "au.low") in told(check_folder(str(root)))


@pytest.mark.parametrize(
    ("key", "value", "told_as"),
    [("odirect", True, "False and True"), ("prefetch_size", 0, "0 and 2"), ("transfer_size", 262144, "262144 and not")],
)
def test_a_setting_that_one_run_omits_is_dlios_default(tree: Tree, key: str, value: Any, told_as: str) -> None:
    root = tree("2.0")
    for run in runs(root)[1:]:
        edit(config_folder(run) / "config.yaml", put(f"workload/reader/{key}", value))
    (found,) = [one for one in check_folder(str(root)).findings if one.rule == "runs.differ"]
    assert found.seen.startswith(f"reader.{key}: {told_as}")
    of_the_first("config.yaml", f"workload/reader/{key}", value)(root)
    assert "runs.differ" not in {one.rule for one in check_folder(str(root)).findings}


def test_no_broken_file_is_a_traceback(golden: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"[]", b'{"a": [1, {}]}', b"\x00\xff: [", b"null")):
        root = shutil.copytree(golden / "3.0", tmp_path / str(number))
        for path in root.rglob("*"):
            if path.suffix in (".json", ".yaml"):
                path.write_bytes(content)
        checked = check_folder(str(root))
        assert "audit.failed" not in {one.rule for one in checked.findings}
        assert not checked.valid
    tree = golden / "3.0"
    folders = (tree / "acme", tree / "closed/acme/systems", first(tree), config_folder(runs(tree)[2]))
    denied = set(map(str, folders))
    scandir = os.scandir

    def refused(path: str) -> Any:
        if path in denied:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    with patch("os.scandir", refused):
        findings = check_folder(str(tree)).findings
    assert {one.path for one in findings if one.rule == "file.broken"} == denied


def test_a_single_run_and_a_results_folder_of_mlpstorage_are_taken(golden: Path, tmp_path: Path) -> None:
    run = runs(golden / "2.0")[2]
    checked = check_folder(str(run))
    assert told(checked) == set()
    assert not checked.results[0].phased
    assert "runs.single" in {one.rule for one in checked.findings}
    results = check_folder(str(golden / "2.0/closed/acme/results/box"))
    assert told(results) == set()
    assert len(results.results[0].runs) == 6
    opened = shutil.copytree(golden / "2.0/closed/acme/results/box", tmp_path / "box")
    for path in opened.rglob("*_metadata.json"):
        edit(path, put("verification", "benchmark.OPEN"))
    assert {result.division for result in check_folder(str(opened)).results} == {"open"}


def test_a_run_of_a_benchmark_that_no_folder_names_is_listed_and_not_judged(tmp_path: Path) -> None:
    run = tmp_path / "some/20260101_000000"
    run.mkdir(parents=True)
    metric = {"save_checkpoint_duration_mean_seconds": 5.0}
    (run / "summary.json").write_text(json.dumps({"num_accelerators": 8, "metric": metric}))
    checked = check_folder(str(tmp_path))
    assert told(checked) == {("error", "tree.empty")}, "nothing that could be judged"
    assert checked.unjudged == sum(one.rule == "run.other" for one in checked.findings) == 1


def test_edition_and_division_can_be_given(golden: Path) -> None:
    found = check_folder(str(golden / "2.0"), edition="3.0", division="open")
    assert {(one.edition.name, one.division) for one in found.results} == {("3.0", "open")}
    assert ("error", "workload.unknown") in told(found)


def test_no_such_folder_is_a_mistake_and_no_run_a_finding(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a readable folder"):
        check_folder(str(tmp_path / "nowhere"))
    assert told(check_folder(str(tmp_path))) == {("error", "tree.empty")}


def test_tables_have_every_finding_and_the_editions_own_name_of_the_rule(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    config("metric/au", 0.5)(root)
    shutil.rmtree(runs(root)[-1])
    checked = check_folder(str(root))
    write_csv(str(tmp_path / "f.csv"), Finding, finding_rows(checked))
    lines = list(csv.DictReader(io.StringIO((tmp_path / "f.csv").read_text())))
    assert lines == check_report(checked)["findings"]
    assert [line["official"] for line in lines if line["rule"] == "runs.count"] == ["2.1.17 runTimestamps"]
    assert sum(line["rule"] == "settings.changed" for line in lines) == 5
    assert check_report(checked)["errors"] == sum(line["severity"] == "error" for line in lines)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no published runs in {PUBLISHED}")
def test_runs_of_v1_are_refused_unless_an_edition_is_named() -> None:
    with pytest.raises(UserError, match=r"runs of MLPerf Storage v1\.0 or older: wanted v2\.0 or later; `dlemu audit`"):
        check_folder(str(PUBLISHED))
    assert {one.edition.name for one in check_folder(str(PUBLISHED), edition="2.0").results} == {"2.0"}


RATE = "train_throughput_mean_samples_per_second"
AU = "train_au_mean_percentage"


def shift(run: Path, seconds: float, *left: str) -> None:
    """Move all that a run's files tell of its time, but for those of such names."""
    for path in run.glob("*.json"):
        if not any(name in path.name for name in ("output", *left)):
            path.write_text(json.dumps(moved(json.loads(path.read_text()), timedelta(seconds=seconds))))


def test_sums_may_be_a_table_and_are_named_by_where_they_stand(tree: Tree) -> None:
    """A row of a list may be any run's; what stands below a run's name is that run's."""
    root = tree("3.0")
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
    rate, own = metrics[0][RATE], metrics[-1][RATE]
    mean = fmean(metric[RATE] for metric in metrics[1:])
    assert differs([*rows, {RATE: 999.0}]) == f"{RATE} is 999; the runs give {mean:.10g}"
    others = {"runs": {last: {**rows[-1], RATE: rate}}}
    assert differs(others) == f"runs.{last}.{RATE} is {rate:.10g}; the runs give {own:.10g}"
    assert differs({RATE: own}) == f"{RATE} is {own:.10g}; the runs give {mean:.10g}", "a sum is no run's"
    lists = {key: metrics[-1][key] for key in ("train_au_percentage", "train_throughput_samples_per_second")}
    assert differs([{"run_id": last, "metrics": lists}]) is None, "some versions write each run's metrics"
    assert differs({"of": "nothing known"}) == "no AU and no samples/s"


def test_figures_of_few_digits_may_be_the_same_by_chance(tree: Tree) -> None:
    root = tree("2.0")
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


def test_memory_that_a_control_group_limits_and_the_description_says_so_is_no_finding(tree: Tree) -> None:
    root = tree("2.0")
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
    shell = [f"echo {size} > /sys/fs/cgroup/mlperf/memory.max" for size in ("400G", "-1", "64,000,000,000")]
    for larger in (*shell, "MemoryMax=50%", "MemoryMax=64,000,000,000"):
        edit(path, put("system_under_test/config_options", [larger]))
        assert ("error", "dataset.size") in told(check_folder(str(root))), "5 times the limit is still wanted"


@pytest.mark.parametrize(
    ("share", "hosts", "named"), [(0.4, 1, True), (0.6, 1, False), (0.01, 1, False), (0.4, 2, False)]
)
def test_drives_that_read_less_than_half_are_asked_about_where_they_held_the_data(
    tree: Tree, share: float, hosts: int, named: bool
) -> None:
    """What the page cache may have served, other machines' drives, and hosts without counters are no finding."""
    root = tree("3.0")
    stated = json.loads((first(root) / "summary.json").read_text())
    dataset = yaml.safe_load((first(root) / "dlio_config/config.yaml").read_text())["workload"]["dataset"]
    read_bytes = stated["num_files_train"] * stated["epochs"] * float(dataset["record_length_bytes"])
    of_the_first(META, "cluster_snapshots", drives(share * read_bytes / 2**30))(root)
    of_the_first("summary.json", "num_hosts", hosts)(root)
    assert (("warning", "data.device") in told(check_folder(str(root)))) == named


def test_code_is_known_by_its_content_and_its_test_data_are_no_runs(tree: Tree) -> None:
    root = tree("2.0")
    (code,) = root.glob("*/acme/code")
    data = code.rename(code.with_name("v2.0.0_code")) / "storage" / "dlio_benchmark" / "tests" / "test_data"
    data.mkdir(parents=True)
    (data.parents[1] / "setup.py").write_text("")
    foreign_runs.write_run(data)
    checked = check_folder(str(root))
    assert told(checked) == set()
    assert len(checked.results) == 1


def test_files_that_reviewers_took_out_are_not_broken(tree: Tree) -> None:
    root = tree("3.0")
    for path in [*root.rglob("*_output.json"), *root.rglob("dlio.log")]:
        path.write_text("PRUNED BY STAFF\n")
    checked = check_folder(str(root))
    assert told(checked) == set()
    assert {one.rule for one in checked.findings} >= {"file.pruned", "unknown.steps"}


def test_provenance_that_agrees_and_ranks_in_another_time_zone_than_the_launcher_are_no_finding(tree: Tree) -> None:
    root = tree("3.0")
    stamp(root)
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
def test_runs_overlap_from_a_second_on(tree: Tree, overlap_seconds: float, named: bool) -> None:
    """Stamps of some papers have whole seconds."""
    root = tree("2.0")
    before, run = runs(root)[1:3]
    ended, began = (
        datetime.fromisoformat(json.loads((each / "summary.json").read_text())[key])
        for each, key in ((before, "end"), (run, "start"))
    )
    shift(run, (ended - began).total_seconds() - overlap_seconds)
    assert (("error", "runs.overlap") in told(check_folder(str(root)))) == named


def test_au_is_judged_by_the_steps_and_not_by_the_word_success(tree: Tree) -> None:
    root = tree("3.0")
    waiting(root)
    checked = check_folder(str(root))
    (low,) = [one for one in checked.findings if one.rule == "au.low"]
    assert (Path(low.path), low.seen.endswith("(from its steps)")) == (runs(root)[-1], True)
    assert ("error", "au.differs") in told(checked)

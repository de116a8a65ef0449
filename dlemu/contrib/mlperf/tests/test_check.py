"""`dlemu mlperf check`: a valid tree of each edition has no finding, and each broken rule gives just its own."""

from __future__ import annotations

import csv
import io
import json
import shutil
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.audit_answer import write_csv
from dlemu.contrib.mlperf.check.judge import Checked, check_folder, check_report, finding_rows
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, known_rules
from dlemu.contrib.mlperf.tests.changes import config, first, of_the_first, put, runs
from dlemu.contrib.mlperf.tests.golden import STAMP, config_folder, edit

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


def told(checked: Checked) -> set[tuple[str, str]]:
    """What was found, without what the reader must merely know."""
    well_formed(checked)
    return {(one.severity, one.rule) for one in checked.findings if one.severity != "info"}


@pytest.mark.parametrize(("longer_us", "wide"), [(0, True), (1, False)])
def test_a_gap_of_exactly_twice_the_shortest_run_is_too_wide(
    golden: Path, tmp_path: Path, longer_us: int, wide: bool
) -> None:
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
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


def test_divisions_are_named_in_lower_case_wherever_the_check_begins(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "tree")
    (root / "closed").rename(root / "Closed")
    for folder in (root, root / "Closed", root / "Closed/acme"):
        assert told(check_folder(str(folder))) == {("error", "submission.top")}


def test_an_open_submission_in_a_folder_named_closed_is_open(golden: Path, tmp_path: Path) -> None:
    root = shutil.copytree(golden / "3.0", tmp_path / "closed/round")
    (root / "closed").rename(root / "open")
    checked = check_folder(str(root))
    assert told(checked) == {("warning", "division.differs")}
    divisions = [result.division for result in checked.results] + [each.division for each in checked.submissions]
    assert set(divisions) == {"open"}


def test_figures_that_dlio_always_writes_can_not_be_left_out(golden: Path, tmp_path: Path) -> None:
    """A figure that is not there contradicts nothing."""
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
def test_a_setting_that_one_run_omits_is_dlios_default(
    golden: Path, tmp_path: Path, key: str, value: Any, told_as: str
) -> None:
    root = shutil.copytree(golden / "2.0", tmp_path / "tree")
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


def test_a_single_run_and_a_results_folder_of_mlpstorage_are_taken(golden: Path) -> None:
    run = runs(golden / "2.0")[2]
    checked = check_folder(str(run))
    assert told(checked) == set()
    assert not checked.results[0].phased
    assert "runs.single" in {one.rule for one in checked.findings}
    results = check_folder(str(golden / "2.0/closed/acme/results/box"))
    assert told(results) == set()
    assert len(results.results[0].runs) == 6


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

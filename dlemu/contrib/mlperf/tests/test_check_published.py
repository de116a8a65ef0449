"""A submission in the shape of one that v3.0 published, judged as its round was, and as today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlemu.contrib.mlperf.audit.audited_run import audit_trees
from dlemu.contrib.mlperf.audit.kv_leaf import read_kv_leaf
from dlemu.contrib.mlperf.check.judge import Checked, check_folder, result_rows
from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.tests.changes import gone, put, scale
from dlemu.contrib.mlperf.tests.golden import edit
from dlemu.contrib.mlperf.tests.published_tree import make_kv, make_published

BOTH = {"checkpoint.memory", "checkpoint.simultaneous", "checkpoint.slowest", "hosts.few", "kv.device", "kv.window"}
"""What the reviewers' list of the round names of this submission, and what only recomputing shows."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_published(tmp_path_factory.mktemp("published") / "tree")


def of(checked: Checked, severity: str) -> set[str]:
    return {one.rule for one in checked.findings if one.severity == severity}


def seen(checked: Checked, rule: str) -> str:
    return "; ".join(one.seen for one in checked.findings if one.rule == rule)


def test_a_published_submission_breaks_no_rule_as_its_round_was_judged(tree: Path) -> None:
    checked = check_folder(str(tree), reading="published")
    assert of(checked, "error") == set()
    assert of(checked, "warning") == BOTH


def test_today_it_lacks_what_the_round_let_pass(tree: Path) -> None:
    checked = check_folder(str(tree), reading="today")
    assert of(checked, "error") == {"checkpoint.accelerator"}
    assert of(checked, "warning") == BOTH


def test_a_published_rate_stands_beside_the_most_that_it_can_have_been(tree: Path) -> None:
    """2,356.6 GiB in no less than 375.9 s, the slowest request: 6.27 GiB/s where 7.86 are published."""
    leaf = read_kv_leaf(str(next(tree.rglob("kv_cache/*/run/2*"))))
    first = leaf.trials(1)[0][0]
    assert first.stat("tier_storage_read_bandwidth_gbps") == pytest.approx(7.855, abs=0.001)
    assert first.max_gib_per_second("read") == pytest.approx(6.269, abs=0.001)
    told = seen(check_folder(str(tree)), "kv.window")
    assert "option 1: read 7.85 published, at most 6.26 GiB/s" in told
    assert "option 2" not in told, "no request outlasted its clock"


def test_ranks_are_summed_and_trials_averaged(tmp_path: Path) -> None:
    leaf = read_kv_leaf(str(make_kv(tmp_path / "kv_cache/llama3.1-8b/run", ranks=2)))
    most = leaf.max_gib_per_second(1, "read")
    assert most == pytest.approx(12.5, abs=0.1)
    assert "kv.aggregate" not in of(check_folder(str(tmp_path)), "warning")
    edit(Path(leaf.path) / "summary.json", scale("options/1/aggregated_read_bandwidth_gbps", 0.5))
    assert "the mean over ranks and trials" in seen(check_folder(str(tmp_path)), "kv.aggregate")


def test_a_number_that_one_rank_lacks_is_said_to_be_the_ranks(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    rank = sorted(leaf.rglob("option_1/*/*/kvcache_results_*.json"))[0]
    edit(rank, gone("summary/cache_stats/tier_storage_read_bandwidth_gbps"))
    unapplied = "kv.differs: a rank's read_bandwidth_gbps of option 1 not known"
    assert unapplied in seen(check_folder(str(tmp_path)), "unapplied")
    edit(leaf / "summary.json", gone("options/1/aggregated_read_bandwidth_gbps"))
    assert "kv.differs: read_bandwidth_gbps of option 1 not known" in seen(check_folder(str(tmp_path)), "unapplied")


@pytest.mark.timeout(30)
def test_a_summary_of_endlessly_many_ranks_is_judged_at_once(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    edit(leaf / "summary.json", put("total_ranks", 10**15))
    missing = "results of 8999999999999991 of 9000000000000000 ranks missing, the first option_1/trial_0/rank_1"
    assert missing in seen(check_folder(str(tmp_path)), "kv.missing")


def test_a_datasize_call_of_kv_cache_is_no_run(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    other = leaf.parents[1] / "datasize/20260712_180000"
    other.mkdir(parents=True)
    (other / "kv_cache_20260712_180000_metadata.json").write_text('{"benchmark_type": "kv_cache"}')
    assert "kv.missing" not in of(check_folder(str(tmp_path)), "error")


def test_every_benchmark_has_its_rows_for_programs_and_on_the_page(tree: Path) -> None:
    report = list(result_rows(check_folder(str(tree))))
    assert [(row.benchmark, len(row.runs)) for row in report] == [
        *(("training", 6), ("checkpointing", 2), ("kv_cache", 1))
    ]
    printed = CliRunner().invoke(command, ["check", str(tree), "--json", "--rules", "published"])
    assert printed.exit_code == 0
    assert len(json.loads(printed.output)["results"]) == 3


def test_the_audit_reads_runs_of_other_benchmarks(tree: Path) -> None:
    rules = {finding.rule for run in audit_trees([str(tree)]) for finding in run.findings}
    assert {"kv.window", "kv.device", "kv.tiers", "kv.listed"} <= rules
    assert not any(run.errors for run in audit_trees([str(tree)]))

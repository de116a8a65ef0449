"""A published submission is valid as its round was judged; each rule of its checkpoints is broken in turn."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from datagen.errors import UserError
from dlemu.contrib.mlperf.audit.audited_run import audit_run, audit_trees
from dlemu.contrib.mlperf.audit.kv_call import read_kv_call
from dlemu.contrib.mlperf.check.judge import Checked, check_folder, result_rows
from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.rules.core_config import core_config_hash
from dlemu.contrib.mlperf.tests.changes import edited, end, ended_at, gone, processes, put, scale, setting
from dlemu.contrib.mlperf.tests.golden import CODE, describe_checkpoints, edit, leaves, make_result
from dlemu.contrib.mlperf.tests.published_tree import make_kv, make_published
from dlemu.contrib.mlperf.tests.test_check import well_formed
from tests.dlio import published_checkpoints as published


def told(checked: Checked) -> set[tuple[str, str]]:
    """Return what is found beyond what the published run itself has, by severity and rule."""
    well_formed(checked)
    found: set[tuple[str, str]] = {(one.severity, one.rule) for one in checked.findings}
    own = ("warning", "checkpoint.memory"), ("warning", "checkpoint.slowest"), ("info", "checkpoint.duration")
    return found - set(own)


def test_the_published_run_is_valid_and_its_figures_are_told(tmp_path: Path) -> None:
    make_result(tmp_path)
    checked = check_folder(str(tmp_path))
    assert told(checked) == set()
    (memory,) = [one for one in checked.findings if one.rule == "checkpoint.memory"]
    assert memory.official == "4.3.1 checkpointDataSizeRatio"
    assert memory.seen == "each host wrote 1,047 GiB, 2.78 times its memory"
    (slowest,) = [one.seen for one in checked.findings if one.rule == "checkpoint.slowest"]
    assert slowest == "a save took rank 0 34.04 s, the slowest rank 34.39 s, 3.045 GiB/s (means of 10)"
    (row,) = result_rows(checked)
    assert (row.benchmark, row.model, row.processes) == ("checkpointing", "llama3-8b", 8)
    assert (row.edition, row.division) == ("3.0", "closed")
    assert row.path == "closed/acme/results/box/checkpointing/llama3-8b"
    assert row.rates == {"save_gib_per_second": 3.076140817854296, "load_gib_per_second": 4.983509448925309}
    printed = CliRunner().invoke(command, ["check", str(tmp_path)]).output
    assert (
        "checkpointing llama3-8b, 8 processes, 2 runs; v3.0 CLOSED (save 3.076 GiB/s, load 4.984 GiB/s, by rank 0)"
        in printed
    )
    assert "VALID by the rules that can be checked: 0 errors, 2 warnings" in printed


@pytest.mark.parametrize(("multi_host", "differ"), [(True, False), (False, True), (None, True)])
def test_calls_on_two_hosts_differ_unless_another_host_may_read(
    multi_host: bool | None, differ: bool, tmp_path: Path
) -> None:
    folder = make_result(tmp_path)
    describe_checkpoints(folder, multi_host=multi_host)
    edited("summary.json", lambda tree: tree.update(hostname="other"), 1)(folder)
    found = [one for one in check_folder(str(tmp_path)).findings if one.rule == "runs.differ"]
    assert [(one.path, one.seen) for one in found] == (
        [(str(folder), f"rank 0's host: {' and '.join(sorted((published.HOST, 'other')))}")] if differ else []
    )


@pytest.mark.parametrize(("checkpointing", "rules"), [(True, set()), (False, {"provenance.differs"})])
def test_the_stamp_of_a_calls_workload_is_that_of_checkpoints(
    checkpointing: bool, rules: set[str], tmp_path: Path
) -> None:
    """Keys of training count in no hash of theirs."""
    for leaf in leaves(make_result(tmp_path)):
        config = yaml.safe_load((leaf / "dlio_config/config.yaml").read_text())["workload"]
        core = {"hash": core_config_hash(config, checkpointing=checkpointing)}
        told = {"rules_edition": "3.0", "tool": {"code_image": f"md5-tree-v2:{CODE}"}, "dlio": {"version": "3"}}
        (leaf / "provenance.json").write_text(json.dumps({**told, "core_config": core}))
    found = {one.rule for one in check_folder(str(tmp_path)).findings}
    assert {rule for rule in found if rule.startswith("provenance.")} == rules


def test_the_gap_begins_when_the_write_call_let_go_of_its_hosts(tmp_path: Path) -> None:
    """By the metadata's end of the call, else by the last collection of the hosts' facts, else by the summary."""
    folder = make_result(tmp_path)
    end("2026-07-13T10:55:10.0")(folder)
    assert ("error", "checkpoint.gap") in told(check_folder(str(tmp_path)))
    stamps = [{"collection_timestamp": f"2026-07-13T10:{time}Z"} for time in ("40:00", "55:21", "55:18")]
    edited("*_metadata.json", lambda tree: tree.update(cluster={"nodes": stamps}))(folder)
    assert told(check_folder(str(tmp_path))) == set(), "collected 22.8 s before the read call"
    ended_at("2026-07-13T10:55:12.0")(folder)
    assert seen(tmp_path, "checkpoint.gap") == ["31.8 s"]


def at_the_read_call(**before: float) -> str:
    """Return the moment so long before the read call began."""
    return (published.READ_BEGAN - timedelta(**before)).isoformat()


def rules(folder: Path) -> set[str]:
    return {rule for _, rule in told(check_folder(str(folder)))}


def seen(folder: Path, rule: str) -> list[str]:
    return [one.seen for one in check_folder(str(folder)).findings if one.rule == rule]


def test_a_gap_of_half_a_minute_is_allowed_and_the_read_call_may_tell_its_own_begin(tmp_path: Path) -> None:
    folder = make_result(tmp_path)
    end(at_the_read_call(seconds=30))(folder)
    assert rules(tmp_path) == set()
    end(at_the_read_call(seconds=30, milliseconds=1))(folder)
    assert rules(tmp_path) == {"checkpoint.gap"}
    begun = at_the_read_call(seconds=1)
    edited("*_metadata.json", lambda tree: tree.update(invocation_start_time=begun), 1)(folder)
    assert rules(tmp_path) == set(), "29 s to where the read call began"
    end(at_the_read_call(seconds=0))(folder)
    assert rules(tmp_path) == {"checkpoint.gap"}, "the one clock says that it began before the write call's end"


def test_half_of_the_time_for_remapping_must_lie_between_the_calls(tmp_path: Path) -> None:
    folder = make_result(tmp_path)
    end(at_the_read_call(seconds=10))(folder)
    describe_checkpoints(folder, simultaneous_read=False, remap_time_in_seconds=20)
    assert "checkpoint.remap" not in rules(tmp_path)
    describe_checkpoints(folder, simultaneous_read=False, remap_time_in_seconds=21)
    assert "checkpoint.remap" in rules(tmp_path)


def test_memory_is_that_of_each_host_beside_what_each_of_them_wrote(tmp_path: Path) -> None:
    """Both calls together write ten checkpoints; two hosts write half of them each."""
    folder = make_result(tmp_path)
    memory = [published.MEMORY_GIB, published.MEMORY_GIB]
    for call in (0, 1):
        edited("summary.json", lambda tree: tree.update(num_hosts=2, host_memory_GB=memory), call)(folder)
    memory_seen = partial(seen, tmp_path, "checkpoint.memory")
    assert memory_seen() == ["each host wrote 524 GiB, 1.39 times its memory"]
    shutil.copytree(leaves(folder)[0], folder / "20260713_120000")
    assert memory_seen() == ["each host wrote 1,047 GiB, 2.78 times its memory"], "by all calls"
    shutil.rmtree(leaves(folder)[2])
    enough = 10 * published.SIZE_GIB / 2 / 3
    edited("summary.json", lambda tree: tree.update(host_memory_GB=[enough * 0.999] * 2))(folder)
    assert memory_seen() == []
    edited("summary.json", lambda tree: tree.update(host_memory_GB=[enough * 1.001] * 2))(folder)
    assert memory_seen() == ["each host wrote 524 GiB, 3.00 times its memory"]


def test_the_division_is_that_of_the_path_and_else_what_the_tool_verified(tmp_path: Path) -> None:
    folder = make_result(tmp_path)
    call = leaves(folder)[0].parent
    for verified, path, division in (
        ("open", "closed/acme/results/box/checkpointing/llama3-8b", "closed"),
        ("closed", "open/acme/results/box/checkpointing/llama3-8b", "open"),
        ("open", "acme/checkpointing/llama3-8b", "open"),
        ("closed", "acme/checkpointing/llama3-8b", "closed"),
    ):
        place = tmp_path / "tree" / path
        shutil.copytree(call, place)
        for number in (0, 1):
            edited("*_metadata.json", put("verification", verified), number)(place)
        (row,) = result_rows(check_folder(str(tmp_path / "tree")))
        assert row.division == division
        shutil.rmtree(tmp_path / "tree")


def test_one_call_may_do_both(tmp_path: Path) -> None:
    folder = make_result(tmp_path)
    write, read = leaves(folder)
    for rank in range(8):
        name = f"{rank}_per_epoch_stats.json"
        own, loads = (json.loads((call / name).read_text())["1"] for call in (write, read))
        edit(write / name, put("1", own | loads))
    ended = json.loads((read / "summary.json").read_text())["end"]
    edit(write / "summary.json", lambda tree: tree.update(end=ended))
    edit(write / "summary.json", lambda tree: tree["metric"].update(published.READ_METRIC))
    shutil.rmtree(read)
    assert told(check_folder(str(tmp_path))) == set()


def test_eight_processes_of_a_larger_model_were_withdrawn_from_v3_and_stood_in_v2(tmp_path: Path) -> None:
    folder = make_result(tmp_path, "llama3-70b")
    setting("checkpoint/mode", "subset")(folder)
    official: Any = published.official_yaml("llama3-70b")["model"]
    setting("model/parallelism", official["parallelism"] | {"data": 8})(folder)
    checked = check_folder(str(tmp_path))
    assert ("error", "checkpoint.subset") in told(checked)
    assert ("warning", "workload.hash") not in told(checked), "editions.yaml has the subset's hash"
    (true,) = {one.wanted[:10] for one in checked.findings if one.rule == "checkpoint.size"}
    assert true == "113.901516"
    older = check_folder(str(tmp_path), edition="2.0")
    assert ("info", "checkpoint.subset") in told(older)
    assert ("info", "checkpoint.unsynced") in told(older)
    errors = {rule for severity, rule in told(older) if severity == "error"}
    assert errors <= {"checkpoint.size", "checkpoint.differs"}


def test_open_results_may_have_other_numbers_of_processes(tmp_path: Path) -> None:
    folder = make_result(tmp_path)
    processes(12)(folder)
    assert ("error", "checkpoint.processes") not in told(check_folder(str(tmp_path), division="open"))
    larger = make_result(tmp_path / "larger", "llama3-405b")
    processes(24)(larger)
    checked = check_folder(str(tmp_path / "larger"), division="open")
    (official,) = {one.official for one in checked.findings if one.rule == "checkpoint.processes"}
    assert official == "4.6.4 checkpointOpenSubmissionScaling"


def test_a_call_alone_is_audited(tmp_path: Path) -> None:
    """`dlemu audit` has no edition: it recomputes what a call's files say."""
    leaf = leaves(make_result(tmp_path))[0]
    assert [finding.rule for finding in audit_run(str(leaf), {}).findings] == ["no.training", "checkpoint.slowest"]
    edit(leaf / "summary.json", lambda tree: tree["metric"].update(checkpoint_size_GB=112.4))
    found = {finding.rule for finding in audit_run(str(leaf), {}).findings if finding.severity == "error"}
    assert found == {"checkpoint.differs", "checkpoint.size"}


def test_the_size_of_a_models_checkpoints_is_told_with_the_tools_own_mistake() -> None:
    asked = CliRunner().invoke(command, ["datasize", "workload=llama3_1t", "--hosts", "128", "--memory-gib", "64"])
    assert asked.exit_code == 0, asked.output
    for words in (
        "15,426.589264 GiB",
        "10 checkpoints, all kept",
        "18.83 x its memory: one call",
    ):
        assert words in asked.output
    asked = CliRunner().invoke(command, ["datasize", "workload=llama3_8b", "--memory-gib", "512", "--json"])
    small = json.loads(asked.output)
    assert small["size"]["tensor_bytes"] / 2**30 == published.SIZE_GIB


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["workload=llama3_70b", "ranks=8"], 1, "8 processes; wanted 64 processes in CLOSED"),
        (["workload=llama_70b"], 1, "differs from llama3-70b"),
        (["workload=llama3_8b", "ranks=8", "--hosts", "2"], 0, "warning checkpoint.hosts: 8 processes on 2 hosts"),
        (["workload=llama3_8b", "ranks=8", "--hosts", "3"], 1, "error checkpoint.hosts: 8 processes on 3 hosts"),
        (["workload=qwen3_235b"], 2, "has no datasize: wanted"),
        (["workload=llama3_405b", "ranks=8"], 2, "not a multiple of the 256 ranks"),
    ],
)
def test_checkpoints_that_the_rules_do_not_know_are_told(words: list[str], status: int, told: str) -> None:
    asked = CliRunner().invoke(command, ["datasize", *words])
    refused = isinstance(asked.exception, UserError)
    assert (UserError.exit_status if refused else asked.exit_code) == status
    assert told in asked.output + str(asked.exception)


# a submission in the shape of one that v3.0 published


BOTH = {"checkpoint.memory", "checkpoint.simultaneous", "checkpoint.slowest", "hosts.few", "kv.device", "kv.window"}
"""What the reviewers' list of the round names of this submission, and what only recomputing shows."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_published(tmp_path_factory.mktemp("published") / "tree")


def of(checked: Checked, severity: str) -> set[str]:
    return {one.rule for one in checked.findings if one.severity == severity}


def all_seen(checked: Checked, rule: str) -> str:
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
    leaf = read_kv_call(str(next(tree.rglob("kv_cache/*/run/2*"))))
    first = leaf.trials(1)[0][0]
    assert first.stat("tier_storage_read_bandwidth_gbps") == pytest.approx(7.855, abs=0.001)
    assert first.max_gib_per_second("read") == pytest.approx(6.269, abs=0.001)
    told = all_seen(check_folder(str(tree)), "kv.window")
    assert "option 1: read 7.85 published, at most 6.26 GiB/s" in told
    assert "option 2" not in told, "no request outlasted its clock"


def test_ranks_are_summed_and_trials_averaged(tmp_path: Path) -> None:
    leaf = read_kv_call(str(make_kv(tmp_path / "kv_cache/llama3.1-8b/run", ranks=2)))
    assert leaf.max_gib_per_second(1, "read") == pytest.approx(12.5, abs=0.1)
    assert "kv.aggregate" not in of(check_folder(str(tmp_path)), "warning")
    edit(Path(leaf.path) / "summary.json", scale("options/1/aggregated_read_bandwidth_gbps", 0.5))
    assert "the mean over ranks and trials" in all_seen(check_folder(str(tmp_path)), "kv.aggregate")


def test_a_number_that_one_rank_lacks_is_said_to_be_the_ranks(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    rank = sorted(leaf.rglob("option_1/*/*/kvcache_results_*.json"))[0]
    edit(rank, gone("summary/cache_stats/tier_storage_read_bandwidth_gbps"))
    unapplied = "kv.differs: a rank's read_bandwidth_gbps of option 1 not known"
    assert unapplied in all_seen(check_folder(str(tmp_path)), "unapplied")
    edit(leaf / "summary.json", gone("options/1/aggregated_read_bandwidth_gbps"))
    assert "kv.differs: read_bandwidth_gbps of option 1 not known" in all_seen(check_folder(str(tmp_path)), "unapplied")
    edit(rank, gone("summary/cache_stats/tier_storage_kv_bytes_read_gb"))
    checked = check_folder(str(tmp_path))
    assert "option 1: read not known published, at most not known GiB/s" in all_seen(checked, "kv.window")


@pytest.mark.timeout(30)
def test_a_summary_of_endlessly_many_ranks_is_judged_at_once(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    edit(leaf / "summary.json", put("total_ranks", 10**15))
    missing = "results of 8999999999999991 of 9000000000000000 ranks missing, the first option_1/trial_0/rank_1"
    assert missing in all_seen(check_folder(str(tmp_path)), "kv.missing")


def test_a_datasize_call_of_kv_cache_is_no_run(tmp_path: Path) -> None:
    leaf = make_kv(tmp_path / "kv_cache/llama3.1-8b/run")
    other = leaf.parents[1] / "datasize/20260712_180000"
    other.mkdir(parents=True)
    (other / "kv_cache_20260712_180000_metadata.json").write_text('{"benchmark_type": "kv_cache"}')
    assert "kv.missing" not in of(check_folder(str(tmp_path)), "error")


def test_every_benchmark_has_its_rows_for_programs_and_on_the_page(tree: Path) -> None:
    report = list(result_rows(check_folder(str(tree))))
    runs = [(row.benchmark, len(row.runs)) for row in report]
    assert runs == [("training", 6), ("checkpointing", 2), ("kv_cache", 1)]
    printed = CliRunner().invoke(command, ["check", str(tree), "--json", "--rules", "published"])
    assert printed.exit_code == 0
    assert len(json.loads(printed.output)["results"]) == 3


def test_the_audit_reads_runs_of_other_benchmarks(tree: Path) -> None:
    rules = {finding.rule for run in audit_trees([str(tree)]) for finding in run.findings}
    assert {"kv.window", "kv.device", "kv.tiers", "kv.listed"} <= rules
    assert not any(run.errors for run in audit_trees([str(tree)]))

"""The command as users run it: to its end, killed, on a storage that changes data, and where it must not write."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dlemu as library
from datagen import owned
from datagen.errors import UserError
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import KvSummary
from tests.e2e.harness import MPIRUN, UNDER_MPI, dlemu, start, until, wait
from tests.e2e.test_hosts import Hosts, ranks_on
from tests.e2e.test_hosts import hosts as hosts


def words(folder: Path, result: str, *changes: str) -> list[str]:
    few = ["workload=llama3_1_8b", "scale=laptop", "output.report=false", "kv.seconds=3", "kv.users=4", "kv.threads=2"]
    few += ["kv.think_seconds=1", "kv.system_prompts=1", "kv.prefill_tokens_per_second=1000000"]
    few += ["metric.ceiling_seconds=0.1", f"kv.folder={folder / 'kv'}", f"output.folder={folder / result}"]
    return ["kvcache", *few, *changes]


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / "kv").rglob("*") if path.name != owned.MARKER)


def blocks(folder: Path) -> list[Path]:
    return [path for path in (folder / "kv").rglob("*.kv") if not path.name.startswith(".")]


def loaded(folder: Path) -> KvSummary:
    summary = library.load_result(str(folder)).summary  # type: ignore[union-attr]  # it knows dlemu's first kinds alone
    assert isinstance(summary, KvSummary)
    return summary


mpi, needs_mpirun = UNDER_MPI
OFFICIAL = ("workload=mlperf_kv", "kv.users=3", "kv.seed=7", "kv.threads=3", "kv.option=2")
OF_OWN_LOAD = ("kv.think_seconds", "kv.system_prompts", "kv.threads=2")  # an option has its own


@pytest.mark.slow
@pytest.mark.parametrize("changes", [("kv.tp=2", "kv.capacity_gb=0.2", "kv.loop=closed"), OFFICIAL])
def test_a_run_is_measured_shown_and_leaves_nothing_on_the_storage(changes: tuple[str, ...], tmp_path: Path) -> None:
    given, official = words(tmp_path, "run", "ranks=2", *changes), changes is OFFICIAL
    done = dlemu(*(word for word in given if not (official and word.startswith(OF_OWN_LOAD))), "--json")
    assert done.status == 0, done.err
    found, run = json.loads(done.out), tmp_path / "run"
    assert (found["complete"], found["ranks"]) == (True, 2)
    assert min(found["read_gb_per_second"], found["write_gb_per_second"], found["ceiling_times"]) > 0
    rows = pq.read_table(run / "kvcache.parquet")
    read_bytes = sum(rows["read_bytes"].to_pylist())
    if official:
        assert found["prompts"] >= found["official"]["served"] > 0
        assert sum(rows["memory_bytes"].to_pylist()) > 0
    else:
        facts = library.load_result(str(run)).facts  # type: ignore[union-attr]  # a run's, not a study's
        assert read_bytes % facts.workload.section(KvSettings).block_bytes == 0
        assert found["tokens_from_storage_percent"] > 10, "conversations that grow"
    assert left(tmp_path) == []
    assert len(rows) == found["prompts"] + 2, "those that nobody served too"
    assert loaded(run).prompts == found["prompts"]
    page = dlemu("report", str(run))
    assert page.status == 0, page.err
    html = (run / "report.html").read_text()
    assert (
        ("trademark of the MLCommons Association" in html) == ("tool would publish for that load" in html) == official
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_a_run_that_ended_early_measured_stays_and_its_blocks_go(how: signal.Signals, tmp_path: Path) -> None:
    process = start(*words(tmp_path, "killed", "kv.seconds=300"))
    log = tmp_path / "killed" / "live" / "rows_00000"
    until(lambda: log.exists() and log.stat().st_size > 2000 and len(blocks(tmp_path)) > 3, "rows and blocks")
    os.killpg(process.pid, how)
    ended = wait(process)
    if how is signal.SIGINT:
        assert ended.status == 130, ended.err
        assert left(tmp_path) == []
    else:
        assert len(blocks(tmp_path)) > 3, "nobody was left to remove them"
    summary = loaded(tmp_path / "killed")
    assert summary.prompts > 3
    assert (summary.complete, summary.sustained, summary.ttft_seconds) == (False, None, None)
    assert dlemu(*words(tmp_path, "next", "kv.seconds=1")).status == 0
    assert left(tmp_path) == []


def test_a_refused_run_leaves_no_folder_of_blocks(tmp_path: Path) -> None:
    refused = dlemu(*words(tmp_path, "run", "kv.shrink=1", "kv.users=500", "kv.prompt_tokens=100000"))
    assert refused.status == 2
    assert "the blocks take up to" in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), pytest.param((MPIRUN, "-np", "2"), marks=UNDER_MPI)])
def test_a_storage_that_runs_full_is_named_with_what_to_do(launcher: tuple[str, ...], tmp_path: Path) -> None:
    later = (f"+storage.storage_options.{one}" for one in ("call=write", "at=100", "how=ENOSPC"))
    full = words(tmp_path, "run", "storage.storage_type=tests.faulty_storage", *later)
    ended = dlemu(*full, launcher=launcher, PYTHONPATH=str(Path(__file__).parents[4]))
    assert ended.status == 2, ended.err
    assert f"No space left on device, in {tmp_path / 'kv'}: free some space, or limit each rank's share" in ended.err
    assert "Traceback" not in ended.err
    assert left(tmp_path) == []
    summary = loaded(tmp_path / "run")  # what was measured until then
    assert (summary.complete, summary.outcome, summary.write_gb_per_second > 0) == (False, None, True)


@pytest.mark.parametrize("storage", [{}, {"mb_per_second": 5}])
def test_a_run_is_measured_and_not_predicted(storage: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="can't predict a run of KV-cache offload: measure it with `dlemu kvcache`"):
        library.predict(["workload=llama3_1_8b", "ranks=8"], **storage)


@pytest.mark.slow
@mpi
@needs_mpirun
def test_blocks_of_a_failed_run_are_removed_from_each_hosts_own_drive(hosts: Hosts) -> None:
    words = ["workload=llama3_1_8b", "scale=laptop", "kv.seconds=60", "kv.odirect=false", "metric.ceiling_seconds=0"]
    words += [f"kv.folder={hosts.folder}/own/kv", f"output.folder={hosts.own}", "telemetry.enabled=false"]
    process = start("kvcache", *words, launcher=hosts.mpirun)
    both = [hosts.folder / host / "kv" for host in (hosts.first, hosts.second)]
    until(lambda: all(any(kv.rglob("*.kv")) for kv in both) or process.poll() is not None, "blocks on both hosts")
    os.kill(max(ranks_on(hosts.second)), signal.SIGKILL)  # the last process: a rank
    assert wait(process).status != 0
    until(lambda: not any((*ranks_on(hosts.first), *ranks_on(hosts.second))), "all ranks to end")
    assert [path for kv in both for path in kv.iterdir()] == []

"""The command as users run it: to its end, killed, on a storage that changes data, and where it must not write."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import dlemu as library
from datagen import owned
from datagen.errors import UserError
from dlemu.contrib.kvcache.summary import KvSummary
from tests.e2e.harness import dlemu, start, until, wait


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


@pytest.mark.slow
def test_a_run_is_measured_shown_and_leaves_nothing_on_the_storage(tmp_path: Path) -> None:
    done = dlemu(*words(tmp_path, "run", "ranks=2", "kv.tp=2", "kv.capacity_gb=0.2"), "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["complete"], found["ranks"]) == (True, 2)
    assert found["read_bytes"] > 0
    assert found["read_bytes"] % found["block_bytes"] == 0
    assert found["written_bytes"] > 0
    assert found["tokens_from_storage_percent"] > 10, "conversations that grow"
    assert left(tmp_path) == []
    rows = pq.read_table(tmp_path / "run" / "kvcache.parquet")
    assert len(rows) == found["prompts"] + 2
    assert loaded(tmp_path / "run").read_bytes == found["read_bytes"]
    page = dlemu("report", str(tmp_path / "run"))
    assert page.status == 0, page.err
    assert "Where the time to the first token goes" in (tmp_path / "run" / "report.html").read_text()


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


@pytest.mark.slow
def test_a_storage_that_gives_other_bytes_is_found_out(tmp_path: Path) -> None:
    process = start(*words(tmp_path, "run", "kv.seconds=300", "kv.odirect=false"))
    until(lambda: len(blocks(tmp_path)) > 3, "blocks")
    while process.poll() is None:
        for path in blocks(tmp_path):
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:  # gone with the run
                file.write(bytes(path.stat().st_size))
        time.sleep(0.05)
    ended = wait(process)
    assert ended.status == 3, ended.err
    assert "is not what was written there: at byte 0 there is not the stamp of shard" in ended.err
    assert "Traceback" not in ended.err
    assert left(tmp_path) == []


def test_a_refused_run_leaves_no_folder_of_blocks(tmp_path: Path) -> None:
    refused = dlemu(*words(tmp_path, "run", "kv.shrink=1", "kv.users=500", "kv.prompt_tokens=100000"))
    assert refused.status == 2
    assert "the blocks take up to" in refused.err
    assert list(tmp_path.iterdir()) == []


REPOSITORY = str(Path(__file__).parents[4])
FULL_LATER = ("call=write", "at=100", "how=ENOSPC")
MPIRUN = Path(sys.executable).parent / "mpirun"
mpi = [pytest.mark.mpi, pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun in the environment")]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), pytest.param((str(MPIRUN), "-np", "2"), marks=mpi)])
def test_a_storage_that_runs_full_is_named_with_what_to_do(launcher: tuple[str, ...], tmp_path: Path) -> None:
    full = ("storage.storage_type=tests.faulty_storage", *(f"+storage.storage_options.{one}" for one in FULL_LATER))
    ended = dlemu(*words(tmp_path, "run", *full), launcher=launcher, PYTHONPATH=REPOSITORY)
    assert ended.status == 2, ended.err
    assert f"No space left on device, in {tmp_path / 'kv'}: free some space, or limit each rank's share" in ended.err
    assert "Traceback" not in ended.err
    assert left(tmp_path) == []
    summary = loaded(tmp_path / "run")  # what was measured until then
    assert (summary.complete, summary.outcome, summary.written_bytes > 0) == (False, None, True)


OFFICIAL = ("workload=mlperf_kv", "kv.users=3", "kv.seed=7", "kv.threads=3")


@pytest.mark.slow
@pytest.mark.parametrize("option", [1, 2])
def test_the_official_load_has_its_own_number_and_the_true_one(option: int, tmp_path: Path) -> None:
    own = ("kv.think_seconds", "kv.system_prompts", "kv.threads=2")  # of dlemu's load: an option has its own
    given = [word for word in words(tmp_path, "run", *OFFICIAL) if not word.startswith(own)]
    done = dlemu(*given, f"kv.option={option}", "ranks=2", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    official = found["official"]
    assert found["option"] == option
    assert found["prompts"] >= official["served"] > 0
    assert found["read_bytes"] > 0
    assert (official["memory_percent"] > 0) is (option == 2)
    assert found["ceiling_times"] > 0
    assert left(tmp_path) == []
    rows = pq.read_table(tmp_path / "run" / "kvcache.parquet")
    assert len(rows) == found["prompts"] + 2, "those that nobody served too"
    page = dlemu("report", str(tmp_path / "run"))
    assert page.status == 0, page.err
    html = (tmp_path / "run" / "report.html").read_text()
    assert "trademark of the MLCommons Association" in html
    assert "tool would publish for that load" in html


def test_a_run_is_measured_and_not_predicted() -> None:
    with pytest.raises(UserError, match="can't predict a run of KV-cache offload: measure it with `dlemu kvcache`"):
        library.predict(["workload=llama3_1_8b"], mb_per_second=5)

"""A run that was killed before it was saved is read from what its ranks left, and nothing measured is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from datagen.errors import SpaceError, UserError
from datagen.storage._request_counts import RequestCounts
from dlemu.checkpoints.io_rows import IO_DTYPE
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import UnderWay
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.training.result import TRAINING, RunLog, read_run
from dlemu.metrics.findings import Code, Number
from dlemu.results import KILLED, LIVE, live
from dlemu.results.live import is_in_progress, mark_in_progress, write_live_facts
from dlemu.results.measured import write_measured
from dlemu.runner.run_folder import check_run_folder, request_folder
from dlemu.studies.compare.sides import read_side
from tests.results.handmade import CHECKPOINT_RUNS
from tests.runs import kind_held, make_job, make_log, make_run, write_run


def killed(folder: Path, steps: int = 7) -> RunLog:
    """What is left of a run of 3 ranks that were killed after so many steps; returns what they measured."""
    job = make_job(ranks=3, folder=str(folder))
    log = make_log(job)
    journal = log.journal.noting(ended_ns=None, cpu_seconds=())
    write_live_facts(str(folder), TRAINING.facts(job), advice="")
    journal.save(job.live_folder)
    done = log.rows[(log.rows["epoch"] == 1) & (log.rows["step"] <= steps)]
    for rank in range(job.ranks):
        rows = np.zeros(job.rows_per_rank, log.rows.dtype)
        own = done[done["rank"] == rank]
        rows[: len(own)] = own
        rows.tofile(os.path.join(job.live_folder, f"rank_{rank:05d}.steps"))
    RequestCounts.in_folder(request_folder(job.live_folder)).add("get", 7)
    return RunLog(done, journal)


def test_what_the_ranks_had_measured_is_a_result(tmp_path: Path) -> None:
    log = killed(tmp_path)
    assert kind_held(tmp_path) == "training"
    run = read_run(str(tmp_path))
    assert run.folder == str(tmp_path)
    assert np.array_equal(np.sort(run.rows, order=["rank", "step"]), np.sort(log.rows, order=["rank", "step"]))
    assert run.facts.journal.requests[0] == 7
    assert (run.summary.complete, run.summary.passed, run.summary.failure) == (False, None, KILLED)
    assert run.summary.au is not None
    assert read_side(str(tmp_path))[0].runs[()].ranks == 3


def test_ranks_of_a_failed_run_of_which_no_step_was_kept_are_named() -> None:
    job = make_job(ranks=3)
    log = make_log(job, rank_nodes=(0, 1, 1))
    some = RunLog(log.rows[log.rows["rank"] == 0], log.journal)

    def lost(log: RunLog, failure: str | None = None) -> list[dict[str, Number]]:
        findings = make_run(job, log, failure).summary.findings
        return [found.numbers for found in findings if found.code == Code.MEASUREMENT_INCOMPLETE]

    assert lost(log, "why") == []
    assert lost(some) == []
    assert lost(some, "why") == [{"pattern": "steps", "of_ranks": "ranks 1, 2", "host": "node1"}]


def test_a_result_that_was_half_written_gives_way_to_the_live_part(tmp_path: Path) -> None:
    """facts.json comes last of what was measured: without it the rest may be cut off."""
    log = killed(tmp_path)
    write_run(make_run(make_job(ranks=3, folder=str(tmp_path)), log, "killed"))
    for name in ("summary.json", "facts.json"):
        (tmp_path / name).unlink()
    os.truncate(tmp_path / "steps.parquet", 100)
    assert len(read_run(str(tmp_path)).rows) == len(log.rows)


def test_a_run_that_goes_on_is_no_result_and_what_was_measured_is_not_written_over(tmp_path: Path) -> None:
    killed(tmp_path)
    with mark_in_progress(str(tmp_path)):
        with pytest.raises(UserError, match="is still running"):
            read_run(str(tmp_path))
        with pytest.raises(SpaceError, match="is still active"):
            check_run_folder(str(tmp_path))
    read_run(str(tmp_path))
    with pytest.raises(SpaceError, match=r"`dlemu report .*` shows it; set output\.folder"):
        check_run_folder(str(tmp_path))


def test_what_was_killed_before_anything_was_measured_is_named(tmp_path: Path) -> None:
    run, saves = tmp_path / "run", tmp_path / "saves"
    killed(run, steps=0)
    with pytest.raises(UserError, match="killed before its first step"):
        read_run(str(run))
    killed_checkpoints(saves, files=0)
    with pytest.raises(UserError, match="killed before its first file was measured: run it again"):
        CHECKPOINTS.read(str(saves))
    with mark_in_progress(str(saves)), pytest.raises(UserError, match="is still running: wait for it to end"):
        CHECKPOINTS.read(str(saves))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a journal that is text": lambda live: (live / "journal.json").write_text("hello"),
    "a journal of other ranks": lambda live: (live / "journal.json").write_text(
        (live / "journal.json").read_text().replace('"rank_nodes":[0,0,0]', '"rank_nodes":[0,7]')
    ),
    "a journal without end": lambda live: (live / "journal.json").write_text("[" * 100_000),
    "steps from an endless device": lambda live: (live / "rank_00009.steps").symlink_to("/dev/zero"),
    "steps that are a folder": lambda live: (live / "rank_00009.steps").mkdir(),
    "steps of nobody": lambda live: (live / "rank_00000.steps").write_bytes(b"\x01" * 2240),
    "facts that are null": lambda live: (live / "facts.json").write_text("null"),
    "checkpoints: a journal that is text": lambda live: (live / "journal.json").write_text("hello"),
    "checkpoints: rows of nobody": lambda live: (live / "rows_00001").write_bytes(b"\x01" * 8 * 1000),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_live_part_is_named(name: str, tmp_path: Path) -> None:
    leave, read = (killed_checkpoints, CHECKPOINTS.read) if "checkpoints" in name else (killed, read_run)
    leave(tmp_path)
    DAMAGE[name](tmp_path / LIVE)
    with pytest.raises(UserError, match=str(tmp_path)):
        read(str(tmp_path))


def test_what_is_no_file_in_a_live_part_is_never_opened(tmp_path: Path) -> None:
    killed(tmp_path)
    os.mkfifo(tmp_path / LIVE / "requests" / "host-1.requests")
    assert len(read_run(str(tmp_path)).rows) == 21
    os.mkfifo(tmp_path / LIVE / "rank_00009.steps")
    with pytest.raises(UserError, match=f"{tmp_path}/live holds something that is neither .*, and not dlemu's: remove"):
        read_run(str(tmp_path))
    os.mkfifo(tmp_path / LIVE / "lock")
    assert not is_in_progress(str(tmp_path))


def test_a_live_part_that_is_larger_than_the_memory_left_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / LIVE).iterdir())
    memory = SimpleNamespace(available_bytes=2 * size_bytes)
    monkeypatch.setattr(live, "host_memory", lambda: memory)
    assert len(read_run(str(tmp_path)).rows) == 21
    memory.available_bytes -= 1
    with pytest.raises(UserError, match=r"live needs 0\.0 GiB of memory, more than is free"):
        read_run(str(tmp_path))


def test_a_run_goes_on_as_long_as_somebody_marks_it(tmp_path: Path) -> None:
    assert not is_in_progress(str(tmp_path))
    (tmp_path / LIVE).mkdir()
    assert not is_in_progress(str(tmp_path)), "nobody ever marked it"
    with mark_in_progress(str(tmp_path)):
        assert is_in_progress(str(tmp_path))
        with mark_in_progress(str(tmp_path)):
            assert is_in_progress(str(tmp_path))
        assert is_in_progress(str(tmp_path)), "the mark of the first one stays"
        before = len(os.listdir("/proc/self/fd"))
        assert is_in_progress(str(tmp_path))
        assert len(os.listdir("/proc/self/fd")) == before, "looking leaves nothing open"
    assert not is_in_progress(str(tmp_path))
    with mark_in_progress(str(tmp_path / "nowhere")):
        assert not is_in_progress(str(tmp_path / "nowhere")), "a folder that can't be marked is no reason not to run"


def killed_checkpoints(folder: Path, *, files: int = 3) -> CheckpointRun:
    """What is left of a run of checkpoints whose ranks were killed; returns it as it would have been saved."""
    made = CHECKPOINT_RUNS["checkpoints"]()
    journal = made.facts.journal.noting(ended_ns=None, cpu_seconds=(), under_way=UnderWay(phase="read", checkpoint=2))
    ahead = replace(made.facts, journal=journal.noting(hosts=(), rank_nodes=(), complete=()), failure=KILLED)
    write_live_facts(str(folder), ahead, advice="")
    journal.save(str(folder / LIVE))
    for rank in range(made.facts.ranks):
        own = made.rows[made.rows["rank"] == rank]
        own[: files * 5].tofile(folder / LIVE / f"rows_{rank:05d}")
    return CheckpointRun(str(folder), replace(made.facts, journal=journal, failure=KILLED), made.rows)


def test_progress_of_hosts_whose_clocks_differ(tmp_path: Path) -> None:
    run, live_folder = killed_checkpoints(tmp_path), tmp_path / LIVE
    expected = CHECKPOINTS.progress(run.facts, str(live_folder))
    rows = np.fromfile(live_folder / "rows_00001", IO_DTYPE)
    for name in ("began_ns", "started_ns", "ended_ns"):
        rows[name] += 10**15
    rows.tofile(live_folder / "rows_00001")
    assert CHECKPOINTS.progress(run.facts, str(live_folder)) == expected
    assert expected is not None
    assert expected.mb_per_second == pytest.approx(2 * 3 * 2**30 / 3e6), "two ranks' 3 GiB each in 3 s of the slower"


def test_checkpoints_that_were_measured_before_a_kill_are_a_result(tmp_path: Path) -> None:
    left = killed_checkpoints(tmp_path)
    assert kind_held(tmp_path) == "checkpoint"
    run = CHECKPOINTS.read(str(tmp_path))
    assert (run.folder, run.facts) == (str(tmp_path), left.facts)
    assert sorted(run.rows.tolist()) == sorted(left.rows.tolist())
    summary = run.summary
    assert (summary.complete, summary.failure, summary.kept) == (False, KILLED, (2, 3))
    assert summary.verdict.startswith(f"INCOMPLETE: {KILLED}; ")
    assert summary.write == left.summary.write
    write_measured(left)
    assert CHECKPOINTS.read(str(tmp_path)).summary == summary, "what was saved after all counts"

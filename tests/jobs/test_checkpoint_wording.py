"""Each sentence of a run of checkpoints, once, where it is made: of its code and numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.jobs.checkpoint.issues import Issue
from dlemu.jobs.checkpoint.limits import Advice, CheckpointLimit, Seen
from dlemu.jobs.checkpoint.summary import PartialCheckpoint
from dlemu.jobs.checkpoint.wording import in_words, issue_lines, result_line, why_incomplete
from dlemu.metrics.findings import Finding

THREADS: dict[str, Any] = {
    "phase": "write",
    "gb_per_second": 1234.567,
    "call_percent": 60.0,
    "fsync_percent": 25.0,
    "cpu_percent": 20.0,
    "cpu_wait_percent": 2.0,
}
SEEN: list[tuple[Seen, dict[str, Any], str]] = [
    (
        Seen.THREADS,
        THREADS,
        "1,234.57 GB/s by all ranks; their threads spent 60 % of the time in write calls, 25 % in fsync, ran on a "
        "core for 20 % of it and waited for one for 2 %",
    ),
    (
        Seen.THREADS,
        THREADS | {"phase": "read"},
        "1,234.57 GB/s by all ranks; their threads spent 60 % of the time in read calls, ran on a core for 20 % "
        "of it and waited for one for 2 %",
    ),
    (
        Seen.CONTENT,
        {"gb_per_second": 4321.09, "starved_percent": 1.0},
        "without storage, the emulator generates 4,321.1 GB/s of data; threads waited for it 1.0 % of the time",
    ),
    (Seen.SERVED, {"percent": 99.4}, "the storage served 99 % of the bytes"),
    (Seen.DEVICES, {"mb_per_second": 5.0}, "the devices: 5 MB/s"),
    (
        Seen.DEVICES,
        {"mb_per_second": 5432.4, "busy_percent": 77.4, "depth": 3.25},
        "the devices: 5,432 MB/s, busy 77 % of the time, mean queue depth 3.2",
    ),
    (Seen.CORES, {"percent": 66.4}, "the cores of the busiest host were in use 66 % of the time"),
    (Seen.LINK, {"percent": 55.4}, "the busiest network link was 55 % utilised"),
]


@pytest.mark.parametrize(("code", "numbers", "line"), SEEN)
def test_evidence_in_a_line(code: Seen, numbers: dict[str, Any], line: str) -> None:
    limit = CheckpointLimit(what="network", confidence="low", seen=(Finding(code, numbers=numbers),))
    assert in_words(limit).evidence == (line,)


WRITERS, READERS = {"phase": "write", "threads": 7}, {"phase": "read", "threads": 7}
ADVICE: list[tuple[Advice, dict[str, Any], str]] = [
    (
        Advice.EVICT,
        {},
        "checkpoint.evict_page_cache=true empties the page cache before reading, checkpoint.odirect=true bypasses it",
    ),
    (Advice.GO_PAST_CACHE, {}, "checkpoint.odirect=true bypasses the page cache"),
    (
        Advice.MORE_CORES_A_RANK,
        {},
        "this says nothing about the storage: use more cores per rank, fewer ranks or more hosts",
    ),
    (
        Advice.RAISE_CPU_LIMIT,
        {},
        "raise the CPU limit of this container or job (cgroup); else more cores, or fewer ranks",
    ),
    (
        Advice.SPARE_CACHE_COPY,
        {},
        "checkpoint.odirect=true avoids the copy into the page cache; else more cores, or fewer ranks",
    ),
    (Advice.MORE_CORES, {}, "more cores, or fewer ranks"),
    (
        Advice.VERIFY_LESS,
        {},
        "checkpoint.verify=true takes CPU time for every byte: without it only the first are compared",
    ),
    (Advice.FASTER_LINK, {}, "a faster link, or more hosts"),
    (Advice.MORE_THREADS, WRITERS, "each thread is busy copying: raise checkpoint.writers (now 7)"),
    (
        Advice.MORE_THREADS_OR_DIRECT,
        READERS,
        "each thread is busy copying: raise checkpoint.readers (now 7), or set checkpoint.odirect=true",
    ),
    (
        Advice.TRY_MORE_THREADS,
        READERS,
        "to rule out too few requests at a time, try more checkpoint.readers (now 7)",
    ),
]


@pytest.mark.parametrize(("code", "numbers", "line"), ADVICE)
def test_advice_in_a_line(code: Advice, numbers: dict[str, Any], line: str) -> None:
    limit = CheckpointLimit(what="network", confidence="low", to_do=(Finding(code, numbers=numbers),))
    assert in_words(limit).advice == (line,)


ISSUES: list[tuple[Issue, dict[str, Any], str]] = [
    (Issue.NOTE, {"text": "{as} it was noted"}, "{as} it was noted"),
    (
        Issue.TELEMETRY_ENDS_EARLY,
        {"host": "n1"},
        "telemetry of n1 ends early or is missing: its recorder was killed or stopped, or had no space",
    ),
    (
        Issue.PARTIAL_LEFT,
        {"folder": "/c/2"},
        "/c/2 holds an incomplete checkpoint: delete it, or let the next run of the same kind replace it",
    ),
    (Issue.IN_MEMORY, {"file_system": "tmpfs"}, "MEASURED MEMORY, NOT STORAGE: the checkpoints are on tmpfs"),
    (
        Issue.NO_FSYNC,
        {},
        "checkpoint.fsync is false: writing ended when the page cache had the bytes, not the storage; as in MLPerf "
        "Storage v2.0, whose code never calls fsync",
    ),
    (
        Issue.NOT_STEADY,
        {"first_gib_per_second": 3.004, "last_gib_per_second": 1.5},
        "the last five checkpoints were not written equally fast (3.00 GiB/s, then 1.50 in the end): the storage was "
        "not in a steady state (a fresh SSD writes faster than a used one); write more: "
        "checkpoint.num_checkpoints_write",
    ),
    (
        Issue.NOT_READ,
        {"cache_percent": 75.2, "would_help": "checkpoint.odirect"},
        "MEASURED MEMORY, NOT STORAGE: the page cache served 75 % of the bytes; checkpoint.odirect=true reads from "
        "storage",
    ),
    (
        Issue.CONTENT_CEILING,
        {"ceiling_gb_per_second": 2.04, "gb_per_second": 1.55},
        "these hosts generate content at 2.0 GB/s, and 1.6 GB/s were written: whether the storage can take more is "
        "unknown",
    ),
]


@pytest.mark.parametrize(("code", "numbers", "line"), ISSUES)
def test_an_issue_in_a_line(code: Issue, numbers: dict[str, Any], line: str) -> None:
    assert issue_lines([Finding(code, "caution", numbers)]) == (line,)


def test_no_code_is_without_words() -> None:
    assert {code for code, *_ in SEEN} == set(Seen)
    assert {code for code, *_ in ADVICE} == set(Advice)
    assert {code for code, *_ in ISSUES} == set(Issue)


def test_why_a_run_is_incomplete() -> None:
    partial = PartialCheckpoint(
        phase="write", checkpoint=3, folder="/c/3", ranks=1, files=2, of_files=8, bytes=2**29, of_bytes=2**31
    )
    assert why_incomplete("no space", [1, 2], partial) == (
        "no space; complete and kept: checkpoints 1, 2; checkpoint 3 was being written: 2 of 8 files, 0.500 GiB, were "
        "complete"
    )
    assert why_incomplete("no space", [], None) == "no space; no checkpoint is complete"
    assert why_incomplete("it is truncated", None, None) == "it is truncated", "those in the folder are not its own"
    assert result_line(None, None) == "NOTHING: no checkpoint was requested"


def test_one_rank_is_not_advised_to_be_fewer() -> None:
    to_do = (Advice.MORE_CORES_A_RANK, Advice.RAISE_CPU_LIMIT, Advice.SPARE_CACHE_COPY, Advice.MORE_CORES)
    limit = CheckpointLimit(what="host CPU", confidence="high", seen=(), to_do=tuple(map(Finding, to_do)))
    assert all("fewer ranks" in advice for advice in in_words(limit, 2).advice)
    assert not any("rank" in advice for advice in in_words(limit, 1).advice)

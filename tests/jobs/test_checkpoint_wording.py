"""Each sentence of a run of checkpoints, where it is made: it names what was seen, and what to do next."""

from __future__ import annotations

from typing import Any

from dlemu.jobs.checkpoint.limits import Advice, CheckpointLimit, Seen
from dlemu.jobs.checkpoint.summary import Issue, PartialCheckpoint
from dlemu.jobs.checkpoint.wording import in_words, issue_lines, why_incomplete
from dlemu.metrics.findings import Finding, Number
from tests.jobs.wordings import unnamed

SEEN: dict[str, dict[str, Any]] = {
    Seen.THREADS: {
        "phase": "write",
        "gb_per_second": 123,
        "call_percent": 60,
        "fsync_percent": 25,
        "cpu_percent": 20,
        "cpu_wait_percent": 2,
    },
    Seen.CONTENT: {"gb_per_second": 432, "starved_percent": 5},
    Seen.SERVED: {"percent": 99},
    Seen.DEVICES: {"mb_per_second": 543, "busy_percent": 77, "depth": 6},
    Seen.CORES: {"percent": 66},
    Seen.LINK: {"percent": 55},
}
TO_DO: dict[str, dict[str, Any]] = {
    Advice.MORE_THREADS: {"phase": "write", "threads": 7},
    Advice.MORE_THREADS_OR_DIRECT: {"phase": "read", "threads": 7},
    Advice.TRY_MORE_THREADS: {"phase": "read", "threads": 7},
}
ISSUES: dict[str, dict[str, Any]] = {
    Issue.NOTE: {"text": "{as} it was noted"},
    Issue.TELEMETRY_ENDS_EARLY: {"host": "n1"},
    Issue.PARTIAL_LEFT: {"folder": "/c/2"},
    Issue.IN_MEMORY: {"file_system": "tmpfs"},
    Issue.NOT_STEADY: {"first_gib_per_second": 3, "last_gib_per_second": 7},
    Issue.NOT_READ: {"cache_percent": 75, "would_help": "checkpoint.odirect"},
    Issue.CONTENT_CEILING: {"ceiling_gb_per_second": 9, "gb_per_second": 8},
}


def limit(*, seen: tuple[Finding, ...] = (), to_do: tuple[Finding, ...] = ()) -> CheckpointLimit:
    return in_words(CheckpointLimit(what="network", confidence="low", seen=seen, to_do=to_do))


def test_every_sentence_names_its_numbers() -> None:
    def evidence(code: str, numbers: dict[str, Number]) -> str:
        return limit(seen=(Finding(code, numbers=numbers),)).evidence[0]

    def advice(code: str, numbers: dict[str, Number]) -> str:
        return limit(to_do=(Finding(code, numbers=numbers),)).advice[0]

    def issue(code: str, numbers: dict[str, Number]) -> str:
        return issue_lines([Finding(code, "caution", numbers)])[0]

    assert unnamed(Seen, SEEN, evidence) == []
    assert unnamed(Advice, TO_DO, advice) == []
    assert unnamed(Issue, ISSUES, issue) == []
    assert all(issue(code, ISSUES[code]).startswith("MEASURED MEMORY") for code in (Issue.IN_MEMORY, Issue.NOT_READ))


def test_why_a_run_is_incomplete() -> None:
    partial = PartialCheckpoint(
        phase="write", checkpoint=3, folder="/c/3", ranks=1, files=2, of_files=8, bytes=2**29, of_bytes=2**31
    )
    said = why_incomplete("no space", [1, 2], partial)
    assert all(words in said for words in ("no space", "checkpoints 1, 2", "checkpoint 3", "2 of 8 files"))
    assert why_incomplete("no space", [], None) == "no space; no checkpoint is complete"

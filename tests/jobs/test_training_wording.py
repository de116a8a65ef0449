"""Each sentence of a training run, where it is made: it names what was seen, and what to do next."""

from __future__ import annotations

from typing import Any

from dlemu.jobs.training.summary import Issue
from dlemu.jobs.training.wording import cache_warning, in_words, issue_lines, verdict_line
from dlemu.metrics.cache import Cached, CacheProof
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.limit import Advice, Limit, Seen
from dlemu.metrics.spread import Mean
from dlemu.metrics.verdict import Verdict, VerdictCode
from tests.jobs.wordings import unnamed

AU: dict[str, Any] = {"by": "au", "au_percent": 89, "threshold_percent": 90}
JUDGED: dict[str, dict[str, Any]] = {
    VerdictCode.PASS: AU,
    VerdictCode.FAIL: AU,
    VerdictCode.UNDECIDED: AU | {"uncertainty_percent": 2, "epochs": 20},
    VerdictCode.UNEVEN_COMPUTATION: AU | {"au_without_waits_percent": 88},
    VerdictCode.EMULATOR_TOO_SLOW: AU | {"ceiling_au_percent": 80},
    VerdictCode.CACHE_SERVED: AU | {"threshold_percent": 9000, "from_storage_percent": 50},
    VerdictCode.TOO_FEW_STEPS: {"by": "au", "au_percent": 9000.0, "kept_steps": 2, "prefetched_steps": 5},
    VerdictCode.SUPPLY_NOT_KNOWN: {"by": "au", "au_percent": 89},
    VerdictCode.HOST_LIMITED: AU | {"limited_by": "memory"},
}


def test_every_verdict_names_its_numbers_and_only_a_pass_or_a_fail_says_so() -> None:
    def line(code: str, numbers: dict[str, Number]) -> str:
        return verdict_line(Verdict(VerdictCode(code), numbers))

    assert unnamed(VerdictCode, JUDGED, line) == []
    words = {code: line(code, JUDGED.get(code, {})).partition(":")[0] for code in VerdictCode}
    for word, own in (("PASS", VerdictCode.PASS), ("FAIL", VerdictCode.FAIL)):
        assert [code for code, begin in words.items() if begin == word] == [own]


def test_a_pass_that_prefetching_earned_says_so() -> None:
    numbers: dict[str, Any] = AU | {"au_percent": 96.5, "headline_au_percent": 96.5, "sustained_au_percent": 80.0}
    assert "16.5 points of prefetching" in verdict_line(Verdict(VerdictCode.PASS, numbers))


SEEN: dict[str, dict[str, Any]] = {
    Seen.WAITED: {"percent": 61},
    Seen.CEILING: {"ceiling_au_percent": 52, "au_percent": 41},
    Seen.READS: {"readers": 16, "call_ms": 12, "call_bytes": 1023 * 2**10},
    Seen.RATES: {"given_mb_per_second": 123, "wanted_mb_per_second": 543},
    Seen.DEVICE: {"busy_percent": 93, "depth": 7, "written_mb_per_second": 61},
    Seen.ANSWERS: {"first_byte_ms": 12, "last_byte_ms": 56},
    Seen.SLOW_DOWN: {"answers": 120, "percent": 41},
    Seen.RETRIED: {"retried": 150, "requests": 300},
    Seen.NETWORK: {"percent": 44},
    Seen.OTHER_READERS: {"mb_per_second": 52, "percent": 38},
    Seen.SCALING: {"readers": 5, "mb_per_second": 100, "more_readers": 20, "more_mb_per_second": 130, "factor": 3},
    Seen.FEWER_READERS: {
        "readers": 4,
        "mb_per_second": 40,
        "fewer_readers": 1,
        "fewer_mb_per_second": 120,
        "factor": 3,
    },
    Seen.LARGER_REQUESTS: {
        "readers": 4,
        "mb_per_second": 40,
        "request_bytes": 4 << 20,
        "larger_mb_per_second": 120,
        "factor": 3,
    },
    Seen.OUT_OF_ORDER: {"batches": 13},
    Seen.DEEPER_QUEUE: {"prefetch_size": 32, "now": 16, "au_percent": 81, "now_au_percent": 60},
    Seen.DEVICE_HAD_FEW: {"depth": 7},
    Seen.DEVICE_NEVER_IDLE: {"depth": 7},
    Seen.FEW_SMALL_READS: {"readers": 3},
    Seen.STARVED: {"percent": 14},
    Seen.CORES: {"percent": 99, "own_percent": 20},
    Seen.TLS: {"percent": 72},
    Seen.CPU_LIMIT: {"used_cores": 3, "limit_cores": 2},
    Seen.WOKE_LATE: {"percent": 24},
    Seen.THROTTLED: {"percent": 80},
    Seen.BLOCKED_IN_READS: {"percent": 83},
    Seen.COMPUTING: {"percent": 83},
    Seen.PREPROCESSING: {"percent": 83},
    Seen.NOT_BEGUN: {"percent": 83},
    Seen.LAY_READY: {"percent": 83},
    Seen.MEMORY_PRESSURE: {"percent": 83},
}
"""What the analysis gives with each code of evidence."""


def test_every_evidence_names_what_was_seen() -> None:
    waited = Finding(Seen.WAITED, numbers={"percent": 61})

    def line(code: str, numbers: dict[str, Number]) -> str:
        seen = (waited, Finding(code, numbers=numbers))
        return " ".join(in_words(Limit(what="storage", confidence="high", seen=seen)).evidence[-1:])

    assert unnamed(Seen, SEEN, line) == []


READERS = {"read_threads": 5}
TO_DO: dict[str, dict[str, Any]] = {
    **dict.fromkeys((Advice.MORE_READERS, Advice.MORE_REQUESTS, Advice.TRY_MORE_READERS, Advice.MORE_WORKERS), READERS),
    Advice.FIRST_TOUCH: {"gb": 8, "mb_per_second_first": 40, "mb_per_second_after": 136},
    Advice.FEWER_READERS: {"read_threads": 1, "now": 4},
    Advice.LARGER_REQUESTS: {"transfer_size": 512},
    Advice.DEEPER_QUEUE: {"prefetch_size": 32, "now": 16, "au_percent": 8100, "now_au_percent": 6080},
    Advice.COOL_DRIVE: {"drive": "nvme0", "celsius": 84, "limit_celsius": 80},
    Advice.SPEED_THAT_LASTS: {"mb_per_second": 123, "gb": 12, "times": 2},
    Advice.BECAME_SLOWER: {"at_seconds": 7},
    Advice.SLOW_FOLDER: {"folder": "b7", "ms_per_sample": 40, "others_ms_per_sample": 5, "folders": 3000},
    Advice.SLOW_HOSTS: {"hosts": "n1, n2"},
    Advice.STOOD_STILL: {"times": 1000},
}


def test_every_advice_says_what_to_do_with_its_numbers() -> None:
    before = Finding(Advice.STOP_OTHER_PROGRAMS)

    def line(code: str, numbers: dict[str, Number]) -> str:
        return in_words(
            Limit(what="storage", confidence="high", to_do=(before, Finding(code, numbers=numbers)))
        ).advice[-1]

    assert unnamed(Advice, TO_DO, line) == []


ISSUES: dict[str, dict[str, Any]] = {
    Issue.NOTE: {"text": "{as} it was noted"},
    Issue.REQUESTS_OF_NOBODY: {"library": "np.load"},
    Issue.CALLS_NOT_KNOWN: {"format": "my.format"},
    Issue.STEPS_LOST: {"ranks": "ranks 1, 2", "host": "node1"},
    Issue.SAMPLES_DROPPED: {"samples": 2, "of_samples": 32, "batch_size": 3, "ranks": 4},
    Issue.PREFETCH_BIAS: {"prefetched_steps": 5, "factor": 2},
    Issue.HOST_LATE: {"percent": 75},
    Issue.TELEMETRY_MISSING: {"host": "n1"},
    Issue.TELEMETRY_CUT_SHORT: {"host": "n1", "from_seconds": 2, "to_seconds": 8, "end": "of training"},
}


def test_every_issue_names_what_was_seen_whatever_others_wrote_into_it() -> None:
    def line(code: str, numbers: dict[str, Number]) -> str:
        return issue_lines([Finding(code, "caution", numbers)])[0]

    assert unnamed(Issue, ISSUES, line) == []
    assert line(Issue.NOTE, ISSUES[Issue.NOTE]) == "{as} it was noted"


CACHED: dict[str, dict[str, Any]] = {
    Cached.IN_MEMORY: {"file_system": "tmpfs"},
    Cached.NOT_READ: {"would_help": "reader.odirect", "dataset_to_memory_ratio": 0.25, "from_storage_percent": 25.0},
    Cached.PARTLY_READ: {"would_help": "", "from_storage_percent": 25.0},
    Cached.NOT_KNOWN: {"would_help": "reader.odirect", "dataset_to_memory_ratio": 4.99, "wanted_ratio": 5},
}


def test_who_served_the_bytes_is_told_loudly_where_it_was_memory() -> None:
    def line(code: str, numbers: dict[str, Number]) -> str:
        loud = code in (Cached.NOT_READ, Cached.IN_MEMORY)
        finding = Finding(code, "loud" if loud else "caution", numbers)
        percent = Mean(mean=None, per_epoch=())
        text = cache_warning(CacheProof(from_storage_percent=percent, dataset_to_memory=None, finding=finding)) or ""
        assert text.startswith("MEASURED MEMORY, NOT STORAGE") == loud
        return text

    assert unnamed(Cached, CACHED, line) == []

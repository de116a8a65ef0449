"""Each sentence on what limited a packing, once, where it is made: of its code and numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.contrib.pack.limits import Advice, PackLimit, Seen
from dlemu.contrib.pack.wording import in_words
from dlemu.metrics.findings import Finding

SHARES: dict[str, Any] = {
    "reading_percent": 50.4,
    "computing_percent": 20.0,
    "wanting_core_percent": 10.0,
    "writing_percent": 15.0,
    "idle_percent": 5.0,
}
SEEN: list[tuple[Seen, dict[str, Any], str]] = [
    (
        Seen.SHARES,
        SHARES,
        "the processes spent 50 % of their time in reads, 20 % computing, 10 % waiting for a core, 15 % in writes, and "
        "5 % without an image",
    ),
    (
        Seen.CORES,
        {"cores": 8, "busy_percent": 99.6, "own_percent": 30.0},
        "the 8 cores were 100 % busy, 30 % with packing",
    ),
    (Seen.THROTTLED, {"percent": 12.0}, "the CPU limit throttled the processes in 12 % of its periods"),
    (Seen.PROCESSES, {"processes": 4, "cores": 8}, "only 4 of 8 cores had a packing process"),
    (Seen.MOSTLY, {"of": "reads"}, "most of the time in the storage was spent in reads"),
    (
        Seen.DEVICE,
        {"busy_percent": 99.0, "depth": 7.96},
        "the device was busy 99 % of the time, with 8.0 requests at a time",
    ),
]
ADVICE: list[tuple[Advice, str]] = [
    (Advice.MORE_IMAGES, "use more images, fewer images per file (images_per_file), or fewer processes"),
    (Advice.MORE_CORES, "use more cores; smaller images, or encode=raw, need less CPU"),
    (
        Advice.STOP_OTHER_PROGRAMS,
        "other programs use most of the cores: stop them (top), or pack on an idle host",
    ),
    (Advice.RAISE_CPU_LIMIT, "raise the CPU limit of this container or job (cgroup)"),
    (Advice.USE_FREE_CORES, "use more processes: cores and storage were idle at times"),
    (Advice.MORE_REQUESTS, "use more processes, or ahead=4: the storage had few requests at a time"),
    (Advice.FASTER_TO_READ, "use faster storage for the images"),
    (Advice.FASTER_TO_WRITE, "use faster storage for the packed files, or smaller images"),
]
TRY = "to rule out too few requests at a time, try more processes"


def told(seen: tuple[Finding, ...] = (), to_do: tuple[Finding, ...] = ()) -> PackLimit:
    return in_words(PackLimit(what="storage", confidence="low", seen=seen, to_do=to_do))


@pytest.mark.parametrize(("code", "numbers", "line"), SEEN)
def test_evidence_in_a_line(code: Seen, numbers: dict[str, Any], line: str) -> None:
    assert told(seen=(Finding(code, numbers=numbers),)).evidence == (line,)


@pytest.mark.parametrize(("code", "line"), ADVICE)
def test_advice_in_a_line(code: Advice, line: str) -> None:
    assert told(to_do=(Finding(code),)).advice == (line,)
    assert told(to_do=(Finding(code), Finding(Advice.TRY_MORE_PROCESSES))).advice == (f"{line}; {TRY}",)


def test_no_code_is_without_words() -> None:
    assert {code for code, *_ in SEEN} == set(Seen)
    assert {*(code for code, _ in ADVICE), Advice.TRY_MORE_PROCESSES} == set(Advice)

"""Each sentence on what limited a packing, where it is made: it names what was seen, and what to do next."""

from __future__ import annotations

from typing import Any

from dlemu.contrib.pack.limits import Advice, PackLimit, Seen
from dlemu.contrib.pack.wording import in_words
from dlemu.metrics.findings import Finding, Number
from tests.jobs.wordings import unnamed

SEEN: dict[str, dict[str, Any]] = {
    Seen.SHARES: {
        "reading_percent": 50,
        "computing_percent": 21,
        "wanting_core_percent": 10,
        "writing_percent": 15,
        "idle_percent": 4,
    },
    Seen.CORES: {"cores": 8, "busy_percent": 99, "own_percent": 30},
    Seen.THROTTLED: {"percent": 12},
    Seen.PROCESSES: {"processes": 4, "cores": 8},
    Seen.MOSTLY: {"of": "reads"},
    Seen.DEVICE: {"busy_percent": 99, "depth": 7},
}


def test_every_evidence_names_what_was_seen_and_every_advice_has_words() -> None:
    def evidence(code: str, numbers: dict[str, Number]) -> str:
        seen = (Finding(code, numbers=numbers),)
        return in_words(PackLimit(what="storage", confidence="low", seen=seen)).evidence[0]

    def advice(code: str, numbers: dict[str, Number]) -> str:
        to_do = (Finding(Advice.MORE_CORES), Finding(code))
        return in_words(PackLimit(what="storage", confidence="low", to_do=to_do)).advice[-1]

    assert unnamed(Seen, SEEN, evidence) == []
    assert unnamed(Advice, {}, advice) == []

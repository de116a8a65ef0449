"""Checks of cores and shared memory tell good from bad."""

from __future__ import annotations

from pathlib import Path

from dlemu.config.schema import Workload
from dlemu.doctor import host
from dlemu.doctor.check_base import Check, Cores, Facts


def cores_for(ranks: int, cores: Cores) -> Check:
    facts = Facts(Workload(ranks=ranks))
    vars(facts).update(cores=cores)
    return host.check_cores(facts)


def test_many_ranks_on_few_cores_are_warned_of() -> None:
    two = Cores(count=2, usable=2)
    assert cores_for(18, two).level == "ok"
    assert cores_for(64, two).level == "warn"
    assert "2 usable of 64" in cores_for(1, Cores(count=64, usable=2)).observed
    limited = cores_for(64, Cores(count=64, usable=64, limit=2.5))
    assert limited.level == "warn"
    assert "a CPU limit of 2.5 cores" in limited.observed
    assert cores_for(1, Cores(count=2, usable=2, limit=4.0)) == cores_for(1, two)


def test_busy_cores_are_warned_of() -> None:
    check = host.judge_free_cores(60.0, 8)
    assert (check.level, check.observed[:8]) == ("warn", "4.8 of 8")
    assert host.judge_free_cores(5.0, 8).level == "ok"


def test_no_shared_memory_fails(tmp_path: Path) -> None:
    assert host.check_shared_memory(Facts(Workload()), str(tmp_path / "none")).level == "fail"
    assert host.check_shared_memory(Facts(Workload())).level in ("ok", "warn")

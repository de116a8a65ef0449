"""Checks of cores and shared memory tell good from bad."""

from __future__ import annotations

from pathlib import Path

from dlemu.config.schema import Workload
from dlemu.doctor import host
from dlemu.doctor.check_base import Facts


def test_many_ranks_on_few_cores_are_warned_of() -> None:
    one, many = Workload(ranks=1), Workload(ranks=64)
    assert host.judge_cores(Workload(ranks=18), cores=2, usable=2).level == "ok"
    assert host.judge_cores(many, cores=2, usable=2).level == "warn"
    assert "2 usable of 64" in host.judge_cores(one, cores=64, usable=2).observed
    limited = host.judge_cores(many, cores=64, usable=64, limit=2.5)
    assert limited.level == "warn"
    assert "a CPU limit of 2.5 cores" in limited.observed
    assert host.judge_cores(one, 2, 2, limit=4.0) == host.judge_cores(one, 2, 2)


def test_busy_cores_are_warned_of() -> None:
    check = host.judge_free_cores(60.0, 8)
    assert (check.level, check.observed[:8]) == ("warn", "4.8 of 8")
    assert host.judge_free_cores(5.0, 8).level == "ok"


def test_no_shared_memory_fails(tmp_path: Path) -> None:
    assert host.check_shared_memory(Facts(Workload()), str(tmp_path / "none")).level == "fail"
    assert host.check_shared_memory(Facts(Workload())).level in ("ok", "warn")

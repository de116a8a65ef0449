"""Other programs leave the cores to the run: watched for half a second."""

from __future__ import annotations

import psutil

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "free cores", 120
_WATCHED_SECONDS, _BUSY_PERCENT = 0.5, 25.0  # bursts average out; 25 %: as predictions' BUSY_SHARE


def check(facts: Facts) -> Check:
    return judge(psutil.cpu_percent(_WATCHED_SECONDS), facts.cores.count)


def judge(busy_percent: float, cores: int) -> Check:
    observed = f"{cores * busy_percent / 100:.1f} of {cores} cores in use by other programs"
    if busy_percent > _BUSY_PERCENT:
        advice = "stop other programs (top): they take cores from the workers that read"
        wanted = f"{cores * _BUSY_PERCENT / 100:.1f} at most"
        return Check(name=NAME, level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

"""Checks that a process may open as many files as a rank and its workers need."""

from __future__ import annotations

import resource

from dlemu.doctor.check_base import Check, Facts, Level
from dlemu.jobs.training.preflight import open_files_needed

ORDER = 140
_USUAL_LIMIT = 1024  # Linux's default soft limit, which libraries expect


def check(facts: Facts) -> Check:
    return judge(*resource.getrlimit(resource.RLIMIT_NOFILE), open_files_needed(facts.workload.reader.read_threads))


def judge(soft: int, hard: int, needed: int = 0) -> Check:
    """Compare the limit, which a process may raise from `soft` to `hard`, with the files that a rank needs."""
    observed = f"{_limit(soft)}, can be raised to {_limit(hard)}"
    least = max(_USUAL_LIMIT, needed)
    if 0 <= hard < least:
        advice = f"raise it in /etc/security/limits.conf, or run `ulimit -n {least}` in the shell first"
        level: Level = "fail" if hard < needed else "warn"
        return Check(level=level, observed=observed, wanted=f"{least} or more", advice=advice)
    return Check(level="ok", observed=observed)


def _limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else f"{number:,}"


CHECKS = {"open files": check}

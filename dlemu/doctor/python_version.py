"""The interpreter is recent enough."""

from __future__ import annotations

import platform
import sys

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "python", 10
_OLDEST = (3, 11)  # requires-python in pyproject.toml


def check(facts: Facts) -> Check:
    return judge(sys.version_info[:3])


def judge(version: tuple[int, ...]) -> Check:
    wanted, observed = ".".join(map(str, _OLDEST)), ".".join(map(str, version))
    if version < _OLDEST:
        advice = "make a new environment"
        return Check(name=NAME, level="fail", observed=observed, wanted=f"{wanted} or newer", advice=advice)
    return Check(name=NAME, level="ok", observed=f"{platform.python_implementation()} {observed} at {sys.executable}")

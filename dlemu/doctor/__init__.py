"""Checks of a host before a run; a check that only one kind of job needs is in the folder of the kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from datagen.errors import DlemuError
from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Checks, Facts
from dlemu.results.kinds import kind_to_run


def examine(workload: Workload) -> Iterator[Check]:
    """Yield the outcome of each check of this host that applies to the workload."""
    from dlemu.doctor import host, storage

    kind_checks = kind_to_run(workload).load_job().host_checks()
    return outcomes({**host.CHECKS, **storage.CHECKS, **kind_checks}, Facts(workload))


def outcomes(checks: Checks, facts: Facts) -> Iterator[Check]:
    """Yield the outcome of each check that applies; a check that raises is a failure."""
    for name, run_check in checks.items():
        try:
            check = run_check(facts)
        except DlemuError as error:
            check = Check(level="fail", observed=str(error))
        except Exception as error:  # a broken library may raise anything
            check = Check(level="fail", observed=f"{type(error).__name__}: {error}")
        if check is not None:
            yield replace(check, name=name)

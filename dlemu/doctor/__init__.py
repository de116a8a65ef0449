"""Checks of a host before a run. Each module of this folder has some of them:

ORDER    the position of its checks in the output
CHECKS   name of each check -> function (Facts) -> Check, or None where it does not apply; an exception is reported as
         the check's failure

Checks that only one kind of job (training, checkpoint, ...) needs are in that kind's folder (`JobParts.host_checks`),
and come last. May import report, runner, results and the packages below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from types import ModuleType

from datagen.registry import import_by_name, names
from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Facts, failed
from dlemu.results.kinds import kind_wanted


def examine(workload: Workload, package: str = __name__) -> Iterator[Check]:
    """Yield the outcome of each check of what the workload needs on this host; a check that raises yields a failure.

    Checks are those of `package` and, if that is this one, those of the workload's kind of job.
    """
    modules: list[ModuleType] = []
    for name in names(package):
        try:
            modules.append(import_by_name(f"{package}.{name}"))
        except Exception as error:  # a broken library may raise anything
            yield replace(failed(error), name=name.replace("_", " "))
    facts = Facts(workload)
    checks = {name: run for module in sorted(modules, key=attrgetter("ORDER")) for name, run in module.CHECKS.items()}
    if package == __name__:
        checks |= kind_wanted(workload).load_job().host_checks()
    for name, run in checks.items():
        try:
            check = run(facts)
        except Exception as error:
            check = failed(error)
        if check is not None:
            yield replace(check, name=name)

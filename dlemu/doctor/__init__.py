"""Checks of a host before a run, one check per file: `doctor/NAME.py` has

NAME     the check's name in the output
ORDER    its position in the output: software below 100, the host below 200, storage below 300, all together above
check    (Facts) -> Check, or None where it does not apply; an exception is reported as the check's failure

Checks that only one kind of job (training, checkpoint, ...) needs are in that kind's folder, in files like these
(`Kind.host_checks`). May import report, runner, results and the packages below them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

from datagen.registry import names
from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Facts, HostCheck, failed
from dlemu.results.kinds import kind_wanted


def examine(workload: Workload, *packages: str) -> Iterator[Check]:
    """Yield the outcome of each check of what the workload needs on this host; a check that raises yields a failure.

    The checks are those in `packages`; without any, those of this package and of the workload's kind of job.
    """
    kind = kind_wanted(workload)
    own = [f"{kind.package}.{kind.host_checks}"] if kind.host_checks else []
    host_checks: list[HostCheck] = []
    for folder in packages or (__name__, *own):
        for name in names(folder):
            try:
                host_checks.append(cast(HostCheck, importlib.import_module(f"{folder}.{name}")))
            except Exception as error:  # a broken library may raise anything
                yield failed(name.replace("_", " "), error)
    facts = Facts(workload)
    for host_check in sorted(host_checks, key=lambda host_check: host_check.ORDER):
        try:
            check = host_check.check(facts)
        except Exception as error:
            check = failed(host_check.NAME, error)
        if check is not None:
            yield check

"""Checks of a host before a run, one idea a file: `doctor/NAME.py` has

NAME     what the check is called where it is printed
ORDER    its place among the others; software below 100, the host below 200, the storage below 300, the whole above
check    (Facts) -> Check, or None where there is nothing to look at; what it raises is reported as its failure
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

from datagen.registry import names
from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Facts, HostCheck, failed


def examine(workload: Workload, package: str = __name__) -> Iterator[Check]:
    """Look at everything a run of the workload needs on this host, one after the other; no check's failure raises."""
    host_checks: list[HostCheck] = []
    for name in names(package):
        try:
            host_checks.append(cast(HostCheck, importlib.import_module(f"{package}.{name}")))
        except Exception as error:  # a broken library raises what it likes
            yield failed(name.replace("_", " "), error)
    facts = Facts(workload)
    for host_check in sorted(host_checks, key=lambda host_check: host_check.ORDER):
        try:
            check = host_check.check(facts)
        except Exception as error:
            check = failed(host_check.NAME, error)
        if check is not None:
            yield check

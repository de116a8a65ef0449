"""Checks of a host before a run, one idea a file: `doctor/NAME.py` has

NAME     what the check is called where it is printed
ORDER    its place among the others; software below 100, the host below 200, the storage below 300, the whole above
check    (Facts) -> Check, or None where there is nothing to look at; what it raises is reported as its failure

What only one kind of job needs from a host is in that kind's folder, in files like these (`Kind.host_checks`). May
import report, runner, results and what is below.
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
    """Look at everything a run of the workload needs on this host, one after the other; no check's failure raises.

    The checks are those of `packages`: without any, of this one and of the kind of job that the workload needs.
    """
    kind = kind_wanted(workload)
    own = [f"{kind.package}.{kind.host_checks}"] if kind.host_checks else []
    host_checks: list[HostCheck] = []
    for folder in packages or (__name__, *own):
        for name in names(folder):
            try:
                host_checks.append(cast(HostCheck, importlib.import_module(f"{folder}.{name}")))
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

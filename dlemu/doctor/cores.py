"""There are cores enough for the ranks: by affinity, and by the CPU limit of the control group."""

from __future__ import annotations

import math

from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Check, Cores, Facts
from dlemu.results.wording import count

NAME, ORDER = "cores", 110
_RANKS_PER_CORE = 12
"""More ranks than this on a core have not been tried with full-size workloads; the result's ceiling shows the cost."""


def check(facts: Facts) -> Check:
    return judge(facts.cores, facts.workload)


def judge(cores: Cores, workload: Workload) -> Check:
    closed = cores.usable < cores.count
    bound = f" of {cores.count} (this process may not use the others: affinity)" if closed else ""
    time = min(float(cores.usable), cores.limit or math.inf)
    if time < cores.usable:
        bound += f", with a CPU limit of {time:.1f} cores (of this container or job: cgroup)"
    readers = f"{count(workload.ranks, 'rank')} x {count(workload.reader.read_threads, 'worker')}"
    observed = f"{cores.usable} usable{bound} for {readers}"
    if workload.ranks > time * _RANKS_PER_CORE:
        advice = "check the ceiling in the result (AU without storage), or use fewer ranks on this host"
        wanted = f"{count(-(-workload.ranks // _RANKS_PER_CORE), 'core')} or more"
        return Check(name=NAME, level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

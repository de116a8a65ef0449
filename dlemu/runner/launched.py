"""The first steps of a process that a launcher (mpirun, srun, torchrun) started: it connects to the other processes.

The first process of a host runs the host's ranks. The others are placeholders that only wait: so this imports little.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlemu.config.schema import Workload
from dlemu.ranks import detect_launcher

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9]*\.?[0-9]+)")


def run_as_placeholder(overrides: Sequence[str]) -> bool:
    """If this process is a placeholder, wait until its rank has ended and return True; else return False.

    A command calls this before its other imports, which take longer. Raises SystemExit if the rank failed.
    """
    if detect_launcher() == "none":
        return False
    from dlemu.ranks.host import join

    host_or_status = join(join_timeout_seconds(overrides))  # cached: `runner.ranks` joins again, and gets this Host
    if isinstance(host_or_status, int) and host_or_status != 0:
        raise SystemExit(host_or_status)
    return isinstance(host_or_status, int)


def join_timeout_seconds(overrides: Sequence[str]) -> float:
    """Return `timeout_seconds` from the command line, for the time before rank 0's host has loaded the workload."""
    values = [float(match[1]) for match in map(_TIMEOUT.fullmatch, overrides) if match]
    return values[-1] if values and values[-1] else Workload.timeout_seconds  # loading the workload refuses 0

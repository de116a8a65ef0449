"""First steps of a process that a launcher (mpirun, srun, torchrun) started: it connects to the other processes.

Placeholders, of which the first process of their host runs the ranks, only wait: so this module imports little.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlemu.config.schema import Workload
from dlemu.ranks import detect_launcher

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9]*\.?[0-9]+)")


def run_as_placeholder(overrides: Sequence[str]) -> bool:
    """If another process runs this one's rank, wait for that rank to end and return True; else return False.

    A command calls it before its other imports, which take longer. Raises SystemExit where the rank failed.
    """
    if detect_launcher() == "none":
        return False
    from dlemu.ranks.host import join

    joined = join(start_seconds(overrides))
    if isinstance(joined, int) and joined:
        raise SystemExit(joined)
    return isinstance(joined, int)


def start_seconds(overrides: Sequence[str]) -> float:
    """Return how long ranks may wait for each other until rank 0 has read the workload: as the command line says."""
    seconds = [match[1] for match in map(_TIMEOUT.fullmatch, overrides) if match]
    return float(seconds[-1] if seconds else 0) or Workload.timeout_seconds

"""A control group that may use a part of a core: what a container's CPU limit is. Needs root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from datagen.errors import DlemuError, UserError
from validation.janitor import Janitor, Traces

PERIOD_US = 100_000
V1, V2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"


@contextlib.contextmanager
def cpu_quota(cores: float) -> Iterator[str]:
    """Make a group of so many cores' time, give its folder, and remove it.

    Documentation/scheduler/sched-bwc.rst, cgroup-v2.rst.

    Raises:
        UserError: this kernel or container lets no such group be made.
        DlemuError: it could not be removed.
    """
    name = f"dlemu-quota-{os.getpid()}-{os.urandom(4).hex()}"
    is_v1 = os.path.exists(os.path.join(V1, "cpu.cfs_quota_us"))
    cgroup = os.path.join(V1 if is_v1 else V2, name)
    janitor = Janitor(Traces(folder="", mount="", cgroup=cgroup))
    troubles: list[str] = []
    try:
        _make(cgroup, round(cores * PERIOD_US), is_v1=is_v1)
        yield cgroup
    finally:
        troubles = janitor.clean()
    if troubles:
        raise DlemuError("; ".join(troubles))


def _make(cgroup: str, quota_us: int, *, is_v1: bool) -> None:
    try:
        os.mkdir(cgroup)
        values = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us}
        for file, value in values.items() if is_v1 else {"cpu.max": f"{quota_us} {PERIOD_US}"}.items():
            with open(os.path.join(cgroup, file), "w") as line:
                line.write(str(value))
    except OSError as error:
        raise UserError(f"no control group with a CPU limit can be made ({cgroup}): {error.strerror}") from None

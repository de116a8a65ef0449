"""/dev/shm has free space: PyTorch keeps semaphores and small segments there.

dlemu's own batches are not in /dev/shm but in memfds (anonymous memory).
"""

from __future__ import annotations

import psutil

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "shared memory", 150
_LEAST_BYTES = 16 << 20  # far more than semaphores take; containers have 64 MiB by Docker's default


def check(facts: Facts) -> Check:
    return look("/dev/shm")


def look(folder: str) -> Check:
    wanted, advice = f"{_LEAST_BYTES >> 20} MiB free", "free some, or start the container with a larger --shm-size"
    try:
        free = psutil.disk_usage(folder).free
    except OSError as error:
        observed, advice = f"{folder}: {error.strerror}", f"mount a tmpfs at {folder}"
        return Check(name=NAME, level="fail", observed=observed, wanted=wanted, advice=advice)
    observed = f"{free >> 20} MiB free in {folder}"
    if free < _LEAST_BYTES:
        return Check(name=NAME, level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

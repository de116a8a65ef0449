"""The GPUs of this host: only pinned memory needs one."""

from __future__ import annotations

import contextlib
import os

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "GPU", 180
_DRIVER = "/proc/driver/nvidia/gpus"


def check(facts: Facts) -> Check:
    return judge(models(), facts.workload.reader.pin_memory)


def models(folder: str = _DRIVER) -> list[str]:
    """Return the models of this host's NVIDIA GPUs, as their driver names them."""
    gpus = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name, "information")) as lines:
                gpus += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return gpus


def judge(gpus: list[str], pin_memory: bool) -> Check:
    observed = f"{len(gpus)} x {gpus[0]}" if gpus else "none; the accelerators are emulated"
    if pin_memory and not gpus:
        advice = "reader.pin_memory=false"
        return Check(name=NAME, level="fail", observed="none", wanted="reader.pin_memory=true", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

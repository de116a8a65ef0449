"""The dataset's folder is on a drive or a server, not in memory."""

from __future__ import annotations

from dlemu.comm.environment import StorageFacts
from dlemu.doctor.check_base import Check, Facts
from dlemu.metrics.cache import IN_MEMORY

NAME, ORDER = "storage", 210


def check(facts: Facts) -> Check:
    if facts.file_system is None:
        observed = f"{facts.workload.dataset.data_folder} on {facts.storage.spec.type}, not a file system of this host"
        return Check(name=NAME, level="ok", observed=observed)
    return judge(facts.file_system)


def judge(file_system: StorageFacts) -> Check:
    kind = file_system.file_system or "an unknown file system"
    observed = f"{file_system.folder} on {kind} ({file_system.device or 'unknown device'})"
    if kind in IN_MEMORY:
        advice = "fine for trying dlemu out; to measure a drive, set dataset.data_folder to a folder on it"
        return Check(name=NAME, level="warn", observed=observed, wanted="a drive or a server", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

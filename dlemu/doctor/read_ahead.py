"""The device's read-ahead is large enough: reads through the page cache are split into requests of that size."""

from __future__ import annotations

from dlemu.doctor._block_device import BlockDevice
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "read ahead", 220
_LITTLE_KIB = 512  # Linux's default of 128 cuts a sample of 1 MiB into eight requests, few of them at a time
_LARGE_SAMPLE_BYTES = 1 << 20  # smaller samples take few requests with any read-ahead


def check(facts: Facts) -> Check | None:
    if facts.device is None:
        return None
    return judge(facts.device, facts.demand.sample_bytes, facts.workload.storage_spec.direct)


def judge(device: BlockDevice, sample_bytes: int, direct: bool) -> Check:
    observed = f"{device.name} reads {device.read_ahead_kib:,} KiB ahead"
    if device.read_ahead_kib < _LITTLE_KIB and sample_bytes >= _LARGE_SAMPLE_BYTES and not direct:
        advice = f"reader.odirect=true, or as root: echo 4096 > {device.queue}/read_ahead_kb"
        wanted = f"{_LITTLE_KIB} KiB or more for samples of {sample_bytes / 1e6:.1f} MB through the page cache"
        return Check(name=NAME, level="warn", observed=observed, wanted=wanted, advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

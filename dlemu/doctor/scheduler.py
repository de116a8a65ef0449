"""The device's I/O scheduler does not delay requests, and the kernel counts them."""

from __future__ import annotations

from dlemu.doctor._block_device import BlockDevice
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "scheduler", 230
_CHEAP = ("none", "mq-deadline", "")
"""Schedulers that delay no request; an empty name means a device that only passes requests on."""


def check(facts: Facts) -> Check:
    if facts.device is None:
        kind = facts.file_system.file_system if facts.file_system else facts.storage.spec.type
        return Check(
            name=NAME,
            level="ok",
            observed=f"no block device of this host is behind {kind or 'an unknown file system'}",
        )
    return judge(facts.device)


def judge(device: BlockDevice) -> Check:
    observed = f"{device.name}: {device.scheduler or 'no scheduler'}" + ("" if device.counts else ", iostats off")
    if not device.counts:
        advice = f"as root: echo 1 > {device.queue}/iostats; without it there are no figures for the device"
        return Check(name=NAME, level="warn", observed=observed, wanted="requests counted", advice=advice)
    if device.scheduler not in _CHEAP:
        advice = f"as root: echo none > {device.queue}/scheduler, or mq-deadline for a spinning disk"
        return Check(name=NAME, level="warn", observed=observed, wanted="none or mq-deadline", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

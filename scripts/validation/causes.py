"""Disturbances whose cause is known: does dlemu name it, and when a drive's speed changed, does it say when?"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.processes import running

from validation import latency
from validation.bandwidth import MB, Case
from validation.bed import Bed, Ran
from validation.check import Check
from validation.drive import MEMORY, Speed
from validation.quota import cpu_quota
from validation.watch import SECTOR_BYTES

FAST, SLOW = 137, 61
"""MB/s before and after the change."""
STALL_SECONDS = 2.0
QUOTA_CORES = 0.4
PLAIN = Case(ratio=1.25, mb_per_second=90, seconds=20)
"""Demand of 112.5 MB/s: less than the drive's first speed, more than its second."""
NEIGHBOUR_SECONDS = 60.0


def measure(bed: Bed) -> Iterator[Check]:
    """One disturbance after another."""
    for case in (_slower, _faster, _stalled, _neighbour, _quota, _steady):
        yield from case(bed)
    if latency.why_no_model() is None:
        yield from _jitter(bed)


def _slower(bed: Bed) -> Iterator[Check]:
    yield from _changed(bed, "slower half way", FAST, SLOW)


def _faster(bed: Bed) -> Iterator[Check]:
    yield from _changed(bed, "faster half way", SLOW, FAST)


def _changed(bed: Bed, name: str, before: int, after: int) -> Iterator[Check]:
    """Demand lies between both speeds, so the drive is the limit in one half alone."""
    half = PLAIN.steps * PLAIN.step_bytes // 2
    with _acting(bed, after_bytes=half, act=lambda: bed.drive.set_speed(_speed(after))) as acted:
        ran = _run(bed, before)
    yield from ran.beside(_check_change(name, ran, acted))


def _check_change(name: str, ran: Ran, acted: Acted) -> Iterator[Check]:
    yield Check(case=name, what="limited by", theory="storage", measured=ran.limited_by)
    changes = ran.summary["speed_changes"]
    yield Check(case=name, what="changes of speed", theory=1.0, measured=float(len(changes)))
    at = float(changes[0]["at_seconds"]) if changes else None
    yield Check(case=name, what="when", theory=ran.seconds_of(acted.at_ns), measured=at, unit="s", within=1.0)
    demand = PLAIN.step_bytes / MB / PLAIN.compute_seconds
    factor = 100 * SLOW / demand if name.startswith("slower") else 100 * demand / SLOW
    given = float(changes[0]["percent"]) if changes else None
    yield Check(case=name, what="gives, of before", theory=factor, measured=given, unit="%", within=15, percent=True)


def _stalled(bed: Bed) -> Iterator[Check]:
    """The drive gives next to nothing for two seconds, in the middle of a run that it has speed enough for."""

    def stall() -> None:
        bed.drive.set_speed(Speed(read_bytes_per_second=1000))
        time.sleep(STALL_SECONDS)
        bed.drive.set_speed(_speed(FAST))

    with _acting(bed, after_bytes=PLAIN.steps * PLAIN.step_bytes // 3, act=stall):
        ran = _run(bed, FAST)
    name = f"a stall of {STALL_SECONDS:g} s"
    checks = [Check(case=name, what="limited by", theory="storage", measured=ran.limited_by)]
    longest = max((float(one["seconds"]) for one in ran.summary["stalls"]), default=None)
    checks.append(Check(case=name, what="stall", theory=STALL_SECONDS, measured=longest, unit="s", within=0.5))
    changes = float(len(ran.summary["speed_changes"]))
    checks.append(Check(case=name, what="changes of speed", theory=0.0, measured=changes))
    yield from ran.beside(checks)


def _neighbour(bed: Bed) -> Iterator[Check]:
    """A plain reader of two threads on the same drive, within the same limit."""
    bed.prepare(PLAIN.dataset)
    bed.drive.set_speed(_speed(FAST))
    files = sorted(glob.glob(os.path.join(bed.drive.folder, PLAIN.dataset.name, "train", "*")))
    argv = [sys.executable, "-m", "validation.plain", "2", str(NEIGHBOUR_SECONDS), *files]
    with contextlib.ExitStack() as stack:
        bed.drive.forget_cache()
        stack.enter_context(running(bed.drive.command(argv)))
        ran = _run(bed, FAST, "metric.scaling_seconds=1", cold=False)
    name = "a neighbour on the drive"
    checks = [Check(case=name, what="limited by", theory="storage", measured=ran.limited_by)]
    others = 100 * (1 - float(ran.metrics["app_bytes"]) / (ran.watched_mb * MB))
    text = " ".join(ran.summary["limited_by"]["evidence"])
    named = "others read" if "others read" in text else text
    checks.append(Check(case=name, what="evidence", theory="others read", measured=named))
    told = ran.summary["other_readers"]
    share = float(told["percent"]) if told else None
    checks.append(Check(case=name, what="others' share", theory=others, measured=share, unit="%", within=5))
    yield from ran.beside(checks)


def _quota(bed: Bed) -> Iterator[Check]:
    """The drive has no limit, and the run's control group less of a core than it asks for."""
    name = f"a CPU quota of {QUOTA_CORES:g} core"
    with cpu_quota(QUOTA_CORES) as quota:
        ran = bed.train(
            PLAIN.dataset,
            *replace(PLAIN, mb_per_second=600, seconds=4).settings,
            "metric.scaling_seconds=1",
            speed=Speed(),
            prefix=quota.command([]),
        )
    yield from ran.beside([Check(case=name, what="limited by", theory="host CPU", measured=ran.limited_by)])


def _steady(bed: Bed) -> Iterator[Check]:
    """Nothing happens: no change, no stall, nobody else."""
    ran = _run(bed, 90)
    checks = list(_check_steady("nothing happens", ran))
    others = "nobody" if ran.summary["other_readers"] is None else str(ran.summary["other_readers"])
    checks.append(Check(case="nothing happens", what="others", theory="nobody", measured=others))
    yield from ran.beside(checks)


def _jitter(bed: Bed) -> Iterator[Check]:
    """Latencies that are drawn, by 8 readers on 4 channels: a slow storage, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(latency.SMALL, source)
        for jitter in ("uniform", "pareto"):
            with latency.model_mounted(source, latency.LATENCY_SECONDS, latency.CHANNELS, jitter) as mount:
                ran = latency.run(bed, mount, 2 * latency.CHANNELS)
            yield from ran.beside(_check_steady(f"latencies of {jitter} jitter", ran))


def _check_steady(name: str, ran: Ran) -> Iterator[Check]:
    yield Check(case=name, what="limited by", theory="storage", measured=ran.limited_by)
    for what, key in (("changes of speed", "speed_changes"), ("stalls", "stalls")):
        yield Check(case=name, what=what, theory=0.0, measured=float(len(ran.summary[key])))


def _run(bed: Bed, mb_per_second: int, *settings: str, cold: bool = True) -> Ran:
    common = (*PLAIN.settings, "train.epochs=3", "metric.scaling_seconds=1", *settings)
    return bed.train(PLAIN.dataset, *common, speed=_speed(mb_per_second), cold=cold)


def _speed(mb_per_second: int) -> Speed:
    return Speed(read_bytes_per_second=mb_per_second * MB)


@dataclass
class Acted:
    """When it was done, on CLOCK_MONOTONIC."""

    at_ns: int = 0


@contextlib.contextmanager
def _acting(bed: Bed, *, after_bytes: int, act: Callable[[], None]) -> Iterator[Acted]:
    """Do something once so many bytes were read of the drive, while the block lasts."""
    acted, ended = Acted(), threading.Event()
    bed.prepare(PLAIN.dataset)
    first = _sectors(bed)

    def wait() -> None:
        while not ended.wait(0.02):
            if (_sectors(bed) - first) * SECTOR_BYTES >= after_bytes:
                acted.at_ns = time.monotonic_ns()
                act()
                return

    thread = threading.Thread(target=wait, name="act")
    thread.start()
    try:
        yield acted
    finally:
        ended.set()
        thread.join()


def _sectors(bed: Bed) -> int:
    with open(f"/sys/block/{bed.drive.device}/stat") as line:
        return int(line.read().split()[2])

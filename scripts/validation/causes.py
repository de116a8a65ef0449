"""Disturbances of known cause: does dlemu name the cause and, for a change of the drive's speed, its time?"""

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
from validation.check import Check, advice
from validation.drive import MEMORY, Speed
from validation.latency_draws import SLOW_TIMES
from validation.throttle import cpu_quota, in_group
from validation.watch import SECTOR_BYTES

FAST, SLOW = 137, 61
"""MB/s before and after the change."""
STALL_SECONDS = 2.0
QUOTA_CORES = 0.4
PLAIN = Case(ratio=1.25, mb_per_second=90, seconds=20)
"""A demand of 112.5 MB/s, between the drive's two speeds."""
NEIGHBOUR_SECONDS = 60.0
CREDIT_MB = 400
METADATA = 1.003
"""Bytes that the drive reads per byte of the samples (docs/validation.md, "What theory says")."""
FOLDERS = replace(latency.SMALL, name="npz-100kb-folders", subfolders=8)
SLOW_FOLDER = "3"


def measure(bed: Bed) -> Iterator[Check]:
    """Check one disturbance after another."""
    for case in (_slower, _faster, _stalled, _ran_out, _neighbour, _quota, _steady):
        yield from case(bed)
    if latency.why_no_model() is None:
        yield from _jitter(bed)
        yield from _slow_folder(bed)


def _slower(bed: Bed) -> Iterator[Check]:
    yield from _changed(bed, "slower half way", FAST, SLOW)


def _faster(bed: Bed) -> Iterator[Check]:
    yield from _changed(bed, "faster half way", SLOW, FAST)


def _changed(bed: Bed, name: str, before: int, after: int) -> Iterator[Check]:
    """Change the speed half-way. Demand lies between both speeds, so the drive is the limit in only one half."""
    half = PLAIN.steps * PLAIN.step_bytes // 2
    with _disturbed(bed, (half, lambda: bed.drive.set_speed(_speed(after)))) as disturbance:
        ran = _run(bed, before)
    yield from ran.beside(_check_change(name, ran, disturbance))


def _check_change(name: str, ran: Ran, disturbance: Disturbance) -> Iterator[Check]:
    yield Check(name, "limited by", "storage", ran.limited_by)
    changes = ran.not_steady("speed_changed")
    yield Check(name, "changes of speed", 1.0, float(len(changes)))
    at_seconds = float(changes[0]["at_seconds"]) if changes else None
    yield Check(name, "when", ran.seconds_of(disturbance.at_ns), at_seconds, "s", within=1.0)
    demand = PLAIN.step_bytes / MB / PLAIN.compute_seconds
    theory_percent = 100 * SLOW / demand if name.startswith("slower") else 100 * demand / SLOW
    percent = float(changes[0]["percent"]) if changes else None
    yield Check(name, "gives, of before", theory_percent, percent, "%", within=15, percent=True)


def _stalled(bed: Bed) -> Iterator[Check]:
    """The drive stalls for two seconds in the middle of a run; before and after, it is fast enough."""

    def stall() -> None:
        bed.drive.set_speed(Speed(read_bytes_per_second=1000))
        time.sleep(STALL_SECONDS)
        bed.drive.set_speed(_speed(FAST))

    with _disturbed(bed, (PLAIN.steps * PLAIN.step_bytes // 3, stall)):
        ran = _run(bed, FAST)
    name = f"a stall of {STALL_SECONDS:g} s"
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    longest = max((float(numbers["seconds"]) for numbers in ran.not_steady("stalled")), default=None)
    checks.append(Check(name, "stall", STALL_SECONDS, longest, "s", within=0.5))
    changes = float(len(ran.not_steady("speed_changed")))
    checks.append(Check(name, "changes of speed", 0.0, changes))
    yield from ran.beside(checks)


def _ran_out(bed: Bed) -> Iterator[Check]:
    """The drive has a burst credit of CREDIT_MB, which is full again when an epoch begins."""
    actions: list[tuple[int, Callable[[], None]]] = []
    epoch_bytes = PLAIN.dataset.files * PLAIN.dataset.sample_bytes
    epochs = PLAIN.steps * PLAIN.step_bytes // epoch_bytes
    for epoch in range(epochs):
        begin = int(epoch * epoch_bytes * METADATA)
        actions.append((begin, lambda: bed.drive.set_speed(_speed(FAST))))
        actions.append((begin + CREDIT_MB * MB, lambda: bed.drive.set_speed(_speed(SLOW))))
    with _disturbed(bed, *actions):
        ran = _run(bed, FAST)
    name = f"a burst credit of {CREDIT_MB} MB"
    numbers = next(iter(ran.not_steady("ran_out")), None)
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    times = float(numbers["times"]) if numbers else None
    checks.append(Check(name, "ran out, times", float(epochs), times))
    megabytes = 1000 * float(numbers["gb"]) if numbers else None
    checks.append(Check(name, "after", float(CREDIT_MB), megabytes, "MB", within=15, percent=True))
    sustained = float(numbers["mb_per_second_after"]) if numbers else None
    checks.append(Check(name, "what lasts", float(SLOW), sustained, "MB/s", within=10, percent=True))
    checks.append(advice(name, "a cache or burst credit", ran.advice))
    yield from ran.beside(checks)


def _neighbour(bed: Bed) -> Iterator[Check]:
    """A plain reader with two threads shares the drive and its limit."""
    bed.prepare(PLAIN.dataset)
    bed.drive.set_speed(_speed(FAST))
    files = sorted(glob.glob(os.path.join(bed.drive.folder, PLAIN.dataset.name, "train", "*")))
    argv = [sys.executable, "-m", "validation.plain", "2", str(NEIGHBOUR_SECONDS), *files]
    with contextlib.ExitStack() as stack:
        bed.drive.forget_cache()
        stack.enter_context(running(bed.drive.command(argv)))
        ran = _run(bed, FAST, "metric.scaling_seconds=1", cold=False)
    name = "a neighbour on the drive"
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    others = 100 * (1 - float(ran.metrics["app_bytes"]) / (ran.watched_mb * MB))
    findings = ran.found("other_program_on_drive")
    share = float(findings[0]["percent"]) if findings else None
    checks.append(Check(name, "others' share", others, share, "%", within=5))
    yield from ran.beside(checks)


def _quota(bed: Bed) -> Iterator[Check]:
    """The drive has no limit, but the run's control group has one: less CPU time than the run needs."""
    name = f"a CPU quota of {QUOTA_CORES:g} core"
    with cpu_quota(QUOTA_CORES) as cgroup:
        ran = bed.train(
            PLAIN.dataset,
            *replace(PLAIN, mb_per_second=600, seconds=4).settings,
            "metric.scaling_seconds=1",
            speed=Speed(),
            prefix=in_group(cgroup, []),
        )
    yield from ran.beside([Check(name, "limited by", "host CPU", ran.limited_by)])


def _steady(bed: Bed) -> Iterator[Check]:
    """Without a disturbance, dlemu must report no change, no stall and no other program."""
    ran = _run(bed, 90)
    checks = list(_check_steady("nothing happens", ran))
    others = str(ran.found("other_program_on_drive") or "nobody")
    checks.append(Check("nothing happens", "others", "nobody", others))
    yield from ran.beside(checks)


def _jitter(bed: Bed) -> Iterator[Check]:
    """Random latencies, with 8 readers on 4 channels, are a slow storage and nothing else."""
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(latency.SMALL, source)
        for jitter in ("uniform", "pareto"):
            with latency.model_mounted(source, latency.LATENCY_SECONDS, latency.CHANNELS, jitter) as mount:
                ran = latency.run(bed, mount, 2 * latency.CHANNELS)
            yield from ran.beside(_check_steady(f"latencies of {jitter} jitter", ran))


def _slow_folder(bed: Bed) -> Iterator[Check]:
    """Reads of one of eight sub-folders take six times as long."""
    name, channels = f"folder {SLOW_FOLDER} of {FOLDERS.subfolders} is slow", 8
    mean_seconds = latency.LATENCY_SECONDS * (1 + (SLOW_TIMES - 1) / FOLDERS.subfolders)
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(FOLDERS, source)
        with latency.model_mounted(source, latency.LATENCY_SECONDS, channels, "uniform", SLOW_FOLDER) as mount:
            ran = latency.run(bed, mount, channels, dataset=FOLDERS, latency_seconds=mean_seconds, channels=channels)
    findings = ran.found("slow_drive")
    folders = ", ".join(numbers["folder"] for numbers in findings)
    checks = [Check(name, "folders named", SLOW_FOLDER, folders)]
    times = findings[0]["ms_per_sample"] / findings[0]["others_ms_per_sample"] if findings else None
    checks.append(Check(name, "times the others", SLOW_TIMES, times, within=20, percent=True))
    yield from ran.beside(checks)


def _check_steady(name: str, ran: Ran) -> Iterator[Check]:
    yield Check(name, "limited by", "storage", ran.limited_by)
    for what, pattern in (("changes of speed", "speed_changed"), ("stalls", "stalled")):
        yield Check(name, what, 0.0, float(len(ran.not_steady(pattern))))


def _run(bed: Bed, mb_per_second: int, *settings: str, cold: bool = True) -> Ran:
    common = (*PLAIN.settings, "train.epochs=3", "metric.scaling_seconds=1", *settings)
    return bed.train(PLAIN.dataset, *common, speed=_speed(mb_per_second), cold=cold)


def _speed(mb_per_second: int) -> Speed:
    return Speed(read_bytes_per_second=mb_per_second * MB)


@dataclass
class Disturbance:
    """The time of the last action so far, on CLOCK_MONOTONIC."""

    at_ns: int = 0


@contextlib.contextmanager
def _disturbed(bed: Bed, *actions: tuple[int, Callable[[], None]]) -> Iterator[Disturbance]:
    """While the block lasts, take each action, in order, once so many bytes were read from the drive."""
    disturbance, ended = Disturbance(), threading.Event()
    bed.prepare(PLAIN.dataset)
    first = _sectors(bed)

    def wait() -> None:
        for after_bytes, action in actions:
            while (_sectors(bed) - first) * SECTOR_BYTES < after_bytes:
                if ended.wait(0.02):
                    return
            disturbance.at_ns = time.monotonic_ns()
            action()

    thread = threading.Thread(target=wait, name="act")
    thread.start()
    try:
        yield disturbance
    finally:
        ended.set()
        thread.join()


def _sectors(bed: Bed) -> int:
    with open(f"/sys/block/{bed.drive.device}/stat") as line:
        return int(line.read().split()[2])

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
"""Demand of 112.5 MB/s: less than the drive's first speed, more than its second."""
NEIGHBOUR_SECONDS = 60.0
CREDIT_MB = 400
METADATA = 1.003
"""Bytes that the drive gives for each byte of the samples (docs/validation.md, "What theory says")."""
FOLDERS = replace(latency.SMALL, name="npz-100kb-folders", subfolders=8)
SLOW_FOLDER = "3"


def measure(bed: Bed) -> Iterator[Check]:
    """One disturbance after another."""
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
    """Demand lies between both speeds, so the drive is the limit in one half alone."""
    half = PLAIN.steps * PLAIN.step_bytes // 2
    with _acting(bed, (half, lambda: bed.drive.set_speed(_speed(after)))) as acted:
        ran = _run(bed, before)
    yield from ran.beside(_check_change(name, ran, acted))


def _check_change(name: str, ran: Ran, acted: Acted) -> Iterator[Check]:
    yield Check(name, "limited by", "storage", ran.limited_by)
    changes = ran.not_steady("speed_changed")
    yield Check(name, "changes of speed", 1.0, float(len(changes)))
    at = float(changes[0]["at_seconds"]) if changes else None
    yield Check(name, "when", ran.seconds_of(acted.at_ns), at, "s", within=1.0)
    demand = PLAIN.step_bytes / MB / PLAIN.compute_seconds
    factor = 100 * SLOW / demand if name.startswith("slower") else 100 * demand / SLOW
    given = float(changes[0]["percent"]) if changes else None
    yield Check(name, "gives, of before", factor, given, "%", within=15, percent=True)


def _stalled(bed: Bed) -> Iterator[Check]:
    """The drive gives next to nothing for two seconds, in the middle of a run that it has speed enough for."""

    def stall() -> None:
        bed.drive.set_speed(Speed(read_bytes_per_second=1000))
        time.sleep(STALL_SECONDS)
        bed.drive.set_speed(_speed(FAST))

    with _acting(bed, (PLAIN.steps * PLAIN.step_bytes // 3, stall)):
        ran = _run(bed, FAST)
    name = f"a stall of {STALL_SECONDS:g} s"
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    longest = max((float(one["seconds"]) for one in ran.not_steady("stalled")), default=None)
    checks.append(Check(name, "stall", STALL_SECONDS, longest, "s", within=0.5))
    changes = float(len(ran.not_steady("speed_changed")))
    checks.append(Check(name, "changes of speed", 0.0, changes))
    yield from ran.beside(checks)


def _ran_out(bed: Bed) -> Iterator[Check]:
    """A burst credit of so many bytes, which is full again when an epoch begins."""
    acts: list[tuple[int, Callable[[], None]]] = []
    epoch_bytes = PLAIN.dataset.files * PLAIN.dataset.sample_bytes
    epochs = PLAIN.steps * PLAIN.step_bytes // epoch_bytes
    for epoch in range(epochs):
        begin = int(epoch * epoch_bytes * METADATA)
        acts.append((begin, lambda: bed.drive.set_speed(_speed(FAST))))
        acts.append((begin + CREDIT_MB * MB, lambda: bed.drive.set_speed(_speed(SLOW))))
    with _acting(bed, *acts):
        ran = _run(bed, FAST)
    name = f"a burst credit of {CREDIT_MB} MB"
    out = next(iter(ran.not_steady("ran_out")), None)
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    times = float(out["times"]) if out else None
    checks.append(Check(name, "ran out, times", float(epochs), times))
    megabytes = 1000 * float(out["gb"]) if out else None
    checks.append(Check(name, "after", float(CREDIT_MB), megabytes, "MB", within=15, percent=True))
    lasts = float(out["mb_per_second_after"]) if out else None
    checks.append(Check(name, "what lasts", float(SLOW), lasts, "MB/s", within=10, percent=True))
    checks.append(advice(name, "a cache or burst credit", ran.advice))
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
    checks = [Check(name, "limited by", "storage", ran.limited_by)]
    others = 100 * (1 - float(ran.metrics["app_bytes"]) / (ran.watched_mb * MB))
    told = ran.found("other_program_on_drive")
    share = float(told[0]["percent"]) if told else None
    checks.append(Check(name, "others' share", others, share, "%", within=5))
    yield from ran.beside(checks)


def _quota(bed: Bed) -> Iterator[Check]:
    """The drive has no limit, and the run's control group less of a core than it asks for."""
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
    """Nothing happens: no change, no stall, nobody else."""
    ran = _run(bed, 90)
    checks = list(_check_steady("nothing happens", ran))
    others = str(ran.found("other_program_on_drive") or "nobody")
    checks.append(Check("nothing happens", "others", "nobody", others))
    yield from ran.beside(checks)


def _jitter(bed: Bed) -> Iterator[Check]:
    """Latencies that are drawn, by 8 readers on 4 channels: a slow storage, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(latency.SMALL, source)
        for jitter in ("uniform", "pareto"):
            with latency.model_mounted(source, latency.LATENCY_SECONDS, latency.CHANNELS, jitter) as mount:
                ran = latency.run(bed, mount, 2 * latency.CHANNELS)
            yield from ran.beside(_check_steady(f"latencies of {jitter} jitter", ran))


def _slow_folder(bed: Bed) -> Iterator[Check]:
    """One of eight sub-folders answers six times as late."""
    name, channels = f"folder {SLOW_FOLDER} of {FOLDERS.subfolders} is slow", 8
    mean_seconds = latency.LATENCY_SECONDS * (1 + (SLOW_TIMES - 1) / FOLDERS.subfolders)
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(FOLDERS, source)
        with latency.model_mounted(source, latency.LATENCY_SECONDS, channels, "uniform", SLOW_FOLDER) as mount:
            ran = latency.run(bed, mount, channels, dataset=FOLDERS, latency_seconds=mean_seconds, channels=channels)
    told = ran.found("slow_drive")
    named = ", ".join(one["folder"] for one in told)
    checks = [Check(name, "folders named", SLOW_FOLDER, named)]
    times = told[0]["ms_per_sample"] / told[0]["others_ms_per_sample"] if told else None
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
class Acted:
    """When it was done (of several the last), on CLOCK_MONOTONIC."""

    at_ns: int = 0


@contextlib.contextmanager
def _acting(bed: Bed, *acts: tuple[int, Callable[[], None]]) -> Iterator[Acted]:
    """Do each thing once so many bytes were read of the drive, in order, while the block lasts."""
    acted, ended = Acted(), threading.Event()
    bed.prepare(PLAIN.dataset)
    first = _sectors(bed)

    def wait() -> None:
        for after_bytes, act in acts:
            while (_sectors(bed) - first) * SECTOR_BYTES < after_bytes:
                if ended.wait(0.02):
                    return
            acted.at_ns = time.monotonic_ns()
            act()

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

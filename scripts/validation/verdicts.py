"""`limited_by` of runs whose limit is known, because it was made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from validation.bandwidth import ONE_MB, PAGES, Case
from validation.bed import Bed, Dataset, Ran
from validation.check import Check, advice
from validation.client import hogs
from validation.drive import Speed

UNLIMITED = Speed()
PICTURES = Dataset(name="png-200kb", format="png", sample_bytes=200_000, files=400)
COMMON = ("reader.read_threads=2", "reader.prefetch_size=4", "reader.file_shuffle=seed")
CORES_WANTED = 0.8
"""Cores that decoding needs. Beside another program on every core, four workers get less than half of that.

Workers have niceness 10 and thus weight 110, other programs 1024 (kernel: sched_prio_to_weight).
"""
BATCH, RANKS = 4, 2
ADVICE = {
    "decoding on every core": "more cores or fewer ranks",
    "another program on every core": "other programs use most of the cores",
}
"""Words that the advice must contain; it depends on which program has the cores."""

Known = tuple[str, str, Ran]
"""A case, its limit, and its run."""


def measure(bed: Bed) -> Iterator[Check]:
    """Check one case after another."""
    for runs in (_storage_runs, _cpu_runs, _other_runs):
        for name, limit, ran in runs(bed):
            yield from ran.beside(_check(name, limit, ran))


def _check(name: str, limit: str, ran: Ran) -> Iterator[Check]:
    yield Check(name, "limited by", limit, ran.limited_by)
    if name == "page cache":
        device, app = (float(ran.metrics[f"{name}_mb_per_second"]["mean"]) for name in ("device", "app"))
        yield Check(name, "device bytes / bytes read", 0.0, 100 * device / app, "%", within=2)
    if name == "one slow rank":
        ranks = ", ".join(str(numbers.get("rank")) for numbers in ran.found("slow_rank"))
        yield Check(name, "stragglers", "1", ranks)
    if name in ADVICE:
        yield advice(name, ADVICE[name], ran.advice)


def _storage_runs(bed: Bed) -> Iterator[Known]:
    yield "slow storage", "storage", replace(Case(ratio=2), mb_per_second=80.0).run(bed)
    few = Case(ratio=2, ranks=1, dataset=PAGES, batch=16, reads_per_second=300, seconds=5)
    ran = bed.train(few.dataset, *few.settings, "metric.scaling_seconds=2", speed=few.speed)
    yield "slow storage, few readers", "storage", ran


def _cpu_runs(bed: Bed) -> Iterator[Known]:
    decode = (*COMMON, "reader.decode=full")
    heavy = (*decode, "reader.batch_size=8", "train.computation_time=0.005", f"ranks={RANKS}", "reader.read_threads=4")
    decoded = bed.train(PICTURES, *heavy, "train.epochs=6", speed=UNLIMITED)
    yield "decoding on every core", "host CPU", decoded
    step_seconds = RANKS * BATCH * decoded.worker_cpu_seconds_per_sample / CORES_WANTED
    demand = (f"reader.batch_size={BATCH}", f"train.computation_time={step_seconds}", f"ranks={RANKS}")
    light = (*decode, *demand, "train.epochs=4")
    yield "decoding with cores to spare", "nothing", bed.train(PICTURES, *light, speed=UNLIMITED)
    with hogs():
        yield "another program on every core", "host CPU", bed.train(PICTURES, *light, speed=UNLIMITED)


def _other_runs(bed: Bed) -> Iterator[Known]:
    steady = (*COMMON, "reader.batch_size=2", "train.computation_time=0.02", "ranks=2", "train.total_training_steps=99")
    slow_rank = ("reader.data_loader=validation.slow_rank", "reader.odirect=true")
    yield "one slow rank", "storage", bed.train(ONE_MB, *steady, *slow_rank, speed=UNLIMITED)
    cached = (*steady, "train.epochs=2")
    bed.train(ONE_MB, *cached, speed=UNLIMITED)
    slow = Speed(read_bytes_per_second=50_000_000)
    yield "page cache", "nothing", bed.train(ONE_MB, *cached, speed=slow, cold=False)
    tiny = (*COMMON, "ranks=8", "train.computation_time=0.0002", "train.total_training_steps=50")
    yield "steps shorter than the emulator's own work", "emulator", bed.train(ONE_MB, *tiny, speed=UNLIMITED)

"""`limited_by` where the limit is known because it was put there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from validation.bandwidth import ONE_MB, Case
from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.client import hogs
from validation.drive import Speed

UNLIMITED = Speed()
PICTURES = Dataset(name="png-200kb", format="png", sample_bytes=200_000, files=400)
COMMON = ("reader.read_threads=2", "reader.prefetch_size=4", "reader.file_shuffle=seed")


def measure(bed: Bed) -> Iterator[Check]:
    """One case after another."""
    for name, right, ran in _runs(bed):
        yield from ran.beside(_check(name, right, ran))


def _check(name: str, right: str, ran: Ran) -> Iterator[Check]:
    yield Check(case=name, what="limited by", theory=right, measured=ran.limited_by)
    if name == "page cache":
        told = float(ran.metrics["device_bytes_percent_of_app"]["mean"])
        yield Check(case=name, what="device bytes / bytes read", theory=0.0, measured=told, unit="%", within=2)
    if name == "one slow rank":
        ranks = ", ".join(str(one["rank"]) for one in ran.summary["stragglers"])
        yield Check(case=name, what="stragglers", theory="1", measured=ranks)


def _runs(bed: Bed) -> Iterator[tuple[str, str, Ran]]:
    yield "slow storage", "storage", replace(Case(ratio=2), mb_per_second=80.0).run(bed)
    decoding = (*COMMON, "reader.decode=full", "reader.batch_size=8", "train.computation_time=0.005", "ranks=2")
    decoded = bed.train(PICTURES, *decoding, "reader.read_threads=4", "train.epochs=6", speed=UNLIMITED)
    yield "decoding on every core", "host CPU", decoded
    with hogs():
        mild = (*COMMON, "reader.decode=full", "reader.batch_size=4", "train.computation_time=0.08", "ranks=2")
        yield "another program on every core", "host CPU", bed.train(PICTURES, *mild, "train.epochs=2", speed=UNLIMITED)
    steady = (
        *COMMON,
        "reader.batch_size=2",
        "train.computation_time=0.02",
        "ranks=2",
        "train.total_training_steps=99",
    )
    slow_rank = ("reader.data_loader=validation.slow_rank", "reader.odirect=true")
    yield "one slow rank", "storage", bed.train(ONE_MB, *steady, *slow_rank, speed=UNLIMITED)
    cached = (*steady, "train.epochs=2")
    bed.train(ONE_MB, *cached, speed=UNLIMITED)
    slow = Speed(read_bytes_per_second=50_000_000)
    yield "page cache", "nothing", bed.train(ONE_MB, *cached, speed=slow, cold=False)
    tiny = (*COMMON, "ranks=8", "train.computation_time=0.0002", "train.total_training_steps=50")
    yield "steps shorter than the emulator's own work", "emulator", bed.train(ONE_MB, *tiny, speed=UNLIMITED)

"""One workload: samples/s and CPU of dlemu beside a plain read of its files, and beside a peer where one is given."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.bench import MB, Bench
from benchmarks.cases import Case
from benchmarks.figure import Figure, Unmeasured, compare
from benchmarks.peer import Peer, PeerFailed
from benchmarks.processes import run, run_together
from dlemu.config.schema import Reader

FEW_EPOCHS = 2
_PEER = "DLIO"
ROUNDS, PEER_ROUNDS = 3, 1
"""A round with a peer takes half a minute, most of it the peer's start."""


class Took(NamedTuple):
    """What reading took, free of start-up."""

    samples_per_second: float
    cpu_seconds_per_gb: float


def measure(case: Case, bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Compare dlemu with plain reads; then with the peer, which reads the dataset that dlemu made."""
    reading = _Reading(case, bench)
    for own, plain in _figures(reading.by_dlemu, reading.by_plain, bench, ROUNDS):
        what, unit, place = own
        wanted = case.plain_cost if place else None
        yield compare(what, unit, plain, "plain read of the same files", wanted)
    if bench.peer is None:
        return
    try:
        for own, pairs in _figures(reading.by_dlemu, partial(reading.by_peer, bench.peer), bench, PEER_ROUNDS):
            what, unit, place = own
            yield compare(what, unit, pairs, _PEER, case.peer_cost if place else case.peer_speed)
    except PeerFailed as error:
        yield Unmeasured(what="samples/s, CPU for each GB", who=_PEER, why=str(error))
    if case.peer_making:
        try:
            making = [(reading.made_by_dlemu(), reading.made_by_peer(bench.peer)) for _ in range(PEER_ROUNDS)]
            yield compare("datagen, 1 thread", "MB/s", making, _PEER, case.peer_making)
        except PeerFailed as error:
            yield Unmeasured(what="datagen, 1 thread", who=_PEER, why=str(error))


_WHATS = (("samples/s", "/s", 0), ("CPU for each GB", "s/GB", 1))


def _figures(
    own: Callable[[], Took], other: Callable[[], Took], bench: Bench, rounds: int
) -> Iterator[tuple[tuple[str, str, int], list[tuple[float, ...]]]]:
    took = bench.interleaved(rounds, own, other)
    for what in _WHATS:
        yield what, [(mine[what[2]], theirs[what[2]]) for mine, theirs in took]


class _Reading:
    """A dataset, and three ways to read it."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._epochs = FEW_EPOCHS + 1 if bench.quick else case.epochs
        self._dataset = case.dataset(bench.quick)
        self._folder = os.path.join(bench.folder, f"{case.format}-{case.record_bytes}")
        self._settings = (
            "workload=default",
            f"framework={_framework(case.loader)}",
            *(f"dataset.{name}={value}" for name, value in self._dataset.items()),
        )
        where = f"dataset.data_folder={self._folder}"
        if not os.path.exists(self._folder):
            bench.make_dataset(os.path.basename(self._folder), *self._settings)
        self._settings += (
            where,
            f"reader.data_loader={case.loader}",
            f"reader.batch_size={case.batch_size}",
            f"reader.read_threads={case.read_threads}",
            f"reader.computation_threads={case.read_threads}",
            f"reader.prefetch_size={2 * case.read_threads}",
            "train.computation_time=0",
            "metric.ceiling_seconds=0",
        )
        train = os.path.join(self._folder, "train")
        self._paths = [os.path.join(train, name) for name in sorted(os.listdir(train)) if name.endswith(case.format)]
        steps = int(self._dataset["num_files_train"]) * int(self._dataset["num_samples_per_file"]) // case.batch_size
        self._samples = steps * case.batch_size
        """Of an epoch."""

    def by_dlemu(self) -> Took:
        """Read by `dlemu train`."""
        few, many = (
            self._bench.train(*self._settings, f"train.epochs={epochs}") for epochs in (FEW_EPOCHS, self._epochs)
        )
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        rates = many.metrics["samples_per_second"]["per_epoch"][1:]
        return Took(statistics.median(rates), _slope(many.cpu_seconds - few.cpu_seconds, more_gb))

    def by_plain(self) -> Took:
        """Read by as many plain processes as dlemu has readers, each its share of the files."""
        epochs = str(max(1, self._epochs))
        readers = min(self._case.read_threads, len(self._paths), len(os.sched_getaffinity(0)))
        commands = [self._bench.module("plain_read", epochs, *self._paths[first::readers]) for first in range(readers)]
        told = [json.loads(output) for output in run_together(commands, niceness=Reader().nice)]
        read_bytes = sum(one["bytes"] for one in told)
        sample_bytes = read_bytes / int(epochs) / self._samples
        return Took(
            sum(one["bytes"] / one["wall_seconds"] for one in told) / sample_bytes,
            sum(one["cpu_seconds"] for one in told) / (read_bytes / 1e9),
        )

    def by_peer(self, peer: Peer) -> Took:
        """Read by DLIO, which finds the dataset that dlemu made."""
        loader = self._case.peer_loader or self._case.loader
        trained = partial(
            peer.train,
            self._folder,
            self._dataset,
            framework=_framework(loader),
            reader__data_loader=loader,
            reader__batch_size=self._case.batch_size,
            reader__read_threads=self._case.read_threads,
            reader__computation_threads=self._case.read_threads,
            reader__prefetch_size=2 * self._case.read_threads,
            train__computation_time=0,
        )
        (_, few_cpu), (seconds, many_cpu) = (trained(train__epochs=epochs) for epochs in (FEW_EPOCHS, self._epochs))
        more_gb = (self._epochs - FEW_EPOCHS) * sum(map(os.path.getsize, self._paths)) / 1e9
        return Took(self._case.batch_size / statistics.median(seconds[1:]), _slope(many_cpu - few_cpu, more_gb))

    def made_by_dlemu(self) -> float:
        """Return MB/s of datagen with one thread and without fsync, as the peer makes data."""
        made = self._folder + "-made"
        os.mkdir(made)
        try:
            sizes = self._dataset
            words = [str(sizes["num_files_train"]), str(sizes["record_length_bytes"]), "1", "0"]
            words += [str(sizes["format"]), str(sizes["num_samples_per_file"])]
            told = json.loads(run(self._bench.module("make_files", made, *words)).output)
            return float(told["bytes"] / told["wall_seconds"] / MB)
        finally:
            shutil.rmtree(made)

    def made_by_peer(self, peer: Peer) -> float:
        """Return MB/s of DLIO's generation."""
        made = self._folder + "-made"
        try:
            loader = self._case.peer_loader or self._case.loader  # DLIO makes tfrecord files for tensorflow only
            seconds = peer.make(made, self._dataset, framework=_framework(loader), reader__data_loader=loader)
            files = [entry for entry in os.scandir(os.path.join(made, "train")) if entry.is_file()]
            return sum(entry.stat().st_size for entry in files) / seconds / MB
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _slope(cpu_seconds: float, gb: float) -> float:
    """Return CPU seconds for each GB; NaN where start-up varied more than reading took."""
    return cpu_seconds / gb if cpu_seconds > 0 else math.nan


def _framework(loader: str) -> str:
    return "tensorflow" if loader == "tensorflow" else "pytorch"

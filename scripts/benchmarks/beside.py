"""One workload: samples/s and CPU of dlemu beside a plain read of its files, and beside a peer where one is given."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from measuring.runs import section

from benchmarks.bench import MB, Bench
from benchmarks.cases import Case
from benchmarks.figure import Figure, Unmeasured, compare, each, ratio_at_least, ratio_at_most
from benchmarks.peer import Peer, PeerFailed
from benchmarks.peer_columns import check_reading, peer_columns, peer_subset
from datagen.formats.format_base import Source
from datagen.formats.parquet import Format
from datagen.layout import nominal_sample_bytes
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu.config import load

FEW_EPOCHS = 2
_PEER = "DLIO"
_BATCHES_AHEAD, _BATCHES_HELD = 2, 2
"""Of each of dlemu's readers; and of its trainer, which is handed one while it trains on another."""
_DEFAULT_ENGINE = "fast"
"""The bounds are its own."""
ROUNDS = 3
"""With a peer each takes half a minute, most of it the peer's start."""


class Took(NamedTuple):
    """What reading took, free of start-up."""

    samples_per_second: float
    mb_per_second: float
    cpu_seconds_per_gb: float
    pss_mb: float
    """The most memory that all processes together held at any look; NaN without a look."""


def measure(case: Case, bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Compare dlemu with plain reads; then with the peer, which reads the dataset that dlemu made."""
    reading = _Reading(case, bench)
    into_batches = case.fills_places or reading.reads_columns
    ways = [reading.by_dlemu, reading.by_plain] + [reading.by_plain_batches] * into_batches
    rounds = bench.interleaved(ROUNDS, *ways)
    yield from _figures(
        [took[:2] for took in rounds], bench, "plain read of the same bytes", case.plain_speed, case.plain_cost
    )
    if into_batches:
        yield from each(
            [(took[0], took[2]) for took in rounds],
            "plain read into batches",
            (f"samples/s{_how(bench)}", "/s", "samples_per_second", None),
            (f"CPU for each GB{_how(bench)}", "s/GB", "cpu_seconds_per_gb", None),
        )
    if bench.peer is None:
        return
    by_peer = partial(reading.by_peer, bench.peer)
    try:
        rounds = bench.interleaved(ROUNDS, reading.by_dlemu, by_peer)
        yield from _figures(rounds, bench, _PEER, case.peer_speed, case.peer_cost)
    except PeerFailed as error:
        yield Unmeasured(what="samples/s, CPU for each GB", who=_PEER, why=str(error))
    if case.peer_making:
        try:
            making = [(reading.made_by_dlemu(), reading.made_by_peer(bench.peer))]
            yield compare("datagen, 1 thread", "MB/s", making, _PEER, ratio_at_least(case.peer_making))
        except PeerFailed as error:
            yield Unmeasured(what="datagen, 1 thread", who=_PEER, why=str(error))


def _figures(
    rounds: Sequence[tuple[Took, ...]], bench: Bench, beside: str, speed: float | None, cost: float | None
) -> Iterator[Figure]:
    """Compare two ways to read, given as (dlemu, beside) of each round; other engines are held to no bound."""
    judged, how = bench.engine == _DEFAULT_ENGINE, _how(bench)
    yield from each(
        rounds,
        beside,
        ("samples/s" + how, "/s", "samples_per_second", ratio_at_least(speed) if judged and speed else None),
        ("MB/s" + how, "MB/s", "mb_per_second", None),
        ("CPU for each GB" + how, "s/GB", "cpu_seconds_per_gb", ratio_at_most(cost) if judged and cost else None),
        ("memory (PSS)" + how, "MB", "pss_mb", None),
    )


def _how(bench: Bench) -> str:
    """Return what is not as it is by default, for a figure's name."""
    ranks = f", {bench.ranks} ranks" if bench.ranks > 1 else ""
    return ranks + (f", {bench.engine} engine" if bench.engine != _DEFAULT_ENGINE else "")


class _Reading:
    """A dataset, and three ways to read it."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._epochs = FEW_EPOCHS + 1 if bench.quick else case.epochs
        self._peer_epochs = min(self._epochs, case.peer_epochs or self._epochs)
        self._dataset = case.dataset(bench.quick)
        self._columns = load([f"workload={case.workload}"]).dataset
        self.reads_columns = bool(self._columns.parquet.columns)
        made = {} if bench.quick or not case.making_files else {"num_files_train": case.making_files}
        self._made = self._dataset | made
        self._folder = os.path.join(bench.folder, f"{case.workload}-{case.format}-{case.record_bytes}")
        self._settings = (
            f"workload={case.workload}",
            f"framework={_framework(case.loader)}",
            *(f"dataset.{name}={value}" for name, value in self._dataset.items()),
        )
        where = f"dataset.data_folder={self._folder}"
        if not os.path.exists(self._folder):
            bench.make_dataset(os.path.basename(self._folder), *self._settings)
        self._settings += (
            where,
            f"ranks={bench.ranks}",
            *section("reader", data_loader=case.loader, engine=bench.engine, batch_size=case.batch_size),
            *section("reader", read_threads=case.read_threads, computation_threads=case.read_threads),
            *section("reader", prefetch_size=2 * case.read_threads),
            "train.computation_time=0",
            "metric.ceiling_seconds=0",
        )
        train = os.path.join(self._folder, "train")
        self._paths = [os.path.join(train, name) for name in sorted(os.listdir(train)) if name.endswith(case.format)]
        self._all_samples = int(self._dataset["num_files_train"]) * int(self._dataset["num_samples_per_file"])
        self._batch = case.batch_size * bench.ranks
        """Samples of a step of all ranks."""
        self._samples = self._all_samples // self._batch * self._batch
        """Of an epoch."""
        self._sample_mb = sum(map(os.path.getsize, self._paths)) / self._all_samples / MB
        """Of the files' bytes."""

    def by_dlemu(self) -> Took:
        """Read by `dlemu train`."""
        few, many = (
            self._bench.train(*self._settings, f"train.epochs={epochs}") for epochs in (FEW_EPOCHS, self._epochs)
        )
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        rate = statistics.median(many.metrics["samples_per_second"]["per_epoch"][1:])
        cpu_seconds = many.cpu_seconds - few.cpu_seconds
        read_mb = many.metrics["app_bytes"] / (self._samples * self._epochs) / MB
        return Took(rate, rate * read_mb, _slope(cpu_seconds, more_gb), _mb(many.pss_bytes))

    def by_plain(self) -> Took:
        """Read by as many plain processes as dlemu has readers, each file or batch to the same place in memory."""
        return self._by_plain(batches=0)

    def by_plain_batches(self) -> Took:
        """The same into as much memory as dlemu's batches have, one behind the other."""
        threads = self._case.read_threads
        return self._by_plain(batches=-(-(_BATCHES_AHEAD * threads + _BATCHES_HELD) // threads))

    def _by_plain(self, batches: int) -> Took:
        """Read by plain processes, each its share of the files: of those with columns the bytes that dlemu reads.

        Each has memory for so many batches, or for one file or the columns of one batch.
        """
        epochs = max(1, self._epochs)
        readers = min(self._case.read_threads * self._bench.ranks, len(self._paths), len(os.sched_getaffinity(0)))
        shares = [self._paths[first::readers] for first in range(readers)]
        if self.reads_columns:
            words = [("spans", epochs, max(1, batches), self._spans_of(*numbered)) for numbered in enumerate(shares)]
        else:
            places = max(1, batches * self._case.batch_size)
            words = [("read", epochs, places, 0, "cache", *share) for share in shares]
        took, read_bytes = self._bench.plain_together([("plain_files", *command) for command in words])
        sample_mb = read_bytes / MB / (self._all_samples * epochs)
        return Took(took.mb_per_second / sample_mb, *took, math.nan)

    def _spans_of(self, number: int, paths: Sequence[str]) -> str:
        """Write where in the files the columns lie that are read for each batch; return that file's path.

        A row group that two batches share is there twice, as it is read by both.
        """
        rows, batch_size = int(self._dataset["num_samples_per_file"]), self._case.batch_size
        spec, listed, storage = replace(self._columns, num_samples_per_file=rows), [], open_storage(FOLDERS)
        for path in paths:
            reader = storage.open(path)
            groups = Format().open_groups(Source(path, reader, storage.alignment), spec)
            batches = [groups.groups_of(first, min(batch_size, rows - first)) for first in range(0, rows, batch_size)]
            listed.append([path, [[span for group in batch for span in groups.spans(group)] for batch in batches]])
            reader.close()
        name = f"{self._folder}-spans-{number}.json"
        with open(name, "w", encoding="utf-8") as out:
            json.dump(listed, out)
        return name

    def by_peer(self, peer: Peer) -> Took:
        """Read by DLIO, which finds the dataset that dlemu made."""
        loader = self._case.peer_loader or self._case.loader
        trained = partial(
            peer.train,
            self._folder,
            self._dataset | peer_columns(self._columns),
            self._bench.ranks,
            framework=_framework(loader),
            reader__data_loader=loader,
            reader__batch_size=self._case.batch_size,
            reader__read_threads=self._case.read_threads,
            reader__computation_threads=self._case.read_threads,
            reader__prefetch_size=2 * self._case.read_threads,
            train__computation_time=0,
            **peer_subset(self._columns),
        )
        few, many = (trained(train__epochs=epochs) for epochs in (FEW_EPOCHS, self._peer_epochs))
        more_gb = (self._peer_epochs - FEW_EPOCHS) * self._samples * self._sample_mb / 1e3
        if self.reads_columns:
            more_columns_gb = (
                (self._peer_epochs - FEW_EPOCHS) * self._samples * nominal_sample_bytes(self._columns) / 1e9
            )
            check_reading((many.read_bytes - few.read_bytes) / 1e9, more_columns_gb)
        rate = self._batch / statistics.median(many.step_seconds[1:])
        cpu_seconds = many.cpu_seconds - few.cpu_seconds
        return Took(rate, rate * self._sample_mb, _slope(cpu_seconds, more_gb), _mb(many.pss_bytes))

    def made_by_dlemu(self) -> float:
        """Return MB/s of datagen with one thread and without fsync, as the peer makes data."""
        made = self._folder + "-made"
        os.mkdir(made)
        try:
            words = [f"{name}={value}" for name, value in self._made.items()]
            took = self._bench.plain("make_files", made, 1, 0, self._case.workload, *words)
            return float(took["bytes"] / took["wall_seconds"] / MB)
        finally:
            shutil.rmtree(made)

    def made_by_peer(self, peer: Peer) -> float:
        """Return MB/s of DLIO's generation."""
        made = self._folder + "-made"
        try:
            loader = self._case.peer_loader or self._case.loader  # DLIO makes tfrecord files for tensorflow only
            dataset = self._made | peer_columns(self._columns)
            seconds = peer.make(made, dataset, framework=_framework(loader), reader__data_loader=loader)
            files = [entry for entry in os.scandir(os.path.join(made, "train")) if entry.is_file()]
            return sum(entry.stat().st_size for entry in files) / seconds / MB
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _mb(pss_bytes: int) -> float:
    return pss_bytes / MB if pss_bytes else math.nan


def _slope(cpu_seconds: float, gb: float) -> float:
    """Return CPU seconds for each GB; NaN where start-up varied more than reading took."""
    return cpu_seconds / gb if cpu_seconds > 0 else math.nan


def _framework(loader: str) -> str:
    return "tensorflow" if loader == "tensorflow" else "pytorch"

"""One workload: samples/s and CPU of dlemu compared with a plain read of its files and, if given, with a peer."""

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
_READER_BATCHES, _TRAINER_BATCHES = 2, 2
"""Batches in memory: of each of dlemu's readers; and of its trainer, which receives one while it trains on another."""
_DEFAULT_ENGINE = "fast"
"""The engine for which the bounds hold."""
ROUNDS = 3
"""With a peer, each takes half a minute, mostly for the peer's start."""


class Took(NamedTuple):
    """Rates, cost and memory of reading, without start-up."""

    samples_per_second: float
    mb_per_second: float
    cpu_seconds_per_gb: float
    pss_mb: float
    """Maximum memory of all processes together; NaN if it was not sampled."""


def measure(case: Case, bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Compare dlemu with plain reads, and then with the peer, which reads the dataset that dlemu made."""
    reading = _Reading(case, bench)
    into_batches = case.reads_into_batch or reading.reads_columns
    readers = [reading.by_dlemu, reading.by_plain]
    if into_batches:
        readers.append(reading.by_plain_batches)
    rounds = bench.interleaved(ROUNDS, *readers)
    yield from _figures(
        [took[:2] for took in rounds], bench, "plain read of the same bytes", case.plain_speed, case.plain_cost
    )
    if into_batches:
        yield from each(
            [(took[0], took[2]) for took in rounds],
            "plain read into batches",
            (f"samples/s{_options(bench)}", "/s", "samples_per_second", None),
            (f"CPU for each GB{_options(bench)}", "s/GB", "cpu_seconds_per_gb", None),
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
    """Compare rounds of (dlemu, beside). Only the default engine is judged by the bounds."""
    judged, options = bench.engine == _DEFAULT_ENGINE, _options(bench)
    yield from each(
        rounds,
        beside,
        ("samples/s" + options, "/s", "samples_per_second", ratio_at_least(speed) if judged and speed else None),
        ("MB/s" + options, "MB/s", "mb_per_second", None),
        ("CPU for each GB" + options, "s/GB", "cpu_seconds_per_gb", ratio_at_most(cost) if judged and cost else None),
        ("memory (PSS)" + options, "MB", "pss_mb", None),
    )


def _options(bench: Bench) -> str:
    """Return the options that differ from their defaults, for a figure's name."""
    ranks = f", {bench.ranks} ranks" if bench.ranks > 1 else ""
    return ranks + (f", {bench.engine} engine" if bench.engine != _DEFAULT_ENGINE else "")


class _Reading:
    """A dataset that is read by dlemu, by plain processes and by the peer."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._epochs = FEW_EPOCHS + 1 if bench.quick else case.epochs
        self._peer_epochs = min(self._epochs, case.peer_epochs or self._epochs)
        self._dataset = case.dataset(bench.quick)
        self._columns = load([f"workload={case.workload}"]).dataset
        self.reads_columns = bool(self._columns.parquet.columns)
        files = {} if bench.quick or not case.making_files else {"num_files_train": case.making_files}
        self._dataset_to_make = self._dataset | files
        self._folder = os.path.join(bench.folder, f"{case.workload}-{case.format}-{case.record_bytes}")
        self._settings = (
            f"workload={case.workload}",
            f"framework={_framework(case.loader)}",
            *(f"dataset.{name}={value}" for name, value in self._dataset.items()),
        )
        if not os.path.exists(self._folder):
            bench.make_dataset(os.path.basename(self._folder), *self._settings)
        self._settings += (
            f"dataset.data_folder={self._folder}",
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
        """Samples of all ranks in a step."""
        self._samples = self._all_samples // self._batch * self._batch
        """Samples of all ranks in an epoch."""
        self._sample_mb = sum(map(os.path.getsize, self._paths)) / self._all_samples / MB
        """Bytes of the files per sample, MB."""

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
        """Read by as many plain processes as dlemu has readers, each with one buffer, of a file or batch."""
        return self._by_plain(batches=0)

    def by_plain_batches(self) -> Took:
        """Read by plain processes with as many buffers as dlemu has."""
        threads = self._case.read_threads
        return self._by_plain(batches=-(-(_READER_BATCHES * threads + _TRAINER_BATCHES) // threads))

    def _by_plain(self, batches: int) -> Took:
        """Read by plain processes, each its share of the files; of files with columns, the bytes that dlemu reads.

        Each process has buffers for so many batches; if 0, for one file, or for the columns of one batch.
        """
        epochs = max(1, self._epochs)
        readers = min(self._case.read_threads * self._bench.ranks, len(self._paths), len(os.sched_getaffinity(0)))
        shares = [self._paths[first::readers] for first in range(readers)]
        if self.reads_columns:
            modes = [("spans", epochs, max(1, batches), self._spans_of(*numbered)) for numbered in enumerate(shares)]
        else:
            buffers = max(1, batches * self._case.batch_size)
            modes = [("read", epochs, buffers, 0, "cache", *share) for share in shares]
        took, read_bytes = self._bench.plain_together([("plain_files", *mode) for mode in modes])
        sample_mb = read_bytes / MB / (self._all_samples * epochs)
        return Took(took.mb_per_second / sample_mb, *took, math.nan)

    def _spans_of(self, number: int, paths: Sequence[str]) -> str:
        """Write the spans of the columns that each batch reads to a file; return its path.

        A row group that two batches share is in both, because both read it.
        """
        rows, batch_size = int(self._dataset["num_samples_per_file"]), self._case.batch_size
        spec, spans_by_file, storage = replace(self._columns, num_samples_per_file=rows), [], open_storage(FOLDERS)
        for path in paths:
            reader = storage.open(path)
            groups = Format().open_groups(Source(path, reader, storage.alignment), spec)
            batches = [groups.groups_of(first, min(batch_size, rows - first)) for first in range(0, rows, batch_size)]
            spans = [[span for group in batch for span in groups.spans(group)] for batch in batches]
            spans_by_file.append([path, spans])
            reader.close()
        name = f"{self._folder}-spans-{number}.json"
        with open(name, "w", encoding="utf-8") as out:
            json.dump(spans_by_file, out)
        return name

    def by_peer(self, peer: Peer) -> Took:
        """Read the dataset that dlemu made by DLIO."""
        loader = self._case.peer_loader or self._case.loader
        train = partial(
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
        few, many = (train(train__epochs=epochs) for epochs in (FEW_EPOCHS, self._peer_epochs))
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
        folder = self._folder + "-made"
        os.mkdir(folder)
        try:
            settings = [f"{name}={value}" for name, value in self._dataset_to_make.items()]
            result = self._bench.plain("make_files", folder, 1, 0, self._case.workload, *settings)
            return float(result["bytes"] / result["wall_seconds"] / MB)
        finally:
            shutil.rmtree(folder)

    def made_by_peer(self, peer: Peer) -> float:
        """Return MB/s of DLIO's generation."""
        folder = self._folder + "-made"
        try:
            loader = self._case.peer_loader or self._case.loader  # DLIO makes tfrecord files for tensorflow only
            dataset = self._dataset_to_make | peer_columns(self._columns)
            seconds = peer.make(folder, dataset, framework=_framework(loader), reader__data_loader=loader)
            files = [entry for entry in os.scandir(os.path.join(folder, "train")) if entry.is_file()]
            return sum(entry.stat().st_size for entry in files) / seconds / MB
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _mb(pss_bytes: int) -> float:
    return pss_bytes / MB if pss_bytes else math.nan


def _slope(cpu_seconds: float, gb: float) -> float:
    """Return CPU seconds per GB; NaN if start-up varied by more than reading took."""
    return cpu_seconds / gb if cpu_seconds > 0 else math.nan


def _framework(loader: str) -> str:
    return "tensorflow" if loader == "tensorflow" else "pytorch"

"""objects: how much of the speed of a plain client reaches the trainer from an object store, and its CPU time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, compare, ratio_at_least, ratio_at_most
from benchmarks.processes import run, run_together
from benchmarks.read import READERS, Took
from dlemu.config.schema import Reader

SIZES = {"128 KiB": (131_072, 3200), "8 MB": (8_000_000, 64), "150 MB": (150_000_000, 4)}
"""Name -> bytes of an object, and how many: as many batches for each worker, and an epoch of some 0.5 s."""
QUICK_OBJECTS = 4
ROUNDS = 3
FEW_EPOCHS, MANY_EPOCHS = 2, 10
BUCKET = "bucket"
BARE = f"{READERS} processes, bare sockets"


def measure(bench: Bench) -> Iterator[Figure]:
    """A server that holds the objects in memory, nothing computes, one rank with two workers."""
    for name, (size_bytes, objects) in SIZES.items():
        with _server() as endpoint:
            fetching = _Fetching(bench, endpoint, size_bytes, QUICK_OBJECTS if bench.quick else objects)
            small = size_bytes < MB
            clients = _clients() if small else {"bare": BARE}
            rounds = bench.interleaved(
                ROUNDS, fetching.by_dlemu, *(partial(fetching.by_plain, client) for client in clients)
            )
        for place, (client, beside) in enumerate(clients.items(), 1):
            pairs = [(took[0], took[place]) for took in rounds]
            speeds = [(own.mb_per_second, plain.mb_per_second) for own, plain in pairs]
            costs = [(own.cpu_seconds_per_gb, plain.cpu_seconds_per_gb) for own, plain in pairs]
            wanted = ratio_at_least(0.95) if client == "bare" else None
            yield compare(f"GET of {name}, bytes/s", "MB/s", speeds, beside, wanted)
            # Of small samples most is the emulator's own for each sample, which `scripts/bench read` does not see.
            yield compare(f"GET of {name}, CPU", "s/GB", costs, beside, None if small else ratio_at_most(1.3))


def _clients() -> dict[str, str]:
    """Return the plain clients that show of what the distance is made, and what they are called."""
    obstore = {"obstore": f"{READERS} processes, obstore"} if importlib.util.find_spec("obstore") else {}
    return {"bare": BARE, "signed": f"{READERS} processes, signed sockets"} | obstore


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """Run a server of unlimited speed; give its address."""
    command = [sys.executable, "-m", "validation.object_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class _Fetching:
    """The objects, and both ways to fetch them."""

    def __init__(self, bench: Bench, endpoint: str, size_bytes: int, objects: int) -> None:
        self._bench = bench
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            os.environ.setdefault(name, "of-the-benchmark")
        self._settings = (
            "storage.storage_type=s3",
            f"storage.storage_root={BUCKET}",
            f"storage.storage_options.endpoint_url={endpoint}",
            "dataset.data_folder=set",
            "dataset.format=npy",
            f"dataset.num_files_train={objects}",
            f"dataset.record_length_bytes={size_bytes}",
        )
        run(bench.dlemu("datagen", *self._settings))
        address = urlsplit(endpoint)
        self._host, self._port = str(address.hostname), str(address.port)
        digits = len(str(objects))
        self._keys = [f"set/train/img_{n:0{digits}}_of_{objects}.npy" for n in range(objects)]
        self._batch = max(1, min(32, objects // 8))

    def by_dlemu(self) -> Took:
        """Read by `dlemu train`."""
        settings = (
            *self._settings,
            f"reader.read_threads={READERS}",
            f"reader.batch_size={self._batch}",
            "reader.prefetch_size=4",
            "train.computation_time=0",
        )
        few, many = (self._bench.train(*settings, f"train.epochs={epochs}") for epochs in (FEW_EPOCHS, MANY_EPOCHS))
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        by_epoch = many.metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), (many.cpu_seconds - few.cpu_seconds) / more_gb)

    def by_plain(self, client: str) -> Took:
        """Read by plain processes, each its share of the objects, at the niceness that dlemu gives its workers."""
        settings = client, str(MANY_EPOCHS), "1", self._host, self._port, BUCKET
        commands = [self._bench.module("plain_get", *settings, *self._keys[first::READERS]) for first in range(READERS)]
        took = [json.loads(output) for output in run_together(commands, niceness=Reader().nice)]
        return Took(
            sum(one["bytes"] / one["wall_seconds"] for one in took) / MB,
            sum(one["cpu_seconds"] for one in took) / (sum(one["bytes"] for one in took) / 1e9),
        )

"""objects: rate and CPU time of reading from an object store, compared with plain clients."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from measuring.runs import BUCKET, bucket, section

from benchmarks.bench import MB, Bench, Took
from benchmarks.figure import Figure, each, ratio_at_least, ratio_at_most
from benchmarks.read import READERS


class Size(NamedTuple):
    """The objects of a bucket, and how they are read. An epoch has tens of batches, and takes about half a second."""

    object_bytes: int
    objects: int
    batch: int
    epochs: int
    """Epochs of dlemu's longer run, which reads 8 GB more than the shorter one, so that start-up's noise is small."""


SIZES = {
    "128 KiB": Size(131_072, 3200, 32, 18),
    "8 MB": Size(8_000_000, 128, 2, 12),
    "150 MB": Size(150_000_000, 12, 1, 8),
}
QUICK_OBJECTS = 4
FEW_EPOCHS = 2
PLAIN_EPOCHS = 5
"""Epochs of the plain clients, the first of which is not counted."""
ROUNDS = 3
BARE = f"{READERS} processes, bare sockets"


def measure(bench: Bench) -> Iterator[Figure]:
    """Compare one rank with two workers, without computation, with plain clients of a server in memory."""
    for name, size in SIZES.items():
        small = size.object_bytes < MB
        clients = _clients(signed=small)
        with server() as endpoint:
            fetching = _Fetching(bench, endpoint, size)
            rounds = bench.interleaved(
                ROUNDS, fetching.by_dlemu, *(partial(fetching.by_plain, client) for client in clients)
            )
        for index, (client, description) in enumerate(clients.items(), 1):
            # With small objects, no real client is as fast as sockets that neither sign nor check nor retry.
            is_judged = client == "obstore" or not small
            yield from each(
                [(results[0], results[index]) for results in rounds],
                description,
                (f"GET of {name}, bytes/s", "MB/s", "mb_per_second", ratio_at_least(0.95) if is_judged else None),
                (f"GET of {name}, CPU", "s/GB", "cpu_seconds_per_gb", ratio_at_most(1.3) if is_judged else None),
            )


def _clients(*, signed: bool) -> dict[str, str]:
    """Return client of `plain_get` -> its description."""
    clients = {"bare": BARE}
    if signed:
        clients["signed"] = f"{READERS} processes, signed sockets"
    if importlib.util.find_spec("obstore"):
        clients["obstore"] = f"{READERS} processes, obstore"
    return clients


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run an object server of unlimited speed; yield its address."""
    command = [sys.executable, "-m", "tests.object_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class _Fetching:
    """A bucket of objects that is read by dlemu and by plain clients."""

    def __init__(self, bench: Bench, endpoint: str, size: Size) -> None:
        self._bench, self._size = bench, size
        objects = QUICK_OBJECTS if bench.quick else size.objects
        self._settings = (
            *bucket(endpoint),
            *section("dataset", data_folder="set", format="npy", num_files_train=objects),
            *section("dataset", record_length_bytes=size.object_bytes),
        )
        bench.dlemu("datagen", *self._settings)
        address = urlsplit(endpoint)
        self._host, self._port = str(address.hostname), str(address.port)
        digits = len(str(objects))
        self._keys = [f"set/train/img_{n:0{digits}}_of_{objects}.npy" for n in range(objects)]
        self._batch = min(size.batch, objects // READERS)

    def by_dlemu(self) -> Took:
        """Read by `dlemu train`."""
        settings = (
            *self._settings,
            *section("reader", read_threads=READERS, batch_size=self._batch, prefetch_size=4),
            "train.computation_time=0",
        )
        return self._bench.by_difference(*settings, fewer=FEW_EPOCHS, more=self._size.epochs)

    def by_plain(self, client: str) -> Took:
        """Read by plain processes, each its share of the objects, with the niceness of dlemu's workers."""
        settings = "plain_get", client, PLAIN_EPOCHS, 1, self._host, self._port, BUCKET
        return self._bench.plain_together([(*settings, *self._keys[n::READERS]) for n in range(READERS)])[0]

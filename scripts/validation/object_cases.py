"""AU, limit and requests with an object store of known rate and latency; and the listing of a million keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from measuring.runs import BUCKET, bucket

from datagen.generate import files_of
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageSpec
from tests.object_server import Behaviour, ObjectServer
from validation.bandwidth import MB, Case
from validation.bed import Bed, Dataset, Ran
from validation.check import Check, advice

SAMPLES = Dataset(name="objects-1mb", format="npz", sample_bytes=MB, files=400)
KEYS = 1_000_000
KEYS_PER_PAGE = 1000
ENOUGH_REQUESTS = 8
"""With so many requests in flight, a slow first byte is the server's fault (docs/metrics.md, section 6)."""


@dataclass(frozen=True, kw_only=True)
class ObjectCase(Case):
    """A run on a server of known rate (`mb_per_second`) or, if `latency_seconds` is not 0, of known latency."""

    dataset: Dataset = SAMPLES
    odirect: bool = False
    latency_seconds: float = 0.0
    io_depth: int = 1

    @property
    def name(self) -> str:
        rate = f"{1000 * self.latency_seconds:g} ms" if self.latency_seconds else f"{self.mb_per_second:g} MB/s"
        return (
            f"{self.ratio:g}: {rate}, {self.ranks} ranks, {self.batch} x 1 MB, io_depth {self.io_depth}, {self.loader}"
        )

    @property
    def drive_seconds(self) -> float:
        """Time that the server takes for a step of all ranks; a worker has `io_depth` requests in flight."""
        if self.latency_seconds:
            return self.latency_seconds * -(-self.batch // self.io_depth) / self.threads
        return self.step_bytes / (self.mb_per_second * MB)

    def on(self, server: ObjectServer) -> list[str]:
        """Return dlemu's settings of the case on a server."""
        return [
            *self.settings,
            *bucket(server.endpoint),
            f"reader.io_depth={self.io_depth}",
            "metric.scaling_seconds=1",
        ]


RATES = (*(ObjectCase(ratio=ratio) for ratio in (0.8, 1.25, 2, 4)), ObjectCase(ratio=2, batch=4, io_depth=4))
LATENCIES = (
    ObjectCase(ratio=2, latency_seconds=0.2),
    ObjectCase(ratio=2, latency_seconds=0.2, batch=4, io_depth=4),
    ObjectCase(ratio=0.8, latency_seconds=0.2, batch=4, io_depth=4),
)


def measure(bed: Bed) -> Iterator[Check]:
    """Check one case after another, on one server; then the listing."""
    with ObjectServer() as server:
        bed.generate(SAMPLES, f"s3://{BUCKET}", *bucket(server.endpoint))
        for case in (*RATES, *LATENCIES):
            server.behaviour = Behaviour(
                bytes_per_second=0 if case.latency_seconds else case.mb_per_second * MB,
                latency_seconds=case.latency_seconds,
            )
            ran = bed.train_on(f"s3://{BUCKET}", case.dataset, *case.on(server))
            yield from ran.beside(_checks(case, ran))
    yield from _listing()


def _checks(case: ObjectCase, ran: Ran) -> Iterator[Check]:
    yield Check(case.name, "au", case.au_percent, ran.au_percent, "%", within=2)
    has_few_requests = case.latency_seconds > 0 and case.ranks * case.threads * case.io_depth < ENOUGH_REQUESTS
    limit = "nothing" if case.ratio < 1 else "loader" if has_few_requests else "storage"
    yield Check(case.name, "limited by", limit, ran.limited_by)
    if limit == "storage":
        part = "network" if ran.found("network_full") else "server"
        yield Check(case.name, "of it", "server", part)
    if limit == "loader":
        yield advice(case.name, "reader.io_depth", ran.advice)
    requests = ran.summary["requests"]
    percent = 100 * float(requests["get"]) / float(ran.metrics["samples"])
    yield Check(case.name, "GET / samples", 100.0, percent, "%", within=2)
    if case.latency_seconds:
        first_ms = float(requests["first_byte_ms"]["p50"])
        latency_ms = 1000 * case.latency_seconds
        yield Check(case.name, "first byte", latency_ms, first_ms, "ms", within=10, percent=True)


def _listing() -> Iterator[Check]:
    """List a million keys, as rank 0 does before a run: there must be one request per page."""
    spec = DatasetSpec(data_folder="set", format="npz", num_files_train=KEYS, record_length_bytes=MB)
    with ObjectServer(Behaviour(listed_keys=KEYS, listed_bytes=0)) as server:
        storage = StorageSpec(type="s3", root=BUCKET, options=(("endpoint_url", server.endpoint),))
        server.behaviour.listed_bytes = _file_bytes(spec)
        start = time.monotonic()
        found = inspect(spec, storage=storage)
        seconds = time.monotonic() - start
        lists = sum("list-type" in request.query for request in server.requests)
    case = f"{KEYS:,} keys"
    yield Check(case, "files found", float(KEYS), float(found.train.num_files))
    pages = float(KEYS // KEYS_PER_PAGE)
    yield Check(case, "list requests", pages, float(lists), within=8)
    yield Check(case, "seconds", 0.0, seconds, "s", within=60)


def _file_bytes(spec: DatasetSpec) -> int:
    sizes = files_of(spec).sizes
    assert sizes is not None
    return int(sizes[0])

"""`dlemu kvcache` compared with queueing theory, on drives and servers of known speed, and with MLPerf's kv-cache.py.

The official tool is run if DLEMU_KV_CACHE_BENCHMARK names a folder kv_cache_benchmark of mlcommons/storage or of a fork
(docs/kvcache.md says which, and what is fixed in the copy that runs).
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet
from benchmarks.processes import run
from measuring.runs import BUCKET, Wrap, bucket, run_job
from numpy.typing import NDArray

from tests.object_server import Behaviour, ObjectServer, Request
from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed
from validation.watch import Watch, watching

OFFICIAL = "DLEMU_KV_CACHE_BENCHMARK"
GIB = 2**30
DRIVE_BYTES_PER_SECOND = 26_000_000
WITHIN_PERCENT = 5.0
SERVER_PERCENT = 8.0
"""Tolerance for loads from the object server, whose own work takes 1 to 3 ms per request."""
_BLOCK_SECONDS = 0.4
"""Latency of a request to the server, long compared with the server's own work."""
_STALL_SECONDS, _STALL_AT = 5.0, 40
"""The 40th request takes so much longer."""
_OFFICIAL_SECONDS, _OFFICIAL_USERS = 40, 8
_TINY = ("kv.layers=12", "kv.kv_heads=4", "kv.head_dim=128")
"""The tool's model tiny-1b: 24,576 bytes per token."""
_FIX = ("    def _print_summary(self, summary: Dict):\n", "        cache_stats = summary['cache_stats']\n")
"""A line of the tool, and the line that the fork lacks after it: the tool fails with a NameError before it writes."""


def measure(bed: Bed) -> Iterator[Check]:
    """Check the FIFO model on a drive, what FIFO can't know on servers, and the official load on a drive."""
    yield from _on_a_drive(bed)
    yield from _closed(bed)
    yield from _on_servers()
    yield from _own_official(bed)
    yield from _official_tool(bed)


# loads and theory


@dataclass(frozen=True, eq=False)
class Loads:
    """The loads that a run measured, and its requests to the storage."""

    summary: Mapping[str, Any]
    rows: Mapping[str, NDArray[np.int64]]

    @property
    def read(self) -> NDArray[np.bool_]:
        is_read: NDArray[np.bool_] = (self.rows["prompt"] >= 0) & (self.rows["storage_blocks"] > 0)
        return is_read

    @property
    def block_bytes(self) -> float:
        """Bytes of a block as stored."""
        return float(self.rows["read_bytes"][self.read].sum() / self.rows["storage_blocks"][self.read].sum())

    @property
    def read_bytes(self) -> int:
        """Bytes of the loads that were read completely."""
        return int(self.rows["read_bytes"][self.read & (self.rows["loaded_ns"] > 0)].sum())

    def measured(self) -> NDArray[np.float64]:
        """Return how long each load took."""
        seconds: NDArray[np.float64] = (self.rows["loaded_ns"] - self.rows["arrived_ns"])[self.read] / 1e9
        return seconds

    def fifo(self, bytes_per_second: float) -> NDArray[np.float64]:
        """Return how long each load takes in a FIFO queue of the loads alone: Lindley's recursion (1952)."""
        arrived, work = self.rows["arrived_ns"][self.read] / 1e9, self.rows["read_bytes"][self.read] / bytes_per_second
        order = np.argsort(arrived, kind="stable")
        arrivals, total_work = arrived[order], np.cumsum(work[order])
        # The queue was last empty at the load whose arrival minus all work before it is largest.
        seconds = np.empty(len(order))
        seconds[order] = np.maximum.accumulate(arrivals - (total_work - work[order])) + total_work - arrivals
        return seconds

    def theory(
        self, servers: int, service_seconds: float, stall: tuple[float, float] = (0.0, 0.0)
    ) -> NDArray[np.float64]:
        """Return how long each load takes if each block occupies one of `servers` for `service_seconds`.

        Reads come before writes. Nothing is served from `stall[0]` to `stall[1]`, moments of CLOCK_MONOTONIC.
        """
        rows = self.rows
        requests = [
            (float(rows[at][row]) / 1e9, priority, row, int(rows[blocks][row]))
            for priority, at, blocks in ((0, "arrived_ns", "storage_blocks"), (1, "computed_ns", "written_blocks"))
            for row in np.flatnonzero((rows["prompt"] >= 0) & (rows[blocks] > 0) & (rows[at] > 0)).tolist()
        ]
        requests.sort()
        free_at, loaded_at = [0.0] * servers, dict[int, float]()
        queue: list[tuple[int, float, int]] = []
        arrived = 0
        while queue or arrived < len(requests):
            first = queue[0][1] if queue else requests[arrived][0]
            begin = max(heapq.heappop(free_at), first)
            while arrived < len(requests) and requests[arrived][0] <= begin:
                at, priority, row, blocks = requests[arrived]
                for _ in range(blocks):
                    heapq.heappush(queue, (priority, at, row))
                arrived += 1
            priority, _, row = heapq.heappop(queue)
            end = begin + service_seconds
            if begin < stall[1] and end > stall[0]:
                end += stall[1] - max(begin, stall[0])
            heapq.heappush(free_at, end)
            if priority == 0:
                loaded_at[row] = max(loaded_at.get(row, 0.0), end)
        read_rows = np.flatnonzero(self.read).tolist()
        return np.array([loaded_at[row] - rows["arrived_ns"][row] / 1e9 for row in read_rows])


def _run(settings: Sequence[str], results: str, wrap: Wrap = list) -> Loads:
    """Run `dlemu kvcache`, and return its loads."""
    done = run_job("kvcache", [*settings, "metric.ceiling_seconds=0"], within=results, wrap=wrap)
    table = pyarrow.parquet.read_table(os.path.join(done.folder, "kvcache.parquet"))
    return Loads(done.summary, {name: table[name].to_numpy() for name in table.column_names})


def _percentiles(
    case: str, measured: NDArray[np.float64], truth: NDArray[np.float64], within: float
) -> Iterator[Check]:
    for percentile in (50, 95):
        theory, found = (float(np.percentile(seconds, percentile)) for seconds in (truth, measured))
        yield Check(case, f"load p{percentile}", theory, found, "s", within=within, percent=True)


def _better(case: str, measured: NDArray[np.float64], truth: NDArray[np.float64], fifo: NDArray[np.float64]) -> Check:
    """Check that dlemu's loads are nearer to the truth, on average, than the FIFO model's."""
    off, fifo_off = (100 * float(np.abs(seconds - truth).mean() / truth.mean()) for seconds in (measured, fifo))
    return Check(case, "off truth / the FIFO model's", fifo_off, off, "%", at_most=True)


_LOAD = (
    *("workload=llama3_1_8b", "scale=laptop", "kv.seconds=30", "kv.users=8", "kv.think_seconds=3"),
    *("kv.system_prompts=1", "kv.prefill_tokens_per_second=10000000", "kv.accelerators=64"),
)
_ONE_THREAD = (
    *("kv.threads=1", "kv.users=2", "kv.think_seconds=5", "kv.seconds=60"),
    *("kv.block_tokens=2048", "kv.system_tokens=2048"),
)


def _on_a_drive(bed: Bed) -> Iterator[Check]:
    # Loads are heavy, except `tp 2`, because after a pause the throttle lets the bytes of 0.1 s pass at once.
    bed.drive.set_speed(Speed(read_bytes_per_second=DRIVE_BYTES_PER_SECOND))
    for case, settings in (
        ("drive, 26 MB/s, 16 threads", ()),
        ("drive, 26 MB/s, tp 2", ("kv.tp=2", "kv.seed=3")),
        ("drive, 26 MB/s, 4 threads, longer prompts", ("kv.threads=4", "kv.prompt_tokens=8192", "kv.users=3")),
    ):
        with tempfile.TemporaryDirectory() as results, watching(bed.drive.device) as watch:
            folder = f"kv.folder={os.path.join(bed.drive.folder, 'kv')}"
            loads = _run([*_LOAD, folder, *settings], results, bed.drive.command)
        truth = loads.fifo(DRIVE_BYTES_PER_SECOND)
        yield from _percentiles(case, loads.measured(), truth, WITHIN_PERCENT)
        yield _bytes(case, watch, loads.read_bytes)


def _closed(bed: Bed) -> Iterator[Check]:
    """Many users in a closed loop get exactly the drive's speed.

    The asymptotic bound of Denning and Buzen, The Operational Analysis of Queueing Network Models (1978).
    """
    with tempfile.TemporaryDirectory() as results:
        settings = ("kv.loop=closed", "kv.users=16", f"kv.folder={os.path.join(bed.drive.folder, 'kv')}")
        loads = _run([*_LOAD, *settings, "kv.think_seconds=1"], results, bed.drive.command)
    arrived, done = loads.rows["arrived_ns"][loads.read], loads.rows["loaded_ns"][loads.read]
    rate = loads.read_bytes / 1e6 / ((int(done.max()) - int(arrived.min())) / 1e9)
    theory = DRIVE_BYTES_PER_SECOND / 1e6
    yield Check(
        "drive, 26 MB/s, closed loop: 16 users",
        "read by all",
        theory,
        rate,
        "MB/s",
        within=WITHIN_PERCENT,
        percent=True,
    )


def _bytes(case: str, watch: Watch, app_bytes: float, within: float = 2.0) -> Check:
    percent = 100 * watch.bytes / app_bytes
    return Check(case, "drive's own count / bytes read", 100.0, percent, "%", within=within)


def _on_servers() -> Iterator[Check]:
    yield from _deep()
    yield from _shared()
    yield from _stalled()


def _served(latency_seconds: float, fault: Callable[[Request], None], *settings: str) -> Loads:
    """Run on a server with this latency, which it drops when the blocks are removed at the end."""
    behaviour = Behaviour(latency_seconds=latency_seconds)

    def inspect(request: Request) -> None:
        if request.method == "DELETE":
            behaviour.latency_seconds = 0
        fault(request)

    behaviour.fault = inspect
    with ObjectServer(behaviour) as server, tempfile.TemporaryDirectory() as results:
        folder = (*bucket(server.endpoint), f"kv.folder=s3://{BUCKET}/kv", "kv.odirect=false", "kv.shrink=1024")
        return _run([*_LOAD, *folder, *settings], results)


def _deep() -> Iterator[Check]:
    """With 8 concurrent requests, a single prompt of 4 blocks gets half of the rate that many prompts get."""
    threads, case = 8, f"server, {_BLOCK_SECONDS:g} s a block, 8 threads"
    settings = (f"kv.threads={threads}", "kv.users=3", "kv.block_tokens=1024")
    loads = _served(_BLOCK_SECONDS, lambda request: None, *settings)
    yield from _beside(case, loads, loads.theory(threads, _BLOCK_SECONDS), threads)


_WRITES = ("kv.prompt_tokens=8192", "kv.turns=3", "kv.system_prompts=0")
"""Long first prompts, which are not shared: more is written than read."""


def _shared() -> Iterator[Check]:
    """Writes take as long as reads, in the same thread, but the FIFO model of loads leaves them out."""
    loads = _served(_BLOCK_SECONDS, lambda request: None, *_ONE_THREAD, *_WRITES)
    case = f"server, {_BLOCK_SECONDS:g} s a block, writes beside reads"
    yield from _beside(case, loads, loads.theory(1, _BLOCK_SECONDS), 1)


def _stalled() -> Iterator[Check]:
    """One request takes 5 s longer than the others."""
    case = f"server, {_BLOCK_SECONDS:g} s a block, a stall of {_STALL_SECONDS:g} s"
    stall_starts: list[float] = []

    def stall(request: Request) -> None:
        if request.method in ("GET", "PUT") and request.number >= _STALL_AT and not stall_starts:
            stall_starts.append(time.monotonic())
            time.sleep(_STALL_SECONDS)

    loads = _served(_BLOCK_SECONDS, stall, *_ONE_THREAD)
    truth = loads.theory(1, _BLOCK_SECONDS, (stall_starts[0], stall_starts[0] + _STALL_SECONDS))
    yield from _beside(case, loads, truth, 1)


def _beside(case: str, loads: Loads, truth: NDArray[np.float64], servers: int) -> Iterator[Check]:
    yield from _percentiles(case, loads.measured(), truth, SERVER_PERCENT)
    rate = servers * loads.block_bytes / _BLOCK_SECONDS
    yield _better(case, loads.measured(), truth, loads.fifo(rate))


# the official load


_FAST_BYTES_PER_SECOND = 150_000_000
_CASE = f"tiny-1b, {_OFFICIAL_USERS} users, {_OFFICIAL_SECONDS} s, drive of {_FAST_BYTES_PER_SECOND / 1e6:g} MB/s"


def _own_official(bed: Bed) -> Iterator[Check]:
    """Check that dlemu's true rate does not exceed the drive's, and that the rate by the tool's formula does."""
    bed.drive.set_speed(Speed(read_bytes_per_second=_FAST_BYTES_PER_SECOND))
    with tempfile.TemporaryDirectory() as results, watching(bed.drive.device) as watch:
        settings = [
            *("workload=mlperf_kv", f"kv.folder={os.path.join(bed.drive.folder, 'kv')}", *_TINY),
            *(f"kv.users={_OFFICIAL_USERS}", f"kv.seconds={_OFFICIAL_SECONDS}"),
        ]
        loads = _run(settings, results, bed.drive.command)
    official, rate = loads.summary["official"], _FAST_BYTES_PER_SECOND / GIB
    true = loads.summary["read_gb_per_second"] * 1e9 / GIB
    yield Check(f"dlemu, {_CASE}", "true read / drive", rate, true, "GiB/s", within=1, percent=True, at_most=True)
    yield _above(f"dlemu, {_CASE}", "read by the tool's formula above drive", rate, official["read_gib_per_second"])
    # The drive has read some bytes of the reads that were under way at the end. The run does not count these.
    read, unfinished = loads.read_bytes, int(loads.rows["begun_bytes"].sum())
    yield _bytes(f"dlemu, {_CASE}", watch, min(max(watch.bytes, read), read + unfinished))


def _official_tool(bed: Bed) -> Iterator[Check]:
    """Check what the official tool publishes and counts on the same drive."""
    source = os.environ.get(OFFICIAL)
    if not source:
        print(f"  kv-cache.py: skipped: {OFFICIAL} does not name a folder kv_cache_benchmark (docs/kvcache.md)")
        return
    bed.drive.forget_cache()
    with tempfile.TemporaryDirectory() as work, watching(bed.drive.device) as watch:
        tool, output = os.path.join(work, "tool"), os.path.join(work, "result.json")
        shutil.copytree(source, tool)
        _add_missing_line(os.path.join(tool, "kv_cache", "benchmark.py"))
        flags = {
            "model": "tiny-1b",
            "num-users": _OFFICIAL_USERS,
            "duration": _OFFICIAL_SECONDS,
            "gpu-mem-gb": 0,
            "cpu-mem-gb": 0,
            "max-concurrent-allocs": 4,
            "generation-mode": "none",
            "seed": 42,
            "cache-dir": os.path.join(bed.drive.folder, "official"),
            "output": output,
        }
        options = [argument for name, value in flags.items() for argument in (f"--{name}", str(value))]
        run(bed.drive.command([sys.executable, os.path.join(tool, "kv-cache.py"), *options]))
        with open(output) as text:
            result = json.load(text)
    shutil.rmtree(os.path.join(bed.drive.folder, "official"), ignore_errors=True)
    stats, case = result["summary"]["cache_stats"], f"kv-cache.py, {_CASE}"
    published = stats["tier_storage_read_bandwidth_gbps"]
    yield _above(case, "published read above drive", _FAST_BYTES_PER_SECOND / GIB, published)
    # The tool counts a read when it begins, and does not finish the last reads.
    yield _bytes(case, watch, stats["tier_storage_kv_bytes_read_gb"] * GIB, within=10)


def _add_missing_line(path: str) -> None:
    with open(path) as lines:
        text = lines.read()
    before, line = _FIX
    if text.count(before) == 1 and line not in text.split('"""\n        # Printing')[0].split(before)[1]:
        head, rest = text.split(before)
        with open(path, "w") as lines:
            lines.write(head + before + line + rest)


def _above(case: str, what: str, bound: float, measured: float) -> Check:
    """Check that the measured rate is above the bound."""
    word = "yes" if measured > bound else "no"
    return Check(case, f"{what} ({measured:.3f} GiB/s)", "yes", word)

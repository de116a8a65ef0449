"""Measures one cell of a probe (requests of one size at one depth, for some seconds) by fio or by dlemu's engines."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError, UserError
from datagen.storage.storage_base import StorageSpec
from dlemu.jobs.probe.object_gets import run_gets
from dlemu.jobs.probe.result import CellSpec, Engine, Latency, ProbeCell, Requests
from dlemu.ranks import Comm
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from dlemu.runner.child_run import output_of

SETTLE_SECONDS = 0.5
"""Warm-up of each cell, which is not counted."""
_PATIENCE_SECONDS, _STALL_SECONDS = 120.0, 60.0  # timeouts: beyond the cell's duration; of a stopped job (SIGSTOP)
_FIO = Role("fio", "use fewer --jobs or smaller --depths")
_JOB = Role("job", _FIO.remedy)


def choose_engine(choice: str) -> Engine:
    """Return the engine for `auto`, `fio` or `threads`; raises DlemuError."""
    if choice == "threads":
        return "threads"
    if shutil.which("fio"):
        return "fio"
    if choice == "fio":
        raise DlemuError("fio is not installed: apt-get install fio, or leave --engine out")
    return "threads"


def measure_cell(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float, engine: Engine) -> ProbeCell:
    """Measure one cell on the first `size_bytes` of a file; raises DlemuError."""
    measure = _by_fio if engine == "fio" else _by_threads
    return measure(cell_spec, path, size_bytes, seconds)


def _by_fio(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float) -> ProbeCell:
    # Not the path itself: fio gives characters such as ':' in file names a meaning, and would create other files.
    descriptor = open_target(path, writes=cell_spec.writes, flags=0)
    words = {
        "name": "dlemu",
        "filename": f"/proc/self/fd/{descriptor}",
        "rw": cell_spec.access,
        "direct": "1",
        "ioengine": "libaio",
        "iodepth": str(cell_spec.depth),
        "numjobs": str(cell_spec.jobs),
        "bs": str(cell_spec.size_bytes),
        "size": str(size_bytes // cell_spec.size_bytes * cell_spec.size_bytes),
        "time_based": "1",
        "ramp_time": _fio_time(SETTLE_SECONDS),
        "runtime": _fio_time(seconds),
        "norandommap": "1",
        "randrepeat": "0",
        "refill_buffers": "1" if cell_spec.writes else "0",
        "group_reporting": "1",
        "thread": "1",  # fio's processes would wait forever if fio itself were killed
        "output-format": "json",
    }
    if not cell_spec.random:
        words["offset_increment"] = str(size_bytes // cell_spec.jobs // cell_spec.size_bytes * cell_spec.size_bytes)
    command = ["fio", *(f"--{word}={value}" for word, value in words.items())]
    try:
        ended = output_of(command, seconds + _PATIENCE_SECONDS, _FIO, pass_fds=(descriptor,))
    finally:
        os.close(descriptor)
    if ended.status:
        output = ended.err.strip() or ended.out.partition("\n{")[0].strip()  # without the JSON of the cell
        what = "\n".join(output.splitlines()[-3:]).replace(f"/proc/self/fd/{descriptor}", path)
        kind = UserError if ended.status > 0 else DlemuError  # fio names what the drive did, unless a signal ended it
        raise kind(f"{ended.how}: {what}".rstrip(": "))
    return cell_of_fio(json.loads(ended.out[ended.out.index("{") :]), cell_spec)


def _fio_time(seconds: float) -> str:
    """Return a time as fio reads it: of a number of seconds it drops the fraction, so that 0.5 would be none."""
    return f"{round(seconds * 1e3)}ms"


def cell_of_fio(report: dict[str, Any], cell_spec: CellSpec) -> ProbeCell:
    """Return the cell that fio's JSON output describes: its jobs as one group."""
    job = report["jobs"][0]
    side = job["write" if cell_spec.writes else "read"]
    read_bytes, seconds = float(side["io_bytes"]), float(side["runtime"]) / 1e3
    percentiles = side["clat_ns"].get("percentile", {})
    submitted = float(side["slat_ns"]["mean"])  # fio's percentiles do not include submission: add its mean

    def at(percentile: str) -> float:
        return (float(percentiles.get(percentile, 0.0)) + submitted) / 1e6

    cpu = (float(job["usr_cpu"]) + float(job["sys_cpu"])) / 100 * seconds * cell_spec.jobs
    return ProbeCell(
        **vars(cell_spec),
        seconds=seconds,
        mb_per_second=float(side["bw_bytes"]) / 1e6,
        iops=float(side["iops"]),
        latency_ms=Latency(
            mean=float(side["lat_ns"]["mean"]) / 1e6,
            p50=at("50.000000"),
            p90=at("90.000000"),
            p99=at("99.000000"),
            p999=at("99.900000"),
            max=float(side["lat_ns"]["max"]) / 1e6,
        ),
        cpu_seconds_per_gb=cpu / max(read_bytes / 1e9, 1e-9),
    )


def _by_threads(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float) -> ProbeCell:
    """Random jobs share the whole file, sequential ones have separate ranges."""
    each = size_bytes // cell_spec.jobs // cell_spec.size_bytes * cell_spec.size_bytes
    parts = [
        range(size_bytes) if cell_spec.random else range(job * each, (job + 1) * each) for job in range(cell_spec.jobs)
    ]
    return _by_jobs(cell_spec, [partial(run_threads, cell_spec, path, part) for part in parts], seconds)


def open_target(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Open a file to read or write; raises UserError. A file to write is not opened through a link: another user who
    may write into its folder could have linked it to somebody's file."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | (os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY))
    except OSError as error:
        raise UserError(f"{path} can't be opened: {error.strerror}") from error


def run_threads(cell: CellSpec, path: str, part: range, seconds: float) -> Requests:
    """Keep `depth` requests in flight in a `part` of a file for `seconds`; raises UserError if one fails."""
    size_bytes, slots = cell.size_bytes, len(part) // cell.size_bytes
    descriptor = open_target(path, writes=cell.writes)
    cpu, lock = time.process_time(), threading.Lock()
    ends: list[int] = []
    latencies: list[int] = []
    failed: list[UserError] = []
    numbers = itertools.count()
    deadline = time.monotonic_ns() + round(seconds * 1e9)

    def work() -> None:
        random, buffer = np.random.default_rng(), mmap.mmap(-1, size_bytes)
        if cell.writes:
            buffer[:] = random.bytes(size_bytes)
        call = os.pwritev if cell.writes else os.preadv
        while not failed:
            with lock:
                number = next(numbers)
            slot = int(random.integers(slots)) if cell.random else number % slots
            started = time.monotonic_ns()
            try:
                done = call(descriptor, [buffer], part.start + slot * size_bytes)
            except OSError as error:
                failed.append(UserError(f"{path}: {error.strerror}"))
                return
            now = time.monotonic_ns()
            if done != size_bytes:
                failed.append(UserError(f"{path}: a call moved {done} of {size_bytes} bytes"))
            with lock:
                ends.append(now)
                latencies.append(now - started)
            if now >= deadline:
                return

    threads = [threading.Thread(target=work) for _ in range(cell.depth)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(descriptor)
    if failed:
        raise failed[0]
    return Requests(np.array(ends, np.int64), np.array(latencies, np.int64), time.process_time() - cpu)


def measure_gets(cell_spec: CellSpec, storage: StorageSpec, objects: tuple[str, ...], seconds: float) -> ProbeCell:
    """Measure one cell of GET requests on objects; raises DlemuError, UserError."""
    return _by_jobs(cell_spec, [partial(run_gets, cell_spec, storage, objects)] * cell_spec.jobs, seconds)


def _by_jobs(cell_spec: CellSpec, jobs: Sequence[Callable[[float], Requests]], seconds: float) -> ProbeCell:
    """Run the jobs, each in its own process, for the warm-up and `seconds`."""

    def send(comm: Comm, job: Callable[[float], Requests]) -> tuple[int, Requests]:
        began_ns = comm.all_reduce_max(time.monotonic_ns())
        return began_ns, job(SETTLE_SECONDS + seconds)

    most_seconds = seconds + _PATIENCE_SECONDS
    parts = run_crew(send, jobs, _JOB, timeout_seconds=_STALL_SECONDS, most_seconds=most_seconds)
    return _cell_of_requests(cell_spec, parts[0][0], [requests for _, requests in parts], seconds)


def _cell_of_requests(cell_spec: CellSpec, began_ns: int, requests: list[Requests], seconds: float) -> ProbeCell:
    """Return the cell of the requests that completed after the warm-up and before the end.

    Time is measured between completions: a drive that completes in bursts would have half a burst too many otherwise.
    """
    low = began_ns + round(SETTLE_SECONDS * 1e9)
    ends = np.concatenate([part.end_ns for part in requests])
    latency_ns = np.concatenate([part.latency_ns for part in requests])
    first_ns = [part.first_byte_ns for part in requests if part.first_byte_ns is not None]
    origin = int(ends[ends <= low].max(initial=began_ns))
    counted = (ends > origin) & (ends <= low + round(seconds * 1e9))
    if counted.sum() < 2:  # requests take longer than the cell: count all of them
        origin, counted = began_ns, np.ones(len(ends), bool)
    length = max(1e-9, float(ends[counted].max() - origin) / 1e9)
    count = int(counted.sum())
    everything = len(ends) * cell_spec.size_bytes / 1e9
    return ProbeCell(
        **vars(cell_spec),
        seconds=length,
        mb_per_second=count * cell_spec.size_bytes / 1e6 / length,
        iops=count / length,
        latency_ms=latency_stats(latency_ns[counted]),
        cpu_seconds_per_gb=sum(part.cpu_seconds for part in requests) / everything,
        first_byte_ms=latency_stats(np.concatenate(first_ns)[counted]) if first_ns else None,
        failed=sum(part.failed for part in requests),
    )


def latency_stats(latency_ns: NDArray[np.int64]) -> Latency | None:
    """Return mean and percentiles of latencies; None if there are none."""
    if not len(latency_ns):
        return None
    p50, p90, p99, p999, maximum = (np.percentile(latency_ns, (50, 90, 99, 99.9, 100)) / 1e6).tolist()
    return Latency(mean=float(latency_ns.mean()) / 1e6, p50=p50, p90=p90, p99=p99, p999=p999, max=maximum)

"""Measures one cell of a probe (requests of one size at one depth, for some seconds) by fio or by dlemu's engines."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from datagen.errors import DlemuError, UserError
from dlemu.jobs.probe.result import CellSpec, Engine, Latency, ProbeCell, Requests
from dlemu.ranks import Comm
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from dlemu.runner.child_run import output_of

SETTLE_SECONDS = 0.5  # warm-up of each cell, which is not counted
_PATIENCE_SECONDS, _STALL_SECONDS = 120.0, 60.0  # timeouts: beyond the cell's duration; of a stopped job (SIGSTOP)
_FIO = Role("fio", "use fewer --jobs or smaller --depths")
_JOB = Role("job", _FIO.remedy)
_FIO_PERCENTILES = ("50.000000", "90.000000", "99.000000", "99.900000")


def choose_engine(choice: str) -> Engine:
    """Return the engine for `auto`, `fio` or `threads`; raises DlemuError."""
    if choice != "threads" and shutil.which("fio"):
        return "fio"
    if choice == "fio":
        raise DlemuError("fio is not installed: apt-get install fio, or leave --engine out")
    return "threads"


def measure_cell(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float, engine: Engine) -> ProbeCell:
    """Measure one cell on the first `size_bytes` of a file; raises DlemuError."""
    if engine == "fio":
        return _by_fio(cell_spec, path, size_bytes, seconds)
    ranges = [range(size_bytes)] * cell_spec.jobs
    if not cell_spec.random:  # a separate range for each job
        range_bytes = size_bytes // cell_spec.jobs // cell_spec.size_bytes * cell_spec.size_bytes
        ranges = [range(job * range_bytes, (job + 1) * range_bytes) for job in range(cell_spec.jobs)]
    return _by_jobs(cell_spec, [partial(run_threads, cell_spec, path, part) for part in ranges], seconds)


def _by_jobs(cell_spec: CellSpec, jobs: Sequence[Callable[[float], Requests]], seconds: float) -> ProbeCell:
    """Run the jobs, each in its own process, for the warm-up and `seconds`."""

    def send(comm: Comm, job: Callable[[float], Requests]) -> tuple[int, Requests]:
        began_ns = comm.all_reduce_max(time.monotonic_ns())
        return began_ns, job(SETTLE_SECONDS + seconds)

    most_seconds = seconds + _PATIENCE_SECONDS
    parts = run_crew(send, jobs, _JOB, timeout_seconds=_STALL_SECONDS, most_seconds=most_seconds)
    return _cell_of_requests(cell_spec, parts[0][0], [requests for _, requests in parts], seconds)


def _by_fio(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float) -> ProbeCell:
    # fio gives characters such as ':' in file names a meaning, and would create other files: name the descriptor.
    descriptor = open_target(path, writes=cell_spec.writes, flags=0)
    request_bytes = cell_spec.size_bytes
    options = {
        "name": "dlemu",
        "filename": f"/proc/self/fd/{descriptor}",
        "rw": cell_spec.access,
        "direct": "1",
        "ioengine": "libaio",
        "iodepth": str(cell_spec.depth),
        "numjobs": str(cell_spec.jobs),
        "bs": str(request_bytes),
        "size": str(size_bytes // request_bytes * request_bytes),
        "time_based": "1",
        "ramp_time": f"{round(SETTLE_SECONDS * 1e3)}ms",  # of a number of seconds fio drops the fraction
        "runtime": f"{round(seconds * 1e3)}ms",
        "norandommap": "1",
        "randrepeat": "0",
        "refill_buffers": "1" if cell_spec.writes else "0",
        "group_reporting": "1",
        "thread": "1",  # fio's processes would wait forever if fio itself were killed
        "output-format": "json",
    }
    if not cell_spec.random:
        options["offset_increment"] = str(size_bytes // cell_spec.jobs // request_bytes * request_bytes)
    command = ["fio", *(f"--{name}={value}" for name, value in options.items())]
    try:
        ended = output_of(command, seconds + _PATIENCE_SECONDS, _FIO, pass_fds=(descriptor,))
    finally:
        os.close(descriptor)
    if ended.status:
        output = ended.err.strip() or ended.out.partition("\n{")[0].strip()  # without the JSON of the cell
        last_lines = "\n".join(output.splitlines()[-3:]).replace(f"/proc/self/fd/{descriptor}", path)
        error_type = UserError if ended.status > 0 else DlemuError  # fio reports what the drive did; a signal, nothing
        raise error_type(f"{ended.how}: {last_lines}".rstrip(": "))
    return cell_of_fio(json.loads(ended.out[ended.out.index("{") :]), cell_spec)


def cell_of_fio(report: dict[str, Any], cell_spec: CellSpec) -> ProbeCell:
    """Return the cell that fio's JSON output describes: its jobs as one group."""
    job = report["jobs"][0]
    side = job["write" if cell_spec.writes else "read"]
    io_bytes, seconds = float(side["io_bytes"]), float(side["runtime"]) / 1e3
    percentiles, submission_ns = side["clat_ns"].get("percentile", {}), float(side["slat_ns"]["mean"])
    # fio's percentiles do not include the time of submission: its mean is added
    p50, p90, p99, p999 = ((float(percentiles.get(key, 0.0)) + submission_ns) / 1e6 for key in _FIO_PERCENTILES)
    mean, most = float(side["lat_ns"]["mean"]) / 1e6, float(side["lat_ns"]["max"]) / 1e6
    cpu_seconds = (float(job["usr_cpu"]) + float(job["sys_cpu"])) / 100 * seconds * cell_spec.jobs
    return ProbeCell(
        **vars(cell_spec),
        seconds=seconds,
        mb_per_second=float(side["bw_bytes"]) / 1e6,
        iops=float(side["iops"]),
        latency_ms=Latency(mean=mean, p50=p50, p90=p90, p99=p99, p999=p999, max=most),
        cpu_seconds_per_gb=cpu_seconds / max(io_bytes / 1e9, 1e-9),
    )


def open_target(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Open a file to read or write; raises UserError."""
    # not through a link: another user of the folder could have linked its file to somebody's file
    access = os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY
    try:
        return os.open(path, flags | os.O_CLOEXEC | access)
    except OSError as error:
        raise UserError(f"{path} can't be opened: {error.strerror}") from error


def run_threads(cell: CellSpec, path: str, part: range, seconds: float) -> Requests:
    """Keep `depth` requests in flight in a `part` of a file for `seconds`; raises UserError if one fails."""
    size_bytes, numbers, failed = cell.size_bytes, itertools.count(), threading.Event()
    slots = len(part) // size_bytes
    descriptor = open_target(path, writes=cell.writes)
    cpu_before, deadline_ns = time.process_time(), time.monotonic_ns() + round(seconds * 1e9)

    def send() -> list[tuple[int, int]]:
        """Send one request after another; return when each ended, and its latency."""
        random, call = np.random.default_rng(), os.pwritev if cell.writes else os.preadv
        ended: list[tuple[int, int]] = []
        try:
            buffer = mmap.mmap(-1, size_bytes)
            if cell.writes:
                buffer[:] = random.bytes(size_bytes)
            while True:
                slot = int(random.integers(slots)) if cell.random else next(numbers) % slots
                began_ns = time.monotonic_ns()
                moved_bytes = call(descriptor, [buffer], part.start + slot * size_bytes)
                ended_ns = time.monotonic_ns()
                if moved_bytes != size_bytes:
                    raise OSError(errno.EIO, f"a call moved {moved_bytes} of {size_bytes} bytes")
                ended.append((ended_ns, ended_ns - began_ns))
                if ended_ns >= deadline_ns or failed.is_set():
                    return ended
        except OSError as error:
            failed.set()
            raise UserError(f"{path}: {error.strerror}") from error

    try:
        with ThreadPoolExecutor(cell.depth) as threads:
            sent = [threads.submit(send) for _ in range(cell.depth)]
    finally:
        os.close(descriptor)
    cpu_seconds = time.process_time() - cpu_before
    end_ns, latency_ns = np.array([request for thread in sent for request in thread.result()], np.int64).T
    return Requests(end_ns, latency_ns, cpu_seconds)


def _cell_of_requests(cell_spec: CellSpec, began_ns: int, requests: list[Requests], seconds: float) -> ProbeCell:
    """Return the cell of the requests that completed after the warm-up and before the end.

    Time is measured between completions, as a drive may complete requests in bursts: by the clock, part of a burst
    would count whose time is not in the interval.
    """
    warm_ns = began_ns + round(SETTLE_SECONDS * 1e9)
    end_ns = np.concatenate([job.end_ns for job in requests])
    latency_ns = np.concatenate([job.latency_ns for job in requests])
    start_ns = int(end_ns[end_ns <= warm_ns].max(initial=began_ns))
    counted = (end_ns > start_ns) & (end_ns <= warm_ns + round(seconds * 1e9))
    if counted.sum() < 2:  # requests take longer than the cell: count all of them
        start_ns = began_ns
        counted = np.ones(len(end_ns), bool)
    counted_seconds = max(1e-9, float(end_ns[counted].max() - start_ns) / 1e9)
    latency_ns = latency_ns[counted]
    p50, p90, p99, p999, most = (np.percentile(latency_ns, (50, 90, 99, 99.9, 100)) / 1e6).tolist()
    mean, completed = float(latency_ns.mean()) / 1e6, len(latency_ns)
    total_gb = len(end_ns) * cell_spec.size_bytes / 1e9
    return ProbeCell(
        **vars(cell_spec),
        seconds=counted_seconds,
        mb_per_second=completed * cell_spec.size_bytes / 1e6 / counted_seconds,
        iops=completed / counted_seconds,
        latency_ms=Latency(mean=mean, p50=p50, p90=p90, p99=p99, p999=p999, max=most),
        cpu_seconds_per_gb=sum(job.cpu_seconds for job in requests) / total_gb,
    )

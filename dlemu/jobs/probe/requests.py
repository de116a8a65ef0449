"""Measures one cell of a probe: requests of one size at one queue depth, sent by fio or by dlemu's own threads."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from datagen.errors import DlemuError, UserError
from dlemu.jobs.probe.result import CellSpec, Engine, Latency, ProbeCell, Requests
from dlemu.ranks import Comm
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from dlemu.runner.child_run import output_of

SETTLE_SECONDS = 0.5  # warm-up of each cell; its requests are not counted
_EXTRA_SECONDS = 120.0  # fio, or all jobs together, may take this much longer than the cell; then they are ended
_STALL_SECONDS = 60.0  # one job may be stopped (SIGSTOP), or wait for the others to begin, for this long
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
    byte_ranges = [range(size_bytes)] * cell_spec.jobs
    if not cell_spec.random:  # each sequential job has its own range
        range_bytes = size_bytes // cell_spec.jobs // cell_spec.size_bytes * cell_spec.size_bytes
        byte_ranges = [range(job * range_bytes, (job + 1) * range_bytes) for job in range(cell_spec.jobs)]

    def run_job(comm: Comm, byte_range: range) -> tuple[int, Requests]:
        """Run a job in its own process, for the warm-up and the cell; all jobs begin together."""
        began_ns = comm.all_reduce_max(time.monotonic_ns())
        return began_ns, run_threads(cell_spec, path, byte_range, SETTLE_SECONDS + seconds)

    jobs = run_crew(run_job, byte_ranges, _JOB, timeout_seconds=_STALL_SECONDS, most_seconds=seconds + _EXTRA_SECONDS)
    return _cell_of_requests(cell_spec, jobs[0][0], [requests for _, requests in jobs], seconds)


def _by_fio(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float) -> ProbeCell:
    # In file names, ':' and other characters are syntax to fio, which would create other files: pass a descriptor.
    descriptor = open_target(path, writes=cell_spec.writes, flags=0)  # fio opens its path again, with O_DIRECT
    fd_path = f"/proc/self/fd/{descriptor}"
    command = _fio_command(cell_spec, fd_path, size_bytes, seconds)
    try:
        fio = output_of(command, seconds + _EXTRA_SECONDS, _FIO, pass_fds=(descriptor,))
    finally:
        os.close(descriptor)
    if fio.status:
        output = fio.err.strip() or fio.out.partition("\n{")[0].strip()  # without the JSON of the cell
        last_lines = "\n".join(output.splitlines()[-3:]).replace(fd_path, path)
        error_type = UserError if fio.status > 0 else DlemuError  # an error that fio reports, or killed by a signal
        raise error_type(f"{fio.how}: {last_lines}".rstrip(": "))
    return cell_of_fio(json.loads(fio.out[fio.out.index("{") :]), cell_spec)


def _fio_command(cell_spec: CellSpec, path: str, size_bytes: int, seconds: float) -> list[str]:
    request_bytes = cell_spec.size_bytes
    options = {
        "name": "dlemu",
        "filename": path,
        "rw": cell_spec.access,
        "direct": "1",
        "ioengine": "libaio",
        "iodepth": str(cell_spec.depth),
        "numjobs": str(cell_spec.jobs),
        "bs": str(request_bytes),
        "size": str(size_bytes // request_bytes * request_bytes),
        "time_based": "1",
        "ramp_time": f"{round(SETTLE_SECONDS * 1e3)}ms",  # in ms, because fio drops fractions of a second
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
    return ["fio", *(f"--{name}={value}" for name, value in options.items())]


def cell_of_fio(report: dict[str, Any], cell_spec: CellSpec) -> ProbeCell:
    """Return the cell in fio's JSON report, which has all jobs as one group."""
    job = report["jobs"][0]
    stats = job["write" if cell_spec.writes else "read"]
    seconds = float(stats["runtime"]) / 1e3
    mean, maximum = (float(stats["lat_ns"][key]) / 1e6 for key in ("mean", "max"))
    # The percentiles are of completion latency only: add the mean submission latency.
    completion = stats["clat_ns"].get("percentile", {})
    submission_ns = float(stats["slat_ns"]["mean"])
    p50, p90, p99, p999 = ((float(completion.get(key, 0.0)) + submission_ns) / 1e6 for key in _FIO_PERCENTILES)
    cpu_seconds = (float(job["usr_cpu"]) + float(job["sys_cpu"])) / 100 * seconds * cell_spec.jobs  # means over jobs
    return ProbeCell(
        **vars(cell_spec),
        seconds=seconds,
        mb_per_second=float(stats["bw_bytes"]) / 1e6,
        iops=float(stats["iops"]),
        latency_ms=Latency(mean=mean, p50=p50, p90=p90, p99=p99, p999=p999, max=maximum),
        cpu_seconds_per_gb=cpu_seconds / max(float(stats["io_bytes"]) / 1e9, 1e-9),
    )


def open_target(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Open a file for reading or writing; return its descriptor. Raises UserError."""
    # O_NOFOLLOW: another user of the folder could have replaced the file by a link to somebody's file.
    access = os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY
    try:
        return os.open(path, flags | os.O_CLOEXEC | access)
    except OSError as error:
        raise UserError(f"{path} can't be opened: {error.strerror}") from error


def run_threads(cell_spec: CellSpec, path: str, byte_range: range, seconds: float) -> Requests:
    """Keep `cell_spec.depth` requests in flight in a range of a file for `seconds`; raises UserError if one fails."""
    size_bytes = cell_spec.size_bytes
    slots = len(byte_range) // size_bytes
    next_slot = itertools.count()  # of sequential requests, shared by the threads
    failed = threading.Event()
    descriptor = open_target(path, writes=cell_spec.writes)
    cpu_before = time.process_time()
    deadline_ns = time.monotonic_ns() + round(seconds * 1e9)

    def send() -> list[tuple[int, int]]:
        """Send one request after another; return the end time and the latency of each, ns."""
        random = np.random.default_rng()
        call = os.pwritev if cell_spec.writes else os.preadv
        completions = []
        try:
            buffer = mmap.mmap(-1, size_bytes)
            page_numbers = np.frombuffer(buffer, np.int64)[::512]  # the first 8 bytes of each 4096
            if cell_spec.writes:
                buffer[:] = random.bytes(size_bytes)
            while True:
                slot = int(random.integers(slots)) if cell_spec.random else next(next_slot) % slots
                if cell_spec.writes:
                    page_numbers += 1  # no two writes are alike, or drives that deduplicate would store few
                began_ns = time.monotonic_ns()
                moved_bytes = call(descriptor, [buffer], byte_range.start + slot * size_bytes)
                ended_ns = time.monotonic_ns()
                if moved_bytes != size_bytes:
                    raise OSError(errno.EIO, f"a call moved {moved_bytes} of {size_bytes} bytes")
                completions.append((ended_ns, ended_ns - began_ns))
                if ended_ns >= deadline_ns or failed.is_set():
                    return completions
        except OSError as error:
            failed.set()
            raise UserError(f"{path}: {error.strerror}") from error

    try:
        with ThreadPoolExecutor(cell_spec.depth) as threads:
            futures = [threads.submit(send) for _ in range(cell_spec.depth)]
    finally:
        os.close(descriptor)
    cpu_seconds = time.process_time() - cpu_before
    end_ns, latency_ns = np.array([request for future in futures for request in future.result()], np.int64).T
    return Requests(end_ns, latency_ns, cpu_seconds)


def _cell_of_requests(cell_spec: CellSpec, began_ns: int, requests: list[Requests], seconds: float) -> ProbeCell:
    """Return the cell of the requests that completed after the warm-up and before the end."""
    warm_ns = began_ns + round(SETTLE_SECONDS * 1e9)
    end_ns = np.concatenate([job.end_ns for job in requests])
    latency_ns = np.concatenate([job.latency_ns for job in requests])
    # The counted time begins at a completion, because drives may complete requests in bursts: a time that began between
    # two bursts would have all requests of the second one, but only a part of the time that they took.
    start_ns = int(end_ns[end_ns <= warm_ns].max(initial=began_ns))
    counted = (end_ns > start_ns) & (end_ns <= warm_ns + round(seconds * 1e9))
    if counted.sum() < 2:  # a request takes about as long as the cell: count them all
        start_ns, counted = began_ns, np.ones(len(end_ns), bool)
    counted_seconds = max(1e-9, float(end_ns[counted].max() - start_ns) / 1e9)
    latency_ns = latency_ns[counted]
    p50, p90, p99, p999, maximum = (np.percentile(latency_ns, (50, 90, 99, 99.9, 100)) / 1e6).tolist()
    total_gb = len(end_ns) * cell_spec.size_bytes / 1e9
    return ProbeCell(
        **vars(cell_spec),
        seconds=counted_seconds,
        mb_per_second=len(latency_ns) * cell_spec.size_bytes / 1e6 / counted_seconds,
        iops=len(latency_ns) / counted_seconds,
        latency_ms=Latency(mean=float(latency_ns.mean()) / 1e6, p50=p50, p90=p90, p99=p99, p999=p999, max=maximum),
        cpu_seconds_per_gb=sum(job.cpu_seconds for job in requests) / total_gb,
    )

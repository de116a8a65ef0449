"""One cell of a probe: so many requests of one size in flight for some seconds, by fio or by dlemu's own engines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from datagen.storage.storage_base import StorageSpec
from dlemu.comm.failure import Role
from dlemu.jobs.probe.kernel_aio import Requests, Stream, open_stream, run_stream, why_no_aio
from dlemu.jobs.probe.object_gets import GetStream, run_gets
from dlemu.jobs.probe.result import Access, Engine, Latency, ProbeCell, Watts
from dlemu.jobs.probe.thread_reads import run_threads
from dlemu.runner.child_run import output_of
from dlemu.runner.clean_process import run_clean
from dlemu.runner.crew import Worker, run_crew
from dlemu.telemetry.power import Probe as PowerProbe
from dlemu.telemetry.probe_base import AbsentError, Scope

SETTLE_SECONDS = 0.5
"""Of each cell, before what counts."""
_PATIENCE_SECONDS, _STOPPED_SECONDS = 120.0, 60.0  # beyond the cell's own time; of a stop (SIGSTOP)
_FIO = Role("fio", "use fewer --jobs or smaller --depths")
_PROCESS, _JOB = Role("the process that sends the requests", _FIO.remedy), Role("job", _FIO.remedy)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One cell to measure."""

    access: Access
    size_bytes: int
    depth: int
    jobs: int

    @property
    def writes(self) -> bool:
        return self.access.endswith("write")

    @property
    def random(self) -> bool:
        return self.access.startswith("rand")


def choose_engine(choice: str) -> tuple[Engine, str]:
    """Return the engine to use of `auto`, `fio`, `aio`, `threads`, and why it is no better one; raises DlemuError."""
    no_fio = "" if shutil.which("fio") else "fio is not installed"
    if choice == "fio" and no_fio:
        raise DlemuError(f"{no_fio}: apt-get install fio, or leave --engine out")
    if choice in ("auto", "fio") and not no_fio:
        return "fio", ""
    no_aio = why_no_aio()
    if choice == "aio" and no_aio:
        raise DlemuError(f"the kernel's AIO can't be used: {no_aio}; leave --engine out")
    if choice in ("auto", "aio") and no_aio is None:
        return "kernel aio", no_fio if choice == "auto" else ""
    return "threads", "; ".join(filter(None, (no_fio, no_aio))) if choice == "auto" else ""


def fio_version() -> str:
    """Return what fio calls itself."""
    return output_of(["fio", "--version"], _PATIENCE_SECONDS, _FIO).out.strip()


def measure_cell(wanted: Wanted, path: str, size_bytes: int, seconds: float, engine: Engine) -> ProbeCell:
    """Measure one cell on the first `size_bytes` of a file or device; raises DlemuError."""
    with _metering() as meters:
        cell = (
            _by_fio(wanted, path, size_bytes, seconds)
            if engine == "fio"
            else _own(wanted, path, size_bytes, seconds, engine)
        )
        means = meters()
    rate = cell.mb_per_second / 1e3
    power = (
        Watts(source=source, watts=watts, joules_per_gb=watts / rate, gb_per_second_per_watt=rate / watts)
        for source, watts in means.items()
        if rate > 0 and watts > 0
    )
    return replace(cell, power=tuple(power))


# fio


def _by_fio(wanted: Wanted, path: str, size_bytes: int, seconds: float) -> ProbeCell:
    # By any other name fio takes what stands behind a colon or a # for something else, and would make such a file.
    descriptor = open_stream(path, writes=wanted.writes, flags=0)
    words = {
        "name": "dlemu",
        "filename": f"/proc/self/fd/{descriptor}",
        "rw": wanted.access,
        "direct": "1",
        "ioengine": "libaio",
        "iodepth": str(wanted.depth),
        "numjobs": str(wanted.jobs),
        "bs": str(wanted.size_bytes),
        "size": str(size_bytes // wanted.size_bytes * wanted.size_bytes),
        "time_based": "1",
        "ramp_time": f"{SETTLE_SECONDS:g}",
        "runtime": f"{seconds:g}",
        "norandommap": "1",
        "randrepeat": "0",
        "refill_buffers": "1" if wanted.writes else "0",
        "group_reporting": "1",
        "thread": "1",  # not processes, which wait for ever where fio itself is killed
        "output-format": "json",
    }
    if not wanted.random:
        words["offset_increment"] = str(size_bytes // wanted.jobs // wanted.size_bytes * wanted.size_bytes)
    command = ["fio", *(f"--{word}={value}" for word, value in words.items())]
    try:
        ended = output_of(command, seconds + _PATIENCE_SECONDS, _FIO, pass_fds=(descriptor,))
    finally:
        os.close(descriptor)
    if ended.status:
        what = (ended.err or ended.out).strip()[-400:].replace(f"/proc/self/fd/{descriptor}", path)
        raise DlemuError(f"{ended.how}: {what}".rstrip(": "))
    return cell_of_fio(json.loads(ended.out[ended.out.index("{") :]), wanted)


def cell_of_fio(report: dict[str, Any], wanted: Wanted) -> ProbeCell:
    """Return what fio's JSON says of a cell: its jobs as one group."""
    job = report["jobs"][0]
    side = job["write" if wanted.writes else "read"]
    read_bytes, seconds = float(side["io_bytes"]), float(side["runtime"]) / 1e3
    percentiles = side["clat_ns"].get("percentile", {})
    submitted = float(side["slat_ns"]["mean"])  # percentiles are of completion alone

    def at(place: str) -> float:
        return (float(percentiles.get(place, 0.0)) + submitted) / 1e6

    cpu = (float(job["usr_cpu"]) + float(job["sys_cpu"])) / 100 * seconds * wanted.jobs
    return ProbeCell(
        access=wanted.access,
        size_bytes=wanted.size_bytes,
        depth=wanted.depth,
        jobs=wanted.jobs,
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


# dlemu's own


def _own(wanted: Wanted, path: str, size_bytes: int, seconds: float, engine: Engine) -> ProbeCell:
    streams = tuple(_streams(wanted, path, size_bytes, SETTLE_SECONDS + seconds))
    began_ns, requests = _answered(streams, engine, seconds)
    return _cell_of_requests(wanted, began_ns, requests, seconds)


def measure_gets(wanted: Wanted, storage: StorageSpec, objects: tuple[str, ...], seconds: float) -> ProbeCell:
    """Measure one cell of GET requests on objects; raises DlemuError, UserError."""
    streams = tuple(
        GetStream(
            storage=storage,
            objects=objects,
            random=wanted.random,
            size_bytes=wanted.size_bytes,
            depth=wanted.depth,
            seconds=SETTLE_SECONDS + seconds,
            seed=time.time_ns() % (1 << 32) + job,
        )
        for job in range(wanted.jobs)
    )
    began_ns, requests = _answered(streams, "s3", seconds)
    return _cell_of_requests(wanted, began_ns, requests, seconds)


def _answered(streams: tuple[Stream | GetStream, ...], engine: Engine, seconds: float) -> tuple[int, list[Requests]]:
    """Return when the jobs began and what they did, in processes of their own."""
    request = (streams, engine, _STOPPED_SECONDS)
    return run_clean(_run_all, request, _PROCESS, patience_seconds=seconds + _PATIENCE_SECONDS)


def _streams(wanted: Wanted, path: str, size_bytes: int, seconds: float) -> Iterator[Stream]:
    """Yield each job's: random ones share the whole file, sequential ones have parts of their own."""
    part = size_bytes // wanted.jobs // wanted.size_bytes * wanted.size_bytes
    for job in range(wanted.jobs):
        begin, end = (0, size_bytes) if wanted.random else (job * part, (job + 1) * part)
        yield Stream(
            path=path,
            writes=wanted.writes,
            random=wanted.random,
            size_bytes=wanted.size_bytes,
            depth=wanted.depth,
            begin=begin,
            end=end,
            seconds=seconds,
            seed=time.time_ns() % (1 << 32) + job,
        )


def _cell_of_requests(wanted: Wanted, began_ns: int, requests: list[Requests], seconds: float) -> ProbeCell:
    """Return what counts: requests that ended after settling and before the end.

    The time they took is from one end to another, from the last one of settling to the last that counts: a drive that
    answers in clumps would else have half a clump too many, more than 2 % of two seconds under the kernel's throttle.
    """
    low = began_ns + round(SETTLE_SECONDS * 1e9)
    ends = np.concatenate([part.end_ns for part in requests])
    latency_ns = np.concatenate([part.latency_ns for part in requests])
    first_ns = [part.first_byte_ns for part in requests if part.first_byte_ns is not None]
    origin = int(ends[ends <= low].max(initial=began_ns))
    kept = (ends > origin) & (ends <= low + round(seconds * 1e9))
    if kept.sum() < 2:  # slower than the time given: what there is
        origin, kept = began_ns, np.ones(len(ends), bool)
    length = max(1e-9, float(ends[kept].max() - origin) / 1e9)
    count = int(kept.sum())
    everything = len(ends) * wanted.size_bytes / 1e9
    return ProbeCell(
        access=wanted.access,
        size_bytes=wanted.size_bytes,
        depth=wanted.depth,
        jobs=wanted.jobs,
        seconds=length,
        mb_per_second=count * wanted.size_bytes / 1e6 / length,
        iops=count / length,
        latency_ms=latency_of(latency_ns[kept]),
        cpu_seconds_per_gb=sum(part.cpu_seconds for part in requests) / everything,
        first_byte_ms=latency_of(np.concatenate(first_ns)[kept]) if first_ns else None,
        failed=sum(part.failed for part in requests),
    )


def latency_of(latency_ns: NDArray[np.int64]) -> Latency | None:
    """Return mean and percentiles; None without any."""
    if not len(latency_ns):
        return None
    p50, p90, p99, p999, most = (np.percentile(latency_ns, (50, 90, 99, 99.9, 100)) / 1e6).tolist()
    return Latency(mean=float(latency_ns.mean()) / 1e6, p50=p50, p90=p90, p99=p99, p999=p999, max=most)


def _run_all(request: tuple[tuple[Stream | GetStream, ...], Engine, float], _: object) -> tuple[int, list[Requests]]:
    """Be the clean process: run a job for each stream."""
    engines: dict[str, Callable[[Any], Requests]] = {
        "kernel aio": run_stream,
        "threads": run_threads,
        "s3": run_gets,
    }
    streams, engine, stopped_seconds = request
    run, began_ns = engines[engine], time.monotonic_ns()
    if len(streams) == 1:
        return began_ns, [run(streams[0])]

    def begin() -> None:
        nonlocal began_ns
        began_ns = time.monotonic_ns()

    def make_requests(worker: Worker, stream: Stream | GetStream) -> Requests:
        worker.ready()
        return run(stream)

    made = run_crew(make_requests, streams, _JOB, timeout_seconds=stopped_seconds, on_ready=begin)
    return began_ns, made


# power


@contextlib.contextmanager
def _metering() -> Iterator[Callable[[], dict[str, float]]]:
    """Read all meters twice a second as long as the block lasts; what it gives says the means."""
    probe: PowerProbe | None = None
    with contextlib.suppress(AbsentError):
        probe = PowerProbe(Scope(folders=()))
    if probe is None:
        yield dict
        return
    seen: dict[str, list[float]] = {}
    over = threading.Event()

    def read() -> None:
        while True:
            for reading in probe.read(time.monotonic_ns()):
                seen.setdefault(reading.source, []).append(reading.value)
            if over.wait(0.5):  # several readings for the mean of a cell of 2 s
                return

    def means() -> dict[str, float]:
        over.set()
        reader.join()
        return {source: float(np.mean(values)) for source, values in seen.items()}

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield means
    finally:
        over.set()

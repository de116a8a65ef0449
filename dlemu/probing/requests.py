"""One cell of a probe: so many requests of one size in flight for some seconds, by fio or by dlemu's own engines."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from datagen.storage.storage_base import StorageSpec
from dlemu.comm import die_with_parent
from dlemu.comm.cgroup_limits import who_killed
from dlemu.probing.kernel_aio import Requests, Stream, open_stream, run_stream, why_no_aio
from dlemu.probing.object_gets import GetStream, run_gets
from dlemu.probing.probe_answers import Access, Engine, Latency, ProbeCell, Watts
from dlemu.probing.thread_reads import run_threads
from dlemu.telemetry.power import Probe as PowerProbe
from dlemu.telemetry.probe_base import AbsentError, Scope

SETTLE_SECONDS = 0.5
"""Of each cell, before what counts."""
_PROGRAM = "from dlemu.probing.requests import main; main()"
_PATIENCE_SECONDS = 120.0
_ENDING_SECONDS = 10.0


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


def choose_engine(asked: str) -> tuple[Engine, str]:
    """Return the engine to use of `auto`, `fio`, `aio`, `threads`, and why it is no better one; raises DlemuError."""
    no_fio = "" if shutil.which("fio") else "fio is not installed"
    if asked == "fio" and no_fio:
        raise DlemuError(f"{no_fio}: apt-get install fio, or leave --engine out")
    if asked in ("auto", "fio") and not no_fio:
        return "fio", ""
    no_aio = why_no_aio()
    if asked == "aio" and no_aio:
        raise DlemuError(f"the kernel's AIO can't be used: {no_aio}; leave --engine out")
    if asked in ("auto", "aio") and no_aio is None:
        return "kernel aio", no_fio if asked == "auto" else ""
    return "threads", "; ".join(filter(None, (no_fio, no_aio))) if asked == "auto" else ""


def fio_version() -> str:
    """Return what fio calls itself."""
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=False).stdout.strip()


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
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(descriptor,),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )
    finally:
        os.close(descriptor)
    output, errors = _said(process, None, seconds)
    text = output.decode(errors="replace")
    if process.returncode:
        what = errors.decode(errors="replace") or text
        what = what.strip()[-400:].replace(f"/proc/self/fd/{descriptor}", path)
        raise DlemuError(f"fio {_end_told(process.returncode)}: {what}".rstrip(": "))
    return cell_of_fio(json.loads(text[text.index("{") :]), wanted)


def _said(process: subprocess.Popen[bytes], given: bytes | None, seconds: float) -> tuple[bytes, bytes]:
    """Return what a process that measures for so long says; it never outlives the call. Raises DlemuError."""
    most = seconds + _PATIENCE_SECONDS
    try:
        return process.communicate(given, most)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel does not hold this one
            process.wait(_ENDING_SECONDS)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(BrokenPipeError):  # what it was not given yet
                pipe.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise DlemuError(
                f"requests of {seconds:g} s did not end within {most:g} s: look at the storage (`dmesg`, mount state)"
            ) from error
        raise


def _end_told(status: int) -> str:
    """Return how a process ended, by what `Popen.returncode` says."""
    return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


def cell_of_fio(told: dict[str, Any], wanted: Wanted) -> ProbeCell:
    """Return what fio's JSON says of a cell: its jobs as one group."""
    job = told["jobs"][0]
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
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
        start_new_session=True,
    )
    output, _ = _said(process, pickle.dumps((streams, engine, os.getpid())), seconds)
    if process.returncode or not output:
        raise DlemuError(f"the process of the requests {_end_told(process.returncode)} and said nothing")
    answer: tuple[int, list[Requests]] | DlemuError = pickle.loads(output)
    if isinstance(answer, DlemuError):
        raise answer
    return answer


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


def main() -> None:
    """Be the clean process: fork a job for each stream, and say what they did."""
    streams, engine, parent = pickle.load(sys.stdin.buffer)
    die_with_parent(parent)
    say = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer: object = _run_all(streams, engine)
    except DlemuError as error:
        answer = error
    except BaseException as error:  # carried to the caller
        answer = DlemuError(f"{type(error).__name__}: {error}")
    pickle.dump(answer, say)
    say.close()


def _run_all(streams: tuple[Stream | GetStream, ...], engine: Engine) -> tuple[int, list[Requests]]:
    engines: dict[str, Callable[[Any], Requests]] = {
        "kernel aio": run_stream,
        "threads": run_threads,
        "s3": run_gets,
    }
    run = engines[engine]
    if len(streams) == 1:
        return time.monotonic_ns(), [run(streams[0])]
    with ProcessPoolExecutor(
        len(streams), get_context("fork"), initializer=die_with_parent, initargs=(os.getpid(),)
    ) as pool:
        try:
            list(pool.map(_ready, range(len(streams))))
            began_ns = time.monotonic_ns()
            return began_ns, list(pool.map(run, streams))
        except BrokenProcessPool as error:
            raise DlemuError(f"a process that made requests was killed; {who_killed()}") from error


def _ready(number: int) -> int:
    return number


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
            if over.wait(0.5):
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

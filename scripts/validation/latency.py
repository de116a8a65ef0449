"""Mounts the model of `model_fs.py`, and checks dlemu on storage with high latency but no limit of bandwidth."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.processes import running
from measuring.runs import section

from datagen.errors import UserError
from validation.bed import Bed, Dataset, Ran
from validation.check import Check, advice
from validation.drive import MEMORY
from validation.janitor import Traces, cleaned

LATENCY_SECONDS = 0.020
CHANNELS = 4
SECONDS = 6.0
SMALL = Dataset(name="npz-100kb", format="npz", sample_bytes=100_000, files=1200)
"""A sample is one request, because FUSE splits reads only above 128 KiB."""
THREADS = (1, 2, 4, 8)


def why_no_model() -> str | None:
    """Return why the model can't be mounted on this host; None if it can."""
    if os.geteuid() != 0:
        return "the latency model is mounted by FUSE, which is done as root here"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse: this kernel has no FUSE"
    if importlib.util.find_spec("mfusepy") is None:
        return "the latency model needs mfusepy: pip install mfusepy"
    if not (ctypes.util.find_library("fuse3") or ctypes.util.find_library("fuse")):
        return "the latency model needs libfuse: apt-get install libfuse3-3"
    return None


@contextlib.contextmanager
def model_mounted(
    source: str, latency_seconds: float, channels: int, jitter: str = "steady", slow_folder: str = ""
) -> Iterator[str]:
    """Mount the model of a folder; yield the mount point. Raises UserError if it can't be mounted."""
    reason = why_no_model()
    if reason:
        raise UserError(reason)
    folder = tempfile.mkdtemp(prefix="dlemu-model-")
    mount = os.path.join(folder, "model")
    os.mkdir(mount)
    arguments = [str(latency_seconds), str(channels), jitter, *([slow_folder] if slow_folder else [])]
    argv = [sys.executable, "-m", "validation.model_fs", source, mount, *arguments]
    with running(argv) as server, cleaned(Traces(folder=folder, mount=mount)):  # unmounting ends the server
        server.wait_until(lambda: os.path.ismount(mount))
        yield mount


def measure(bed: Bed) -> Iterator[Check]:
    """Reads/s over the number of readers, and what dlemu says limits them."""
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(SMALL, source)
        with model_mounted(source, LATENCY_SECONDS, CHANNELS) as mount:
            for threads in THREADS:
                ran = run(bed, mount, threads)
                yield from ran.beside(check(threads, ran, bed.plain_on(mount, SMALL, threads)))


def run(
    bed: Bed,
    mount: str,
    threads: int,
    *,
    dataset: Dataset = SMALL,
    latency_seconds: float = LATENCY_SECONDS,
    channels: int = CHANNELS,
    seconds: float = SECONDS,
) -> Ran:
    """Train with so many readers, and a demand of twice the model's rate."""
    reads_per_second = min(threads, channels) / latency_seconds
    steps = int(seconds * reads_per_second / 2)
    settings = [
        *section(
            "reader", batch_size=2, odirect=True, read_threads=threads, prefetch_size=4 * threads, file_shuffle="seed"
        ),
        *section("train", computation_time=2 * latency_seconds / channels / 2, total_training_steps=steps),
    ]
    return bed.train_on(mount, dataset, *settings)


def check(threads: int, ran: Ran, plain_bytes_per_second: float) -> Iterator[Check]:
    """Check the rate against theory and the plain reader, and the limit: too few readers if there are more channels.

    Theory leaves out the 1 to 2 ms that FUSE takes to open a file, which the plain reader takes, too.
    """
    case = f"{threads} readers, {CHANNELS} channels of {1000 * LATENCY_SECONDS:g} ms"
    rate = min(threads, CHANNELS) / LATENCY_SECONDS
    samples = float(ran.metrics["samples_per_second"]["mean"])
    yield Check(case, "samples/s", rate, samples, "/s", within=15, percent=True)
    plain = plain_bytes_per_second / ran.bytes_per_sample
    yield Check(case, "samples/s / plain", plain, samples, "/s", within=5, percent=True)
    if threads != CHANNELS:  # with as many readers as channels, either limit is right
        limit = "loader" if threads < CHANNELS else "storage"
        yield Check(case, "limited by", limit, ran.limited_by)
    if threads < CHANNELS:
        yield advice(case, "raise reader.read_threads", ran.advice)

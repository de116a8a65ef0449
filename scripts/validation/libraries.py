"""dlemu compared with scripts that use each format's library: samples/s on drives limited in three ways."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.processes import run
from measuring.runs import section

from validation.bed import Bed, Dataset
from validation.check import Check
from validation.drive import MEMORY, Speed
from validation.latency import model_mounted, why_no_model

SAMPLE_BYTES, SAMPLES, RECORDS = 600_000, 80, 400
"""Bytes of a sample; samples of a format with one in a file; samples of one with several, which is read faster."""
SAMPLES_PER_FILE = {"tfrecord": 20, "webdataset": 20, "indexed_binary": 20, "mmap_indexed_binary": 20, "parquet": 20}
FORMATS = ("npz", "npy", "hdf5", "jpeg", "png", "tiff", "csv", *SAMPLES_PER_FILE)
DRIVES = {"150 requests/s": Speed(reads_per_second=150), "20 MB/s": Speed(read_bytes_per_second=20_000_000)}
LATENCY_SECONDS, CHANNELS = 0.020, 4
ROUNDS = 1
WITHIN_PERCENT = 5.0
BATCH = 4


def readers_of(data: Dataset) -> int:
    """Return the number of readers: two if one would leave the drive idle while it decodes; one for streamed files."""
    return 2 if data.samples_per_file == 1 else 1


def measure(bed: Bed) -> Iterator[Check]:
    """Compare each format on each drive, script and dlemu in turn, from a cold page cache."""
    for name in FORMATS:
        data = _dataset(name)
        bed.prepare(data)
        for drive, speed in DRIVES.items():
            bed.drive.set_speed(speed)
            yield _check(bed, data, drive, bed.drive.folder, bed.drive.forget_cache, bed.drive.command)
        bed.drive.set_speed(Speed())
        bed.remove(data)
        if why_no_model() is None:
            yield _on_latency(bed, data)


def _on_latency(bed: Bed, data: Dataset) -> Check:
    case = f"{CHANNELS} channels of {1000 * LATENCY_SECONDS:g} ms"
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(data, source)
        with model_mounted(source, LATENCY_SECONDS, CHANNELS) as mount:
            return _check(bed, data, case, mount, partial(_evict, os.path.join(mount, data.name)), list)


def _check(
    bed: Bed,
    data: Dataset,
    drive: str,
    folder: str,
    forget: Callable[[], None],
    command: Callable[[list[str]], list[str]],
) -> Check:
    by_script, by_dlemu = [], []
    for _ in range(ROUNDS):
        forget()
        by_script.append(_by_script(data, folder, command))
        forget()
        by_dlemu.append(_by_dlemu(bed, data, folder))
    return Check(
        f"{data.format}, {drive}",
        "samples/s / script",
        statistics.mean(by_script),
        statistics.mean(by_dlemu),
        "/s",
        within=WITHIN_PERCENT,
        percent=True,
    )


def _by_script(data: Dataset, folder: str, command: Callable[[list[str]], list[str]]) -> float:
    train = os.path.join(folder, data.name, "train")
    files = sorted(
        (path for path in os.listdir(train) if not path.endswith(".idx")), key=lambda name: int(name.split("_")[1])
    )
    samples = [f"{train}/{file}:{index}" for file in files for index in range(data.samples_per_file)]
    arguments = [data.format, str(readers_of(data)), str(BATCH), *samples]
    argv = [sys.executable, "-m", "validation.library_scripts", *arguments]
    return float(run(command(argv)).output.split()[-1])  # TensorFlow prints messages before the number


def _by_dlemu(bed: Bed, data: Dataset, folder: str) -> float:
    settings = [
        *section("reader", batch_size=data.samples_per_file if data.format == "parquet" else BATCH),
        *section("reader", read_threads=readers_of(data), prefetch_size=2 * readers_of(data), nice=0),
        *section("reader", data_loader="pytorch"),
        *section("train", computation_time=0.0001, epochs=1),
        "metric.scaling_seconds=0",
        "output.report=false",
    ]
    ran = bed.train_on(folder, data, *settings)
    return float(ran.metrics["samples_per_second"]["mean"])


def _dataset(name: str) -> Dataset:
    samples_per_file = SAMPLES_PER_FILE.get(name, 1)
    sample_bytes = SAMPLE_BYTES // 4 if name == "csv" else SAMPLE_BYTES  # as text, a byte takes 3.6 bytes
    return Dataset(
        name=f"library-{name}",
        format=name,
        sample_bytes=sample_bytes,
        samples_per_file=samples_per_file,
        files=SAMPLES if samples_per_file == 1 else RECORDS // samples_per_file,
    )


def _evict(folder: str) -> None:
    """Drop the pages of all files below a folder."""
    for parent, _, files in os.walk(folder):
        for file in files:
            descriptor = os.open(os.path.join(parent, file), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

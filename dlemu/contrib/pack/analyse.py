"""Computes the figures of a packing from the counters of its processes. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.config.literal import override
from dlemu.contrib.pack.image_list import nearest_divisor
from dlemu.contrib.pack.limits import judge_packing
from dlemu.contrib.pack.packed_set import PackedFile, PackedSet, training_spec
from dlemu.contrib.pack.result import PackDevice, PackFigures, PackShares
from dlemu.contrib.pack.words import PackSettings
from dlemu.metrics.cache import COUNTED
from dlemu.results.wording import count
from dlemu.telemetry import HostTelemetry

_SHOWN_SKIPPED = 20  # enough to see what they have in common; the set's own list has all
_MIN_FROM_STORAGE_PERCENT = 95.0
"""If less than this share of the bytes came from storage, the result has a warning."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PackMeasurement:
    """The raw measurements of a packing."""

    rows: NDArray[np.void]
    """ROW_DTYPE: a row per process."""
    begin_ns: int
    end_ns: int
    telemetry: HostTelemetry | None
    finished: tuple[PackedFile, ...]
    cores: int
    file_system: str = ""
    """That of the images, or the storage's type if they are objects."""

    def total(self, name: str) -> int:
        """Return the sum of a field over all processes."""
        return int(self.rows[name].sum())


def compute_figures(
    packing: PackMeasurement,
    settings: PackSettings,
    before: PackedSet,
    done: PackedSet,
    target: str,
    passed_over: int,
    storage_words: Sequence[str] = (),
) -> PackFigures:
    """Return the figures; `before` is the packed set when this run began, `done` afterwards.

    `storage_words` are the overrides that name the target's storage.
    """
    seconds = max(1e-9, (packing.end_ns - packing.begin_ns) / 1e9)
    read, written = packing.total("read_bytes"), packing.total("written_bytes")
    images = done.samples - before.samples  # those left out as damaged are no packed images
    cpu_seconds = packing.total("cpu_ns") / 1e9
    cpu_percent = 100 * cpu_seconds / seconds / packing.cores
    shares = shares_of(packing)
    device, busy = _device(packing), _busy_percent(packing)
    from_storage_bytes = packing.total("storage_bytes")
    known = read and (from_storage_bytes or packing.file_system in COUNTED)
    # at most all: whole pages are read of the last bytes of an image
    from_storage = min(100.0, 100 * from_storage_bytes / read) if known else None
    warnings = []
    if from_storage is not None and from_storage < _MIN_FROM_STORAGE_PERCENT:
        warnings.append(
            f"only {from_storage:.0f} % of the bytes read came from the storage: the page cache served the "
            "rest (odirect=true bypasses it)"
        )
    if passed_over:
        warnings.append(f"{settings.source}: left out {count(passed_over, 'file')} whose names are not those of images")
    if skipped := done.skipped:
        warnings.append(f"{count(len(skipped), 'image')} could not be decoded: left out of the packed set")
    warnings += images_not_trained_on(done)
    return PackFigures(
        images=images,
        kept_images=before.samples,
        skipped=len(skipped),
        skipped_paths=tuple(f"{image.path}: {image.reason}" for image in skipped[:_SHOWN_SKIPPED]),
        processes=settings.processes,
        files=done.files,
        images_per_file=done.images_per_file,
        seconds=seconds,
        images_per_second=images / seconds,
        read_bytes=read,
        written_bytes=written,
        read_mb_per_second=read / 1e6 / seconds,
        write_mb_per_second=written / 1e6 / seconds,
        from_storage_percent=from_storage,
        cpu_seconds=cpu_seconds,
        cpu_percent=cpu_percent,
        cpu_seconds_per_gb=cpu_seconds / (read / 1e9) if read else 0.0,
        host_busy_percent=busy,
        shares=shares,
        device=device,
        limited_by=judge_packing(
            shares,
            device,
            processes=settings.processes,
            cores=packing.cores,
            host_busy_percent=busy,
            own_busy_percent=cpu_percent,
            throttled_percent=_mean(packing, "cpu", "", "throttled_percent"),
        ),
        train=train_command(target, done, storage_words),
        warnings=tuple(warnings),
    )


def images_not_trained_on(packed: PackedSet) -> Iterator[str]:
    """Yield a warning if training will not read all packed images, because its files must have equal length."""
    files, samples = packed.training_shape()
    unread = packed.samples - files * samples
    if not unread:
        return
    read = f"training reads {files * samples} of the {packed.samples} images: it needs files of equal length"
    if packed.skipped:
        yield f"{read}, but some lack damaged images; remove the damaged images and pack again"
        return
    equal_count = nearest_divisor(packed.samples, packed.images_per_file)
    even = f"images_per_file={equal_count}" if equal_count else f"images={files * samples}"
    whole = "all" if equal_count else "no more than these"
    yield f"{read}, but the last one holds fewer; to pack {whole} in equal files: {even}, into an empty target"


def shares_of(packing: PackMeasurement) -> PackShares:
    """Return how the processes spent their time, which is the time of the thread that prepares images.

    Its waiting for the reading (writing) thread is divided in the proportions in which that thread was blocked in
    storage, was on a core, and waited for one.
    """
    whole = len(packing.rows) * (packing.end_ns - packing.begin_ns)
    # While the reading thread waits for a task, no image is left: the preparing thread is idle.
    idle = min(packing.total("await_task_ns"), packing.total("await_read_ns"))
    for_reading, for_writing = packing.total("await_read_ns") - idle, packing.total("await_write_ns")
    compute, on_core = packing.total("compute_ns"), packing.total("compute_cpu_ns")
    read_blocked, read_core, read_wanting_core = _thread_shares(packing, "read")
    write_blocked, write_core, write_wanting_core = _thread_shares(packing, "write")
    computing = on_core + for_reading * read_core + for_writing * write_core
    wanting_core = max(0, compute - on_core) + for_reading * read_wanting_core + for_writing * write_wanting_core
    parts = np.array([for_reading * read_blocked, computing, wanting_core, for_writing * write_blocked])
    percents = 100 * parts / max(whole, parts.sum(), 1)
    reading, computing, wanting_core, writing = percents.tolist()
    return PackShares(reading, computing, wanting_core, writing, idle=max(0.0, 100.0 - float(percents.sum())))


def _thread_shares(packing: PackMeasurement, thread: str) -> tuple[float, float, float]:
    """Return the shares of a thread's working time: blocked in storage, on a core, waiting for a core."""
    worked = packing.total(f"{thread}_ns")
    if not worked:
        return 1.0, 0.0, 0.0
    core, wanting_core = (min(worked, packing.total(f"{thread}_{part}_ns")) / worked for part in ("cpu", "cpu_wait"))
    return max(0.0, 1 - core - wanting_core), core, min(wanting_core, 1 - core)


def _device(packing: PackMeasurement) -> PackDevice:
    """Return the activity of the devices of source and target: summed rates and queue depths, highest busy share."""
    devices = packing.telemetry.devices if packing.telemetry is not None else ()
    names = [device.name for device in devices if device.counted and device.probe == "block"]

    def means(metric: str) -> list[float]:
        values = [_mean(packing, "block", name, metric) for name in names]
        return [value for value in values if not math.isnan(value)]

    def total(metric: str) -> float | None:
        known = means(metric)
        return sum(known) if known else None

    return PackDevice(
        read_mb_per_second=total("read_mb_per_second"),
        write_mb_per_second=total("write_mb_per_second"),
        mean_depth=total("mean_queue_depth"),
        busy_percent=max(means("busy_percent"), default=None),
    )


def _busy_percent(packing: PackMeasurement) -> float | None:
    idle = [_mean(packing, "cpu", "", metric) for metric in ("idle_percent", "iowait_percent")]
    return None if any(map(math.isnan, idle)) else max(0.0, 100 - sum(idle))


def _mean(packing: PackMeasurement, probe: str, source: str, metric: str) -> float:
    """Return the mean of a telemetry series over the packing; NaN without readings."""
    if packing.telemetry is None:
        return math.nan
    times, values = packing.telemetry.readings(probe, source, metric)
    begins = np.concatenate([[packing.begin_ns], times[:-1]]) if len(times) else times
    overlap = np.minimum(times, packing.end_ns) - np.maximum(begins, packing.begin_ns)
    weights = np.maximum(overlap, 0)
    return float((values * weights).sum() / weights.sum()) if len(times) and weights.sum() else math.nan


def train_command(target: str, packed: PackedSet, storage_words: Sequence[str]) -> str:
    """Return the command that trains on a packed set; empty if training could read nothing of it."""
    if not packed.training_shape()[1]:
        return ""
    spec = training_spec(target, packed)
    words = [
        "workload=default",
        *storage_words,
        override(("dataset", "data_folder"), target),
        f"dataset.format={spec.format}",
        f"dataset.num_files_train={spec.num_files_train}",
        f"dataset.num_samples_per_file={spec.num_samples_per_file}",
        f"dataset.record_length_bytes={int(spec.record_length_bytes)}",
    ]
    return shlex.join(["dlemu", "train", *words])

"""Computes the figures of a packing from the counters of its processes, and what limited it. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.config.overrides import override
from dlemu.contrib.pack.result import Confidence, PackDevice, PackFigures, PackLimit, PackShares
from dlemu.metrics.cache import COUNTED
from dlemu.telemetry import HostTelemetry

IDLE_PERCENT = 50.0
"""From this share of the processes' time without an image, there were too few images for so many processes."""
STARVED_SHARE, BUSY_PERCENT = 0.15, 90.0
"""No core is free if processes wait for one for this share of their time, or if the host is this busy."""
FEW_REQUESTS = 4.0
"""With fewer requests at a time, a device may be idle at times and still be slow."""
OTHER_PROGRAMS_PERCENT = 50.0
"""Other programs are blamed if they use this share of the cores' time, and more than the packing does."""
THROTTLED_PERCENT = 10.0
"""A CPU limit is blamed if it held the processes back in this share of its periods."""
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
    cores: int
    file_system: str = ""
    """That of the images, or the storage's type if they are objects."""

    def total(self, name: str) -> Any:
        """Return the sum of a field over all processes."""
        return self.rows[name].sum().item()

    def mean(self, probe: str, source: str, metric: str) -> float:
        """Return the mean of a telemetry series over the packing; NaN without readings."""
        if self.telemetry is None:
            return math.nan
        times, values = self.telemetry.readings(probe, source, metric)
        begins = np.concatenate([[self.begin_ns], times[:-1]]) if len(times) else times
        weights = np.maximum(np.minimum(times, self.end_ns) - np.maximum(begins, self.begin_ns), 0)
        return float((values * weights).sum() / weights.sum()) if len(times) and weights.sum() else math.nan


def compute_figures(
    packing: PackMeasurement,
    *,
    images: int,
    kept_images: int,
    images_per_file: int,
    train: str = "",
    warnings: Sequence[str] = (),
) -> PackFigures:
    """Return the figures; of the `images`, `kept_images` were packed before this run."""
    seconds = max(1e-9, (packing.end_ns - packing.begin_ns) / 1e9)
    read, written = packing.total("read_bytes"), packing.total("written_bytes")
    cpu_seconds = packing.total("cpu_ns") / 1e9
    cpu_percent = 100 * cpu_seconds / seconds / packing.cores
    shares, device, busy = shares_of(packing), _device(packing), _busy_percent(packing)
    from_storage_bytes = packing.total("storage_bytes")
    known = read and (from_storage_bytes or packing.file_system in COUNTED)
    # at most all: whole pages are read of the last bytes of an image
    from_storage = min(100.0, 100 * from_storage_bytes / read) if known else None
    notes = list(warnings)
    if from_storage is not None and from_storage < _MIN_FROM_STORAGE_PERCENT:
        notes.append(
            f"only {from_storage:.0f} % of the bytes read came from the storage: the page cache served the rest"
        )
    trained = math.prod(training_shape(images, images_per_file))
    if trained < images:
        notes.append(
            f"training reads {trained} of the {images} images, as the last file holds fewer than the others: "
            f"images={trained}, into an empty target, packs no more than these"
        )
    return PackFigures(
        images=images - kept_images,
        kept_images=kept_images,
        processes=len(packing.rows),
        files=-(-images // images_per_file),
        images_per_file=images_per_file,
        seconds=seconds,
        images_per_second=(images - kept_images) / seconds,
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
            processes=len(packing.rows),
            cores=packing.cores,
            host_busy_percent=busy,
            own_busy_percent=cpu_percent,
            throttled_percent=packing.mean("cpu", "", "throttled_percent"),
        ),
        train=train,
        warnings=tuple(notes),
    )


def shares_of(packing: PackMeasurement) -> PackShares:
    """Return how the processes spent their time, in percent of processes x seconds."""
    whole, cpu, wait = (
        {part: packing.total(f"{part}_{time}_ns") for part in ("read", "compute", "write")}
        for time in ("whole", "cpu", "cpu_wait")
    )
    reading, writing = (max(0, whole[part] - cpu[part] - wait[part]) for part in ("read", "write"))
    # whoever computes and is not on a core waits for one, also where the kernel does not account for that
    wanting_core = max(0, whole["compute"] - cpu["compute"]) + wait["read"] + wait["write"]
    parts = reading, sum(cpu.values()), wanting_core, writing
    reading, computing, wanting_core, writing = (
        100 * part / max(len(packing.rows) * (packing.end_ns - packing.begin_ns), sum(parts), 1) for part in parts
    )
    idle = max(0.0, 100.0 - reading - computing - wanting_core - writing)
    return PackShares(reading, computing, wanting_core, writing, idle)


def _device(packing: PackMeasurement) -> PackDevice:
    """Return the activity of the devices of source and target: summed rates and queue depths, highest busy share."""
    devices = packing.telemetry.devices if packing.telemetry is not None else ()
    names = [device.name for device in devices if device.counted and device.probe == "block"]

    def means(metric: str) -> list[float]:
        values = [packing.mean("block", name, metric) for name in names]
        return [value for value in values if not math.isnan(value)]

    rates = ("read_mb_per_second", "write_mb_per_second", "mean_queue_depth")
    read, write, depth = (sum(known) if (known := means(metric)) else None for metric in rates)
    busy = max(means("busy_percent"), default=None)
    return PackDevice(read_mb_per_second=read, write_mb_per_second=write, mean_depth=depth, busy_percent=busy)


def _busy_percent(packing: PackMeasurement) -> float | None:
    idle = [packing.mean("cpu", "", metric) for metric in ("idle_percent", "iowait_percent")]
    return None if any(map(math.isnan, idle)) else max(0.0, 100 - sum(idle))


def judge_packing(
    shares: PackShares,
    device: PackDevice,
    *,
    processes: int,
    cores: int,
    host_busy_percent: float | None,
    own_busy_percent: float,
    throttled_percent: float,
) -> PackLimit:
    """Return what limited a packing; `throttled_percent` is NaN where the processes have no CPU limit."""
    if shares.idle >= IDLE_PERCENT:
        confidence: Confidence = "high" if shares.idle >= 1.5 * IDLE_PERCENT else "medium"
        return PackLimit(what="images", confidence=confidence, advice="more_images")
    worked = max(1e-9, 100 - shares.idle)
    storage, cpu = (shares.reading + shares.writing) / worked, (shares.computing + shares.wanting_core) / worked
    share = max(storage, cpu)  # at 3/4, the other share is a third of it at most (docs/packing.md)
    confidence = "high" if share >= 0.75 else "medium" if share >= 0.5 else "low"
    if storage >= cpu:
        depth, busy = device.mean_depth, device.busy_percent
        has_few_requests = (processes if depth is None else depth) < FEW_REQUESTS
        if has_few_requests and (busy is None or busy < BUSY_PERCENT):
            return PackLimit(what="processes", confidence="low" if depth is None else "medium", advice="more_requests")
        part = "read" if shares.reading >= shares.writing else "write"
        confidence = "medium" if has_few_requests else confidence
        return PackLimit(what="storage", confidence=confidence, advice=f"faster_storage_to_{part}")
    busy_percent = host_busy_percent or 0.0
    if processes < cores and busy_percent < BUSY_PERCENT and shares.wanting_core / worked < STARVED_SHARE:
        return PackLimit(what="processes", confidence=confidence, advice="use_free_cores")
    advice = "more_cores"
    if throttled_percent >= THROTTLED_PERCENT:
        advice = "raise_cpu_limit"
    elif busy_percent - own_busy_percent >= max(own_busy_percent, OTHER_PROGRAMS_PERCENT):
        advice = "stop_other_programs"
    return PackLimit(what="host CPU", confidence=confidence, advice=advice)


def training_shape(images: int, images_per_file: int) -> tuple[int, int]:
    """Return (files, samples per file) for training, which leaves out a last file with fewer than the others."""
    return max(1, images // images_per_file), min(images, images_per_file)


def train_command(target: str, packed_format: str, images: int, images_per_file: int, sample_bytes: int) -> str:
    """Return the command that trains on a packed set."""
    files, samples = training_shape(images, images_per_file)
    words = [
        override(("dataset", "data_folder"), target),
        f"dataset.format={packed_format}",
        f"dataset.num_files_train={files}",
        f"dataset.num_samples_per_file={samples}",
        f"dataset.record_length_bytes={max(1, sample_bytes)}",
    ]
    return shlex.join(["dlemu", "train", "workload=default", *words])

"""Computes the summary of a packing from its rows: rates, shares of the processes' time, and what limited it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from dlemu.config.overrides import override
from dlemu.contrib.pack.settings import PackSettings
from dlemu.extend import Metric, rows_job
from dlemu.extend import cache as page_cache

ACTIVITIES = ("read", "compute", "write")  # of a process while it packs an image
CLOCKS = {"whole": "by the clock", "cpu": "on a core", "cpu_wait": "ready to run, without a core"}
COLUMNS = {
    "rank": "rank that packed it",
    "file": "number of the packed file",
    "began_ns": "when the rank began it",
    "ended_ns": "when all of it was on the device, under its name",
    "images": "images in it",
    "set_images": "images of the whole packed set, those of earlier runs included",
    "images_per_file": "images of each packed file but the last",
    "read_bytes": "bytes of its images' files",
    "written_bytes": "bytes of the packed file",
    "sample_bytes": "bytes of its samples, without what the format adds",
    "storage_bytes": "bytes fetched from storage for it, by the kernel's accounting",
    "cpu_ns": "CPU time of the rank",
} | {f"{name}_{clock}_ns": f"time to {name}, {state}" for name in ACTIVITIES for clock, state in CLOCKS.items()}
"""Columns of pack.parquet, which has a row per packed file. Points in time: CLOCK_MONOTONIC of the host, ns."""
# What limits a packing. `processes`: too few for the cores and the storage; `images`: too few for the processes.
What = Literal["storage", "host CPU", "processes", "images"]
# Shares of the processes' time, %: reading, computing, waiting for a core, writing, idle.
Shares = tuple[float, float, float, float, float]
ADVICE = {
    "more_images": "use more images, fewer images per file (pack.images_per_file), or fewer ranks",
    "more_cores": "use more cores; smaller images, or pack.encode=raw, need less CPU",
    "stop_other_programs": "other programs use most of the cores: stop them (top), or pack on an idle host",
    "raise_cpu_limit": "raise the CPU limit of this container or job (cgroup)",
    "use_free_cores": "use more ranks: cores and storage were idle at times",
    "more_requests": "use more ranks: the storage had few requests at a time",
    "faster_storage_to_read": "use faster storage for the images",
    "faster_storage_to_write": "use faster storage for the packed files, or smaller images",
}
IDLE_PERCENT = 50.0  # if processes have no image for this share of their time, there are too few images
STARVED_SHARE = 0.15  # if processes wait for a core for this share of their time, no core is free
BUSY_PERCENT = 90.0  # utilisation of a host without a free core, and of a device that more requests don't help
FEW_REQUESTS = 4.0  # with a smaller queue depth, a device may be idle at times, however slow it seems
OTHER_PROGRAMS_PERCENT = 50.0  # of the cores: other programs that use this, and no less than the packing, are the limit
THROTTLED_PERCENT = 10.0  # a CPU limit is the limit if it throttled processes in this share of its periods
_MIN_FROM_STORAGE_PERCENT = 95.0  # if less of the bytes came from storage, the result has a warning


@dataclass(frozen=True, kw_only=True)
class PackDevice:
    """Activity of the devices behind source and target during the packing, by the kernel's counters."""

    read_mb_per_second: float | None = None
    write_mb_per_second: float | None = None
    mean_depth: float | None = None
    busy_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class PackSummary(rows_job.RowsSummary):
    """Amounts, rates and bottleneck of a packing. MB are 1e6 bytes; shares are of processes x seconds, 100 % in all."""

    images: int
    """Images packed by this run, which may have resumed an interrupted one."""
    files: int
    """Files of the whole packed set."""
    seconds: Annotated[float, Metric("time", "s", "lower", head="time\ns", phase="run", is_drawn=True)]
    """From the moment when all processes were ready until the last file was on the device."""
    read_mb_per_second: Annotated[
        float, Metric("read", "MB/s", "higher", head="read\nMB/s", is_drawn=True, is_tile=True)
    ]
    """Bytes of the images' files / that time."""
    write_mb_per_second: Annotated[float, Metric("written", "MB/s", "higher", head="write\nMB/s")]
    """Packed bytes / that time."""
    from_storage_percent: float | None
    """Share of the bytes read that came from storage, by the kernel's accounting; None where unknown."""
    cpu_percent: Annotated[float, Metric("CPU", "%", "lower", head="CPU\n%")]
    """Mean CPU use of the packing processes, in percent of all cores."""
    reading_percent: Annotated[float, Metric("reading", "%", "neither", head="read\n%")]
    """Blocked in reads, with nothing else to do."""
    computing_percent: Annotated[float, Metric("computing", "%", "neither", head="comp.\n%")]
    """Running on a core: decoding, rescaling, encoding, copying."""
    wanting_core_percent: Annotated[float, Metric("waiting for a core", "%", "neither", head="core\n%")]
    """Ready to compute, but waiting for a core."""
    writing_percent: Annotated[float, Metric("writing", "%", "neither", head="write\n%")]
    """Blocked in writes and fsync."""
    limited_by: rows_job.LimitedBy[What] | None
    train: str
    """The command that trains on the packed set."""

    @property
    def images_per_second(self) -> Annotated[float, Metric("images", "/s", "higher", head="images\n/s")]:
        """Images packed / that time."""
        return self.images / self.seconds

    @property
    def idle_percent(self) -> Annotated[float, Metric("idle", "%", "neither", head="idle\n%")]:
        """Without an image, because none was left."""
        spent = self.reading_percent + self.computing_percent + self.wanting_core_percent + self.writing_percent
        return max(0.0, 100 - spent)


def summarise(run: rows_job.RowsRun) -> PackSummary:
    """Return the summary of a packing, from the rows of its files."""
    rows, facts = run.rows, run.facts
    # Each host has its own clock. All ranks begin together, so the run took as long as the host with the longest span.
    nodes = np.array(facts.journal.rank_nodes)
    by_host = [rows[nodes[rows["rank"]] == node] for node in np.unique(nodes)] or [rows]
    spans_ns = [(own["began_ns"].min(), own["ended_ns"].max()) for own in by_host if len(own)] or [(0, 0)]
    span_ns = int(np.diff(spans_ns).max())
    window_ns = spans_ns[0][0], spans_ns[0][0] + span_ns  # by the clock of the first host, whose telemetry is read
    seconds = max(1e-9, span_ns / 1e9)
    totals = {name: rows[name].sum().item() for name in rows.dtype.names or ()}
    images = totals["images"]
    set_images = int(rows["set_images"].max(initial=0))
    images_per_file = int(rows["images_per_file"].max(initial=0))
    cores = sum(host.cpu_usable for host in facts.journal.hosts) or 1
    cpu_percent = 100 * totals["cpu_ns"] / 1e9 / seconds / cores
    idle = mean_of(run, "cpu", "", "idle_percent", window_ns) + mean_of(run, "cpu", "", "iowait_percent", window_ns)
    storage = facts.journal.storage
    from_storage = _from_storage_percent(totals, storage.file_system if storage else "")
    shares = _shares(totals, facts.ranks * span_ns)
    limit = judge_packing(
        shares,
        device_activity(run, window_ns),
        processes=facts.ranks,
        cores=cores,
        host_busy_percent=None if math.isnan(idle) else max(0.0, 100 - idle),
        own_busy_percent=cpu_percent,
        throttled_percent=mean_of(run, "cpu", "", "throttled_percent", window_ns),
    )
    read_mb_per_second = totals["read_bytes"] / 1e6 / seconds
    verdict = f"{read_mb_per_second:,.1f} MB/s read, {images / seconds:,.1f} images/s; limited by {limit.what}"
    if facts.failure is not None:
        verdict = f"INCOMPLETE: {facts.failure}"
    is_complete = facts.failure is None and bool(images)
    train = ""
    if is_complete:
        settings = facts.workload.section(PackSettings)
        train = train_command(settings, set_images, images_per_file, totals["sample_bytes"] // images)
    reading, computing, wanting_core, writing, _ = shares
    return PackSummary(
        **rows_job.common_fields(run.facts),
        verdict=verdict,
        images=images,
        files=-(-set_images // max(1, images_per_file)),
        seconds=seconds,
        read_mb_per_second=read_mb_per_second,
        write_mb_per_second=totals["written_bytes"] / 1e6 / seconds,
        from_storage_percent=from_storage,
        cpu_percent=cpu_percent,
        reading_percent=reading,
        computing_percent=computing,
        wanting_core_percent=wanting_core,
        writing_percent=writing,
        limited_by=limit if is_complete else None,
        train=train,
        issues=tuple(_issues(set_images, images_per_file, from_storage)),
    )


def _from_storage_percent(totals: dict[str, int], file_system: str) -> float | None:
    """Return the share of the bytes read that came from storage, %; None if the kernel does not count that."""
    if not totals["read_bytes"] or not (totals["storage_bytes"] or file_system in page_cache.COUNTED):
        return None
    # The kernel reads whole pages, so its bytes may exceed those of the images.
    return min(100.0, 100 * totals["storage_bytes"] / totals["read_bytes"])


def mean_of(run: rows_job.RowsRun, probe: str, source: str, metric: str, window_ns: tuple[int, int]) -> float:
    """Return the mean, in a window of time, of a telemetry series of the first host; NaN without readings."""
    if not run.telemetry:
        return math.nan
    ends, values = run.telemetry[0].readings(probe, source, metric)
    begins = np.concatenate([[window_ns[0]], ends[:-1]]) if len(ends) else ends  # a reading covers the time before it
    weights = np.maximum(np.minimum(ends, window_ns[1]) - np.maximum(begins, window_ns[0]), 0)
    return float(np.average(values, weights=weights)) if weights.sum() else math.nan


def _shares(totals: dict[str, int], available_ns: int) -> Shares:
    """Return the shares of the processes' time, which is `available_ns` in all.

    Example: 10 s of reads, of which 2 on a core and 1 waiting for a core, are 7 s reading, 2 computing, 1 waiting.
    """
    cpu = sum(totals[f"{activity}_cpu_ns"] for activity in ACTIVITIES)
    read = max(0, totals["read_whole_ns"] - totals["read_cpu_ns"] - totals["read_cpu_wait_ns"])
    write = max(0, totals["write_whole_ns"] - totals["write_cpu_ns"] - totals["write_cpu_wait_ns"])
    # A process that computes but is not on a core waits for one, even if the kernel does not account for the wait.
    compute_wait = max(0, totals["compute_whole_ns"] - totals["compute_cpu_ns"])
    spent_ns = read, cpu, compute_wait + totals["read_cpu_wait_ns"] + totals["write_cpu_wait_ns"], write
    total_ns = max(available_ns, sum(spent_ns), 1)
    reading, computing, wanting_core, writing = (100 * time_ns / total_ns for time_ns in spent_ns)
    idle = max(0.0, 100.0 - reading - computing - wanting_core - writing)
    return reading, computing, wanting_core, writing, idle


def device_activity(run: rows_job.RowsRun, window_ns: tuple[int, int]) -> PackDevice:
    """Return sums of the rates and queue depths, and the highest utilisation, of the devices of source and target."""
    devices = run.telemetry[0].devices if run.telemetry else ()
    names = [device.name for device in devices if device.counted and device.probe == "block"]
    means = dict[str, list[float]]()
    for metric in ("read_mb_per_second", "write_mb_per_second", "mean_queue_depth", "busy_percent"):
        readings = [mean_of(run, "block", name, metric, window_ns) for name in names]
        means[metric] = [mean for mean in readings if not math.isnan(mean)]
    busy = max(means.pop("busy_percent"), default=None)
    read, write, depth = (sum(device_means) if device_means else None for device_means in means.values())
    return PackDevice(read_mb_per_second=read, write_mb_per_second=write, mean_depth=depth, busy_percent=busy)


def judge_packing(
    shares: Shares,
    device: PackDevice,
    *,
    processes: int,
    cores: int,
    host_busy_percent: float | None,
    own_busy_percent: float,
    throttled_percent: float,
) -> rows_job.LimitedBy[What]:
    """Return what limited a packing, and the advice; `throttled_percent` is NaN if the processes have no CPU limit."""
    reading, computing, wanting_core, writing, idle = shares
    if idle >= IDLE_PERCENT:
        confidence: rows_job.Confidence = "high" if idle >= 1.5 * IDLE_PERCENT else "medium"
        return _limit("images", confidence, "more_images")
    active = max(1e-9, 100 - idle)
    storage_share, cpu_share = (reading + writing) / active, (computing + wanting_core) / active
    share = max(storage_share, cpu_share)
    confidence = "medium" if share >= 0.5 else "low"
    if share >= 0.75:  # the other share is then at most a third of it (docs/packing.md)
        confidence = "high"
    if storage_share >= cpu_share:
        depth, busy = device.mean_depth, device.busy_percent
        has_few_requests = (processes if depth is None else depth) < FEW_REQUESTS
        if has_few_requests and (busy is None or busy < BUSY_PERCENT):
            return _limit("processes", "low" if depth is None else "medium", "more_requests")
        advice = f"faster_storage_to_{'read' if reading >= writing else 'write'}"
        return _limit("storage", "medium" if has_few_requests else confidence, advice)
    busy_percent = host_busy_percent or 0.0
    if processes < cores and busy_percent < BUSY_PERCENT and wanting_core / active < STARVED_SHARE:
        return _limit("processes", confidence, "use_free_cores")
    advice = "more_cores"
    if throttled_percent >= THROTTLED_PERCENT:
        advice = "raise_cpu_limit"
    elif busy_percent - own_busy_percent >= max(own_busy_percent, OTHER_PROGRAMS_PERCENT):
        advice = "stop_other_programs"
    return _limit("host CPU", confidence, advice)


def _limit(bottleneck: What, confidence: rows_job.Confidence, advice: str) -> rows_job.LimitedBy[What]:
    return rows_job.LimitedBy(what=bottleneck, confidence=confidence, advice=(ADVICE[advice],))


def training_shape(images: int, images_per_file: int) -> tuple[int, int]:
    """Return (files, samples per file) for training, which can't use a last file with fewer samples than the others."""
    return max(1, images // max(1, images_per_file)), min(images, images_per_file)


def train_command(settings: PackSettings, images: int, images_per_file: int, sample_bytes: int) -> str:
    """Return the command that trains on a packed set."""
    files, samples = training_shape(images, images_per_file)
    overrides = [
        override(("dataset", "data_folder"), settings.target),
        f"dataset.format={settings.format}",
        f"dataset.num_files_train={files}",
        f"dataset.num_samples_per_file={samples}",
        f"dataset.record_length_bytes={max(1, sample_bytes)}",
    ]
    return shlex.join(["dlemu", "train", "workload=default", *overrides])


def _issues(images: int, images_per_file: int, from_storage: float | None) -> Iterator[str]:
    if from_storage is not None and from_storage < _MIN_FROM_STORAGE_PERCENT:
        yield f"only {from_storage:.0f} % of the bytes read came from the storage: the page cache served the rest"
    trained = math.prod(training_shape(images, images_per_file))
    if trained < images:
        yield (
            f"training reads {trained} of the {images} images, as the last file holds fewer than the others: "
            f"pack.images={trained}, into an empty target, packs no more than these"
        )

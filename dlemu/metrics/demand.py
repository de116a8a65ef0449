"""What a workload needs from its storage when its accelerators never wait, from the configuration alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from datagen.layout import nominal_sample_bytes, stored_sample_bytes
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload, full_size

MB, GB = 1e6, 1e9


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one workload on one type of accelerator needs. MB = 1e6 and GB = 1e9 bytes."""

    workload: str
    accelerator: str
    """Empty for a workload that has no table of accelerators."""
    format: str
    data_loader: str
    num_files: int
    num_samples: int
    sample_bytes: int
    """Mean bytes read per sample, uncompressed; of formats with columns, only the columns that training reads, and row
    groups as often as they are read."""
    dataset_gb: float
    """All samples as they are stored, including columns that are not read."""
    batch_size: int
    computation_seconds: float
    """Mean computation time of one batch."""
    samples_per_second: float | None
    """One accelerator's demand at 100 % utilisation; None without computation time, for then demand has no limit."""
    mb_per_second: float | None
    cores: float | None
    """Cores that one accelerator's workers keep busy by preprocessing (`reader.preprocess=burn`), and its trainer."""
    au_threshold_percent: float
    """The AU at which a run passes."""
    sample_divisor: float | None = None
    """As `sample_divisor` of the workload."""


def demand(name: str, workload: Workload) -> Demand:
    """Return the demand of one accelerator of the workload; `name` is what the workload is called."""
    data, reader = workload.dataset, workload.reader
    sample_bytes = round(nominal_sample_bytes(data) * row_group_reads(workload))
    samples = data.num_files_train * data.num_samples_per_file
    seconds = mean_seconds(workload.train.computation_time)
    rate = reader.batch_size / seconds if seconds > 0 else None
    burned = mean_seconds(reader.preprocess_time) * (reader.preprocess == "burn")
    return Demand(
        workload=name,
        accelerator=workload.accelerator,
        format=data.format,
        data_loader=reader.data_loader,
        num_files=data.num_files_train,
        num_samples=samples,
        sample_bytes=sample_bytes,
        dataset_gb=samples * stored_sample_bytes(data) / GB,
        batch_size=reader.batch_size,
        computation_seconds=seconds,
        samples_per_second=rate,
        mb_per_second=None if rate is None else rate * sample_bytes / MB,
        cores=None if rate is None else rate * burned + mean_seconds(workload.train.step_cpu_time) / seconds,
        au_threshold_percent=100 * workload.metric.au,
        sample_divisor=sample_divisor(workload),
    )


def sample_divisor(workload: Workload) -> float | None:
    """Return how many times larger samples are without the workload's scale; None where that is not known."""
    full = full_size(workload)
    return None if full is None else nominal_sample_bytes(full.dataset) / nominal_sample_bytes(workload.dataset)


def row_group_reads(workload: Workload) -> float:
    """Return how often a row group of Parquet is read in an epoch, on average; 1 for other formats.

    Each worker reads whole, and once, every row group of which its batches have rows. A batch of B rows has rows of
    (B + G - gcd(B, G)) / G groups of G rows on average, as it begins at any multiple of gcd(B, G) in a group; its share
    of the data is B / G groups. B = 4, G = 6: a batch reads 4/3 groups, so groups are read twice.
    """
    data, reader = workload.dataset, workload.reader
    if data.format != "parquet" or reader.worker_streams or reader.sample_shuffle != "off":
        return 1.0
    batch, rows = reader.batch_size, min(data.parquet.row_group_size, data.num_samples_per_file)
    return min(max(1, reader.read_threads), (batch + rows - math.gcd(batch, rows)) / batch)

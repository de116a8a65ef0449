"""The demand of a workload: the rates that keep its accelerators from waiting, computed from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from datagen.layout import nominal_sample_bytes, stored_sample_bytes
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload, full_size

MB, GB = 1e6, 1e9


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The demand of one workload on one type of accelerator. MB = 1e6 and GB = 1e9 bytes."""

    workload: str
    accelerator: str
    """Empty for a workload without a table of accelerators."""
    format: str
    data_loader: str
    num_files: int
    num_samples: int
    sample_bytes: int
    """Mean bytes read per sample, uncompressed: only the columns that training reads, and repeated reads of row groups
    in full."""
    dataset_gb: float
    """Stored size of all samples, including columns that are not read."""
    batch_size: int
    computation_seconds: float
    """Mean computation time of one batch."""
    samples_per_second: float | None
    """One accelerator's demand at 100 % utilisation; None without computation time, which leaves demand unlimited."""
    mb_per_second: float | None
    cores: float | None
    """Cores that one accelerator's trainer, and workers that preprocess (`reader.preprocess=burn`), keep busy."""
    au_threshold_percent: float
    """Lowest AU at which a run passes."""
    sample_divisor: float | None = None
    """See the function `sample_divisor`."""


def demand(name: str, workload: Workload) -> Demand:
    """Return the demand of one accelerator; `name` is the workload's name."""
    data, reader = workload.dataset, workload.reader
    sample_bytes = round(nominal_sample_bytes(data) * row_group_reads(workload))
    samples = data.num_files_train * data.num_samples_per_file
    seconds = mean_seconds(workload.train.computation_time)
    rate = reader.batch_size / seconds if seconds > 0 else None
    burned = mean_seconds(reader.preprocess_time) if reader.preprocess == "burn" else 0.0
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
    """Return how many times larger samples are without the workload's scale; None if unknown."""
    full = full_size(workload)
    return None if full is None else nominal_sample_bytes(full.dataset) / nominal_sample_bytes(workload.dataset)


def row_group_reads(workload: Workload) -> float:
    """Return how often a row group of Parquet is read per epoch, on average; 1 for other formats.

    A worker reads in full, and once, each row group that has rows of its batches. A batch of B rows may begin at each
    multiple of gcd(B, G) in a group of G rows, so it reads (B + G - gcd(B, G)) / G groups on average, though it has the
    rows of only B / G groups. For B = 4 and G = 6, it reads 4/3 groups instead of 2/3: each group is read twice.
    """
    data, reader = workload.dataset, workload.reader
    if data.format != "parquet" or reader.worker_streams or reader.sample_shuffle != "off":
        return 1.0
    batch, rows = reader.batch_size, min(data.parquet.row_group_size, data.num_samples_per_file)
    return min(max(1, reader.read_threads), (batch + rows - math.gcd(batch, rows)) / batch)

"""A drive as its data sheet prints it, or as `dlemu probe` found it: what it gives to so many readers of a workload."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datagen.errors import UserError
from datagen.strict import build
from dlemu.config.compose import read_plain
from dlemu.config.schema import Workload
from dlemu.jobs.training.pattern import READ_AHEAD_BYTES
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, flat
from dlemu.report.units import bytes_of
from dlemu.results.kinds import kind_of
from dlemu.results.levels import Rate, Rates

READ_AHEAD_REQUESTS = 2
"""The kernel requests the next window while the one before is read (page_cache_async_ra in Linux, mm/readahead.c)."""
_EXAMPLE = "lines such as reads: [{size: 128k, depth: 32, mb_per_second: 7000}]"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a data sheet; of its three figures exactly one is above 0."""

    size: int | str
    """Bytes of a request; 4k and 1m are binary, as fio takes them."""
    depth: int = 1
    """Requests in flight."""
    mb_per_second: float = 0.0
    iops: float = 0.0
    latency_us: float = 0.0
    """Mean of a request, at this depth."""


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """What a vendor prints of a drive's reads."""

    name: str = ""
    reads: tuple[Line, ...]


def calibrate_from_drive(path: str, workload: Workload, *, cores: float) -> Calibration:
    """Return what a data sheet (a YAML file) or the folder of a probe says of a workload's reads; raises UserError.

    A sheet without a figure at a depth of 1 says nothing of latency: then each number of readers is taken to get all.
    """
    found = _measured(path) if os.path.isdir(path) else _printed(path)
    request, in_flight = requests_of(workload, float(bytes_by_file(workload.dataset).mean()))
    curve = curve_of(found.rates, request, in_flight)
    source = f"{found.source}: each reader has {in_flight} of {request:,} bytes in flight"
    return Calibration(source=source, curve=curve, saturated=True, half_width_percent=0.0, cores=cores)


def requests_of(workload: Workload, sample_bytes: float) -> tuple[int, int]:
    """Return the bytes of a request that a reader makes of the drive, and how many it has in flight.

    Through the page cache the kernel reads ahead; past it a read is one request.
    """
    reader, data = workload.reader, workload.dataset
    in_order = data.num_samples_per_file > 1 and reader.sample_shuffle == "off"
    together = min(reader.batch_size, data.num_samples_per_file) if in_order else 1
    stretch = max(1, round(sample_bytes * together))
    if reader.odirect or stretch <= READ_AHEAD_BYTES:
        return stretch, 1
    return READ_AHEAD_BYTES, READ_AHEAD_REQUESTS


def curve_of(rates: Sequence[Rate], request_bytes: int, in_flight: int) -> Curve:
    """Return what 1, 2, 4, ... readers get together, up to the largest depth that is known."""
    most = max(1, max(rate.depth for rate in rates) // in_flight)
    counts = [*(2**k for k in range(most.bit_length()) if 2**k < most), most]
    given = [request_bytes * _per_second(rates, request_bytes, count * in_flight) / 1e6 for count in counts]
    if len(set(given)) == 1:
        return flat(given[0])
    return tuple(CurvePoint(readers=count, mb_per_second=rate) for count, rate in zip(counts, given, strict=True))


def _per_second(rates: Sequence[Rate], request_bytes: int, depth: int) -> float:
    """Return the requests/s of any size and depth.

    The time of the drive that a request takes is a straight line between two sizes (a cost of each request, and one of
    each byte); smaller ones take what the smallest does, larger ones as much a byte as the largest.
    """
    sizes = sorted({rate.size_bytes for rate in rates})
    alone = _alone_seconds(rates, request_bytes)
    seconds = []
    for size_bytes in sizes:
        known = sorted((rate.depth, rate.per_second) for rate in rates if rate.size_bytes == size_bytes)
        given = float(np.interp(depth, [one for one, _ in known], [one for _, one in known]))
        seconds.append(1 / given)
    took = float(np.interp(request_bytes, sizes, seconds)) * max(1.0, request_bytes / sizes[-1])
    # Depth over latency, and what the drive gives at most: the asymptotic bounds of Denning and Buzen, The Operational
    # Analysis of Queueing Network Models (1978).
    return min(1 / took, depth / alone) if alone else 1 / took


def _alone_seconds(rates: Sequence[Rate], request_bytes: int) -> float:
    """Return how long a request takes that is alone; 0 where nothing is known at a depth of 1.

    Between sizes that are known a straight line; what is larger moves its further bytes at the drive's best rate.
    """
    known = sorted((rate.size_bytes, 1 / rate.per_second) for rate in rates if rate.depth == 1)
    if not known:
        return 0.0
    sizes, seconds = [size_bytes for size_bytes, _ in known], [each for _, each in known]
    best = max(rate.size_bytes * rate.per_second for rate in rates)
    return float(np.interp(request_bytes, sizes, seconds)) + max(0, request_bytes - sizes[-1]) / best


def _printed(path: str) -> Rates:
    try:
        sheet = build(DataSheet, read_plain(path))
    except UserError as error:
        raise UserError(f"{path} is not a data sheet: {error}; such a file has {_EXAMPLE}") from None
    if not sheet.reads:
        raise UserError(f"{path}: reads is empty: wanted {_EXAMPLE}")
    rates = tuple(_rate(line, f"{path}: reads[{place}]") for place, line in enumerate(sheet.reads))
    return Rates(f"the data sheet of {sheet.name or os.path.basename(path)}", rates)


def _rate(line: Line, where: str) -> Rate:
    if line.depth < 1:
        raise UserError(f"{where}.depth is {line.depth}: wanted 1 or more")
    figures = {name: getattr(line, name) for name in ("mb_per_second", "iops", "latency_us")}
    given = {name: value for name, value in figures.items() if value}
    if len(given) != 1 or min(given.values()) < 0:
        has = ", ".join(f"{name}: {value:g}" for name, value in given.items()) or "no figure"
        raise UserError(f"{where} has {has}: wanted one of {', '.join(figures)}, above 0")
    size_bytes = bytes_of(str(line.size))
    if line.latency_us:
        per_second = line.depth / line.latency_us * 1e6
    else:
        per_second = line.iops or line.mb_per_second * 1e6 / size_bytes
    return Rate(size_bytes=size_bytes, depth=line.depth, per_second=per_second)


def _measured(folder: str) -> Rates:
    kind = kind_of(folder)
    if kind is None or not kind.rates:
        raise UserError(f"{folder} has no rates by size and depth: wanted the folder of `dlemu probe`, or a data sheet")
    rates: Rates = kind.part("rates")(folder)
    return rates

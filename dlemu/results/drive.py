"""The speed of a storage by request size and queue depth, as measured by a probe or stated in a data sheet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from datagen.errors import UserError
from datagen.settings import at_least, build
from dlemu.config.workload_files import read_plain
from dlemu.results.kinds import kind_of

READ_AHEAD_BYTES = 128 << 10  # default size of the kernel's read-ahead requests (/sys/block/NAME/queue/read_ahead_kb)
READ_AHEAD_REQUESTS = 2
"""Read-ahead requests in flight: the kernel requests one while the last is read (page_cache_async_ra, readahead.c)."""
SPEED_PERCENT = 2.0  # minimum half width of a storage's rate: drives of a known rate varied this much between runs
OUTSIDE = "outside_what_was_measured"
"""Code of a finding: a prediction extrapolates beyond the measurements; the finding's `pattern` says in what."""
_EXAMPLE = "for example reads: [{size: 128k, depth: 32, mb_per_second: 7000}]; fio's --output-format=json, too"
_BYTES_PER_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A storage's rate for one request size and queue depth."""

    size_bytes: int
    depth: int
    per_second: float
    """Requests/s."""


@dataclass(frozen=True)
class Rates:
    """A storage's rates by size and depth: at least one, of reads or writes."""

    source: str
    """The origin of the rates, as a phrase."""
    rates: tuple[Rate, ...]  # of reads
    writes: tuple[Rate, ...] = ()


def others_phrase(mb_per_second: float) -> str:
    """Return a phrase with the rate that other jobs take from a storage, to follow its name; empty for a rate of 0."""
    return f", of which others take {mb_per_second:,g} MB/s" if mb_per_second else ""


def no_speed_left(others_mb_per_second: float, mb_per_second: float) -> UserError:
    """Return the error for a prediction in which other jobs take all that the storage delivers."""
    return UserError(
        f"others take {others_mb_per_second:,g} MB/s, and the storage gives {mb_per_second:,.0f} at most: wanted "
        "--others-mb-per-second below that"
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a data sheet; exactly one of `mb_per_second`, `iops` and `latency_us` is above 0."""

    size: int | str = READ_AHEAD_BYTES
    """Bytes per request; 4k and 1m are binary, as in fio. Most sheets state sequential reads of 128 KiB."""
    depth: Annotated[int, at_least(1)] = 1
    """Requests in flight."""
    mb_per_second: Annotated[float, at_least(0)] = 0.0
    iops: Annotated[float, at_least(0)] = 0.0
    latency_us: Annotated[float, at_least(0)] = 0.0
    """Mean latency of a request at this depth."""


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """A vendor's figures of a drive."""

    name: str = ""
    reads: tuple[Line, ...] = ()
    writes: tuple[Line, ...] = ()


def read_drive(drive: str | Rates) -> Rates:
    """Return the rates in a data sheet (a YAML file) or a probe's folder; returns rates unchanged. Raises UserError."""
    if isinstance(drive, Rates):
        return drive
    if not os.path.exists(drive):
        raise UserError(f"{drive} does not exist: wanted a data sheet (YAML, {_EXAMPLE}), or the folder of a probe")
    if not os.path.isdir(drive):
        return _read_data_sheet(drive)
    kind = kind_of(drive)
    read_rates = kind.load().rates if kind is not None else None
    if read_rates is None:
        raise UserError(f"{drive} has no rates by size and depth: wanted the folder of `dlemu probe`, or a data sheet")
    rates: Rates = read_rates(drive)
    return rates


def per_second(rates: Sequence[Rate], request_bytes: int, depth: int) -> float:
    """Return the requests/s for any request size and queue depth, interpolated from the known rates.

    Between two known sizes, the time per request is linear in the size. Above the largest, a request takes as long per
    byte as the largest does. Below the smallest, it takes as long per byte as the smallest does, down to 128 KiB, for
    which data sheets state a drive's best rate; still smaller requests take as long as one of 128 KiB.
    """
    sizes = sorted({rate.size_bytes for rate in rates})
    seconds_by_size = []
    for size_bytes in sizes:
        by_depth = sorted((rate.depth, rate.per_second) for rate in rates if rate.size_bytes == size_bytes)
        depths, rates_per_second = zip(*by_depth, strict=True)
        seconds_by_size.append(1 / float(np.interp(depth, depths, rates_per_second)))
    seconds = float(np.interp(request_bytes, sizes, seconds_by_size)) * max(1.0, request_bytes / sizes[-1])
    seconds *= min(1.0, max(request_bytes, READ_AHEAD_BYTES) / sizes[0])
    latency_seconds = _latency_seconds(rates, request_bytes)
    # With `depth` requests in flight, at most depth / latency end in a second: an asymptotic bound of Denning and
    # Buzen, The Operational Analysis of Queueing Network Models (1978).
    return 1 / seconds if latency_seconds is None else min(1 / seconds, depth / latency_seconds)


def _latency_seconds(rates: Sequence[Rate], request_bytes: int) -> float | None:
    """Return the latency of a request at a queue depth of 1, s; None if no rate has that depth.

    It is linear between known sizes; above the largest, each further byte is read at the drive's best rate.
    """
    by_size = sorted((rate.size_bytes, 1 / rate.per_second) for rate in rates if rate.depth == 1)
    if not by_size:
        return None
    sizes, seconds = zip(*by_size, strict=True)
    best_bytes_per_second = max(rate.size_bytes * rate.per_second for rate in rates)
    return float(np.interp(request_bytes, sizes, seconds) + max(0, request_bytes - sizes[-1]) / best_bytes_per_second)


def _read_data_sheet(path: str) -> Rates:
    try:
        sheet = build(DataSheet, read_plain(path))
    except UserError as error:
        raise UserError(f"{path} is not a data sheet: {error}; {_EXAMPLE}") from None
    if not (sheet.reads or sheet.writes):
        raise UserError(f"{path} has neither reads nor writes, {_EXAMPLE}")
    reads = tuple(_rate(line, f"{path}: reads[{index}]") for index, line in enumerate(sheet.reads))
    writes = tuple(_rate(line, f"{path}: writes[{index}]") for index, line in enumerate(sheet.writes))
    return Rates(f"the data sheet of {sheet.name or os.path.basename(path)}", reads, writes)


def _rate(line: Line, where: str) -> Rate:
    """Return the rate that a line of a data sheet states. Raises UserError; its message begins with `where`."""
    names = ("mb_per_second", "iops", "latency_us")
    stated = {name: getattr(line, name) for name in names if getattr(line, name)}
    if len(stated) != 1:
        listing = ", ".join(f"{name}: {value:g}" for name, value in stated.items()) or "no figure"
        raise UserError(f"{where} has {listing}: wanted one of {', '.join(names)}, above 0")
    size_bytes = bytes_of(str(line.size))
    requests_per_second = line.iops or line.mb_per_second * 1e6 / size_bytes
    if line.latency_us:
        requests_per_second = line.depth / line.latency_us * 1e6
    return Rate(size_bytes=size_bytes, depth=line.depth, per_second=requests_per_second)


def bytes_of(text: str) -> int:
    """Return the bytes of a size in fio's notation, in which 4k and 1m are binary; raises UserError."""
    size = text.lower()
    unit = size[-1:] if size[-1:] in _BYTES_PER_UNIT else ""
    number = size.removesuffix(unit)
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"{text!r} is not a size: wanted a whole number, with k, m or g if you like, such as 128k")
    return int(number) * _BYTES_PER_UNIT[unit]

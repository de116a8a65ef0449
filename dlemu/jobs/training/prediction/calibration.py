"""`Calibration`: the speed of a storage and its host, with a curve of the throughput that n readers get together.

Made here from a given throughput, or from rates by request size and queue depth: those of a data sheet, `dlemu probe`,
fio or elbencho. `from_reads` and `from_times` make it from runs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.loaders.traits_base import traits_of
from dlemu.metrics.demand import row_group_reads
from dlemu.metrics.rates import Floats
from dlemu.results.answer_files import read_untrusted
from dlemu.results.drive import READ_AHEAD_BYTES, READ_AHEAD_REQUESTS, Rate, Rates, per_second, read_drive
from dlemu.runner.prediction_request import PredictionRequest


@dataclass(frozen=True)
class CurvePoint:
    """The throughput with one number of readers."""

    readers: int
    mb_per_second: float
    """1e6 bytes/s of all readers together."""


Curve = tuple[CurvePoint, ...]  # by rising number of readers; at least one point


def throughputs(curve: Curve, max_readers: int) -> Floats:
    """Return the bytes/s that 0 to `max_readers` readers get together, shape (max_readers + 1,), interpolated."""
    readers = np.array([point.readers for point in curve], float)
    bytes_per_second = np.array([point.mb_per_second for point in curve]) * 1e6
    interpolated: Floats = np.interp(np.arange(max_readers + 1, dtype=float), readers, bytes_per_second)
    interpolated[0] = 0.0
    return interpolated


def max_mb_per_second(curve: Curve) -> float:
    return max(point.mb_per_second for point in curve)


def flat(mb_per_second: float) -> Curve:
    """Return the curve of a storage that gives any number of readers the same throughput."""
    return (CurvePoint(1, mb_per_second),)


def smoothed(curve: Curve, reads: Sequence[int]) -> Curve:
    """Return the curve without random errors: more readers never get more each, and never get less in total.

    Points that break a rule are pooled, weighted by their numbers of `reads` (Barlow et al.: Statistical Inference
    under Order Restrictions). But a fall of the total by over 30 % is real, and is kept with all points after it.
    """
    readers = [point.readers for point in curve]
    negative_per_reader = _never_falling([-point.mb_per_second / point.readers for point in curve], reads)
    totals = [-negative * number for negative, number in zip(negative_per_reader, readers, strict=True)]
    before_fall = 1  # number of points before a real fall
    while before_fall < len(totals) and totals[before_fall] >= 0.7 * max(totals[:before_fall]):
        before_fall += 1
    pooled = [*_never_falling(totals[:before_fall], reads[:before_fall]), *totals[before_fall:]]
    return tuple(map(CurvePoint, readers, pooled))


def _never_falling(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the nearest values, by weighted least squares, that never fall: 1 3 2 4 -> 1 2.5 2.5 4."""
    pools: list[tuple[float, int, int]] = []  # weighted mean, sum of weights, and number of neighbouring values
    for mean, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] > mean:
            last_mean, last_weight, last_size = pools.pop()
            mean = (last_mean * last_weight + mean * weight) / (last_weight + weight)
            weight, size = last_weight + weight, last_size + size
        pools.append((mean, weight, size))
    return [mean for mean, _, size in pools for _ in range(size)]


# From here on: calibrations, and how they are made from a given throughput or from rates
@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """Explains a run by a storage as fast as in the first step of each epoch, and a host that delays later steps."""

    mb_per_second: float
    readers: int  # number of readers that shared `mb_per_second`; more may get more, at most in proportion
    step_share: float  # see `Calibration.step_share`


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The speed of one storage and its host, for one access pattern."""

    source: str  # where the speed is from, as a phrase
    curve: Curve  # throughput of the whole storage
    saturated: bool = True  # whether the storage reached its limit; otherwise `curve` is a lower bound
    half_width_percent: float = 0.0  # half width of the 95 % interval of `curve`
    work: tuple[float, ...] = (1.0,)  # rising quantiles of the relative costs of reads (`Reads.relative_costs`)
    samples_per_read: int = 1  # samples per read in the measurement of `work`
    sample_bytes: float = 0.0  # mean bytes read for a sample; 0 if unknown
    bytes_factor: float = 1.0  # bytes that were read / bytes by the settings of the dataset
    decode_seconds_per_sample: float = 0.0  # CPU time after reading; 0 if `curve` counts that time as reading
    cores: float | None = 1.0  # cores of one host; None: unknown, and no reader waits for a core in the model
    busy_cores: float = 0.0  # cores that other programs kept busy during the measurement; 0 if unknown
    costs: HostCosts = field(default_factory=HostCosts)  # seconds that the host adds to each batch, step and epoch
    first_step: FirstStep | None = None  # another explanation of the run; used if a number of accelerators is requested
    step_share: float = 0.0  # delay after each step / mean computation time, in addition to `costs.step_seconds`
    others_mb_per_second: float = 0.0  # throughput that other jobs take from the storage

    @property
    def cores_to_share(self) -> float:
        """Cores of one host; infinity where not known."""
        return math.inf if self.cores is None else self.cores

    def available_mb_per_second(self, speedup: float = 1.0) -> float:
        """Return the highest throughput that other jobs leave, on a storage `speedup` times as fast."""
        total = speedup * max_mb_per_second(self.curve)
        return max(total - self.others_mb_per_second, 0.001 * total)  # with 0 a simulation would never end


def given_speed(mb_per_second: float, *, cores: float | None, bytes_factor: float = 1.0) -> Calibration:
    """Return the calibration of a storage that gives any number of readers the same throughput."""
    source = f"{mb_per_second:g} MB/s as given, whatever the number of readers"
    return Calibration(source=source, curve=flat(mb_per_second), bytes_factor=bytes_factor, cores=cores)


_MAX_REQUEST_FACTOR = 8  # a workload's requests may be up to 8 times as large as the largest with a known rate


def calibrate_from_drive(drive: str | Rates, workload: Workload, *, cores: float) -> Calibration:
    """Return the calibration from a data sheet (a YAML file), a probe's folder, or their rates; raises UserError."""
    drive_rates = read_drive(drive)
    request_bytes, in_flight = requests_of(workload, float(bytes_by_file(workload.dataset).mean()))
    max_bytes = max((rate.size_bytes for rate in drive_rates.rates), default=0)
    max_depth = max((rate.depth for rate in drive_rates.rates), default=0)
    if max_bytes * _MAX_REQUEST_FACTOR < request_bytes or max_depth <= 1:
        raise UserError(
            f"{drive_rates.source}: reads of {max_bytes:,} bytes at most, {max_depth} in flight; "
            f"{workload.model.name} reads {request_bytes:,} bytes, many at a time: wanted such (fio --rw=randread "
            "--bs=128k --iodepth=32 --direct=1)"
        )
    source = f"{drive_rates.source}: each reader has {in_flight} of {request_bytes:,} bytes in flight"
    curve = curve_of(drive_rates.rates, request_bytes, in_flight)
    return Calibration(source=source, curve=curve, bytes_factor=row_group_reads(workload), cores=cores)


def requests_of(workload: Workload, sample_bytes: float) -> tuple[int, int]:
    """Return the bytes of a reader's requests to the drive (the kernel splits reads), and how many are in flight."""
    reader, data = workload.reader, workload.dataset
    if traits_of(reader.data_loader).interleave(reader, data) is not None:
        samples_at_once = data.num_samples_per_file
    elif data.num_samples_per_file > 1 and reader.sample_shuffle == "off":
        samples_at_once = min(reader.batch_size, data.num_samples_per_file)
    else:
        samples_at_once = 1
    read_bytes = max(1, round(sample_bytes * samples_at_once))
    if not workload.storage.has_paths:
        return min(read_bytes, reader.range_bytes or read_bytes), reader.io_depth
    if reader.odirect:
        return min(read_bytes, reader.transfer_size or read_bytes), 1
    if read_bytes <= READ_AHEAD_BYTES:
        return read_bytes, 1
    return READ_AHEAD_BYTES, READ_AHEAD_REQUESTS


def curve_of(rates: Sequence[Rate], request_bytes: int, in_flight: int) -> Curve:
    """Return the curve for 1, 2, 4, ... readers, up to as many as together reach the largest known queue depth."""
    max_readers = max(1, max(rate.depth for rate in rates) // in_flight)
    readers = [2**power for power in range((max_readers - 1).bit_length())] + [max_readers]
    mb_per_second = [request_bytes * per_second(rates, request_bytes, number * in_flight) / 1e6 for number in readers]
    return flat(mb_per_second[0]) if len(set(mb_per_second)) == 1 else tuple(map(CurvePoint, readers, mb_per_second))


# From here on: reading the output of fio and elbencho
class _Measurement(NamedTuple):
    """What a benchmark measured with one operation, request size and queue depth."""

    operation: str  # `read`, `write`, or another one, which is ignored
    iops: float
    size_bytes: float  # mean of its requests
    depth: float  # mean number of requests in flight
    is_direct: bool  # whether the page cache was bypassed


def with_rates(request: PredictionRequest) -> PredictionRequest:
    """Return the request; if `drive` is an output file of fio or elbencho, with that file's rates. Raises UserError."""
    path = request.drive
    if not isinstance(path, str) or not os.path.isfile(path):
        return request
    text = read_untrusted(path).decode(errors="replace")
    if '"fio version"' in text:  # written with --output-format=json
        measurements = _read_fio(text)
    elif '"phase_type"' in text:  # written by elbencho with --jsonfile
        measurements = _read_elbencho(text)
    else:  # a data sheet
        return request
    rates: dict[str, list[Rate]] = {"read": [], "write": []}
    note = ""
    try:
        for operation, iops, size_bytes, depth, is_direct in measurements:
            if iops and size_bytes >= 1 and operation in rates:
                rates[operation].append(Rate(size_bytes=round(size_bytes), depth=max(1, round(depth)), per_second=iops))
                note = note if is_direct else ", made without direct=1"
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} looks like the output of fio or elbencho, and can't be read ({error!r})") from None
    if not (rates["read"] or rates["write"]):
        raise UserError(f"{path} has neither reads nor writes: wanted the output of a benchmark that completed")
    source = f"the measurements in {os.path.basename(path)}{note}"
    return replace(request, drive=Rates(source, tuple(rates["read"]), tuple(rates["write"])))


def _read_fio(text: str) -> Iterator[_Measurement]:
    """Yield a measurement for each operation of each group of jobs that ran together."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    output = json.loads(text[text.index("{") :])  # fio may print warnings first
    for job in output["jobs"]:
        is_direct = (output.get("global options", {}) | job.get("job options", {})).get("direct") == "1"
        for operation in ("read", "write"):
            groups.setdefault((job["groupid"], operation), []).append({**job[operation], "is_direct": is_direct})
    for (_, operation), jobs in groups.items():
        iops = sum(job["iops"] for job in jobs)
        depth = sum(job["iops"] * job["lat_ns"]["mean"] / 1e9 for job in jobs)  # rate x mean latency (Little, 1961)
        size_bytes = sum(job["bw_bytes"] for job in jobs) / (iops or 1)
        is_direct = all(job["is_direct"] for job in jobs if job["iops"])
        yield _Measurement(operation, iops, size_bytes, depth, is_direct)


def _read_elbencho(text: str) -> Iterator[_Measurement]:
    for phase in map(json.loads, text.splitlines()):  # a line of JSON each; that reads were direct is assumed
        config, last = phase["config"], phase["last_done"]
        depth = int(config["hosts"]) * int(config["threads"]) * max(1, int(config["io_depth"]))
        iops = float(last.get("iops", 0))
        size_bytes = float(last.get("bytes/s", 0)) / (iops or 1)
        yield _Measurement(phase["phase_type"].lower(), iops, size_bytes, depth, is_direct=True)

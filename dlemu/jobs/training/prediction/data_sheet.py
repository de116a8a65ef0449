"""A drive for a workload, from its data sheet, from a `dlemu probe` of sizes and depths, or as others measured it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.calibration import Calibration, Curve, CurvePoint, flat
from dlemu.loaders.traits_base import traits_of
from dlemu.metrics.demand import row_group_reads
from dlemu.results.answer_files import read_untrusted
from dlemu.results.drive import READ_AHEAD_BYTES, READ_AHEAD_REQUESTS, Rate, Rates, per_second, read_drive
from dlemu.runner.prediction_request import PredictionRequest

_MOST_TIMES = 8
"""A drive's rate of requests so many times larger than those of its figures is not known."""


def calibrate_from_drive(path: str | Rates, workload: Workload, *, cores: float) -> Calibration:
    """Return the calibration from a data sheet (a YAML file) or the folder of a probe; raises UserError."""
    drive = read_drive(path)
    request, in_flight = requests_of(workload, float(bytes_by_file(workload.dataset).mean()))
    largest = max((rate.size_bytes for rate in drive.rates), default=0)
    deepest = max((rate.depth for rate in drive.rates), default=0)
    if largest * _MOST_TIMES < request or deepest <= 1:
        raise UserError(
            f"{drive.source}: reads of {largest:,} bytes at most, {deepest} in flight; {workload.model.name} reads "
            f"{request:,} bytes, many at a time: wanted such (fio --rw=randread --bs=128k --iodepth=32 --direct=1)"
        )
    return Calibration(
        source=f"{drive.source}: each reader has {in_flight} of {request:,} bytes in flight",
        curve=curve_of(drive.rates, request, in_flight),
        bytes_factor=row_group_reads(workload),
        cores=cores,
        notes=tuple(_ignored(drive.rates)),
    )


def _ignored(known: Sequence[Rate]) -> Iterator[str]:
    """Yield the figures from which the model is off by more than 10 %: latency at depth 1 bounds it."""
    for rate in known:
        ratio = per_second(known, rate.size_bytes, rate.depth) / rate.per_second
        if abs(ratio - 1) > 0.1:
            given = rate.size_bytes * rate.per_second / 1e6
            yield (
                f"{rate.size_bytes:,} bytes at depth {rate.depth} are given as {given:,.0f} MB/s, but the "
                f"drive's other figures mean {ratio * given:,.0f} MB/s (assumed): check those at depth 1"
            )


def requests_of(workload: Workload, sample_bytes: float) -> tuple[int, int]:
    """Return the size of a reader's requests to the drive, and how many it has in flight (the kernel splits reads)."""
    reader, data = workload.reader, workload.dataset
    if traits_of(reader.data_loader).interleave(reader, data) is not None:
        together = data.num_samples_per_file
    elif data.num_samples_per_file > 1 and reader.sample_shuffle == "off":
        together = min(reader.batch_size, data.num_samples_per_file)
    else:
        together = 1
    read_bytes = max(1, round(sample_bytes * together))
    if not workload.storage.has_paths:
        return min(read_bytes, reader.range_bytes or read_bytes), reader.io_depth
    if reader.odirect:
        return min(read_bytes, reader.transfer_size or read_bytes), 1
    if read_bytes <= READ_AHEAD_BYTES:
        return read_bytes, 1
    return READ_AHEAD_BYTES, READ_AHEAD_REQUESTS


def curve_of(rates: Sequence[Rate], request_bytes: int, in_flight: int) -> Curve:
    """Return the throughput of 1, 2, 4, ... readers, up to the largest queue depth with a known rate."""
    most = max(1, max(rate.depth for rate in rates) // in_flight)
    readers = [*(2**k for k in range(most.bit_length()) if 2**k < most), most]
    speeds = [request_bytes * per_second(rates, request_bytes, count * in_flight) / 1e6 for count in readers]
    if len(set(speeds)) == 1:
        return flat(speeds[0])
    return tuple(CurvePoint(readers=count, mb_per_second=speed) for count, speed in zip(readers, speeds, strict=True))


def with_rates(request: PredictionRequest) -> PredictionRequest:
    """Return the request, with the rates in its `drive` where that is the output of fio or elbencho."""
    found = _measured_elsewhere(request.drive) if isinstance(request.drive, str) else None
    return request if found is None else replace(request, drive=found)


def _measured_elsewhere(path: str) -> Rates | None:
    """Return what fio (--output-format=json) or elbencho (--jsonfile) measured; None for another file."""
    if not os.path.isfile(path):
        return None
    text = read_untrusted(path).decode(errors="replace")
    readers = {'"fio version"': _by_fio, '"phase_type"': _by_elbencho}
    found = next((mark for mark in readers if mark in text), None)
    if found is None:
        return None
    try:
        rows = [
            (name.lower(), Rate(size_bytes=round(size), depth=max(1, round(depth)), per_second=rate))
            for name, rate, size, depth in readers[found](text)
            if rate and size >= 1
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} looks like the output of fio or elbencho, and can't be read ({error!r})") from None
    reads, writes = (tuple(rate for name, rate in rows if name == wanted) for wanted in ("read", "write"))
    if not (reads or writes):
        raise UserError(f"{path} has neither reads nor writes: wanted the output of a benchmark that completed")
    buffered = ", made without direct=1" * (found == '"fio version"' and '"direct":"1"' not in text.replace(" ", ""))
    return Rates(f"the measurements in {os.path.basename(path)}{buffered}", reads, writes)


_Row = tuple[str, float, float, float]
"""`read` or `write`, requests/s, bytes of one, requests in flight."""


def _by_fio(text: str) -> Iterator[_Row]:
    """Jobs of one group ran at the same time. Mean requests in flight: rate x mean latency (Little, 1961)."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for job in json.loads(text[text.index("{") :])["jobs"]:
        for name in ("read", "write"):
            groups.setdefault((job["groupid"], name), []).append(job[name])
    for (_, name), sides in groups.items():
        rate = sum(side["iops"] for side in sides)
        depth = sum(side["iops"] * side["lat_ns"]["mean"] / 1e9 for side in sides)
        yield name, rate, sum(side["bw_bytes"] for side in sides) / (rate or 1), depth


def _by_elbencho(text: str) -> Iterator[_Row]:
    for phase in map(json.loads, text.splitlines()):
        how, last = phase["config"], phase["last_done"]
        depth = int(how["hosts"]) * int(how["threads"]) * max(1, int(how["io_depth"]))
        rate = float(last.get("iops", 0))
        yield phase["phase_type"], rate, float(last.get("bytes/s", 0)) / (rate or 1), depth

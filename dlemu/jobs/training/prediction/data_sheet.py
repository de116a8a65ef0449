"""Calibration of a drive from its data sheet, a `dlemu probe` of sizes and depths, or output of fio or elbencho."""

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

_MOST_TIMES = 8  # a workload's requests may be this many times larger than the largest whose rate is known


def calibrate_from_drive(path: str | Rates, workload: Workload, *, cores: float) -> Calibration:
    """Return the calibration from a data sheet (a YAML file) or the folder of a probe; raises UserError."""
    drive = read_drive(path)
    request_bytes, in_flight = requests_of(workload, float(bytes_by_file(workload.dataset).mean()))
    largest = max((rate.size_bytes for rate in drive.rates), default=0)
    deepest = max((rate.depth for rate in drive.rates), default=0)
    if largest * _MOST_TIMES < request_bytes or deepest <= 1:
        raise UserError(
            f"{drive.source}: reads of {largest:,} bytes at most, {deepest} in flight; {workload.model.name} reads "
            f"{request_bytes:,} bytes, many at a time: wanted such (fio --rw=randread --bs=128k --iodepth=32 "
            "--direct=1)"
        )
    return Calibration(
        source=f"{drive.source}: each reader has {in_flight} of {request_bytes:,} bytes in flight",
        curve=curve_of(drive.rates, request_bytes, in_flight),
        bytes_factor=row_group_reads(workload),
        cores=cores,
    )


def requests_of(workload: Workload, sample_bytes: float) -> tuple[int, int]:
    """Return the size of a reader's requests to the drive, and how many it has in flight (the kernel splits reads)."""
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
    """Return the throughput of 1, 2, 4, ... readers, up to the largest queue depth with a known rate."""
    most = max(1, max(rate.depth for rate in rates) // in_flight)
    readers = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    speeds = [request_bytes * per_second(rates, request_bytes, number * in_flight) / 1e6 for number in readers]
    return flat(speeds[0]) if len(set(speeds)) == 1 else tuple(map(CurvePoint, readers, speeds))


def with_rates(request: PredictionRequest) -> PredictionRequest:
    """Return the request; if its `drive` is a file of fio or elbencho, with the rates in it."""
    if not isinstance(request.drive, str) or not os.path.isfile(request.drive):
        return request
    text = read_untrusted(request.drive).decode(errors="replace")
    for mark, parse in (('"fio version"', _by_fio), ('"phase_type"', _by_elbencho)):
        if mark in text:
            return replace(request, drive=_measured(request.drive, parse(text)))
    return request


_Row = tuple[str, float, float, float, bool]
"""A measurement: `read`, `write`, ...; requests/s, their mean bytes, how many in flight, and whether the page cache was
bypassed, as fio says of its jobs (direct=1)."""


def _measured(path: str, rows: Iterator[_Row]) -> Rates:
    """Return the rates that fio (--output-format=json) or elbencho (--jsonfile) measured; raises UserError."""
    rates: dict[str, list[Rate]] = {"read": [], "write": []}
    note = ""
    try:
        for operation, iops, size_bytes, depth, is_direct in rows:
            if iops and size_bytes >= 1 and operation in rates:
                rate = Rate(size_bytes=round(size_bytes), depth=max(1, round(depth)), per_second=iops)
                rates[operation].append(rate)
                note = note if is_direct else ", made without direct=1"
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} looks like the output of fio or elbencho, and can't be read ({error!r})") from None
    if not (rates["read"] or rates["write"]):
        raise UserError(f"{path} has neither reads nor writes: wanted the output of a benchmark that completed")
    source = f"the measurements in {os.path.basename(path)}{note}"
    return Rates(source, tuple(rates["read"]), tuple(rates["write"]))


def _by_fio(text: str) -> Iterator[_Row]:
    """Jobs of one group ran at the same time. Mean requests in flight: rate x mean latency (Little, 1961)."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    output = json.loads(text[text.index("{") :])
    for job in output["jobs"]:
        is_direct = (output.get("global options", {}) | job.get("job options", {})).get("direct") == "1"
        for operation in ("read", "write"):
            groups.setdefault((job["groupid"], operation), []).append({**job[operation], "is_direct": is_direct})
    for (_, operation), jobs in groups.items():
        iops = sum(job["iops"] for job in jobs)
        depth = sum(job["iops"] * job["lat_ns"]["mean"] / 1e9 for job in jobs)
        size_bytes = sum(job["bw_bytes"] for job in jobs) / (iops or 1)
        yield operation, iops, size_bytes, depth, all(job["is_direct"] for job in jobs if job["iops"])


def _by_elbencho(text: str) -> Iterator[_Row]:
    for phase in map(json.loads, text.splitlines()):
        config, last = phase["config"], phase["last_done"]
        depth = int(config["hosts"]) * int(config["threads"]) * max(1, int(config["io_depth"]))
        iops = float(last.get("iops", 0))
        yield phase["phase_type"].lower(), iops, float(last.get("bytes/s", 0)) / (iops or 1), depth, True

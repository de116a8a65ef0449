"""A drive as its data sheet prints it, or as `dlemu probe` found it: what it gives to so many readers of a workload."""

from __future__ import annotations

from collections.abc import Sequence

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, flat
from dlemu.results.drive import READ_AHEAD_BYTES, READ_AHEAD_REQUESTS, per_second, read_drive
from dlemu.results.levels import Rate


def calibrate_from_drive(path: str, workload: Workload, *, cores: float) -> Calibration:
    """Return what a data sheet (a YAML file) or the folder of a probe says of a workload's reads; raises UserError.

    A sheet without a figure at a depth of 1 says nothing of latency: then each number of readers is taken to get all.
    """
    found = read_drive(path)
    if not found.rates:
        raise UserError(f"{path} has no reads, only writes: wanted the reads of a data sheet, or of `dlemu probe`")
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
    given = [request_bytes * per_second(rates, request_bytes, count * in_flight) / 1e6 for count in counts]
    if len(set(given)) == 1:
        return flat(given[0])
    return tuple(CurvePoint(readers=count, mb_per_second=rate) for count, rate in zip(counts, given, strict=True))

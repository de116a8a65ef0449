"""What the storage of a folder feeds, from less than a minute of reads: a small probe, and a prediction."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from glob import glob

from datagen.errors import SpaceError, UserError
from datagen.owned import scratch_folder
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu.config import load
from dlemu.config.overrides import override
from dlemu.doctor.check_base import Facts
from dlemu.doctor.host import check_free_cores
from dlemu.jobs.probe.run import probe_target
from dlemu.jobs.training.prediction.calibration import most_mb_per_second
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.jobs.training.prediction.run_prediction import calibrate_by_probe
from dlemu.machine.environment import describe_folder
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import size
from dlemu.runner.datasets import make_on_this_host
from dlemu.runner.events import Doing, OnEvent, ignore

CONSUMERS = (("unet3d", "h100"), ("retinanet", "b200"))
"""Large samples, and one picture a file; no time of an H100 is published for retinanet (MLPerf Storage v3.0)."""
MOST_BYTES, LEAST_BYTES = 960_000_000, 96_000_000
"""Written in all: never 1 GB, so that nobody need be asked; with less, chance would decide what is read."""
KEPT_FREE = 0.1
"""Share of the file system that stays free."""
FIRST_BYTES, WRITE_SECONDS = 32_000_000, 8.0
"""What is written first, and for how long at that rate: slow storage gets less data, which is soon read, too."""
FILES = 48  # two for each of 24 readers; larger files than these are not read any faster
READ_SECONDS = 16.0  # of each dataset: five levels and two repetitions; a minute with all else
SIZES, IN_FLIGHT, PROBE_SECONDS = (4 << 10, 1 << 20), 32, 2.0
"""Requests that show the most a drive gives: requests/s of the smaller, bytes/s of the larger."""
DRIVES_SHARE = 0.8  # files that are read at less of the drive's most are limited by more than the drive
MEASURE_PICTURES = "workload=retinanet accelerator=b200 dataset.num_files_train=4300"
MEASURE_SMALL = "workload=unet3d scale=laptop"
"""What is measured next: where the storage feeds no accelerator of either at real size, smaller samples."""
MOST = 256
"""Accelerators, at most: 42 GB/s of retinanet."""


def first_look(folder: str, on_event: OnEvent = ignore) -> Screen:
    """Write below a folder, read that past the page cache, remove it, and return what its storage feeds.

    Raises UserError for a folder that is on no drive, SpaceError where too little is free.
    """
    began, spare, cores = time.monotonic(), _spare_bytes(folder), check_free_cores(Facts(load([])))
    try:
        with scratch_folder(os.path.abspath(folder), "try") as own:
            written = max(LEAST_BYTES, min(MOST_BYTES, spare, round(WRITE_SECONDS * _write_bytes_per_second(own))))
            on_event(Doing(f"writing {size(written)} below {own} and reading it; it is removed at the end"))
            most = _most_of_drive(own, written // 3)
            fed = [_fed(own, *consumer, written // 3) for consumer in CONSUMERS]
    except OSError as error:
        raise UserError(f"{folder} can't be used: {error.strerror}; name another folder of the drive") from error
    storage, took = describe_folder(folder), time.monotonic() - began
    next_words, explained = MEASURE_PICTURES, "measures it: 1.4 GB, minutes"
    if not any(fed[-1].max_accelerators_interval or ()):
        next_words, explained = MEASURE_SMALL, "shows how it is measured, with samples 1/256 of real size: 1.4 GB"
    place = shlex.quote(override(("dataset", "data_folder"), f"{storage.folder}/dlemu-set"))
    lines = [
        *map(_feeds, fed),
        *_ceilings(most, fed, "the cores, of which others take some" if cores.advice else "reading files"),
        Said("took", f"{took:.0f} s; the {size(written)} that it wrote are removed"),
        Said("next", f"dlemu size {next_words} {place} --make", explained),
    ]
    title = f"{storage.folder} ({storage.file_system} on {storage.device}): how many accelerators does it feed?"
    notes = [f"{cores.observed}: {cores.advice}"] * bool(cores.advice)
    left = glob(".try.dlemu-*.part", root_dir=folder)
    notes += [f"{name} in it is of a `dlemu try` that was killed, unless one still runs: remove it" for name in left]
    return Screen(title=title, lines=lines, notes=notes, folder="")


def _spare_bytes(folder: str) -> int:
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder: wanted one on the drive that you want to try, such as /mnt/nvme")
    if memory := open_storage(FOLDERS).memory_kind(folder):
        raise UserError(f"{folder} is on {memory}, which is memory: no drive can be tried there; name a folder of one")
    storage = describe_folder(folder)
    total, free = storage.total_bytes or 0, storage.free_bytes or 0
    spare = free - round(KEPT_FREE * total)
    if spare < LEAST_BYTES:
        raise SpaceError(
            f"{folder} has {size(free)} free of {size(total)}: wanted {size(LEAST_BYTES)} beside the "
            f"{100 * KEPT_FREE:.0f} % that stay free; free some space, or name another folder"
        )
    return spare


def _write_bytes_per_second(folder: str) -> float:
    path, began = os.path.join(folder, "first"), time.monotonic()
    with open(path, "xb") as out:
        out.write(os.urandom(FIRST_BYTES))
        out.flush()
        os.fsync(out.fileno())
    return FIRST_BYTES / (time.monotonic() - began)


def _most_of_drive(folder: str, file_bytes: int) -> tuple[float, float] | None:
    """Return the requests/s and MB/s of reads with O_DIRECT, IN_FLIGHT at once; None where that is not possible."""
    own = os.path.join(folder, "probe")
    try:
        answer, _ = probe_target(
            folder, sizes=SIZES, depths=(IN_FLIGHT,), seconds=PROBE_SECONDS, file_bytes=file_bytes, folder=own
        )
    except SpaceError:
        raise
    except UserError:
        return None
    small, large = answer.cells
    return small.iops, large.mb_per_second


def _fed(folder: str, name: str, accelerator: str, data_bytes: int) -> Prediction:
    """Make a dataset, read it as the workload does with more and more readers, and predict how many that feeds."""
    light = ("reader.data_loader=threads", "train.epochs=1", "dataset.num_files_train=1")  # more are assumed
    full = load([f"workload={name}", f"accelerator={accelerator}", *light])
    sample_bytes = min(round(full.dataset.record_length_bytes), data_bytes // FILES)
    data = replace(
        full.dataset,
        data_folder=os.path.join(folder, name),
        num_files_train=data_bytes // sample_bytes,
        record_length_bytes=sample_bytes,
        record_length_bytes_stdev=0,
        record_length_bytes_resize=0,
    )
    small = replace(full, dataset=data, reader=replace(full.reader, batch_size=1))
    make_on_this_host(small, len(os.sched_getaffinity(0)), ignore, fsync=True)
    seen = calibrate_by_probe(small, most_seconds=READ_SECONDS)
    larger = full.dataset.record_length_bytes / sample_bytes
    storage = replace(
        seen,
        sample_bytes=0.0,  # larger samples are read at the same rate
        decode_seconds_per_sample=larger * seen.decode_seconds_per_sample,
        busy_cores=0.0,  # the question is what the storage feeds, not what else this host does
    )
    return predict(full, storage, most=MOST, assumes_files=True)


def _feeds(fed: Prediction) -> Said:
    name, (low, high) = fed.question.accelerator, fed.max_accelerators_interval or (0, 0)
    some, wanted = f"{low} x {name}" if low == high else f"{low} to {high} x {name}", high + 1
    if fed.ended_by is not None:
        some, wanted = f"at least {low} x {name}", low + 1
    shown, reads = fed.shown, most_mb_per_second(fed.curve)
    one = shown.needed_mb_per_second / shown.accelerators
    files = reads / shown.app_mb_per_second * shown.samples_per_second
    needs = f"1 needs {rate(one)}" + f", {wanted} need {rate(wanted * one)}" * (wanted > 1)
    text = f"{some}: reads {rate(reads)}, {files:,.0f} files/s; {needs} (AU {fed.question.threshold_percent:g} %)"
    return Said(fed.question.workload, text, tone="good" if low else "open" if high else "bad")


def _ceilings(most: tuple[float, float] | None, fed: Sequence[Prediction], otherwise: str) -> Iterator[Said]:
    """Yield the most that the drive gives, what limits each workload, and how sure that is."""
    if most is not None:
        rates = [most_mb_per_second(one.curve) for one in fed]
        top, limits = max(most[1], *rates), []
        for one, reads in zip(fed, rates, strict=True):
            named = one.limited_by.what if one.limited_by.what in ("loader", "host CPU") else otherwise
            what = "the drive" if reads / top >= DRIVES_SHARE else named
            limits.append(f"{one.question.workload}: {what}, at {100 * reads / top:.0f} % of the drive's most")
        yield Said("at most", f"{rate(top)} (1 MiB), {most[0]:,.0f} requests/s (4 KiB), {IN_FLIGHT} in flight")
        yield Said("limit", "; ".join(limits))
    width = max(one.half_width_percent for one in fed)
    yield Said("accuracy", f"rates ± {width:.0f} %: predicted from files written just now, read past the page cache")

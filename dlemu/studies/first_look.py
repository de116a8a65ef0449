"""`dlemu try`: predicts what the storage of a folder feeds, from a small probe and less than a minute of reads."""

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
from dlemu.jobs.training.prediction.calibration import max_mb_per_second
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.jobs.training.prediction.run_prediction import calibrate_by_probe
from dlemu.machine.environment import describe_folder
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Tone
from dlemu.report.units import size
from dlemu.runner.datasets import make_on_this_host
from dlemu.runner.events import Doing, OnEvent, ignore

# (workload, accelerator): large samples, and one small image per file, for which MLPerf Storage v3.0 has no H100 time.
CONSUMERS = (("unet3d", "h100"), ("retinanet", "b200"))
MAX_BYTES = 960_000_000  # of all writes: less than 1 GB needs no confirmation by the user
MIN_BYTES = 96_000_000  # of all writes: with less, the rates would vary by chance
MIN_FREE_SHARE = 0.1  # share of the file system's space that must stay free
FIRST_BYTES = 32_000_000  # written first, to measure the rate of writes: slow storage then gets less data
MAX_WRITE_SECONDS = 8.0  # of all writes at the measured rate, unless MIN_BYTES take longer
MIN_FILES = 48  # of a dataset: two for each of 24 readers; larger files would not be read any faster
READ_SECONDS = 16.0  # maximum for each dataset: five levels and two repetitions; the whole command takes a minute
SIZES = (4 << 10, 1 << 20)  # bytes per request: small for the maximum of requests/s, large for that of bytes/s
IN_FLIGHT = 32  # queue depth of the probe
PROBE_SECONDS = 2.0
DRIVE_LIMIT_SHARE = 0.8  # from this share of the drive's maximum rate on, the drive limits the reads of files
MAX_ACCELERATORS = 256  # to predict; with retinanet, they need 42 GB/s


def first_look(folder: str, on_event: OnEvent = ignore) -> Screen:
    """Write files below `folder`, read them past the page cache, and remove them; return the screen with the answer.

    Raises UserError if the folder is not on a drive, SpaceError if too little of it is free.
    """
    began = time.monotonic()
    spare_bytes = _spare_bytes(folder)
    cores = check_free_cores(Facts(load([])))  # before the reads, which use cores themselves
    try:
        with scratch_folder(os.path.abspath(folder), "try") as scratch:
            affordable_bytes = round(MAX_WRITE_SECONDS * _write_bytes_per_second(scratch))
            total_bytes = max(MIN_BYTES, min(MAX_BYTES, spare_bytes, affordable_bytes))
            part_bytes = total_bytes // 3  # for the file of the probe, and for each of the two datasets
            on_event(Doing(f"writing {size(total_bytes)} below {scratch} and reading it; it is removed at the end"))
            peak = _drive_maximum(scratch, part_bytes)
            predictions = [_predict(scratch, name, accelerator, part_bytes) for name, accelerator in CONSUMERS]
    except OSError as error:
        raise UserError(f"{folder} can't be used: {error.strerror}; name another folder of the drive") from error
    seconds, storage = time.monotonic() - began, describe_folder(folder)
    settings = "workload=retinanet accelerator=b200 dataset.num_files_train=4300"
    effect = "measures it: 1.4 GB, minutes"
    if not any(predictions[-1].max_accelerators_interval or ()):  # it can't even feed images, which demand less
        settings = "workload=unet3d scale=laptop"
        effect = "shows how it is measured, with samples 1/256 of real size: 1.4 GB"
    data_folder = shlex.quote(override(("dataset", "data_folder"), f"{storage.folder}/dlemu-set"))
    other_limit = "the cores, of which others take some" if cores.advice else "reading files"
    lines = [
        *map(_accelerators_line, predictions),
        *_drive_lines(peak, predictions, other_limit),
        Said("took", f"{seconds:.0f} s; the {size(total_bytes)} that it wrote are removed"),
        Said("next", f"dlemu size {settings} {data_folder} --make", effect),
    ]
    title = f"{storage.folder} ({storage.file_system} on {storage.device}): what does it feed in MLPerf's jobs?"
    notes = [f"{cores.observed}: {cores.advice}"] if cores.advice else []
    killed = glob(".try.dlemu-*.part", root_dir=folder)
    notes += [f"{name} in it is of a `dlemu try` that was killed, unless one still runs: remove it" for name in killed]
    return Screen(title=title, lines=lines, notes=notes, folder="")


def _spare_bytes(folder: str) -> int:
    """Return how many bytes may be written; raises UserError for a folder on no drive, SpaceError for a full one."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder: wanted one on the drive that you want to try, such as /mnt/nvme")
    if memory := open_storage(FOLDERS).memory_kind(folder):
        raise UserError(f"{folder} is on {memory}, which is memory: no drive can be tried there; name a folder of one")
    storage = describe_folder(folder)
    total_bytes, free_bytes = storage.total_bytes or 0, storage.free_bytes or 0
    spare_bytes = free_bytes - round(MIN_FREE_SHARE * total_bytes)
    if spare_bytes < MIN_BYTES:
        raise SpaceError(
            f"{folder} has {size(free_bytes)} free of {size(total_bytes)}: wanted {size(MIN_BYTES)} beside the "
            f"{100 * MIN_FREE_SHARE:.0f} % that stay free; free some space, or name another folder"
        )
    return spare_bytes


def _write_bytes_per_second(folder: str) -> float:
    began = time.monotonic()
    with open(os.path.join(folder, "first"), "xb") as out:
        out.write(os.urandom(FIRST_BYTES))
        out.flush()
        os.fsync(out.fileno())
    return FIRST_BYTES / (time.monotonic() - began)


def _drive_maximum(folder: str, file_bytes: int) -> tuple[float, float] | None:
    """Return the maximum requests/s and MB/s of reads with O_DIRECT, IN_FLIGHT at once; None without O_DIRECT."""
    results = os.path.join(folder, "probe")
    try:
        answer, _ = probe_target(
            folder, sizes=SIZES, depths=(IN_FLIGHT,), seconds=PROBE_SECONDS, file_bytes=file_bytes, folder=results
        )
    except SpaceError:
        raise
    except UserError:
        return None
    small, large = answer.cells
    return small.iops, large.mb_per_second


def _predict(folder: str, name: str, accelerator: str, data_bytes: int) -> Prediction:
    """Return the prediction for a workload, from reads of a small dataset made here, with more and more readers."""
    settings = ("reader.data_loader=threads", "train.epochs=1", "dataset.num_files_train=1")
    full = load([f"workload={name}", f"accelerator={accelerator}", *settings])
    full_bytes = full.dataset.record_length_bytes
    sample_bytes = min(round(full_bytes), data_bytes // MIN_FILES)
    dataset = replace(
        full.dataset,
        data_folder=os.path.join(folder, name),
        num_files_train=data_bytes // sample_bytes,
        record_length_bytes=sample_bytes,
        record_length_bytes_stdev=0,
        record_length_bytes_resize=0,
    )
    small = replace(full, dataset=dataset, reader=replace(full.reader, batch_size=1))
    make_on_this_host(small, len(os.sched_getaffinity(0)), ignore)
    calibration = calibrate_by_probe(small, most_seconds=READ_SECONDS)
    storage = replace(
        calibration,
        sample_bytes=0.0,  # larger samples are read at the same rate
        decode_seconds_per_sample=full_bytes / sample_bytes * calibration.decode_seconds_per_sample,
        busy_cores=0.0,  # the storage is the question, not the other programs on this host
    )
    return predict(full, storage, most=MAX_ACCELERATORS, assumes_files=True)  # as if there were enough files


def _accelerators_line(prediction: Prediction) -> Said:
    """Return the line of a workload: the accelerators fed, the rate of reads, and what one and the next count need."""
    low, high = prediction.max_accelerators_interval or (0, 0)
    fed = f"{low} x" if low == high else f"{low} to {high} x"
    next_count = high + 1
    if prediction.ended_by is not None:  # no count that fails was found, so the storage may feed more
        fed, next_count = f"at least {low} x", low + 1
    figures = prediction.shown
    mb_per_second = max_mb_per_second(prediction.curve)
    mb_per_accelerator = figures.needed_mb_per_second / figures.accelerators
    files_per_second = mb_per_second / figures.app_mb_per_second * figures.samples_per_second
    next_needs = f"{mb_per_accelerator / mb_per_second:.2g} times as much"
    if next_count > 1:
        next_needs = f"{next_count} need {rate(next_count * mb_per_accelerator)}"
    reads = f"reads {rate(mb_per_second)}, {files_per_second:,.0f} files/s"
    needs = f"1 needs {rate(mb_per_accelerator)}, {next_needs}"
    question = prediction.question
    tone: Tone = "open" if high else "bad"
    text = f"{fed} {question.accelerator}: {reads}; {needs} (AU {question.threshold_percent:g} %)"
    return Said(question.workload, text, tone="good" if low else tone)


def _drive_lines(peak: tuple[float, float] | None, predictions: Sequence[Prediction], fallback: str) -> Iterator[Said]:
    """Yield the drive's `peak` (requests/s, MB/s), what limits each workload (else `fallback`), and the accuracy."""
    if peak is not None:
        iops, probe_mb_per_second = peak
        rates = [max_mb_per_second(prediction.curve) for prediction in predictions]
        highest = max(probe_mb_per_second, *rates)
        limits = []
        for prediction, mb_per_second in zip(predictions, rates, strict=True):
            share = mb_per_second / highest
            limit = fallback
            if share >= DRIVE_LIMIT_SHARE:
                limit = "the drive"
            elif prediction.limited_by.what in ("loader", "host CPU"):
                limit = prediction.limited_by.what
            limits.append(f"{prediction.question.workload}: {limit}, at {100 * share:.0f} % of the drive's maximum")
        yield Said("at most", f"{rate(highest)} (1 MiB), {iops:,.0f} requests/s (4 KiB), {IN_FLIGHT} in flight")
        yield Said("limit", "; ".join(limits))
    width = max(prediction.half_width_percent for prediction in predictions)
    yield Said("accuracy", f"rates ± {width:.0f} %, read past the page cache", "counts are computed, not measured")

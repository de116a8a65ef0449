"""AMAX: QLC SSDs and hard disks: time of the first epoch compared with fio's random reads, local and over NFS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.opened import OpenedDocument, digits, table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step, datagen, scaled
from dlemu.report.table import Table

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "AMAX: time of the first epoch, and random reads"
ABOUT = (
    "Their tables 3 and 4: the first epoch of image training with an empty page cache, random reads of 128 KiB at "
    "depth 32 with O_DIRECT in MB/s, IOPS and mean latency, and the cost per TB. A folder on NFS is a drive too."
)
RANKS = "1,2"
_LAPTOP = ("dataset.num_files_train=16", "train.computation_time=0.0195")
"""Computation time: a tenth of a V100's for a batch; scale=laptop divides the bytes of a sample by 16."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the steps: a dataset on each drive, a sweep over all drives, and a probe of each."""
    data = scaled(question, "workload=resnet50", *(_LAPTOP[:1] if question.laptop else ()))
    words = [*data, "accelerator=v100", "framework=pytorch", "reader.data_loader=pytorch", "train.epochs=1"]
    words += ["reader.evict_page_cache=start", *(_LAPTOP[1:] if question.laptop else ()), *question.overrides]
    folders = ",".join(question.folders("resnet50"))
    made = datagen(question, "resnet50", data)
    sweep = (*words, f"ranks={RANKS}", f"drives={folders}")
    made.append(Step(name="sweep", command="sweep", words=sweep, says="the first epoch of resnet50"))
    cut = ("--seconds", "5", "--file-size", "1g") if question.laptop else ("--seconds", "60", "--file-size", "64g")
    for number, drive in enumerate(question.drives, start=1):
        says = f"random reads of {drive}"
        made.append(Step(name=f"probe-{number}", command="probe", words=(drive, "--preset", "amax", *cut), says=says))
    return made


def tables(opened: OpenedDocument) -> Iterator[Table]:
    epochs = {(drive, figures.ranks): figures.mean("total_seconds") for drive, figures in opened.sweep_figures()}
    counts = sorted({count for _, count in epochs})
    cells = {drive: probed.best for drive, probed in opened.probes()}
    question = opened.answer.question
    rows = []
    for number, drive in enumerate(opened.drives):
        cell, capacity = cells.get(drive), opened.answer.capacity_tb[number]
        price = question.price[number] if question.price else None
        rows.append(
            [
                drive,
                *(digits(epochs.get((drive, count))) for count in counts),
                digits(cell.mb_per_second if cell else None),
                digits(cell.iops if cell else None, 0),
                digits(cell.latency_ms.mean if cell and cell.latency_ms else None, 2),
                digits(price / capacity if price is not None and capacity else None),
            ]
        )
    first = [f"first epoch, s ({count} accelerator{'s' * (count != 1)})" for count in counts]
    names = ["storage", *first, "random reads 128 KiB, MB/s", "IOPS", "mean latency, ms", "price per TB"]
    engines = {probed.engine for _, probed in opened.probes()}
    notes = [f"Random reads: {', '.join(sorted(engines))}, depth 32, O_DIRECT."] if engines else []
    if question.price:
        notes.append("Price per TB: --price divided by the size of the file system.")
    yield table("Tables 3 and 4", names, rows, tuple(notes))


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the time of the first epoch and the random reads, a bar for each storage."""
    from dlemu.contrib.reproduce.figures._panels import bars, grid
    from dlemu.report.figure_base import Figure

    epochs = [
        {"at": figures.ranks, "drive": drive, "value": seconds}
        for drive, figures in opened.sweep_figures()
        if (seconds := figures.mean("total_seconds")) is not None
    ]
    reads = [
        {"at": "128 KiB", "drive": drive, "value": probed.best.mb_per_second}
        for drive, probed in opened.probes()
        if probed.best is not None
    ]
    panels = [
        bars(rows, across, title, opened.drives, canvas)
        for rows, across, title in (
            (epochs, "accelerators", "first epoch, s"),
            (reads, "random reads at depth 32", "MB/s"),
        )
        if rows
    ]
    if panels:
        says = "The first epoch began with an empty cache. If it does not follow the reads, something else limits it."
        yield "amax_storages", Figure("First epoch and random reads", says, grid(panels, canvas))

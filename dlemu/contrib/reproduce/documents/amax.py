"""AMAX: QLC SSDs and hard disks: time of the first epoch compared with fio's random reads, local and over NFS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.page import OpenedDocument, Panel, table
from dlemu.contrib.reproduce.steps import DocumentQuestion, Step, datagen, probes, scaled
from dlemu.report.table import Table
from dlemu.report.units import number
from dlemu.results.wording import count

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
    sweep = (*words, f"ranks={RANKS}", f"drives={','.join(question.folders('resnet50'))}")
    return [
        *datagen(question, "resnet50", data),
        Step(name="sweep", command="sweep", words=sweep, says="the first epoch of resnet50"),
        *probes(question, "amax", laptop=(5, "1g"), full=(60, "64g")),
    ]


def _panels(opened: OpenedDocument) -> tuple[Panel, Panel]:
    epochs = {
        (drive, figures.ranks): seconds
        for drive, figures in opened.sweep_figures()
        if (seconds := figures.mean("total_seconds")) is not None
    }
    reads = {(drive, "128 KiB"): probe.best.mb_per_second for drive, probe in opened.probes() if probe.best is not None}
    return Panel("first epoch, s", "accelerators", epochs), Panel("MB/s", "random reads at depth 32", reads)


def tables(opened: OpenedDocument) -> Iterator[Table]:
    epochs, question = _panels(opened)[0].values, opened.answer.question
    counts = sorted({ranks for _, ranks in epochs})
    cells = {drive: probe.best for drive, probe in opened.probes()}
    rows = []
    for position, drive in enumerate(opened.drives):
        cell, capacity = cells.get(drive), opened.answer.capacity_tb[position]
        row = [drive, *(number(epochs.get((drive, ranks))) for ranks in counts)]
        row += [number(cell.mb_per_second), number(cell.iops)] if cell else ["-", "-"]
        row.append(number(cell.latency_ms.mean) if cell and cell.latency_ms else "-")
        row.append(number(question.price[position] / capacity) if question.price and capacity else "-")
        rows.append(row)
    first = [f"first epoch, s ({count(ranks, 'accelerator')})" for ranks in counts]
    names = ["storage", *first, "random reads 128 KiB, MB/s", "IOPS", "mean latency, ms", "price per TB"]
    engines = {probe.engine for _, probe in opened.probes()}
    notes = [f"Random reads: {', '.join(sorted(engines))}, depth 32, O_DIRECT."] if engines else []
    if question.price:
        notes.append("Price per TB: --price divided by the size of the file system.")
    yield table("Tables 3 and 4", names, rows, tuple(notes))


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the time of the first epoch and the random reads, a bar for each storage."""
    from dlemu.contrib.reproduce.figures._panels import grid

    says = "The first epoch began with an empty cache. If it does not follow the reads, something else limits it."
    yield from grid("amax_storages", "First epoch and random reads", says, _panels(opened), opened, canvas)

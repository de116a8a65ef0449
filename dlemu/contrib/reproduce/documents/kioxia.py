"""KIOXIA: CM7 NVMe SSD with DLIO: six metrics over 1 to 18 emulated V100s, two drives side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.page import OpenedDocument, Panel, panel_table, table
from dlemu.contrib.reproduce.steps import LAPTOP_SECONDS, DocumentQuestion, Step, datagen, unet3d
from dlemu.report.table import Table
from dlemu.studies.compare.compare_sides import PLANNED_EPOCHS, YEAR_DAYS, compare_runs

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "KIOXIA: unet3d on 1 to 18 accelerators"
ABOUT = (
    "Their figures: average accelerator utilisation, samples/s, average and largest I/O throughput, average read "
    "latency, training time; by accelerators, two drives side by side."
)
COUNTS = "1,2,4,8,16,17,18"
METRICS = {
    "accelerator utilisation, %": "au_percent",
    "samples/s": "samples_per_second",
    "average I/O throughput, MB/s": "device_mb_per_second",
    "maximum I/O throughput, MB/s": "max_device_mb_per_second",
    "average read latency, ms": "mean_device_read_latency_ms",
    "total training time, s": "total_seconds",
}
"""KIOXIA's six metrics: the paper's name with the unit of its axis -> dlemu's name."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the steps: a dataset on each drive, and a sweep over both."""
    data = unet3d(question)
    times = (f"train.computation_time={LAPTOP_SECONDS}", "train.epochs=2") if question.laptop else ("train.epochs=5",)
    folders = ",".join(question.folders("unet3d"))
    words = (*data, "accelerator=v100", *times, "workflow.checkpoint=false", "reader.evict_page_cache=epochs")
    sweep = (*words, *question.overrides, f"ranks={COUNTS}", f"drives={folders}")
    says = f"unet3d on {COUNTS} accelerators"
    return [*datagen(question, "unet3d", data), Step(name="sweep", command="sweep", words=sweep, says=says)]


def _panels(opened: OpenedDocument) -> list[Panel]:
    known = list(opened.sweep_figures())
    return [
        Panel(
            title,
            "accelerators",
            {(drive, figures.ranks): value for drive, figures in known if (value := figures.mean(metric)) is not None},
        )
        for title, metric in METRICS.items()
    ]


def tables(opened: OpenedDocument) -> Iterator[Table]:
    """Yield the six metrics by accelerators and, with two drives, the time saved in a year."""
    if not list(opened.sweep_figures()):
        return
    yield panel_table("Six metrics by accelerators", _panels(opened), opened.drives)
    if len(opened.drives) == 2:
        yield _time_saved(opened)


def _time_saved(opened: OpenedDocument) -> Table:
    known = {(drive, figures.ranks): figures for drive, figures in opened.sweep_figures()}
    first, second = opened.drives
    rows, left_out = [], []
    for count in sorted({count for _, count in known}):
        a, b = known.get((first, count)), known.get((second, count))
        plan = compare_runs(a, b).plan if a and b else None
        if plan is None:
            left_out.append(str(count))
            continue
        days = plan.days_saved_per_year
        hours = (f"{hours:,.2f}" for hours in plan.hours_per_model)
        models = (f"{models:,.0f}" for models in plan.models_per_year)
        rows.append([str(count), f"{100 * days / YEAR_DAYS:+.1f}", f"{days:+.1f}", *hours, *models])
    names = ["accelerators", f"{first} faster, %", "days saved per year"]
    names += [f"hours of {PLANNED_EPOCHS} epochs, {drive}" for drive in (first, second)]
    names += [f"models per year, {drive}" for drive in (first, second)]
    why = f"Left out, without a verdict, whole epochs or equal work on both drives: {', '.join(left_out)}."
    return table("Time saved", names, rows, notes=(why,) if left_out else ())


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the six figures: a bar for each drive at each count of accelerators."""
    from dlemu.contrib.reproduce.figures._panels import grid

    says = "Of whole runs; a bar for each storage."
    yield from grid("kioxia_metrics", "Six metrics by accelerators", says, _panels(opened), opened, canvas)

"""KIOXIA: CM7 NVMe SSD with DLIO: six metrics over 1 to 18 emulated V100s, two drives side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.opened import OpenedDocument, digits, table
from dlemu.contrib.reproduce.steps import LAPTOP_FILES, LAPTOP_SECONDS, DocumentQuestion, Step, datagen, scaled
from dlemu.report.table import Table
from dlemu.results.figures import JobFigures
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
    data = scaled(question, "workload=unet3d", f"dataset.num_files_train={LAPTOP_FILES if question.laptop else 24000}")
    times = (f"train.computation_time={LAPTOP_SECONDS}", "train.epochs=2") if question.laptop else ("train.epochs=5",)
    folders = ",".join(question.folders("unet3d"))
    words = (*data, "accelerator=v100", *times, "workflow.checkpoint=false", "reader.evict_page_cache=epochs")
    sweep = (*words, *question.overrides, f"ranks={COUNTS}", f"drives={folders}")
    says = f"unet3d on {COUNTS} accelerators"
    return [*datagen(question, "unet3d", data), Step(name="sweep", command="sweep", words=sweep, says=says)]


def tables(opened: OpenedDocument) -> Iterator[Table]:
    """Yield the six metrics by accelerators and, with two drives, the time saved in a year."""
    known = {(drive, figures.ranks): figures for drive, figures in opened.sweep_figures()}
    counts = sorted({count for _, count in known})
    if not counts:
        return
    rows = []
    for title, metric in METRICS.items():
        for drive in opened.drives:
            found = [known.get((drive, count)) for count in counts]
            rows.append([f"{title}, {drive}", *(digits(one.mean(metric) if one else None, 2) for one in found)])
    yield table("Six metrics by accelerators", ["", *map(str, counts)], rows)
    if len(opened.drives) == 2:
        yield _time_saved(opened, known, counts)


def _time_saved(opened: OpenedDocument, known: dict[tuple[str, int], JobFigures], counts: list[int]) -> Table:
    first, second = opened.drives
    rows = []
    for count in counts:
        a, b = (known.get((drive, count)) for drive in (first, second))
        plan = compare_runs(a, b).plan if a and b else None
        if plan is None:
            continue
        days = plan.days_saved_per_year
        rows.append(
            [
                str(count),
                f"{100 * days / YEAR_DAYS:+.1f}",
                f"{days:+.1f}",
                *(f"{hours:,.2f}" for hours in plan.hours_per_model),
                *(f"{models:,.0f}" for models in plan.models_per_year),
            ]
        )
    names = ["accelerators", f"{first} faster, %", "days saved per year"]
    names += [f"hours of {PLANNED_EPOCHS} epochs, {drive}" for drive in (first, second)]
    names += [f"models per year, {drive}" for drive in (first, second)]
    out = [str(count) for count in counts if str(count) not in {row[0] for row in rows}]
    why = f"Left out, without a verdict, whole epochs or equal work on both drives: {', '.join(out)}."
    return table("Time saved", names, rows, notes=(why,) if out else ())


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the six figures: a bar for each drive at each count of accelerators."""
    from dlemu.contrib.reproduce.figures._panels import bars, grid
    from dlemu.report.figure_base import Figure

    panels = []
    for title, metric in METRICS.items():
        rows = [
            {"at": figures.ranks, "drive": drive, "value": number}
            for drive, figures in opened.sweep_figures()
            if (number := figures.mean(metric)) is not None
        ]
        if rows:
            panels.append(bars(rows, "accelerators", title, opened.drives, canvas))
    if panels:
        says = "Of whole runs; a bar for each storage."
        yield "kioxia_metrics", Figure("Six metrics by accelerators", says, grid(panels, canvas))

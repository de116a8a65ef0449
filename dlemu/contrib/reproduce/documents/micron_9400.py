"""Micron: 9400 NVMe SSD with MLPerf Storage v0.5: throughput and queue depth over time, 1 and 15 accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.config.literal import override
from dlemu.contrib.reproduce.page import OpenedDocument, table
from dlemu.contrib.reproduce.steps import LAPTOP_SECONDS, DocumentQuestion, Step, datagen, unet3d
from dlemu.extend import UserError
from dlemu.report.table import Table
from dlemu.report.units import number
from dlemu.results.wording import count

if TYPE_CHECKING:  # drawing needs packages that the rest does not
    from dlemu.jobs.training.result import Run
    from dlemu.report.figure_base import Canvas, Figure

TITLE = "Micron 9400: unet3d on 1 and on 15 accelerators"
ABOUT = (
    "Their figures: throughput over time in MiB/s, the device's queue depth over time, and the shares of the I/O by "
    "queue depth; with 1 accelerator and with 15. Of one drive."
)
_EPOCHS = {1: 1, 15: 8}
"""Accelerators -> epochs at laptop scale, for runs long enough to draw."""

_MIB_PER_MB = 1e6 / 2**20


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the steps: a dataset, and a run with each number of accelerators; raises UserError for several drives."""
    if len(question.drives) > 1:
        raise UserError(
            f"micron-9400 measures one drive: wanted drives={question.drives[0]}, and a folder for each drive"
        )
    data = unet3d(question)
    folder = question.folders("unet3d")[0]
    made = datagen(question, "unet3d", data)[:1]
    for ranks, epochs in _EPOCHS.items():
        words = [*data, "accelerator=v100", override(("dataset", "data_folder"), folder), f"ranks={ranks}"]
        words += ["telemetry.interval_seconds=0.1", "reader.evict_page_cache=epochs", "workflow.checkpoint=false"]
        if question.laptop:
            words += [f"train.computation_time={LAPTOP_SECONDS}", f"train.epochs={epochs}"]
        says = f"unet3d on {count(ranks, 'accelerator')}"
        made.append(Step(name=f"ranks-{ranks}", command="train", words=(*words, *question.overrides), says=says))
    return made


def tables(opened: OpenedDocument) -> Iterator[Table]:
    rows = []
    for name, run in opened.results.items():
        depth, rate = (_highest(run, metric) for metric in ("mean_queue_depth", "read_mb_per_second"))
        mean = run.summary.metrics.device_mb_per_second
        rows.append(
            [
                name.removeprefix("ranks-"),
                number(run.summary.au.mean if run.summary.au else None),
                number(mean.mean * _MIB_PER_MB if mean else None),
                number(rate * _MIB_PER_MB if rate is not None else None),
                number(depth),
            ]
        )
    names = ["accelerators", "AU, %", "mean MiB/s", "largest MiB/s", "largest mean depth"]
    yield table("One accelerator and fifteen", names, rows)


def _highest(run: Run, metric: str) -> float | None:
    series = run.device_series("block", metric)
    return max((float(one.values.max()) for one in series if len(one.values)), default=None)


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the document's figures 1 and 2, throughput over time in MiB/s, and 3 to 6, the queue depth."""
    from dlemu.contrib.reproduce.figures._device_rate import device_rate
    from dlemu.contrib.reproduce.figures._panels import stacked, titled
    from dlemu.jobs.training.figures.histograms import queue_depth_share
    from dlemu.jobs.training.figures.over_time import queue_depth
    from dlemu.report.figure_base import Figure

    runs: list[tuple[str, Run]] = [
        (count(int(name.removeprefix("ranks-")), "accelerator"), run) for name, run in opened.results.items()
    ]
    rates = [device_rate(run, f"MiB/s, {on}", _MIB_PER_MB, canvas) for on, run in runs]
    drawn = [panel for panel in rates if panel is not None]
    if drawn:
        says = "What the devices behind the dataset read, every tenth of a second. Queues fill at an epoch's start."
        yield "micron_9400_throughput", Figure("Throughput over time", says, stacked(drawn))
    depths = [
        (on, figure)
        for what in (queue_depth, queue_depth_share)
        for on, run in runs
        if (figure := what(run, canvas)) is not None
    ]
    if depths:
        panels = [titled(figure, f"{figure.title}, {on}") for on, figure in depths]
        says = " ".join(dict.fromkeys(figure.caption for _, figure in depths))
        yield "micron_9400_depth", Figure("Queue depth over time, and shares of depths", says, stacked(panels))

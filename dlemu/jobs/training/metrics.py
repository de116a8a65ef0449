"""The metrics of training runs: those of the summary, and of the devices' telemetry. Formulas: docs/metrics.md."""

from __future__ import annotations

from dlemu.jobs.training.summary import Metrics
from dlemu.metrics.catalogue import ACCELERATOR, Catalogue, Metric, declared

AU_SUSTAINED = "au_sustained_percent"

CATALOGUE = Catalogue(
    metrics=(
        *declared(Metrics),
        Metric(
            "peak read from the device",
            "MB/s",
            "higher",
            "in one telemetry interval, all devices together",
            "max_device_mb_per_second",
            axis="peak device MB/s",
            head="max\nMB/s",
            digits=1,
            is_drawn=True,
        ),
        Metric(
            "device read latency",
            "ms",
            "lower",
            "mean over the devices' reads",
            "mean_device_read_latency_ms",
            head="read\nms",
            digits=2,
            is_drawn=True,
        ),
    ),
    rank=ACCELERATOR,
    repetition="epoch",
    judged="au_percent",
    decisive=AU_SUSTAINED,
    fallback="au_whole_percent",
    note="Of whole runs; device figures are of the devices behind the dataset, from the kernel's counters.",
)

"""The first screen of a packing. Its sections are the metrics, as for any kind of job."""

from __future__ import annotations

from dlemu.contrib.pack.job import JOB
from dlemu.contrib.pack.summary import PackSummary
from dlemu.extend import rows_job
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import duration
from dlemu.results.wording import count


def _screen(summary: PackSummary, folder: str) -> Screen:
    limit = summary.limited_by
    speed = f"{rate(summary.read_mb_per_second)}, {summary.images_per_second:,.1f} images/s"
    by = f"by {count(summary.ranks, 'process')}, in {duration(summary.seconds)}"
    lines = [] if summary.complete else [Said("failed", summary.verdict, tone="bad")]
    lines += [Said("read", speed, by, tone="strong"), Said("written", rate(summary.write_mb_per_second))]
    if limit:
        lines.append(Said("limit", f"{limit.what}, {limit.confidence} confidence: {limit.advice[0]}"))
    if summary.train:
        lines.append(Said("train", summary.train))
    title = f"Packing {count(summary.images, 'image')} into {count(summary.files, 'file')}"
    return Screen(title=title, lines=lines, notes=summary.issues, folder=folder)


PARTS = rows_job.rows_parts(
    JOB,
    note="Time counts from the moment when all processes were ready until the last file was on the device.",
    limited_by=lambda summary: summary.limited_by and summary.limited_by.what,
    screen=_screen,
)

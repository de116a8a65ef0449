"""The summary of a run as plain values, for what still renders mappings."""

from __future__ import annotations

from typing import Any

import msgspec

from dlemu.emulator.job import Job
from dlemu.emulator.trainer import RunLog
from dlemu.results.run import make_run
from dlemu.results.summary import SCHEMA_VERSION as SCHEMA_VERSION


def build_summary(job: Job, log: RunLog, failure: str | None = None) -> dict[str, Any]:
    """Return summary.json."""
    return plain(msgspec.json.encode(make_run(job, log, failure).summary))


def plain(summary: bytes) -> dict[str, Any]:
    """Return an encoded summary as mappings that lack what does not exist."""
    values: dict[str, Any] = msgspec.json.decode(summary)
    always = ("ceiling_au_percent", "total_seconds", "cpu_seconds", "cpu_seconds_per_gb")
    metrics = values["metrics"]
    values["metrics"] = {key: item for key, item in metrics.items() if item is not None or key in always}
    for key in ("loss_percent", "kept_loss_percent"):
        values[key] = values[key] or {}
    return values

"""A comparison as figures and pages see it: compare.json, its sides as the lines of a series, and their short names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from datagen.errors import UserError
from dlemu.report.names import short_names
from dlemu.report.result import read_json
from dlemu.report.series import Point, Series
from dlemu.report.units import at
from dlemu.sizing import answers

COMPARE = "compare.json"
NAMES = {
    "total_seconds": "total time",
    "au_percent": "AU",
    "au_rules_percent": "AU, MLPerf rules",
    "samples_per_second": "samples",
    "app_mb_per_second": "read by the application",
    "device_mb_per_second": "read from the device",
    "max_device_mb_per_second": "most from the device",
    "mean_device_read_latency_ms": "device read latency",
    "time_to_first_batch_seconds": "time to first batch",
}
"""Compared metrics, in words."""


@dataclass(frozen=True)
class Comparison:
    """Two storages beside each other."""

    folder: str
    found: dict[str, Any]
    """compare.json (docs/sizing.md)."""

    @cached_property
    def names(self) -> tuple[str, str]:
        """What figures call the sides: `A: ` and the part of its path that is not the other's too."""
        a, b = self.found["a"], self.found["b"]
        short = short_names([a, b])
        return f"A: {short[a]}", f"B: {short[b]}"

    @cached_property
    def series(self) -> Series:
        """Both sides as lines over accelerators, or over what else was varied."""
        points = [
            _point(name, count)
            for name, side in zip(self.names, self.found["sides"], strict=True)
            for count in side["counts"]
        ]
        return Series(self.folder, "runs", {}, tuple(points), None)

    @property
    def telling(self) -> int | None:
        """The place among `runs` of the pair that says most of the storages."""
        return msgspec.convert(self.found, answers.Comparison).main_pair_number


def open_comparison(folder: str) -> Comparison:
    """Read the folder that `dlemu compare` left; raises UserError for a damaged one."""
    found = read_json(folder, COMPARE)
    comparison = Comparison(folder, found)
    try:
        if not comparison.series.points or len(found["economy"]) != 2:
            raise KeyError("sides")
        for key in ("runs", "issues", "verdict"):
            found[key]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{os.path.join(folder, COMPARE)} is damaged ({type(error).__name__}: {error}), or of another version of "
            "dlemu"
        ) from error
    return comparison


def _point(name: str, count: dict[str, Any]) -> Point:
    metrics = count["metrics"]

    def mean(metric: str) -> float | None:
        value: float | None = at(metrics, f"{metric}.mean")
        return value

    return Point(
        line=name,
        settings=count["settings"],
        accelerators=count["accelerators"],
        passed=count["passed"],
        au_percent=mean("au_percent"),
        half_width_percent=at(metrics, "au_percent.half_width"),
        threshold_percent=count["threshold_percent"],
        ceiling_au_percent=count["ceiling_au_percent"],
        total_seconds=mean("total_seconds"),
        samples_per_second=mean("samples_per_second"),
        app_mb_per_second=mean("app_mb_per_second"),
        device_mb_per_second=mean("device_mb_per_second"),
        max_device_mb_per_second=mean("max_device_mb_per_second"),
        mean_device_read_latency_ms=mean("mean_device_read_latency_ms"),
        limited_by=count["limited_by"] or "",
    )

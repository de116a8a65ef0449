"""Several runs side by side: the trials of a search, the points of a sweep, or the folders that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datagen.errors import UserError
from dlemu.report.names import short_names
from dlemu.report.result import Run, open_run, read_json
from dlemu.report.units import at

SIZE, SWEEP = "size.json", "sweep.json"
ACCELERATORS = "accelerators"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or all trials of one count of accelerators. What is not known is None."""

    line: str
    """Points of one line differ only in what the axis says."""
    settings: dict[str, str]
    accelerators: int
    passed: bool | None
    au_percent: float | None
    half_width_percent: float | None = None
    threshold_percent: float | None = None
    ceiling_au_percent: float | None = None
    total_seconds: float | None = None
    samples_per_second: float | None = None
    app_mb_per_second: float | None = None
    device_mb_per_second: float | None = None
    max_device_mb_per_second: float | None = None
    mean_device_read_latency_ms: float | None = None
    limited_by: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Series:
    """What several runs showed."""

    folder: str
    kind: str
    """size, sweep or runs."""
    answer: dict[str, Any]
    """size.json or sweep.json; empty for runs."""
    points: tuple[Point, ...]
    run: Run | None
    """One of the runs, for what they have in common: host, storage, configuration."""

    @property
    def axis(self) -> str:
        """What the points of a line differ in: accelerators, or else the first setting that has several values."""
        if len({point.accelerators for point in self.points}) > 1:
            return ACCELERATORS
        keys = list(dict.fromkeys(key for point in self.points for key in point.settings))
        return next((key for key in keys if len(self._values(key)) > 1), ACCELERATORS)

    def place(self, point: Point) -> float | str:
        """Return where a point stands on the axis; numbers where all its values are."""
        if self.axis == ACCELERATORS:
            return point.accelerators
        numeric = all(_is_number(value) for value in self._values(self.axis))
        if self.axis not in point.settings:
            return ""
        return float(point.settings[self.axis]) if numeric else self.shown(point, self.axis)

    @property
    def threshold_percent(self) -> float | None:
        """The AU at which a run passes, None where nothing says it."""
        known = [point.threshold_percent for point in self.points if point.threshold_percent is not None]
        if known or self.run is None:
            return known[0] if known else None
        threshold: float = self.run.metrics["au_threshold_percent"]
        return threshold

    def line(self, point: Point) -> str:
        """Return the name of a point's line: what was the same along it and differs between lines."""
        varied = [key for key in point.settings if key not in (self.axis, "ranks") and len(self._values(key)) > 1]
        named = [f"{key.rpartition('.')[2]}={self.shown(point, key)}" for key in varied]
        several = len({one.line for one in self.points}) > 1
        return ", ".join([point.line, *named] if several or not named else named)

    def shown(self, point: Point, key: str) -> str:
        """Return what a setting of a point is called: of paths, the part in which they differ."""
        value = point.settings[key]
        return short_names(sorted(self._values(key) - {""})).get(value, value)

    def _values(self, key: str) -> set[str]:
        return {point.settings.get(key, "") for point in self.points}


def open_result(folder: str) -> Run | Series:
    """Read whatever a command left in a folder; raises UserError when it is no result."""
    kind = next((name for name in (SIZE, SWEEP) if os.path.exists(os.path.join(folder, name))), None)
    if kind is None:
        return open_run(folder)
    answer = read_json(folder, kind)
    try:
        points = tuple(_size_points(answer) if kind == SIZE else _sweep_points(answer))
    except (KeyError, TypeError, AttributeError) as error:
        path = os.path.join(folder, kind)
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}), or of another version of dlemu"
        ) from error
    return Series(folder, kind.removesuffix(".json"), answer, points, _first_run(folder, points))


def open_together(folders: Sequence[str]) -> Series:
    """Read several results as one series, each by the name of its folder."""
    points: list[Point] = []
    common: Run | None = None
    for folder in folders:
        found, name = open_result(folder), os.path.basename(os.path.abspath(folder))
        run = found if isinstance(found, Run) else found.run
        common = common or run
        of_it = [_run_point(found)] if isinstance(found, Run) else found.points
        points += [_named(point, name if isinstance(found, Series) else "", folder) for point in of_it]
    return Series(", ".join(folders), "runs", {}, tuple(points), common)


def _named(point: Point, name: str, folder: str) -> Point:
    line = ": ".join(filter(None, [name, point.line]))
    return Point(**{**vars(point), "line": line, "folder": os.path.join(folder, point.folder)})


def _run_point(run: Run) -> Point:
    metrics = run.metrics
    return Point(
        line=" ".join(filter(None, [run.summary["workload"], run.summary["accelerator"]])),
        settings={"data_folder": str(run.summary["dataset"]["data_folder"])},
        accelerators=run.summary["ranks"],
        passed=run.summary["passed"],
        au_percent=at(metrics, "au_percent.mean"),
        threshold_percent=metrics["au_threshold_percent"],
        ceiling_au_percent=metrics["ceiling_au_percent"],
        total_seconds=metrics["total_seconds"],
        samples_per_second=at(metrics, "samples_per_second.mean"),
        app_mb_per_second=at(metrics, "app_mb_per_second.mean"),
        device_mb_per_second=at(metrics, "device_mb_per_second.mean"),
        limited_by=str(at(run.summary, "limited_by.what") or ""),
    )


def _size_points(answer: dict[str, Any]) -> Iterator[Point]:
    question = answer["question"]
    for count in answer["counts"]:
        trials = [one for one in answer["trials"] if one["accelerators"] == count["accelerators"]]
        yield Point(
            line=" ".join(filter(None, [question["workload"], question["accelerator"]])),
            settings={},
            accelerators=count["accelerators"],
            passed=count["passed"],
            au_percent=count["au_percent"],
            half_width_percent=count["half_width_percent"],
            threshold_percent=answer["threshold_percent"],
            ceiling_au_percent=_mean(trials, "ceiling_au_percent"),
            samples_per_second=_mean(trials, "samples_per_second"),
            app_mb_per_second=_mean(trials, "app_mb_per_second"),
            device_mb_per_second=_mean(trials, "device_mb_per_second"),
            limited_by=str(at(trials[-1], "limited_by.what") or "") if trials else "",
            folder=trials[-1]["folder"] if trials else "",
        )


def _sweep_points(answer: dict[str, Any]) -> Iterator[Point]:
    for one in answer["points"]:
        found = one["figures"]
        if found is None:
            continue
        yield Point(
            line=" ".join(filter(None, [found["workload"], found["accelerator"]])),
            settings=one["settings"],
            accelerators=found["ranks"],
            passed=found["passed"],
            au_percent=at(found, "au_percent.mean"),
            ceiling_au_percent=found.get("ceiling_au_percent"),
            total_seconds=found["total_seconds"],
            samples_per_second=at(found, "samples_per_second.mean"),
            app_mb_per_second=at(found, "app_mb_per_second.mean"),
            device_mb_per_second=at(found, "device_mb_per_second.mean"),
            max_device_mb_per_second=found.get("max_device_mb_per_second"),
            mean_device_read_latency_ms=found.get("mean_device_read_latency_ms"),
            limited_by=str(at(found, "limited_by.what") or ""),
            folder=one["folder"],
        )


def _mean(trials: Sequence[dict[str, Any]], key: str) -> float | None:
    known = [one[key] for one in trials if one.get(key) is not None]
    return float(np.mean(known)) if known else None


def _first_run(folder: str, points: Sequence[Point]) -> Run | None:
    """Return the first run that is still there; of a series that was sent on alone, none."""
    for point in points:
        path = os.path.join(folder, point.folder)
        if point.folder and os.path.exists(os.path.join(path, "summary.json")):
            return open_run(path)
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

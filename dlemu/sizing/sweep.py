"""One full run for each point of a sweep, and the figures that are compared between them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from datagen.errors import DlemuError
from dlemu.config.points import Point
from dlemu.sizing.device import device_figures
from dlemu.sizing.process import run_train

SCHEMA_VERSION = 1

RunPoint = Callable[[Point, str], None]
"""Runs a point into a folder; raises DlemuError with what the run said."""


def sweep(
    question: dict[str, Any],
    points: Sequence[Point],
    folder: str,
    done: Sequence[dict[str, Any]],
    run: RunPoint,
    after: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Return sweep.json (docs/sizing.md). `done` are completed points; `after` is told the sweep so far, to save it.

    A point that fails is noted with what it said, and the others go on.
    """
    finished = {_key(one["settings"]): one for one in done}
    results: list[dict[str, Any]] = []
    for number, point in enumerate(points, start=1):
        kept = finished.get(_key(point.settings))
        results.append(kept if kept is not None else _run(point, folder, f"point-{number:02}", run))
        after(_whole(question, results, complete=False))
    return _whole(question, results, complete=True)


def _key(settings: dict[str, str]) -> str:
    return json.dumps(settings, sort_keys=True)


def _whole(question: dict[str, Any], results: list[dict[str, Any]], *, complete: bool) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "complete": complete, "question": question, "points": list(results)}


def _run(point: Point, folder: str, name: str, run: RunPoint) -> dict[str, Any]:
    path = os.path.join(folder, name)
    shutil.rmtree(path, ignore_errors=True)  # a point that was interrupted
    os.makedirs(path)
    told: dict[str, Any] = {"settings": point.settings, "folder": name, "failure": None, "exit_status": None}
    try:
        run(point, path)
    except DlemuError as error:
        return told | {"failure": str(error), "exit_status": error.exit_status, "figures": None}
    return told | {"figures": figures(path)}


def figures(run_folder: str) -> dict[str, Any]:
    """Return what is compared of a run, from its summary.json and telemetry; null for what it does not have."""
    with open(os.path.join(run_folder, "summary.json")) as lines:
        summary = json.load(lines)
    metrics = summary["metrics"]

    def spread(name: str) -> dict[str, Any] | None:
        found = metrics.get(name)
        return {part: found[part] for part in ("mean", "per_epoch") if part in found} if found else None

    return {
        "workload": summary["workload"],
        "accelerator": summary["accelerator"],
        "ranks": summary["ranks"],
        "epochs": metrics["epochs"],
        "passed": summary["passed"],
        "verdict": summary["verdict"],
        "limited_by": summary.get("limited_by"),
        "total_seconds": metrics["total_seconds"],
        "training_seconds": metrics.get("training_seconds"),
        "au_percent": spread("au_percent"),
        "au_rules_percent": spread("au_rules_percent"),
        "samples_per_second": spread("samples_per_second"),
        "app_mb_per_second": spread("app_mb_per_second"),
        "device_mb_per_second": spread("device_mb_per_second"),
        "time_to_first_batch_seconds": spread("time_to_first_batch_seconds"),
        "ceiling_au_percent": metrics["ceiling_au_percent"],
        "au_threshold_percent": metrics["au_threshold_percent"],
        **asdict(device_figures(run_folder, (summary.get("telemetry") or {}).get("devices", []))),
    }


def train_point(options: Sequence[str], launcher: str, tell: Callable[[Point], None]) -> RunPoint:
    """Return what runs a point by `dlemu train`."""

    def run(point: Point, folder: str) -> None:
        tell(point)
        ranks = point.settings.get("ranks") or next(
            (word.split("=", 1)[1] for word in reversed(point.words) if word.startswith("ranks=")), "1"
        )
        start = shlex.split(launcher.format(ranks=ranks))
        run_train([*options, *point.words], folder, _idle, start)

    return run


def _idle() -> None:
    """A point runs to its end, whatever it shows on the way."""

"""Upgrades sweep.json and compare.json of version 1, and compare_checkpoints.json, to today's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from dlemu.metrics.catalogue import RUN
from dlemu.metrics.spread import Mean
from dlemu.report.units import plain, size
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value, value_of


class _What(msgspec.Struct):
    what: str


class _RunFigures(msgspec.Struct, kw_only=True):
    """The figures of a training run; all keys but these are metrics."""

    workload: str
    accelerator: str | None = None
    ranks: int
    epochs: int
    passed: bool | None
    verdict: str = ""
    limited_by: _What | None = None
    au_threshold_percent: float | None = None


class _CheckpointFigures(msgspec.Struct, kw_only=True):
    workload: str
    ranks: int
    verdict: str = ""
    write_limited_by: str | None = None
    read_limited_by: str | None = None
    metrics: dict[str, Value]


class _Point(msgspec.Struct, kw_only=True):
    figures: dict[str, Any] | None = None
    checkpoints: _CheckpointFigures | None = None


class _Count(msgspec.Struct, kw_only=True):
    settings: dict[str, str] = {}
    accelerators: int
    passed: bool | None
    limited_by: str | None
    threshold_percent: float | None
    ceiling_au_percent: float | None
    metrics: dict[str, Value]


class _Side(msgspec.Struct, kw_only=True):
    name: str
    workload: str
    counts: tuple[_Count, ...]
    about: dict[str, Any] | None


class _CheckpointSide(msgspec.Struct, kw_only=True):
    name: str
    title: str
    workload: str = ""
    verdict: str = ""
    started_at: str = ""
    ranks: int
    what: dict[str, Any] | None = None
    write_seconds: tuple[float, ...] = ()
    read_seconds: tuple[float, ...] = ()
    write_limited_by: str | None = None
    read_limited_by: str | None = None
    hosts: tuple[Any, ...] = ()
    storage: Any = None


def upgrade_sweep(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep of version 1 in today's schema; raises msgspec.ValidationError for a damaged one."""
    points = msgspec.convert(answer.get("points", ()), tuple[dict[str, Any], ...])
    return {**answer, "schema_version": 2, "points": [point | {"figures": _figures(point)} for point in points]}


def _figures(point: dict[str, Any]) -> dict[str, Any] | None:
    old = msgspec.convert(point, _Point)
    if old.checkpoints is not None:
        saved = old.checkpoints
        limits = {"writing": saved.write_limited_by, "reading": saved.read_limited_by}
        return asdict(
            JobFigures(
                kind="checkpoint",
                workload=saved.workload,
                ranks=saved.ranks,
                verdict=saved.verdict,
                limited_by=limits,
                metrics=saved.metrics,
            )
        )
    if old.figures is None:
        return None
    run = msgspec.convert(old.figures, _RunFigures)
    rest = {key: value for key, value in old.figures.items() if key not in _RunFigures.__struct_fields__}
    found = msgspec.convert(rest, dict[str, Mean | float | None])
    metrics = {name: value for name, figure in found.items() if (value := value_of(figure)) is not None}
    return asdict(
        JobFigures(
            kind="training",
            workload=run.workload,
            accelerator=run.accelerator,
            ranks=run.ranks,
            epochs=run.epochs,
            passed=run.passed,
            verdict=run.verdict,
            limited_by={RUN: run.limited_by.what if run.limited_by else None},
            threshold_percent=run.au_threshold_percent,
            metrics=metrics,
        )
    )


def upgrade_comparison(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison of version 1 in today's schema; raises msgspec.ValidationError for a damaged one."""
    if "runs" not in answer:
        return _of_checkpoints(answer)
    pairs = msgspec.convert(answer.get("runs", ()), tuple[dict[str, Any], ...])
    sides = msgspec.convert(answer.get("sides"), tuple[_Side, _Side])
    return {
        **answer,
        "schema_version": 2,
        "kind": "training",
        "runs": [pair | {"limited_by": {RUN: pair.get("limited_by")}} for pair in pairs],
        "sides": [
            {
                "name": side.name,
                "workload": side.workload,
                "runs": [{"settings": tried.settings, "figures": _of_count(side, tried)} for tried in side.counts],
                "about": None if side.about is None else _about(side),
            }
            for side in sides
        ],
    }


def _of_count(side: _Side, tried: _Count) -> dict[str, Any]:
    ceiling = value_of(tried.ceiling_au_percent)
    return asdict(
        JobFigures(
            kind="training",
            workload=side.workload,
            ranks=tried.accelerators,
            passed=tried.passed,
            limited_by={RUN: tried.limited_by},
            threshold_percent=tried.threshold_percent,
            metrics=tried.metrics | ({"ceiling_au_percent": ceiling} if ceiling else {}),
        )
    )


def _about(side: _Side) -> dict[str, Any]:
    about = dict(side.about or {})
    data = msgspec.convert(about.pop("dataset", None), dict[str, Any])
    files = f"{data.get('num_files_train')} {data.get('format')} files, {size(data.get('total_bytes') or 0)}"
    return about | {"title": side.workload, "facts": {"dataset": files, "folder": plain(data.get("data_folder"))}}


def _of_checkpoints(answer: Mapping[str, Any]) -> dict[str, Any]:
    sides = msgspec.convert(answer.get("sides"), tuple[_CheckpointSide, _CheckpointSide])
    metrics = msgspec.convert(answer.get("metrics"), dict[str, dict[str, Any]])
    a, b = sides
    pair = {
        "settings": {},
        "ranks": [a.ranks, b.ranks],
        "passed": [None, None],
        "limited_by": {
            "writing": [a.write_limited_by, b.write_limited_by],
            "reading": [a.read_limited_by, b.read_limited_by],
        },
        "metrics": metrics,
        "plan": None,
    }
    both = []
    for side, name in zip(sides, "ab", strict=True):
        each = {"write_slowest_seconds": side.write_seconds, "read_slowest_seconds": side.read_seconds}
        figures = JobFigures(
            kind="checkpoint",
            workload=side.workload,
            ranks=side.ranks,
            verdict=side.verdict,
            limited_by={"writing": side.write_limited_by, "reading": side.read_limited_by},
            metrics={
                metric: Value(found[name], found.get(f"{name}_half_width"), each.get(metric, ()))
                for metric, found in metrics.items()
                if name in found
            },
        )
        about = Conditions(title=side.title, started_at=side.started_at, how=side.what or {})
        both.append(
            {
                "name": side.name,
                "workload": side.workload,
                "runs": [{"figures": asdict(figures)}],
                "about": asdict(about) | {"hosts": side.hosts, "storage": side.storage},
            }
        )
    return {**answer, "schema_version": 2, "kind": "checkpoint", "runs": [pair], "sides": both}

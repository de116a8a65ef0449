"""What may be compared: a run, a sweep or a search, read from its folder and brought to one shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from datagen.errors import UserError
from dlemu.config.points import DATA_FOLDER
from dlemu.sizing.compare import Extras, compare_runs, economy, fed
from dlemu.sizing.store import SIZE, SWEEP, read_answer
from dlemu.sizing.sweep import figures

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Side:
    """One storage: its name, the figures of its runs by what was set, and the count that a search found."""

    name: str
    runs: dict[Settings, dict[str, Any]]
    accelerators: int | None
    """The most that are fed: of a search, or the largest passing count among the runs."""
    gb_per_second: float | None
    """What it delivered to them."""


def read_side(folder: str) -> list[Side]:
    """Return what a folder holds: one storage, or one for each drive of a sweep over drives. Raises UserError."""
    if (swept := read_answer(folder, SWEEP)) is not None:
        return _of_sweep(folder, swept)
    if (sized := read_answer(folder, SIZE)) is not None:
        return [_of_size(folder, sized)]
    if not os.path.exists(os.path.join(folder, "summary.json")):
        raise UserError(f"{folder} holds no summary.json, {SWEEP} or {SIZE}: wanted the folder of a run, sweep or size")
    found = figures(folder)
    return [_side(folder, {(): found})]


def _of_sweep(folder: str, swept: dict[str, Any]) -> list[Side]:
    drives: dict[str, dict[Settings, dict[str, Any]]] = {}
    for point in swept["points"]:
        if point["figures"] is None:
            continue
        settings = dict(point["settings"])
        drive = settings.pop(DATA_FOLDER, folder)
        drives.setdefault(drive, {})[tuple(sorted(settings.items()))] = point["figures"]
    if not drives:
        raise UserError(f"no point of {folder} has completed; nothing can be compared")
    return [_side(drive, runs) for drive, runs in drives.items()]


def _side(name: str, runs: dict[Settings, dict[str, Any]]) -> Side:
    accelerators = fed(list(runs.values()))
    shown = [run for run in runs.values() if run["ranks"] == (accelerators or run["ranks"])]
    rates = [run["app_mb_per_second"]["mean"] for run in shown if run["app_mb_per_second"]]
    return Side(name, runs, accelerators, max(rates) / 1e3 if rates else None)


def _of_size(folder: str, sized: dict[str, Any]) -> Side:
    most = sized["max_accelerators"]
    rates = [trial["app_mb_per_second"] for trial in sized["trials"] if trial["accelerators"] == most]
    return Side(folder, {}, most, max(rates) / 1e3 if rates else None)


def compare_sides(a: Side, b: Side, extras: tuple[Extras, Extras]) -> dict[str, Any]:
    """Return A beside B (docs/sizing.md): each pair of runs with equal settings, and what each storage comes to."""
    pairs = _pairs(a, b)
    if not pairs and (a.runs or b.runs):
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings: {_told(a)} against {_told(b)}; compare two "
            "runs, two sweeps over the same values, or two searches"
        )
    return {
        "schema_version": 1,
        "a": a.name,
        "b": b.name,
        "runs": [{"settings": dict(settings), **compare_runs(one, two)} for settings, one, two in pairs],
        "economy": [
            economy(side.accelerators, side.gb_per_second, extra) for side, extra in zip((a, b), extras, strict=True)
        ],
    }


def _pairs(a: Side, b: Side) -> list[tuple[Settings, dict[str, Any], dict[str, Any]]]:
    """Return the runs with equal settings; two single runs are a pair whatever was set."""
    if len(a.runs) == len(b.runs) == 1:
        return [((), one, two) for one, two in zip(a.runs.values(), b.runs.values(), strict=True)]
    return [(settings, a.runs[settings], b.runs[settings]) for settings in a.runs if settings in b.runs]


def _told(side: Side) -> str:
    runs = [" ".join(f"{key}={value}" for key, value in settings) or "one run" for settings in side.runs]
    return "; ".join(runs) or "a search"

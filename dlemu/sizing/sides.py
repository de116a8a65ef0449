"""What may be compared: a run, a sweep or a search, read from its folder and brought to one shape."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datagen.errors import UserError
from dlemu.config.points import DATA_FOLDER
from dlemu.sizing.circumstances import about, differences, read_summaries, warnings
from dlemu.sizing.compare import METRICS, Extras, Value, compare_runs, economy, fed, value_of
from dlemu.sizing.compare_verdict import compared
from dlemu.sizing.store import SIZE, SWEEP, read_answer
from dlemu.sizing.sweep import figures

SCHEMA_VERSION = 1
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
    workload: str = ""
    counts: tuple[dict[str, Any], ...] = ()
    """What was measured of each count of accelerators (docs/sizing.md)."""
    about: dict[str, Any] | None = None
    """Where it was measured, None when no run is there any more."""
    warnings: tuple[str, ...] = ()


def read_side(folder: str) -> list[Side]:
    """Return what a folder holds: one storage, or one for each drive of a sweep over drives. Raises UserError."""
    if (swept := read_answer(folder, SWEEP)) is not None:
        return _of_sweep(folder, swept)
    if (sized := read_answer(folder, SIZE)) is not None:
        return [_of_size(folder, sized)]
    if not os.path.exists(os.path.join(folder, "summary.json")):
        raise UserError(f"{folder} holds no summary.json, {SWEEP} or {SIZE}: wanted the folder of a run, sweep or size")
    found = figures(folder)
    return [_side(folder, {(): found}, [folder])]


def _of_sweep(folder: str, swept: dict[str, Any]) -> list[Side]:
    drives: dict[str, dict[Settings, dict[str, Any]]] = {}
    folders: dict[str, list[str]] = {}
    for point in swept["points"]:
        if point["figures"] is None:
            continue
        settings = dict(point["settings"])
        drive = settings.pop(DATA_FOLDER, folder)
        drives.setdefault(drive, {})[tuple(sorted(settings.items()))] = point["figures"]
        folders.setdefault(drive, []).append(os.path.join(folder, point["folder"]))
    if not drives:
        raise UserError(f"no point of {folder} has completed; nothing can be compared")
    return [_side(drive, runs, folders[drive]) for drive, runs in drives.items()]


def _side(name: str, runs: dict[Settings, dict[str, Any]], folders: Sequence[str]) -> Side:
    accelerators = fed(list(runs.values()))
    shown = [run for run in runs.values() if run["ranks"] == (accelerators or run["ranks"])]
    rates = [run["app_mb_per_second"]["mean"] for run in shown if run["app_mb_per_second"]]
    summaries = read_summaries(folders)
    return Side(
        name,
        runs,
        accelerators,
        max(rates) / 1e3 if rates else None,
        workload=next(iter(runs.values()))["workload"],
        counts=tuple(_count_of_run(settings, run) for settings, run in runs.items()),
        about=about(summaries),
        warnings=warnings(summaries),
    )


def _count_of_run(settings: Settings, run: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: asdict(value) for name in METRICS if (value := value_of(run, name))}
    return {
        "settings": dict(settings),
        "accelerators": run["ranks"],
        "passed": run["passed"],
        "limited_by": (run["limited_by"] or {}).get("what"),
        "threshold_percent": run.get("au_threshold_percent"),
        "ceiling_au_percent": run.get("ceiling_au_percent"),
        "metrics": metrics,
    }


def _of_size(folder: str, sized: dict[str, Any]) -> Side:
    most, trials = sized["max_accelerators"], sized["trials"]
    rates = [trial["app_mb_per_second"] for trial in trials if trial["accelerators"] == most]
    summaries = read_summaries(os.path.join(folder, trial["folder"]) for trial in trials)
    return Side(
        folder,
        {},
        most,
        max(rates) / 1e3 if rates else None,
        workload=sized["question"]["workload"],
        counts=tuple(_count_of_search(count, sized) for count in sized["counts"]),
        about=about(summaries),
        warnings=tuple(sized["issues"]),
    )


def _count_of_search(count: dict[str, Any], sized: dict[str, Any]) -> dict[str, Any]:
    trials = [trial for trial in sized["trials"] if trial["accelerators"] == count["accelerators"]]
    metrics = {"au_percent": Value(count["au_percent"], count["half_width_percent"])}
    for name in ("samples_per_second", "app_mb_per_second", "device_mb_per_second"):
        known = [trial[name] for trial in trials if trial[name] is not None]
        if known:
            metrics[name] = Value(sum(known) / len(known), None)
    return {
        "settings": {},
        "accelerators": count["accelerators"],
        "passed": count["passed"],
        "limited_by": next(((trial["limited_by"] or {}).get("what") for trial in reversed(trials)), None),
        "threshold_percent": sized["threshold_percent"],
        "ceiling_au_percent": next((trial["ceiling_au_percent"] for trial in trials), None),
        "metrics": {name: asdict(value) for name, value in metrics.items()},
    }


def compare_sides(a: Side, b: Side, extras: tuple[Extras, Extras]) -> dict[str, Any]:
    """Return A beside B (docs/sizing.md): each pair of runs with equal settings, and what each storage comes to."""
    pairs = _pairs(a, b)
    if not pairs and (a.runs or b.runs):
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings: {_told(a)} against {_told(b)}; compare two "
            "runs, two sweeps over the same values, or two searches"
        )
    found = {
        "schema_version": SCHEMA_VERSION,
        "a": a.name,
        "b": b.name,
        "runs": [{"settings": dict(settings), **compare_runs(one, two)} for settings, one, two in pairs],
        "economy": [
            economy(side.accelerators, side.gb_per_second, extra) for side, extra in zip((a, b), extras, strict=True)
        ],
        "sides": [
            {"name": side.name, "workload": side.workload, "counts": list(side.counts), "about": side.about}
            for side in (a, b)
        ],
        "issues": list(_issues(a, b)),
    }
    return found | {"verdict": compared(found)}


def _issues(a: Side, b: Side) -> Iterator[str]:
    if a.workload != b.workload:
        yield f"A ran {a.workload} and B {b.workload}: the difference is not the storage's alone"
    yield from differences(a.about, b.about)
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)


def _pairs(a: Side, b: Side) -> list[tuple[Settings, dict[str, Any], dict[str, Any]]]:
    """Return the runs with equal settings; two single runs are a pair whatever was set."""
    if len(a.runs) == len(b.runs) == 1:
        return [((), one, two) for one, two in zip(a.runs.values(), b.runs.values(), strict=True)]
    return [(settings, a.runs[settings], b.runs[settings]) for settings in a.runs if settings in b.runs]


def _told(side: Side) -> str:
    runs = [" ".join(f"{key}={value}" for key, value in settings) or "one run" for settings in side.runs]
    return "; ".join(runs) or "a search"

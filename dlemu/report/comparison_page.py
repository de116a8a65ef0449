"""The page of two storages beside each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from dlemu.report.comparison import NAMES, Comparison
from dlemu.report.page import Page, Table, TileRow, Words, tiles
from dlemu.report.run_page import plain
from dlemu.report.units import number, size, with_unit
from dlemu.sizing.answers import RunPair
from dlemu.sizing.compare_sides import PLANNED_EPOCHS, pair_settings
from dlemu.sizing.sides import METRICS

_OPEN_TABLES = 2
"""More pairs than these are folded, all but the one that says most."""
_ECONOMY = (
    ("accelerators fed", "accelerators_fed", "", "the largest count shown to pass"),
    ("read by them", "gb_per_second", "GB/s", "at that count"),
    ("price for each one fed", "cost_per_accelerator", "", "--price, in its currency"),
    ("GB/s per watt", "gb_per_second_per_watt", "", "--watts"),
)


def comparison_page(comparison: Comparison) -> Page:
    """Return what stands on the page of a comparison."""
    found = comparison.found
    return Page(
        title=" against ".join(comparison.names),
        lead=f"A is {found['a']}. B is {found['b']}.",
        state="open",
        verdict=("A to B", f": {found['verdict']}"),
        tiles=tiles(found, _tiles(comparison)),
        words=list(_words(found)),
        tables=list(_tables(comparison)),
        texts=[],
        source=os.path.basename(os.path.abspath(comparison.folder)),
    )


def _tiles(comparison: Comparison) -> Iterator[TileRow]:
    place = comparison.telling
    if place is not None:
        run, key = comparison.found["runs"][place], f"runs.{place}"
        told = f"with {_settings(run)}"
        width = run["metrics"]["total_seconds"]["half_width_percent"]
        sure = "one epoch: no uncertainty" if width is None else f"+- {width:.1f}"
        yield "total time, A to B", f"{key}.metrics.total_seconds.difference_percent", "%", f"{sure}, {told}"
        if run["metrics"]["total_seconds"]["distinct"] is not False:
            told = "what B trains in a year, A trains in less"
            yield "saved in a year", f"{key}.plan.days_saved_per_year", "days", told
        for side, name in enumerate("AB"):
            hours = f"{key}.plan.hours_per_model.{side}"
            yield f"{PLANNED_EPOCHS} epochs, {name}", hours, "h", "at the measured pace"
    for label, key, unit, what in _ECONOMY:
        for side, name in enumerate("AB"):
            yield f"{label}, {name}", f"economy.{side}.{key}", unit, what


def _words(found: dict[str, Any]) -> Iterator[Words]:
    limits = [_limit(run) for run in found["runs"] if {*run["limited_by"]} - {None, "nothing"}]
    if limits:
        yield Words("What limited them", points=limits)
    if found["issues"]:
        yield Words("What to know about these numbers", points=found["issues"])


def _limit(run: dict[str, Any]) -> str:
    a, b = (limit or "not known" for limit in run["limited_by"])
    return f"With {_settings(run)}: A by {a}, B by {b}." if a != b else f"With {_settings(run)}: both by {a}."


def _tables(comparison: Comparison) -> Iterator[Table]:
    found = comparison.found
    runs = found["runs"]
    for place, run in enumerate(runs):
        folded = len(runs) > _OPEN_TABLES and place != comparison.telling
        head = ("metric", "A", "B", "A to B", "+-")
        yield Table(f"A and B with {_settings(run)}", head, list(_rows(run)), range(1, 5), folded=folded)
    plans = [run for run in runs if run["plan"]]
    if plans:
        years = ("", f"hours for {PLANNED_EPOCHS} epochs: A", "B", "models a year: A", "B", "days saved by A")
        yield Table("A year of training", years, [_plan_row(run) for run in plans], range(1, 6))
    yield Table("What each feeds", ("", "A", "B"), list(_economy_rows(found["economy"])), (1, 2))
    if not runs:
        yield from _count_tables(found["sides"])
    known = [side["about"] for side in found["sides"]]
    if all(known):
        yield Table("Where they were measured", ("", "A", "B"), list(_about_rows(*known)))


def _rows(run: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, one in run["metrics"].items():
        percent, width = one["difference_percent"], one["half_width_percent"]
        yield (
            f"{NAMES[name]}, {METRICS[name]}",
            _with_width(one["a"], one["a_half_width"]),
            _with_width(one["b"], one["b_half_width"]),
            "-" if percent is None else f"{percent:+.1f} %",
            "-" if width is None else f"{width:.1f}",
        )
    verdicts = [{True: "pass", False: "fail", None: "no verdict"}[passed] for passed in run["passed"]]
    yield "verdict", *verdicts, "", ""
    yield "limited by", *(limit or "-" for limit in run["limited_by"]), "", ""


def _with_width(value: float, half_width: float | None) -> str:
    return number(value) if half_width is None else f"{number(value)} +- {number(half_width)}"


def _plan_row(run: dict[str, Any]) -> tuple[str, ...]:
    plan = run["plan"]
    models = [f"{value:,.0f}" for value in plan["models_per_year"]]
    hours = [number(value) for value in plan["hours_per_model"]]
    return _settings(run), *hours, *models, f"{plan['days_saved_per_year']:.1f}"


def _economy_rows(economy: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for label, key, unit, _ in _ECONOMY:
        values = [side[key] for side in economy]
        if any(value is not None for value in values):
            yield label, *("-" if value is None else with_unit(value, unit) for value in values)


def _count_tables(sides: list[dict[str, Any]]) -> Iterator[Table]:
    """Yield what was measured of each side whose counts need not be the other's: of two searches."""
    for name, side in zip("AB", sides, strict=True):
        rows = [
            (
                str(count["accelerators"]),
                *(_with_width(**_value(count["metrics"], key)) for key in count["metrics"]),
                {True: "pass", False: "fail", None: "open"}[count["passed"]],
                count["limited_by"] or "-",
            )
            for count in side["counts"]
        ]
        names = list(side["counts"][0]["metrics"])
        head = ("accelerators", *(f"{NAMES[key]}, {METRICS[key]}" for key in names), "verdict", "limited by")
        yield Table(f"{name}: counts", head, rows, range(len(names) + 1))


def _value(metrics: dict[str, Any], key: str) -> dict[str, Any]:
    return {"value": metrics[key]["mean"], "half_width": metrics[key]["half_width"]}


def _about_rows(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    rows = zip(_facts(a), _facts(b), strict=True)
    yield from ((name, one, two) for (name, one), (_, two) in rows)
    for key in sorted({*a["how"], *b["how"]}):
        yield key.replace("_", " "), plain(a["how"].get(key)), plain(b["how"].get(key))


def _facts(side: dict[str, Any]) -> list[tuple[str, str]]:
    hosts, storage, data = side["hosts"], side["storage"] or {}, side["dataset"]
    first: dict[str, Any] = hosts[0] if hosts else {}
    packages = ", ".join(f"{name} {version}" for name, version in first.get("packages", {}).items())
    return [
        ("measured", plain(side["started_at"])),
        ("hosts", ", ".join(host["host"] for host in hosts[:4]) + (f" and {len(hosts) - 4} more" * (len(hosts) > 4))),
        ("processor", plain(first.get("processor"))),
        ("cores usable", plain(first.get("cpu_usable"))),
        ("memory", size(first["memory_bytes"]) if first else "not known"),
        ("kernel", plain(first.get("kernel"))),
        ("dlemu", plain(first.get("dlemu"))),
        ("packages", packages),
        ("dataset", f"{data['num_files_train']:,} {data['format']} files, {size(data['total_bytes'])}"),
        ("folder", plain(data["data_folder"])),
        ("file system", plain(storage.get("file_system"))),
        ("devices", "; ".join(_device(one) for one in side["devices"]) or "not known"),
    ]


def _device(one: dict[str, Any]) -> str:
    parts = [one["name"], one.get("model"), size(one["size_bytes"]) if one.get("size_bytes") else None]
    return ", ".join(part for part in parts if part)


def _settings(run: dict[str, Any]) -> str:
    return pair_settings(msgspec.convert(run, RunPair))

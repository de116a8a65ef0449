"""The answer of a comparison in one sentence."""

from __future__ import annotations

from typing import Any


def compared(found: dict[str, Any]) -> str:
    """Return what compare.json comes to: the time of the largest runs, and how many accelerators each side feeds."""
    parts = []
    place = telling(found["runs"])
    if place is not None:
        run = found["runs"][place]
        parts.append(f"with {settings_told(run)} {_time(run['metrics']['total_seconds'])}")
    fed = [side["accelerators_fed"] for side in found["economy"]]
    if any(fed):
        same = f"A and B feed {fed[0]} accelerators each"
        parts.append(same if fed[0] == fed[1] else f"A feeds {_count(fed[0])} accelerators, B {_count(fed[1])}")
    elif found["runs"] and all(passed is False for run in found["runs"] for passed in run["passed"]):
        parts.append("neither passes")
    return "; ".join(parts) or "no figure is known of both"


def telling(runs: list[dict[str, Any]]) -> int | None:
    """Return the place of the pair that says most of the storages: the last of those with the most accelerators."""
    timed = [place for place, run in enumerate(runs) if "total_seconds" in run["metrics"]]
    return max(timed, key=lambda place: (sum(runs[place]["ranks"]), place), default=None)


def settings_told(run: dict[str, Any]) -> str:
    """Return what a pair of runs has in common, in words."""
    a, b = run["ranks"]
    others = [f"{key}={value}" for key, value in run["settings"].items() if key != "ranks"]
    count = f"{a} accelerator{'s' * (a != 1)}" if a == b else f"{a} and {b} accelerators"
    return ", ".join([count, *others])


def _time(total: dict[str, Any]) -> str:
    percent, width = total["difference_percent"], total["half_width_percent"]
    if percent is None:
        return "no time passed"
    if total["distinct"] is False:
        return f"no difference in time is shown: A to B {percent:+.1f} % +- {width:.1f}"
    told = f"A takes {abs(percent):.1f} % {'less' if percent < 0 else 'more'} time than B"
    return told + (" (one epoch: no uncertainty)" if width is None else f" (+- {width:.1f})")


def _count(fed: int | None) -> str:
    return "none" if not fed else str(fed)

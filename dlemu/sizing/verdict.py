"""The answer of a search in one sentence."""

from __future__ import annotations

from typing import Any


def sentence(answer: dict[str, Any]) -> str:
    """Return how many pass, how the next count fares, and what limits it."""
    name = answer["question"]["accelerator"]
    kind = f"x {name}" if name else "accelerators"
    passing, failing = answer["edge"]["pass"], answer["edge"]["fail"]
    parts = [f"{passing['accelerators']} {kind} pass (au {_au(passing)})" if passing else f"not even 1 {kind} passes"]
    if failing:
        parts.append(f"{failing['accelerators']} {_fares(failing)} ({_au(failing)})")
    parts += [
        f"{one['accelerators']} {_fares(one)} ({_au(one)})"
        for one in answer["counts"]
        if one["accelerators"] in answer["too_close_to_tell"] and one != failing
    ]
    return f"{', '.join(parts)}: {_limit(answer)}{_rates(answer)}"


def _fares(count: dict[str, Any]) -> str:
    if count["passed"] is None:
        return "is too close to tell"
    return "pass" if count["passed"] else "fail" if count["accelerators"] > 1 else "fails"


def _au(count: dict[str, Any]) -> str:
    return f"{count['au_percent']:.1f} % +- {count['half_width_percent']:.1f}"


def _limit(answer: dict[str, Any]) -> str:
    what = answer["limited_by"]["what"]
    if what == "count":
        return f"no more were tried: {answer['limited_by']['evidence'][0]}"
    if what == "host":
        limit = f"this host holds no more: {answer['limited_by']['evidence'][0]}"
    else:
        limit = "what limits it is not known" if what == "not known" else f"limited by {what}"
    if answer["host_only"]:
        could = answer["host_only"]["storage_could_feed"]
        return f"{limit}; by what it was seen to give, the storage could have fed about {could}"
    return limit


def _rates(answer: dict[str, Any]) -> str:
    passing = answer["edge"]["pass"]
    if not passing:
        return ""
    rates = [t["app_mb_per_second"] for t in answer["trials"] if t["accelerators"] == passing["accelerators"]]
    return f"; {_gb(sum(rates) / len(rates))} of the {_gb(answer['storage_mb_per_second'])} that the storage gives"


def _gb(mb_per_second: float) -> str:
    return f"{mb_per_second / 1e3:.2f} GB/s" if mb_per_second >= 1000 else f"{mb_per_second:.1f} MB/s"

"""The numbers of frozen runs: whatever is rebuilt inside, it computes these from the same rows.

The numbers in runs/ and the rows in tables/ are never edited; only the adapter may change, which feeds them to the code
of the day. Codes of causes and findings are compared by what becomes of them (causes.toml): a code that goes there
needs no other number here.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.truth import frozen
from tests.truth.adapter import CODES, STRUCK, numbers_of, pack_codes

TOLERANCE = 1e-9
"""Relative; sums in another order differ by less."""
SHARES = {"storage", "loader", "host_cpu", "emulator", "none"}
MOST_TRAINING_FINDINGS = 16
NOT_COMPUTED = {
    *("object_requests.cost", "object_requests.tls_cpu_seconds", "load_by_size_seconds", "devices", "fifo"),
    *(f"tokens_from_percent.{tier}" for tier in ("gpu", "dram", "pending", "computed")),
    *(f"official.{key}" for key in ("model", "users", "clock_seconds", "slowest_seconds", "again_percent", "classes")),
    *("official.memory_percent", "official.storage_tokens_per_second"),
    *("kept_images", "cpu_seconds_per_gb", "host_busy_percent", "au_percent_without_cause"),
    *("dropped_samples", "read_calls", "read_ms", "read_cpu_seconds_per_gb", "peak_memory_mb"),
    *("checkpoints[].mb_per_second", *(f"differences.{phase}_rank0_gib_per_second" for phase in ("write", "read"))),
    *(f"asynchronous_checkpoints.{key}" for key in ("steps_during", "shortest_interval_seconds")),
    *(f"{phase}.{key}" for phase in ("write", "read") for key in ("content_cpu_seconds_per_gb", "slowest_ranks")),
}
"""Frozen numbers that no result has any more, and that do not follow from what it has."""


@cache
def becomes() -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """Return what becomes of codes: kind -> origin -> code -> share, finding or dropped."""
    return tomllib.loads((Path(__file__).parent / "causes.toml").read_text(encoding="utf-8"))


def entries(kind: str) -> Iterator[dict[str, str]]:
    for codes in becomes()[kind].values():
        yield from codes.values()


@cache
def new_codes(kind: str) -> set[str]:
    """Return the shares and findings of a kind of result."""
    return {entry[part] for entry in entries(kind) for part in ("share", "finding") if part in entry}


def becomes_of(kind: str, origin: str, code: str) -> dict[str, str]:
    known = becomes().get(kind, {}).get(origin, {})
    if code in known:
        return known[code]
    assert code in new_codes(kind), f"causes.toml does not say what becomes of {kind}'s {origin} {code}"
    return {"share": code} if code in SHARES else {"finding": code}


def findings_of(kind: str, numbers: dict[str, Any]) -> set[str]:
    """Return the findings that the codes of a result become, those of its causes too."""
    old = [code.partition(".") for code in numbers["findings"]]
    found = [becomes_of(kind, origin if dot else "", code if dot else origin) for origin, dot, code in old]
    found += [becomes_of(kind, "cause", cause) for cause in causes_in(numbers)]
    return {part["finding"] for part in found if "finding" in part}


def causes_in(numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the causes of a result and of its phases."""
    for key, value in numbers.items():
        if key == "cause" and value is not None:
            yield value
        elif isinstance(value, dict):
            yield from causes_in(value)


def translated(kind: str, numbers: Any) -> Any:
    """Return numbers in which causes are shares of the lost time; without findings."""
    if not isinstance(numbers, dict):
        return numbers

    values = {key: translated(kind, value) for key, value in numbers.items() if key != "findings"}
    if values.get("cause") is not None:
        values["cause"] = becomes_of(kind, "cause", values["cause"])["share"]
    return values


def differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield where two results differ: floats by more than TOLERANCE, anything else at all."""
    if now == STRUCK and re.sub(r"\[\d+\]", "[]", where) in NOT_COMPUTED:
        return
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        for key in was:
            yield from differences(was[key], now[key], f"{where}.{key}".lstrip("."))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for place, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif not is_same(was, now):
        yield f"{where} was {was!r} and is {now!r}"


def is_same(was: Any, now: Any) -> bool:
    if isinstance(was, float) and isinstance(now, (int, float)) and not isinstance(now, bool):
        return math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=1e-12)
    return type(was) is type(now) and bool(was == now)


@pytest.mark.parametrize("name", frozen.names())
def test_the_numbers_of_a_frozen_run_are_computed_again(name: str) -> None:
    run = frozen.read(name)
    now = numbers_of(run)
    found = list(differences(translated(run.kind, run.numbers), translated(run.kind, now)))
    assert not found, "\n".join(found)
    assert findings_of(run.kind, now) == findings_of(run.kind, run.numbers)


@pytest.mark.parametrize("kind", [*CODES, "pack"])
def test_it_is_known_what_becomes_of_each_code(kind: str) -> None:
    for origin, codes in (pack_codes() if kind == "pack" else CODES[kind]).items():
        for code in codes:
            becomes_of(kind, origin, str(code))


def test_a_code_becomes_a_share_a_finding_or_nothing_for_a_reason() -> None:
    for kind, origins in becomes().items():
        for origin, codes in origins.items():
            for code, entry in codes.items():
                parts = set(entry)
                assert parts in ({"dropped"}, {"share"}, {"finding"}, {"share", "finding"}), (kind, origin, code)
                assert all(entry.values()), (kind, origin, code)
                assert origin != "cause" or "share" in parts, (kind, code)
        assert named(entries(kind), "share") <= SHARES, kind
    assert len(named(entries("train"), "finding")) <= MOST_TRAINING_FINDINGS


def named(of: Iterable[dict[str, str]], part: str) -> set[str]:
    return {entry[part] for entry in of if part in entry}

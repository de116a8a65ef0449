"""How numbers of a result are written for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_UNITS = {
    "_percent": "%",
    "_mb_per_second": "MB/s",
    "_mib_per_second": "MiB/s",
    "samples_per_second": "samples/s",
    "seconds_per_gb": "s / GB",
    "_seconds": "s",
    "_ms": "ms",
    "_us": "us",
    "_ns": "ns",
    "_bytes": "bytes",
    "_mb": "MB",
    "_kib": "KiB",
    "watts": "W",
    "_percent_of_app": "%",
    "_share_of_wait": "share, 0 to 1",
}


def number(value: float | None) -> str:
    """Four digits or more, none of them without meaning."""
    if value is None:
        return "-"
    much = abs(value)
    digits = 3 if much < 10 else 2 if much < 100 else 1 if much < 1000 else 0
    return f"{value:,.{digits}f}"


def with_unit(value: float, unit: str) -> str:
    """Return a number and its unit as a headline shows them: a count as it is, percent with two decimals."""
    if isinstance(value, int):
        return f"{value:,} {unit}".rstrip()
    return f"{value:.2f} %" if unit == "%" else f"{number(value)} {unit}".rstrip()


def size(size_bytes: int) -> str:
    """Bytes, MB or GB (powers of ten)."""
    if size_bytes < 1e6:
        return f"{size_bytes:,} bytes"
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def unit_of(key: str) -> str:
    """Return the unit that a dotted key of a summary says it has, an empty text for a count."""
    for part in reversed(key.split(".")):
        for ending, unit in _UNITS.items():
            if part.endswith(ending):
                return unit
    return ""


def flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and what is no mapping, in order."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flat(item, f"{before}{key}.")
        else:
            yield before + key, item


def at(value: Any, key: str) -> Any:
    """Return what a dotted key leads to, None where it leads nowhere; a number in it counts places of a list."""
    for part in key.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value

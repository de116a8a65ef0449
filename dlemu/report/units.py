"""Formats values of results for readers: numbers with units, sizes, times, and short names for paths."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import takewhile
from typing import Any

from dlemu.config.dump import first_sentence, meanings
from dlemu.results.figures import Value

_UNITS = {
    "_percent": "%",
    "_mb_per_second": "MB/s",
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
}
_LONG_LIST = 24  # items; of a longer list, the first ten and the last ten are shown


def number(value: float | None) -> str:
    """Return a number with about four significant digits; `-` for None."""
    if value is None:
        return "-"
    digits = 3 - bisect_right((10.0, 100.0, 1000.0), abs(value))  # 3 below 10, 2 below 100, 1 below 1000, else none
    return f"{value:,.{digits}f}"


def with_uncertainty(percent: float, half_width: float | None, threshold: float = math.nan) -> str:
    """Return a percentage with its 95 % interval, and as many digits as the interval supports: `97.3 % ± 0.4`.

    If rounding makes it equal to the threshold, digits are added, up to three, until the two differ.
    """
    if half_width is not None and not 0.05 <= half_width < math.inf:
        half_width = None  # it would be shown as 0.0
    digits = 0 if half_width is not None and half_width >= 2 else 1
    while digits < 3 and percent != threshold and round(percent, digits) == threshold:
        digits += 1
    value = f"{percent:.{digits}f}"
    return f"{value.removesuffix('.0')} %" if half_width is None else f"{value} % ± {half_width:.{digits}f}"


def with_interval(value: Value, unit: str) -> str:
    """Return a mean, with the half width of its interval if known; a percentage in the format of `with_uncertainty`."""
    if unit == "%":
        return with_uncertainty(value.mean, value.half_width)
    return number(value.mean) + ("" if value.half_width is None else f" ± {number(value.half_width)}")


def size(size_bytes: int) -> str:
    """Return a size in bytes, MB or GB (powers of ten)."""
    if size_bytes < 1e6:
        return f"{size_bytes:,} bytes"
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def verdict_word(passed: bool | None, *, unknown: str = "no verdict") -> str:
    if passed is None:
        return unknown
    return "pass" if passed else "fail"


def plain(value: Any, key: str = "") -> str:
    """Return any value of a result as text, with the unit of its key; long lists are cut in the middle."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        parts = reversed(key.split("."))  # the last part of a dotted key that has a unit decides
        unit = next((unit for part in parts for ending, unit in _UNITS.items() if part.endswith(ending)), "")
        return size(value) if unit == "bytes" and isinstance(value, int) else f"{value:.6g} {unit}".rstrip()
    if is_dataclass(value) or isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {plain(item)}" for name, item in _items(value))
    if isinstance(value, list | tuple):
        texts = [plain(item) for item in value]
        if len(texts) > _LONG_LIST:
            texts = [*texts[:10], f"... {len(texts) - 20} more ...", *texts[-10:]]
        return ", ".join(texts) or "none"
    return str(value) or "none"


def explained(value: Any, prefix: str = "", inherited: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield dotted key, value and meaning of each value of a typed result; `inherited` is the default meaning."""
    texts = meanings(type(value))
    for key, item in _items(value):
        meaning = first_sentence(texts.get(key, "")) or inherited
        if is_dataclass(item):
            yield from explained(item, f"{prefix}{key}.", meaning)
        else:
            yield prefix + key, item, meaning


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    return ((field.name, getattr(value, field.name)) for field in fields(value))


def short_names(values: Iterable[str]) -> dict[str, str]:
    """Return a short name for each value: a and b for /mnt/a/unet3d and /mnt/b/unet3d; other texts stay the same."""
    paths = {value: os.path.normpath(value).split(os.sep) if os.sep in value else [value] for value in values}
    common_lengths = []  # of the parts that all paths begin with, and end with
    for aligned in (paths.values(), [path[::-1] for path in paths.values()]):
        common = takewhile(lambda parts: len(set(parts)) == 1, zip(*aligned, strict=False))
        common_lengths.append(len(list(common)))
    head, tail = common_lengths
    return {value: os.sep.join(path[head : len(path) - tail]) or value for value, path in paths.items()}

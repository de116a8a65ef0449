"""An AU with its uncertainty interval, as shown: a share of time is from 0 to 100 %, so the interval is cut to that."""

from __future__ import annotations

Interval = tuple[float, float]
"""Lowest and highest value, in percent."""


def percent_interval(percent: float, half_width: float) -> Interval:
    """Return `percent` +- `half_width`, cut to 0 to 100; the whole range when the half width is infinite."""
    return max(0.0, percent - half_width), min(100.0, percent + half_width)


def plus_minus(percent: float, half_width: float, digits: int) -> str:
    """Return `+- 1.5` when both ends are from 0 to 100, else the two ends: `(98.2 to 100.0)`."""
    low, high = percent_interval(percent, half_width)
    if (low, high) == (percent - half_width, percent + half_width):
        return f"+- {half_width:.{digits}f}"
    return f"({low:.{digits}f} to {high:.{digits}f})"

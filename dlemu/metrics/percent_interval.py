"""An AU with what it may be off, as it is shown: a share of time lies between 0 and 100 %, and so does its interval."""

from __future__ import annotations

Interval = tuple[float, float]
"""Lowest and highest value, in percent."""


def percent_interval(percent: float, half_width: float) -> Interval:
    """Return what is within a half width of a percentage and can be one; all that can where that is infinite."""
    return max(0.0, percent - half_width), min(100.0, percent + half_width)


def plus_minus(percent: float, half_width: float, digits: int) -> str:
    """Return `+- 1.5` where both ends can be percentages, else the two ends: `(98.2 to 100.0)`."""
    low, high = percent_interval(percent, half_width)
    if (low, high) == (percent - half_width, percent + half_width):
        return f"+- {half_width:.{digits}f}"
    return f"({low:.{digits}f} to {high:.{digits}f})"

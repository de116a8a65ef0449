"""Rows of the tables that compare two runs, A and B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlemu.comm.environment import HostFacts
from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.t_interval import plus_minus
from dlemu.report.units import number, plain, size
from dlemu.results.compared import Difference
from dlemu.results.figures import Value

_SHOWN_HOSTS = 4


def short_rows(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Return a row per metric for the terminal, in the catalogue's order."""
    return [
        (f"{metric.title} ({metric.unit})", _digits(sides.a), _digits(sides.b), *_difference_cells(sides))
        for metric, sides in _in_order(metrics, catalogue)
    ]


def full_rows(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Return a row per metric for the HTML page, with the confidence intervals of both sides."""
    return [
        (
            f"{metric.title}, {metric.unit}",
            with_interval(difference.a, difference.a_half_width, metric.unit),
            with_interval(difference.b, difference.b_half_width, metric.unit),
            *_difference_cells(difference),
        )
        for metric, difference in _in_order(metrics, catalogue)
    ]


def _in_order(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[Metric, Difference]]:
    return [(metric, metrics[metric.name]) for metric in catalogue if metric.name in metrics]


def value_with_interval(value: Value | None, unit: str) -> str:
    """Return a mean, with the half width of its confidence interval if known; `-` for None."""
    return "-" if value is None else with_interval(value.mean, value.half_width, unit)


def _difference_cells(difference: Difference) -> tuple[str, str]:
    percent, width = difference.difference_percent, difference.half_width_percent
    return "-" if percent is None else f"{percent:+.1f} %", "-" if width is None else f"{width:.1f}"


def _digits(value: float) -> str:
    """Return a number with 3 decimals or fewer, depending on its magnitude, so that table columns stay narrow."""
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{digits}f}"


def with_interval(value: float, half_width: float | None, unit: str) -> str:
    """Return a number, with the half width of its interval if known; intervals of percentages stay within 0 to 100."""
    if half_width is None:
        return number(value)
    width = plus_minus(value, half_width, 2) if unit == "%" else f"+- {number(half_width)}"
    return f"{number(value)} {width}"


def host_facts(hosts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    """Return the names of the hosts, and the properties of the first."""
    first = hosts[0] if hosts else None
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    return [
        ("hosts", ", ".join(host.host for host in hosts[:_SHOWN_HOSTS]) + more),
        ("processor", plain(first and first.processor)),
        ("cores usable", plain(first and first.cpu_usable)),
        ("memory", size(first.memory_bytes) if first else "not known"),
        ("kernel", plain(first and first.kernel)),
        ("dlemu", plain(first and first.dlemu)),
    ]

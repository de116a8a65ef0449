"""Rows of a table of two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlemu.comm.environment import HostFacts
from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.percent_interval import plus_minus
from dlemu.report.units import number, plain, size
from dlemu.results.compared import Difference
from dlemu.results.figures import Value

_SHOWN_HOSTS = 4


def short_rows(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Return a row a metric for the terminal, in the catalogue's order."""
    return [
        (f"{words.title} ({words.unit})", _digits(each.a), _digits(each.b), *_apart(each))
        for words, each in _in_order(metrics, catalogue)
    ]


def full_rows(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Return the same for the page, with the intervals of both sides."""
    return [
        (
            f"{words.title}, {words.unit}",
            with_width(each.a, each.a_half_width, words.unit),
            with_width(each.b, each.b_half_width, words.unit),
            *_apart(each),
        )
        for words, each in _in_order(metrics, catalogue)
    ]


def _in_order(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[Metric, Difference]]:
    return [(metric, metrics[metric.name]) for metric in catalogue if metric.name in metrics]


def value_with_width(value: Value | None, unit: str) -> str:
    """Return a mean with its half width where that is known, `-` for nothing."""
    return "-" if value is None else with_width(value.mean, value.half_width, unit)


def _apart(metric: Difference) -> tuple[str, str]:
    percent, width = metric.difference_percent, metric.half_width_percent
    return "-" if percent is None else f"{percent:+.1f} %", "-" if width is None else f"{width:.1f}"


def _digits(value: float) -> str:
    """Return a number with as many digits as a table has room for."""
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{digits}f}"


def with_width(value: float, half_width: float | None, unit: str) -> str:
    """Return a number with its half width where that is known; of a percentage no interval that no percentage has."""
    if half_width is None:
        return number(value)
    width = plus_minus(value, half_width, 2) if unit == "%" else f"+- {number(half_width)}"
    return f"{number(value)} {width}"


def host_facts(hosts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    """Return which hosts these were, and what the first of them is."""
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

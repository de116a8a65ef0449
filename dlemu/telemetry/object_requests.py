"""Requests of this host's ranks and loader workers to an object store; each process counts its own in a file."""

from __future__ import annotations

from collections.abc import Iterator

from datagen.storage._request_counts import RequestCounts, read_counts, waits_ms
from dlemu.telemetry.probe_base import AbsentError, ProbeBase, Rates, Reading, Scope, readings

_RATES = {
    "received_bytes": ("received_mb_per_second", 1e-6),
    "sent_bytes": ("sent_mb_per_second", 1e-6),
    "failed": ("failed_per_second", 1.0),
    "retried": ("retried_per_second", 1.0),
    "slow_down": ("slow_down_per_second", 1.0),
}
"""Counter -> its metric, and the factor from the counter's unit to the metric's."""


class Probe(ProbeBase):
    """Reads rates and response times since the last reading, and the requests and connections in flight now."""

    def __init__(self, scope: Scope) -> None:
        if not scope.request_folder:
            raise AbsentError("")
        self._folder, self._rates = scope.request_folder, Rates()
        self._last_counts = RequestCounts()

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read rates, response times, and current requests and connections."""
        counts = read_counts(self._folder, here=True)
        totals = {metric: factor * counts[name] for name, (metric, factor) in _RATES.items()}
        yield from readings("", self._rates.per_second("", now_ns, {"requests_per_second": counts.requests, **totals}))
        for name, histogram in (
            ("first_byte", counts.first_byte - self._last_counts.first_byte),
            ("last_byte", counts.last_byte - self._last_counts.last_byte),
        ):
            if (latencies := waits_ms(histogram)) is not None:
                yield Reading("", f"{name}_p50_ms", latencies.p50)
                yield Reading("", f"{name}_p99_ms", latencies.p99)
        self._last_counts = counts
        yield Reading("", "requests_in_flight", max(0, counts["in_flight"]))
        yield Reading("", "connections_in_flight", max(0, counts["connections_open"]))

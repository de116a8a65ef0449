"""Requests of this host's ranks and workers to an object store, as each process counts them in a file."""

from __future__ import annotations

from collections.abc import Iterator

from datagen.storage._request_counts import RequestCounts, read_counts, waits_ms
from dlemu.telemetry.probe_base import AbsentError, ProbeBase, Rates, Reading, Scope

RATES = {
    "received_bytes": ("received_mb_per_second", 1e-6),
    "sent_bytes": ("sent_mb_per_second", 1e-6),
    "failed": ("failed_per_second", 1.0),
    "retried": ("retried_per_second", 1.0),
    "slow_down": ("slow_down_per_second", 1.0),
}
"""Counters, and what their growth is called."""


class Probe(ProbeBase):
    """Their rates, the times of answers since the last reading, and what is open now."""

    def __init__(self, scope: Scope) -> None:
        if not scope.request_folder:
            raise AbsentError("")
        self._folder, self._rates = scope.request_folder, Rates()
        self._before = RequestCounts()

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Read the rates since the last reading."""
        counts = read_counts(self._folder, here=True)
        passed = self._rates.since_last("", now_ns, [counts.requests, *(counts[name] for name in RATES)])
        if passed is not None:
            seconds, grown = passed
            yield Reading("", "requests_per_second", grown[0] / seconds)
            for (metric, unit), growth in zip(RATES.values(), grown[1:], strict=True):
                yield Reading("", metric, growth * unit / seconds)
            for name, since in (
                ("first_byte", counts.first_byte - self._before.first_byte),
                ("last_byte", counts.last_byte - self._before.last_byte),
            ):
                waits = waits_ms(since)
                if waits is not None:
                    yield Reading("", f"{name}_p50_ms", waits.p50)
                    yield Reading("", f"{name}_p99_ms", waits.p99)
        self._before = counts
        yield Reading("", "requests_in_flight", max(0, counts["in_flight"]))
        yield Reading("", "connections_in_flight", max(0, counts["connections_open"]))

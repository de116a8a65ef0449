"""Summarises requests to an object store from the counters of the processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datagen.storage._request_counts import TLS_CPU_US, RequestCounts, waits_ms
from dlemu.results.parts import Requests


def requests_of(values: Sequence[int]) -> Requests:
    """Return the summary of a journal's counters (`RequestCounts.values`)."""
    counts = RequestCounts(np.array(values, np.int64))
    return Requests(
        get=counts["get"],
        head=counts["head"],
        list=counts["list"],
        put=counts["put"],
        delete=counts["delete"],
        received_bytes=counts["received_bytes"],
        sent_bytes=counts["sent_bytes"],
        failed=counts["failed"],
        retried=counts["retried"],
        slow_down=counts["slow_down"],
        connections_opened=counts["connections_opened"],
        first_byte_ms=waits_ms(counts.first_byte),
        last_byte_ms=waits_ms(counts.last_byte),
        tls_cpu_seconds=counts[TLS_CPU_US] / 1e6 or None,
    )

"""Tables of a run's hosts and storage, and rows about its requests to an object store."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.comm.environment import HostFacts
from dlemu.report.table import Table, columns
from dlemu.report.units import flat, number, plain, size
from dlemu.results.parts import Environment, Requests
from dlemu.results.wording import count

Row = tuple[str, str, str]
"""Metric, value with unit, explanation."""

_SHOWN_HOSTS = 8


def request_rows(sent: Requests) -> Iterator[Row]:
    """Yield rows about the requests to an object store: counts, failures, latencies and TLS."""
    total = sent.get + sent.head + sent.put + sent.list + sent.delete
    puts = f", {sent.put:,} PUT" if sent.put else ""
    kinds = f"{sent.get:,} GET, {sent.head:,} HEAD{puts}; {count(sent.connections_opened, 'connection')}"
    yield "requests", f"{total:,}", kinds
    again = f"{sent.slow_down:,} of them 503 or 429; {sent.retried:,} retried"
    yield "failed requests", f"{sent.failed:,}", again
    for name, times in (("first byte", sent.first_byte_ms), ("last byte", sent.last_byte_ms)):
        if times is not None:
            shown = f"p50 {number(times.p50)}, p99 {number(times.p99)}, max {number(times.max)} ms"
            yield f"{name} p50", f"{number(times.p50)} ms", shown
    if sent.tls_cpu_seconds is not None:
        yield "TLS", f"{number(sent.tls_cpu_seconds)} s", "CPU time of the readers: handshakes, decrypting, copying"


def facts_table(title: str, facts: Iterator[tuple[str, object]], *, folded: bool = False) -> Table:
    """Return a table of names and values, without a header."""
    rows = [
        (name, size(value) if name.endswith("_bytes") and isinstance(value, int) else plain(value))
        for name, value in facts
    ]
    return Table(title=title, columns=columns("", ""), rows=rows, folded=folded)


def environment_of(environment: Environment) -> Iterator[Table]:
    """Yield a table for each host, and one for the storage that was read or written."""
    hosts, storage = environment.hosts, environment.storage
    for host in hosts[:_SHOWN_HOSTS]:
        yield facts_table(f"Host {host.host}", _host(host), folded=True)
    if len(hosts) > _SHOWN_HOSTS:
        others = ((host.host, host.processor) for host in hosts[_SHOWN_HOSTS:])
        yield facts_table("More hosts", others, folded=True)
    if storage:
        yield facts_table("Storage", flat(storage), folded=True)


def _host(host: HostFacts) -> Iterator[tuple[str, object]]:
    limit = f", {host.cpu_limit:.1f} by a CPU limit (cgroup)" if host.cpu_limit else ""
    yield "processor", host.processor
    yield "cores", f"{host.cpu_usable} usable of {host.cpu_count}{limit}"
    yield "memory", size(host.memory_bytes)
    yield "kernel", host.kernel
    yield "Python", host.python
    yield "dlemu", host.dlemu
    yield "packages", ", ".join(f"{name} {version}" for name, version in host.packages.items())

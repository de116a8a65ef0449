"""What a run ran on, and what its requests to an object store came to, as tables and rows of a page."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.comm.environment import HostFacts
from dlemu.report.table import Table, columns
from dlemu.report.units import flat, number, plain, size
from dlemu.results.parts import Environment, Requests
from dlemu.results.wording import count

Row = tuple[str, str, str]
"""Metric, value with its unit, what it means."""

_SHOWN_HOSTS = 8


def request_rows(asked: Requests) -> Iterator[Row]:
    """Yield what an object store's server made of the requests."""
    sent = asked.get + asked.head + asked.put + asked.list + asked.delete
    cost = "" if asked.cost is None else f", cost {asked.cost:.3g}"
    puts = f", {asked.put:,} PUT" if asked.put else ""
    kinds = f"{asked.get:,} GET, {asked.head:,} HEAD{puts}; {count(asked.connections_opened, 'connection')}{cost}"
    yield "requests", f"{sent:,}", kinds
    again = f"{asked.slow_down:,} of them 503 or 429; {asked.retried:,} retried"
    yield "failed requests", f"{asked.failed:,}", again
    for name, times in (("first byte", asked.first_byte_ms), ("last byte", asked.last_byte_ms)):
        if times is not None:
            shown = f"p50 {number(times.p50)}, p99 {number(times.p99)}, max {number(times.max)} ms"
            yield f"{name} p50", f"{number(times.p50)} ms", shown
    if asked.tls_cpu_seconds is not None:
        yield "TLS", f"{number(asked.tls_cpu_seconds)} s", "CPU time of the readers: handshakes, decrypting, copying"


def facts_table(title: str, facts: Iterator[tuple[str, object]], *, folded: bool = False) -> Table:
    """Return a table of names and values without a head."""
    rows = [
        (name, size(value) if name.endswith("_bytes") and isinstance(value, int) else plain(value))
        for name, value in facts
    ]
    return Table(title=title, columns=columns("", ""), rows=rows, folded=folded)


def environment_of(environment: Environment, what: str = "the dataset") -> Iterator[Table]:
    """Yield hosts and the storage of what was read or written."""
    hosts, storage = environment.hosts, environment.storage
    for host in hosts[:_SHOWN_HOSTS]:
        yield facts_table(f"Host {host.host}", _host(host), folded=len(hosts) > 1)
    if len(hosts) > _SHOWN_HOSTS:
        others = ((host.host, host.processor) for host in hosts[_SHOWN_HOSTS:])
        yield facts_table("More hosts", others, folded=True)
    if storage:
        yield facts_table(f"Storage of {what}", flat(storage))


def _host(host: HostFacts) -> Iterator[tuple[str, object]]:
    limit = f", {host.cpu_limit:.1f} by a CPU limit (cgroup)" if host.cpu_limit else ""
    yield "processor", host.processor
    yield "cores", f"{host.cpu_usable} usable of {host.cpu_count}{limit}"
    yield "memory", size(host.memory_bytes)
    yield "kernel", host.kernel
    yield "Python", host.python
    yield "dlemu", host.dlemu
    yield "packages", ", ".join(f"{name} {version}" for name, version in host.packages.items())

"""Memory use of the host, from /proc/meminfo (proc(5)). MB = 1e6 bytes."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.telemetry.probe_base import Counters, ProbeBase, Reading, Scope

_KIB_PER_MB = 1e6 / 1024


class Probe(ProbeBase):
    """Reads used memory (total - available) and the page cache without shared memory, which can't be dropped."""

    def __init__(self, scope: Scope) -> None:
        self._file = Counters(f"{scope.proc}/meminfo")

    def read(self, now_ns: int) -> Iterator[Reading]:
        fields = (line.partition(":") for line in self._file.text().splitlines())
        kib = {name: int(value.split()[0]) for name, _, value in fields}
        yield Reading("", "used_mb", (kib["MemTotal"] - kib["MemAvailable"]) / _KIB_PER_MB)
        cache = kib["Cached"] + kib["Buffers"] - kib.get("Shmem", 0)
        yield Reading("", "page_cache_mb", max(0, cache) / _KIB_PER_MB)

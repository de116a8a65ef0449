"""The rates that MLPerf Storage's kv_cache tool would publish for a run of its load, beside the true ones. Pure.

The formulas are those of kv_cache_benchmark (benchmark.py `_calculate_stats`, cache.py `get_stats`) and of the
aggregation over ranks (Rules.md of v3.0, 6.3.4), https://github.com/mlcommons/storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dlemu.contrib.kvcache.official import CLASSES, GIB, OPTIONS
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Official, OfficialClass
from dlemu.extend import Rows


@dataclass(frozen=True, eq=False)
class RankNumbers:
    """What the tool computes from one rank's requests."""

    rows: Rows
    """The requests in order of arrival."""
    clock_seconds: float
    """Length of the load (`kv.seconds`), by which the tool divides."""
    begin_ns: int
    """When the clock began."""

    @property
    def done(self) -> Rows:
        """Requests that were done when the tool counted."""
        return self.rows[self.rows["computed_ns"] > 0]

    @property
    def late(self) -> int:
        """How many of the `done` requests ended after the clock had stopped."""
        return int((self.done["computed_ns"] > self.begin_ns + self.clock_seconds * 1e9).sum())

    @property
    def read_gib(self) -> float:
        return int(self.rows["read_bytes"].sum() + self.rows["begun_bytes"].sum()) / GIB

    @property
    def written_gib(self) -> float:
        return int(self.rows["written_bytes"].sum()) / GIB

    @property
    def memory_gib(self) -> float:
        return int(self.rows["dram_bytes"].sum()) / GIB

    @property
    def storage_seconds(self) -> list[float]:
        """For each request done, the sum of its read and write times."""
        taken: list[float] = ((self.done["read_call_ns"] + self.done["write_call_ns"]) / 1e9).tolist()
        return taken

    @property
    def latencies_seconds(self) -> list[float]:
        """For each request done, the time since it was queued."""
        taken: list[float] = ((self.done["computed_ns"] - self.done["arrived_ns"]) / 1e9).tolist()
        return taken

    @property
    def tokens(self) -> int:
        return int(self.done["output_tokens"].sum())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.clock_seconds

    @property
    def storage_tokens_per_second(self) -> float:
        taken = sum(self.storage_seconds)
        return self.tokens / taken if taken else 0.0


def rank_numbers(rows: Rows, begins: Mapping[int, int], clock_seconds: float) -> list[RankNumbers]:
    """Return the statistics of each rank, given all ranks' requests and when each rank's clock began."""
    return [RankNumbers(rows[rows["rank"] == rank], clock_seconds, begin) for rank, begin in sorted(begins.items())]


def official_result(rows: Rows, begins: Mapping[int, int], settings: KvSettings, window_seconds: float) -> Official:
    """Return the published and the true rates, given all ranks' requests and when the clock of each rank began."""
    ranks = rank_numbers(rows, begins, settings.seconds)
    read = sum(rank.read_gib for rank in ranks) / settings.seconds
    written = sum(rank.written_gib for rank in ranks) / settings.seconds
    window = max(window_seconds, 1e-9)
    true = [int(rows[way].sum()) / GIB / window for way in ("read_bytes", "written_bytes")]
    done = rows[rows["computed_ns"] > 0]
    latencies = [seconds for rank in ranks for seconds in rank.latencies_seconds]
    storage_p95 = [float(np.percentile(rank.storage_seconds, 95)) for rank in ranks if len(rank.done)]
    stored, memory = int(rows["read_bytes"].sum()), int(rows["dram_bytes"].sum())
    return Official(
        option=settings.option,
        model=OPTIONS[settings.option].model,
        users=settings.users,
        clock_seconds=settings.seconds,
        read_gib_per_second=read,
        write_gib_per_second=written,
        true_window_seconds=window_seconds,
        true_read_gib_per_second=true[0],
        true_write_gib_per_second=true[1],
        overstated_percent=100 * ((read + written) / sum(true) - 1) if sum(true) else None,
        requests=len(rows),
        served=len(done),
        late=sum(rank.late for rank in ranks),
        slowest_seconds=max(latencies, default=None),
        storage_p95_seconds=max(storage_p95, default=None),
        again_percent=100 * int(rows["again_bytes"].sum()) / stored if stored else None,
        memory_percent=100 * memory / (stored + memory) if stored + memory else None,
        tokens_per_second=sum(rank.tokens_per_second for rank in ranks),
        storage_tokens_per_second=sum(rank.storage_tokens_per_second for rank in ranks),
        classes=tuple(_class(rows, priority, name) for priority, name in CLASSES.items()),
    )


def _class(rows: Rows, priority: int, name: str) -> OfficialClass:
    own = rows[rows["priority"] == priority]
    done = own[own["computed_ns"] > 0]
    taken = (done["computed_ns"] - done["arrived_ns"]) / 1e9
    p95 = float(np.percentile(taken, 95)) if len(done) else None
    return OfficialClass(name=name, requests=len(own), served=len(done), p95_seconds=p95)

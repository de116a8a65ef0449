"""Progress of a KV-cache run that is still going on, from the rows that its ranks log for each prompt served."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from dlemu.contrib.kvcache.rows import COLUMNS
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import Rows, open_regular
from dlemu.results.measured import RunFacts, read_facts
from dlemu.results.progress import RECENT_SECONDS, Figure, Progress
from dlemu.results.wording import count
from dlemu.runner.row_log import row_log_name

_MAX_ROWS = 4096
"""The rates are computed from this many latest rows of each rank at most."""
_DTYPE = np.dtype([(name, np.int64) for name in COLUMNS])


@dataclass(eq=False)
class _RankRows:
    """The rows that one rank has logged so far; times in ns are of its own host's clock."""

    served: int = 0
    """Prompts served."""
    began_ns: int = 0
    """When the first prompt served arrived."""
    last: Rows = field(default_factory=lambda: np.empty(0, _DTYPE))
    """Its latest rows, those of prompts only."""
    grew_at: float = 0.0
    """`time.monotonic()` of this process when new rows were last found."""

    def look(self, path: str) -> None:
        """Read the rows again if any were added."""
        with open(open_regular(path), "rb") as file:
            rows = os.fstat(file.fileno()).st_size // _DTYPE.itemsize
            if rows == self.served:
                return
            if not self.served:
                self.began_ns = int(np.frombuffer(file.read(_DTYPE.itemsize), _DTYPE)["arrived_ns"][0])
            tail = min(rows, _MAX_ROWS)
            file.seek((rows - tail) * _DTYPE.itemsize)
            last = np.frombuffer(file.read(tail * _DTYPE.itemsize), _DTYPE)
        self.served, self.last, self.grew_at = rows, last[last["prompt"] >= 0], time.monotonic()

    @property
    def arrived_seconds(self) -> float:
        """Arrival of the latest prompt served, in seconds after the first."""
        return float(self.last["arrived_ns"].max() - self.began_ns) / 1e9 if len(self.last) else 0.0

    def figures(self) -> tuple[Figure, ...]:
        """Return the rates of the last RECENT_SECONDS; they fall to 0 when no prompt is served any more."""
        ends = np.maximum.reduce([self.last[name] for name in ("computed_ns", "loaded_ns", "arrived_ns")])
        now_ns = ends.max(initial=0) + (time.monotonic() - self.grew_at) * 1e9
        seconds = max(1e-9, min(RECENT_SECONDS, (now_ns - self.began_ns) / 1e9))
        recent = self.last[ends > now_ns - RECENT_SECONDS * 1e9]
        rates = (
            Figure("prompts_per_second", len(recent) / seconds),
            Figure("read_bytes_per_second", float(recent["read_bytes"].sum() / seconds)),
            Figure("write_bytes_per_second", float(recent["written_bytes"].sum() / seconds)),
        )
        first = recent[recent["computed_ns"] > 0]
        if not len(first):
            return rates
        mean_ns = float((first["computed_ns"] - first["arrived_ns"]).mean())
        return (*rates, Figure("first_token_seconds", mean_ns / 1e9))


class LiveKvCache:
    """Follows the ranks of a run in progress."""

    def __init__(self, facts_path: str, live_folder: str) -> None:
        """Raises UserError for damaged facts."""
        facts = read_facts(facts_path, RunFacts)
        self._folder, self._seconds = live_folder, facts.workload.section(KvSettings).seconds
        self._ranks = {rank: _RankRows() for rank in range(facts.ranks)}

    def look(self) -> Progress | None:
        """Return the progress of the run; None before the first prompt was served."""
        for rank, rows in self._ranks.items():
            path = os.path.join(self._folder, row_log_name(rank))
            if os.path.exists(path):
                rows.look(path)
        begun = {rank: rows for rank, rows in self._ranks.items() if len(rows.last)}
        if not begun:
            return None
        arrived = min(rows.arrived_seconds for rows in begun.values())
        ranks = {rank: rows.figures() for rank, rows in begun.items()}
        return Progress(
            at=f"{count(sum(rows.served for rows in begun.values()), 'prompt')} served",
            done_ratio=min(1.0, arrived / self._seconds) if self._seconds else None,
            seconds_left=max(0.0, self._seconds - arrived) if self._seconds else None,
            figures=_aggregate(ranks.values()),
            ranks=ranks,
        )


def _aggregate(ranks: Iterable[tuple[Figure, ...]]) -> tuple[Figure, ...]:
    """Return the sums of the ranks' rates, and the means of their durations."""
    found: dict[str, list[Figure]] = {}
    for figures in ranks:
        for figure in figures:
            found.setdefault(figure.name, []).append(figure)
    return tuple(
        replace(same[0], value=sum(one.value for one in same) / (len(same) if name.endswith("_seconds") else 1))
        for name, same in found.items()
    )

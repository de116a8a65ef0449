"""Times and rates of checkpoints by rank 0, by the slowest rank and by wall clock; and the best interval between them.

A checkpoint has one row per rank. Columns used: began_ns, ended_ns, asked_ns (training was ready for the checkpoint),
released_ns (training resumed), fsync_ns, bytes, checkpoint and rank. All stamps are on one clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GIB, GB = 2**30, 1e9
Rows = NDArray[np.void]


@dataclass(frozen=True, kw_only=True)
class CheckpointTimes:
    """One checkpoint, written or read. GiB are 2^30 bytes, GB 1e9."""

    checkpoint: int
    """Its number, from 1."""
    bytes: int
    """Bytes of all ranks."""
    rank0_seconds: float
    """Time of rank 0, which DLIO reports."""
    slowest_seconds: float
    """Time of the slowest rank, which the rules of MLPerf Storage require."""
    slowest_rank: int
    wall_seconds: float
    """From the start of the first rank to the end of the last."""
    fsync_percent: float
    """Share of the ranks' time spent in fsync."""
    stall_seconds: float
    """How long training stalled for it."""
    safe_seconds: float
    """From the moment training requested it until the last rank's bytes were on the storage."""

    @property
    def drain_seconds(self) -> float:
        """From when training went on until the last rank's bytes were on the storage."""
        return self.safe_seconds - self.stall_seconds

    @property
    def rank0_gib_per_second(self) -> float:
        """Bytes of all ranks / `rank0_seconds`, as DLIO computes it (and calls GB)."""
        return _ratio(self.bytes / GIB, self.rank0_seconds)

    @property
    def slowest_gib_per_second(self) -> float:
        return _ratio(self.bytes / GIB, self.slowest_seconds)

    @property
    def wall_gb_per_second(self) -> float:
        """Bytes of all ranks / `wall_seconds`, 1e9 bytes/s."""
        return _ratio(self.bytes / GB, self.wall_seconds)


def times_of(rows: Rows) -> CheckpointTimes:
    """Return the times of one checkpoint from its rows."""
    seconds = (rows["ended_ns"] - rows["began_ns"]) / 1e9
    slowest, ended_ns, asked_ns = int(seconds.argmax()), rows["ended_ns"].max(), rows["asked_ns"].max()
    return CheckpointTimes(
        checkpoint=int(rows["checkpoint"][0]),
        bytes=int(rows["bytes"].sum()),
        rank0_seconds=float(seconds[int(rows["rank"].argmin())]),
        slowest_seconds=float(seconds[slowest]),
        slowest_rank=int(rows["rank"][slowest]),
        wall_seconds=float(ended_ns - rows["began_ns"].min()) / 1e9,
        fsync_percent=100 * _ratio(float(rows["fsync_ns"].sum()) / 1e9, float(seconds.sum())),
        stall_seconds=float(rows["released_ns"].max() - asked_ns) / 1e9,
        safe_seconds=float(ended_ns - asked_ns) / 1e9,
    )


def cost_percent(stall_seconds: float, interval_seconds: float, drain_seconds: float = 0.0) -> float:
    """Return the percentage of time lost to checkpoints, with `interval_seconds` of training between two of them.

    If a checkpoint is due before the previous one has drained (see `wasted_percent`), training waits for that.
    """
    stalled = stall_seconds + max(0.0, drain_seconds - interval_seconds)
    return 100 * stalled / (interval_seconds + stalled)


def young_seconds(stall_seconds: float, mtbf_seconds: float) -> float:
    """Return Young's optimum time between checkpoints, sqrt(2 C M): C is the stall, M the mean time between failures.

    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
    """
    return math.sqrt(2 * stall_seconds * mtbf_seconds)


def daly_seconds(stall_seconds: float, mtbf_seconds: float) -> float:
    """Return Daly's higher order estimate of the optimum time between checkpoints.

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C for C < 2 M, else M. J. T. Daly, A higher order estimate of the
    optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    share = stall_seconds / (2 * mtbf_seconds)
    if share >= 1:
        return mtbf_seconds
    return young_seconds(stall_seconds, mtbf_seconds) * (1 + math.sqrt(share) / 3 + share / 9) - stall_seconds


def wasted_percent(
    interval_seconds: float,
    stall_seconds: float,
    recovery_seconds: float,
    mtbf_seconds: float,
    drain_seconds: float = 0,
) -> float:
    """Return the percentage of time lost to checkpoints, repeated work and recovery, at most 100, to first order.

    T is the interval of training, S the stall (the whole save, or a snapshot), D the drain until the checkpoint is on
    the storage (0 for a whole save), R the recovery, M the mean time between failures. For T >= D the share is
    S / (T + S) + ((T + S) / 2 + D + R) / M, with D because a failure during the drain falls back on the previous
    checkpoint. It is least at T + S = sqrt(2 S M), or at T = D if D is larger. For T < D, training waits for the drain.
    """
    cycle_seconds = stall_seconds + max(interval_seconds, drain_seconds)
    repeated_percent = 100 * (cycle_seconds / 2 + drain_seconds + recovery_seconds) / mtbf_seconds
    return min(100.0, cost_percent(stall_seconds, interval_seconds, drain_seconds) + repeated_percent)


def asynchronous_au_percent(compute_seconds: float, stalls: list[float]) -> float:
    """Return the percentage of time that accelerators compute: for `compute_seconds` before each stall."""
    total = compute_seconds * len(stalls) + sum(stalls)
    return 100 * compute_seconds * len(stalls) / total if total else 100.0


def shortest_interval_seconds(snapshot_seconds: float, drain_seconds: float, au: float) -> float:
    """Return the shortest computing time between asynchronous checkpoints for an AU of at least `au` (0 to 1).

    With a computing time T, a snapshot S and a drain (writing in the background) D, each checkpoint stalls training for
    S + max(0, D - T): AU = T / (T + S) for T >= D, AU = T / (S + D) for T < D.
    """
    least_without_drain = snapshot_seconds * au / (1 - au) if au < 1 else math.inf
    return max(least_without_drain, au * (snapshot_seconds + drain_seconds))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0

"""Rates and waits of epochs, from step rows; a block is the steps between two checkpoints or evaluations."""

from __future__ import annotations

import math

import numpy as np

from datagen.quantiles import Percentiles
from dlemu.metrics.rows import Rows, in_order


def training_ns(rows: Rows) -> int:
    """Return the training time: the sum of all blocks from start to end of the last step, the longest of any rank."""
    ranks, first, last = in_order(rows).ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    if not len(ranks):
        return 0
    block_ns = sum(last[1:], start=last[0]) - first[0]
    begins = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1]))
    return int(np.add.reduceat(block_ns, begins).max())


def per_second(amount: float, rows: Rows) -> float:
    """Return `amount` per second of training time; NaN if that is 0."""
    elapsed_ns = training_ns(rows)
    return amount * 1e9 / elapsed_ns if elapsed_ns else math.nan


def first_batch_seconds(rows: Rows) -> float:
    """Return how long the slowest rank waited for the first batch of the epoch."""
    _, (step, wait_ns), _ = in_order(rows).ends("step", "wait_ns")
    return float(wait_ns[step == step.min()].max() / 1e9)


def percentiles_ms(values_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Percentiles | None:
    """Return the percentiles, in ms, of durations in ns; None for no durations."""
    if not len(values_ns):
        return None
    p50, p90, p99, maximum = (np.percentile(values_ns, (50, 90, 99, 100)) / 1e6).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=maximum)


def late_handover_share(rows: Rows) -> float:
    """Return the share of all waits that elapsed after the batch was finished: the emulator's own overhead."""
    wait_ns, handover_ns = rows["wait_ns"], rows["ready_ns"] - rows["finished_ns"]
    total = int(wait_ns.sum())
    return int(np.minimum(wait_ns, np.maximum(handover_ns, 0)).sum()) / total if total else 0.0

"""Rates and waits of an epoch, from step rows. Time runs from the epoch's first block to its last step's end."""

from __future__ import annotations

import math

import numpy as np

from datagen.quantiles import Percentiles
from dlemu.metrics.rows import Rows, chunks, in_order, since_free


def training_ns(rows: Rows) -> int:
    """Return the accelerators' training time: the sum over all blocks, each from its start to its last step's end.

    First steps count; the time of checkpoints and evaluations between the blocks does not. Blocks begin and end at the
    same moments on all ranks, but the clocks of hosts differ: only stamps of one rank are compared.
    """
    ranks, first, last = in_order(rows).ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    if not len(ranks):
        return 0
    block_ns = sum(last[1:], start=last[0]) - first[0]
    begins = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1]))
    return int(np.add.reduceat(block_ns, begins).max())


def per_second(amount: float, rows: Rows) -> float:
    """Return `amount` per second of training, NaN for no time."""
    elapsed_ns = training_ns(rows)
    return amount * 1e9 / elapsed_ns if elapsed_ns else math.nan


def first_batch_seconds(rows: Rows) -> float:
    """Return how long the slowest rank waited for the first batch of the epoch."""
    _, (step, wait_ns), _ = in_order(rows).ends("step", "wait_ns")
    return float(wait_ns[step == step.min()].max() / 1e9)


def percentiles_ms(values_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Percentiles | None:
    """Return the percentiles of durations given in ns, in ms; None when there are none."""
    if not len(values_ns):
        return None
    p50, p90, p99, greatest = (np.percentile(values_ns, (50, 90, 99, 100)) / 1e6).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=greatest)


def late_handover_share(rows: Rows) -> float:
    """Return the share of the waiting that came after the worker had finished the batch: the emulator's own part.

    Of a late batch, the time before `finished_ns` is due to loader and storage, the time after it to the hand-over.
    """
    total = handover = 0
    for part in chunks(in_order(rows)):
        wait_ns, handing_ns = part["wait_ns"], since_free(part, "ready_ns") - since_free(part, "finished_ns")
        late_ns = np.minimum(wait_ns, np.maximum(handing_ns, 0))
        total, handover = total + int(wait_ns.sum()), handover + int(late_ns.sum())
    return handover / total if total else 0.0

"""Proof that each sample was read exactly once an epoch: compares the samples that were delivered with the plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlemu.metrics.rows import Rows, sum_of
from dlemu.plan.samples import Plan, hash_samples

_CHUNK = 1 << 20  # samples at a time: 8 MiB of numbers, however many samples an epoch has
_SIGN = 1 << 64


@dataclass(frozen=True)
class EpochAudit:
    """Samples that an epoch planned and read."""

    epoch: int
    samples_read: int
    samples_planned: int
    each_sample_once: bool | None
    """None for an epoch that was cut short."""


def audit_epoch(plan: Plan, epoch: int, steps: int, rows: Rows) -> EpochAudit:
    """Compare the hashes that the workers sent with every batch with the hashes of the planned samples.

    The plan's order is a bijection, so no sample is planned twice; equal sums of 64-bit hashes say that the delivered
    samples are the planned ones, in whatever order they came.
    """
    planned = steps * plan.batch_size * plan.ranks
    read = sum_of(rows, "samples")
    if len(rows) < steps * plan.ranks:
        return EpochAudit(epoch, read, planned, None)
    delivered = sum_of(rows, "sample_hash")  # of int64, which wraps as the hashes do
    once = read == planned and delivered % _SIGN == _planned_hash(plan, epoch, steps) % _SIGN
    return EpochAudit(epoch, read, planned, once)


def _planned_hash(plan: Plan, epoch: int, steps: int) -> int:
    per_rank, used = plan.steps_per_epoch * plan.batch_size, steps * plan.batch_size
    if type(plan) is Plan and used == per_rank:
        # A whole epoch is all samples, in whatever order, except the last ones, which don't fill a step of all ranks.
        dropped = np.arange(plan.ranks * per_rank, plan.num_samples, dtype=np.int64)
        every = (
            np.arange(start, min(start + _CHUNK, plan.num_samples)) for start in range(0, plan.num_samples, _CHUNK)
        )
        return sum(map(hash_samples, every)) - hash_samples(plan.samples_at(epoch, dropped))
    total = 0
    for rank in range(plan.ranks):
        for start in range(0, used, _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, used), dtype=np.int64) + rank * per_rank
            total += hash_samples(plan.samples_at(epoch, positions))
    return total

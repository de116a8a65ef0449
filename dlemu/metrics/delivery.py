"""Proves that each sample was read exactly once per epoch: compares the delivered samples with the planned ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlemu.metrics.rows import Rows, sum_of
from dlemu.plan.samples import Plan, hash_samples

_CHUNK = 1 << 20  # samples hashed at a time: 8 MiB of numbers, however many samples an epoch has
_MODULUS = 1 << 64  # sums of 64-bit hashes wrap around


@dataclass(frozen=True)
class EpochAudit:
    """How many samples were planned and read in an epoch, and whether they are the same ones."""

    epoch: int
    samples_read: int
    samples_planned: int
    each_sample_once: bool | None
    """None for an epoch that was cut short."""


def audit_epoch(plan: Plan, epoch: int, steps: int, rows: Rows) -> EpochAudit:
    """Compare the sum of the sample hashes that workers sent with that of the planned samples, each planned once."""
    planned = steps * plan.batch_size * plan.ranks
    read = sum_of(rows, "samples")
    if len(rows) < steps * plan.ranks:
        return EpochAudit(epoch, read, planned, None)
    delivered = sum_of(rows, "sample_hash")
    once = read == planned and delivered % _MODULUS == _planned_hash(plan, epoch, steps) % _MODULUS
    return EpochAudit(epoch, read, planned, once)


def _planned_hash(plan: Plan, epoch: int, steps: int) -> int:
    """Return the sum of the hashes of the samples in the first `steps` steps of an epoch, on all ranks."""
    per_rank, used = plan.steps_per_epoch * plan.batch_size, steps * plan.batch_size
    if type(plan) is Plan and used == per_rank:
        # A complete epoch has all samples but the last ones, which are too few for one more step of all ranks.
        dropped = np.arange(plan.ranks * per_rank, plan.num_samples, dtype=np.int64)
        chunks = (
            np.arange(start, min(start + _CHUNK, plan.num_samples)) for start in range(0, plan.num_samples, _CHUNK)
        )
        return sum(map(hash_samples, chunks)) - hash_samples(plan.samples_at(epoch, dropped))
    total = 0
    for rank in range(plan.ranks):
        for start in range(0, used, _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, used), dtype=np.int64) + rank * per_rank
            total += hash_samples(plan.samples_at(epoch, positions))
    return total

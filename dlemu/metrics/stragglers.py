"""Finds stragglers, that is, ranks or hosts for which the others waited, and slow sub-folders of the dataset.

    rank 0  |--wait--|--compute--|...sync...............|
    rank 1  |--wait-----|--compute--|...sync............|
    rank 2  |--wait--------------------------|--compute-|   delays the step by its end minus rank 1's end

The last rank delays its step by the time from the latest end of the others to its own end (docs/metrics.md, section 5).
Longer nominal computation is no delay. An "owner" of delays is a rank, or a host with all its ranks.

Sub-folders may be on different volumes, servers or shards, of which one may be slow. A batch reads its files one after
another, so its read time is the sum of the times of its samples. A least-squares fit over all batches thus gives the
time per sample of each folder (docs/metrics.md, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlemu.metrics.au import total_ns
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.loss import PARTS, wait_parts
from dlemu.metrics.rates import Floats
from dlemu.metrics.rows import Ints, Rows, StepTable, as_table, steps_of, sum_of
from dlemu.plan.samples import Plan, hash_samples


def find_stragglers(kept: Rows, rank_nodes: Sequence[int], hosts: Sequence[str]) -> Iterator[Finding]:
    """Yield the stragglers of the kept steps, hosts before ranks, worst first. `rank_nodes[rank]` indexes `hosts`.

    A finding without `rank` is about a host whose ranks are all slow. `loss_percent`: points of the headline AU that
    the run would gain if the owner were as fast as the slowest of the others. `mainly`: the largest part of its waits,
    one of `dlemu.metrics.loss.PARTS`.
    """
    if not len(kept) or not sum_of(kept, "compute_ns"):  # without computation, AU is 0 with or without stragglers
        return
    table = as_table(kept)
    nodes = list(rank_nodes or [0] * (max(table.values("rank")) + 1))
    names = [hosts[node] if node < len(hosts) else "" for node in nodes]
    if 1 < len(set(nodes)) < len(nodes):  # several hosts, and several ranks on some
        for node, numbers in _slow_owners(table, nodes):
            host = names[nodes.index(node)]
            yield Finding(Code.SLOW_RANK, "caution", {"pattern": "host", "host": host, **numbers})
    for rank, numbers in _slow_owners(table, range(len(nodes))):
        yield Finding(Code.SLOW_RANK, "caution", {"rank": rank, "host": names[rank], **numbers})


def _slow_owners(kept: StepTable, owners: Sequence[int]) -> Iterator[tuple[int, dict[str, Number]]]:
    """Yield (owner, numbers) of the owners to report, worst first. `owners[rank]` is the owner of a rank."""
    steps, compute = steps_of(kept), kept["compute_ns"]
    ends, owner_of_row = kept["wait_ns"] + compute, np.asarray(owners)[kept["rank"]]
    last_row = steps.argmin(-ends)  # of each step, as are the next four
    last_owner = owner_of_row[last_row]
    others_end = steps.maximum(np.where(owner_of_row == last_owner[steps.step_of_row], 0, ends))
    delay_ns = np.maximum(0, ends[last_row] - np.maximum(others_end, steps.maximum(compute)))
    cost_ns = delay_ns * steps.row_counts  # each accelerator loses the delay, and has one row in the step
    cost_of_owner = np.bincount(last_owner, weights=cost_ns, minlength=max(owners) + 1)
    present, all_ns = np.unique(owner_of_row), total_ns(kept)
    if len(present) < 2 or not all_ns:
        return
    mean_of_others = (cost_of_owner[present].sum() - cost_of_owner) / (len(present) - 1)
    for owner in present[np.argsort(-cost_of_owner[present], kind="stable")].tolist():
        # By chance, each rank is last in some steps: report only a high and exceptional cost.
        if 100 * cost_of_owner[owner] / all_ns < 0.5 or cost_of_owner[owner] < 3 * mean_of_others[owner]:
            continue
        delayed = (last_owner == owner) & (delay_ns > 0)
        rows = kept[last_row[delayed]]
        numbers: dict[str, Number] = {
            "loss_percent": 100.0 * float(cost_ns[delayed].sum()) / all_ns,
            "steps": len(rows),
            "mean_delay_ms": float(delay_ns[delayed].mean()) / 1e6,
            "mainly": PARTS[int(wait_parts(rows).sum(axis=0).argmax())],
        }
        yield owner, numbers


def find_slow_folders(rows: Rows, plan: Plan, folders: Sequence[str]) -> Iterator[Finding]:
    """Yield the slow folders, slowest first. File f is in folder f modulo the number of folders."""
    if len(folders) < 3:
        return
    table = as_table(rows)
    full_batches = np.flatnonzero((table["read_ns"] > 0) & (table["samples"] == plan.batch_size))
    stride = max(1, len(full_batches) // 20_000)  # more batches would take time and show no more
    batches = list(_samples_by_folder(table[full_batches[::stride]], plan, len(folders)))
    if len(batches) < 10 * len(folders):  # the fit of each half needs 5 per folder
        return
    counts, read_ms = (np.array(column, float) for column in zip(*batches, strict=True))
    per_sample, errors = _fit(counts, read_ms)
    median = float(np.median(per_sample))
    # By chance, 3 of 10 million folders are 5 standard errors above the median.
    is_slow = (per_sample >= 2 * median) & (per_sample - median >= 5 * errors)
    for half in (slice(None, None, 2), slice(1, None, 2)):  # a few very long reads would be in one half only
        per_sample_of_half, _ = _fit(counts[half], read_ms[half])
        is_slow &= per_sample_of_half >= 2 * median
    if median <= 0 or 3 * is_slow.sum() > len(folders):  # more than a third of the folders are no exception
        return
    for index in np.argsort(-per_sample):
        if is_slow[index]:
            numbers = {"ms_per_sample": float(per_sample[index]), "others_ms_per_sample": median}
            yield Finding.of(Code.SLOW_DRIVE, "caution", folder=folders[index], **numbers)


def _samples_by_folder(rows: StepTable, plan: Plan, folders: int) -> Iterator[tuple[Ints, float]]:
    """Yield (samples from each folder, shape (folders,); read time, ms) of each batch that has its planned samples."""
    for rank_rows in rows.by_rank_and_epoch:
        (rank,), (epoch,) = rank_rows.values("rank"), rank_rows.values("epoch")
        batches = plan.batches(rank, epoch, rank_rows["step"])
        hashes, times = rank_rows["sample_hash"].tolist(), rank_rows["read_ns"].tolist()
        for samples, sample_hash, read_ns in zip(batches, hashes, times, strict=True):
            if hash_samples(samples) == sample_hash:
                count = np.bincount(samples // plan.num_samples_per_file % folders, minlength=folders)
                yield count, read_ns / 1e6


def _fit(counts: Floats, read_ms: Floats) -> tuple[Floats, Floats]:
    """Return the time per sample of each folder, ms, and its standard error (ordinary least squares)."""
    inverse = np.linalg.pinv(counts.T @ counts)
    per_sample = inverse @ counts.T @ read_ms
    residuals = read_ms - counts @ per_sample
    variance = float((residuals**2).sum()) / max(1, len(read_ms) - counts.shape[1])
    return per_sample, np.sqrt(variance * np.maximum(np.diag(inverse), 0))

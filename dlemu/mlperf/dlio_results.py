"""DLIO 2.x's result files as mappings: `summary.json`, `R_output.json` and `R_per_epoch_stats.json`.

Keys, units and formulas are DLIO's (dlio_benchmark's statscounter, 2026-06): what it calls GB and MB is GiB and MiB,
MB/s is nominal (samples/s x record length), standard deviations are the population's. docs/results.md has the list.
Block times are cut to the microsecond that DLIO's time stamps have *before* anything is computed from them, so that
whoever recomputes AU from the written arrays and stamps gets the written value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from dlemu.checkpoints.save import SavedCheckpoint
from dlemu.config.schema import Workload
from dlemu.emulator.environment import HostFacts
from dlemu.emulator.journal import Journal
from dlemu.emulator.steplog import EVALUATION, TRAINING
from dlemu.metrics.dlio_formulas import BlockTimes, Rated, evaluated_per_second, over_blocks, over_ranks, rate_v2
from dlemu.metrics.rows import Rows, StepTable, in_order
from dlemu.results.run import Facts, Run

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of one rank, or one evaluation; its AU and samples/s as DLIO writes them: 0 where nothing counts."""

    epoch: int
    number: int
    evaluation: bool
    start_us: int
    """Microseconds since 1970, UTC."""
    end_us: int
    seconds: BlockTimes
    rated: Rated

    @property
    def key(self) -> str:
        """DLIO's name of the block."""
        return "eval" if self.evaluation else f"block{self.number}"


def blocks_by_rank(rows: Rows, workload: Workload, wall_clock_offset_ns: int) -> dict[int, list[Block]]:
    """Return each rank's training blocks and evaluations in the order of time.

    The clocks of other hosts are laid over rank 0's by the start of each block, which is one moment for all ranks.
    `wall_clock_offset_ns` is what makes nanoseconds since 1970 of rank 0's clock.
    """
    table = in_order(rows)
    parts = [
        (int(part["rank"][0]), phase == EVALUATION, part)
        for phase in (TRAINING, EVALUATION)
        for part in table.of("phase", (phase,)).by_block
    ]
    starts_ns = {
        (evaluation, int(part["epoch"][0]), int(part["block"][0])): int(part["free_ns"][0])
        for rank, evaluation, part in reversed(parts)  # the lowest rank's stays
    }
    ranks: dict[int, list[Block]] = {}
    for rank, evaluation, part in parts:
        start_ns = starts_ns[evaluation, int(part["epoch"][0]), int(part["block"][0])]
        shift_ns = start_ns - int(part["free_ns"][0]) + wall_clock_offset_ns
        ranks.setdefault(rank, []).append(_block(part, evaluation, workload, shift_ns))
    return {
        rank: sorted(own, key=lambda block: (block.epoch, block.evaluation, block.number))
        for rank, own in sorted(ranks.items())
    }


def _block(part: StepTable, evaluation: bool, workload: Workload, shift_ns: int) -> Block:
    settings, reader = workload.metric, workload.reader
    start_us = (int(part["asked_ns"][0]) + shift_ns) // 1000
    end_us = (int(part["met_ns"][-1]) + shift_ns) // 1000
    times = BlockTimes(
        load=(part["got_ns"] - part["asked_ns"]) / np.float64(1e9),
        proc=(part["slept_ns"] - part["asked_ns"]) / np.float64(1e9),
        configured=part["compute_ns"] / np.float64(1e9),
        measured=(part["slept_ns"] - part["got_ns"]) / np.float64(1e9),
        total=(end_us - start_us) / 1e6,
    )
    rated = rate_v2(times, settings.exclude_start_steps, settings.exclude_end_steps, reader.batch_size)
    rate = evaluated_per_second(times, reader.batch_size_eval) if evaluation else rated.samples_per_second
    return Block(
        epoch=int(part["epoch"][0]),
        number=int(part["block"][0]),
        evaluation=evaluation,
        start_us=start_us,
        end_us=end_us,
        seconds=times,
        rated=Rated(*np.nan_to_num([rated.au, rate]).tolist()),
    )


@dataclass(frozen=True, kw_only=True)
class DlioRun:
    """All that DLIO's files are made from."""

    run: Run
    cpuinfo: dict[str, str] = field(default_factory=dict)
    """/proc/cpuinfo of rank 0's host, the last processor's."""
    meminfo: dict[str, str] = field(default_factory=dict)
    """/proc/meminfo of rank 0's host."""

    @cached_property
    def blocks(self) -> dict[int, list[Block]]:
        """Each rank's blocks and evaluations."""
        return blocks_by_rank(self.run.rows, self.workload, self.journal.wall_clock_offset_ns)

    @property
    def facts(self) -> Facts:
        """What the rows mean."""
        return self.run.facts

    @property
    def workload(self) -> Workload:
        """What ran."""
        return self.facts.workload

    @property
    def journal(self) -> Journal:
        """What rank 0 noted."""
        return self.facts.journal

    @property
    def data_gib_per_host(self) -> float:
        """What the first host's ranks read in an epoch, by DLIO's formula (nominal)."""
        local = self.journal.rank_nodes.count(0)
        samples = local * self.workload.dataset.num_samples_per_file * self.facts.num_files_train // self.facts.ranks
        return samples * self.workload.dataset.record_length_bytes / GIB

    def host_of(self, rank: int) -> HostFacts:
        """Return what is known of the rank's host."""
        return self.journal.hosts[self.journal.rank_nodes[rank]]

    def may_cache(self, host: HostFacts) -> int:
        """Say whether (1 or 0) the host's memory holds all that its ranks read."""
        return int(self.data_gib_per_host < host.memory_bytes / GIB)

    def stamp(self, clock_ns: int) -> str:
        """Return the time stamp of a moment of rank 0's monotonic clock."""
        return stamp((clock_ns + self.journal.wall_clock_offset_ns) // 1000)


def stamp(microseconds: int) -> str:
    """Return DLIO's time stamp, local time: %Y-%m-%dT%H:%M:%S.%f."""
    moment = datetime.fromtimestamp(microseconds // 1_000_000).replace(microsecond=microseconds % 1_000_000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")


def dlio_summary(run: DlioRun) -> dict[str, Any]:
    """Return summary.json. `host_memory_GB` and `host_cpu_count` have one value for each host, in node order."""
    hosts, data = run.journal.hosts, run.workload.dataset
    ended_ns = run.journal.ended_ns
    return {
        "start": run.stamp(run.journal.started_ns),
        "num_accelerators": run.facts.ranks,
        "num_hosts": len(hosts),
        "hostname": hosts[0].host,
        "metric": _metric(run),
        "num_files_train": run.facts.num_files_train,
        "num_files_eval": run.facts.num_files_eval,
        "num_samples_per_file": data.num_samples_per_file,
        "host_cpu_count": [host.cpu_count for host in hosts],
        "host_processor_name": hosts[0].processor,
        "potential_caching": [run.may_cache(host) for host in hosts],
        "host_cpuinfo": run.cpuinfo,
        "host_meminfo": run.meminfo,
        "host_memory_GB": [host.memory_bytes / GIB for host in hosts],
        "data_size_per_host_GB": run.data_gib_per_host,
        "epochs": len({block.epoch for block in run.blocks[0] if not block.evaluation}),
        "end": run.stamp(run.journal.started_ns if ended_ns is None else ended_ns),
    }


def dlio_output(run: DlioRun, rank: int) -> dict[str, Any]:
    """Return a rank's R_output.json: each step's seconds, and AU and samples/s of each block.

    `host_cpuinfo` and `host_meminfo` are empty for ranks on other hosts than rank 0's, and stand once for the file.
    """
    host, here = run.host_of(rank), run.journal.rank_nodes[rank] == run.journal.rank_nodes[0]
    output: dict[str, Any] = {
        "host_memory_GB": host.memory_bytes / GIB,
        "host_cpu_count": host.cpu_count,
        "host_processor_name": host.processor,
        "potential_caching": run.may_cache(host),
        "host_cpuinfo": run.cpuinfo if here else {},
        "host_meminfo": run.meminfo if here else {},
    }
    for epoch, parts in _by_epoch(run.blocks[rank]).items():
        output[str(epoch)] = {
            "load": {block.key: block.seconds.load.tolist() for block in parts},
            "proc": {block.key: block.seconds.proc.tolist() for block in parts},
            "throughput": {block.key: block.rated.samples_per_second for block in parts},
            "au": {block.key: block.rated.au_percent for block in parts},
            "compute": {block.key: block.seconds.measured.tolist() for block in parts},
            "end": stamp(_epoch_end_us(run, parts)),
        }
    return output | {"hostname": host.host}


def dlio_per_epoch_stats(run: DlioRun, rank: int) -> dict[str, Any]:
    """Return a rank's R_per_epoch_stats.json: when each epoch, block, checkpoint and evaluation began and ended."""
    return {str(epoch): _epoch_stats(run, parts) for epoch, parts in _by_epoch(run.blocks[rank]).items()}


def _by_epoch(parts: list[Block]) -> dict[int, list[Block]]:
    epochs: dict[int, list[Block]] = {}
    for block in parts:
        epochs.setdefault(block.epoch, []).append(block)
    return epochs


def _epoch_stats(run: DlioRun, parts: list[Block]) -> dict[str, Any]:
    training = [block for block in parts if not block.evaluation]
    saved = {checkpoint.block: checkpoint for checkpoint in _checkpoints(run, parts)}
    stats: dict[str, Any] = {"start": stamp(parts[0].start_us)}
    for block in training:
        stats[block.key] = _span(block.start_us, block.end_us)
        if block.number in saved:
            stats[f"save_ckpt{block.number}"] = _checkpoint(run, saved[block.number])
    trained_us = _epoch_end_us(run, training)
    stats["end"] = stamp(_epoch_end_us(run, parts))
    stats["duration"] = _span(parts[0].start_us, trained_us)["duration"]  # DLIO's, which ends before the evaluation
    return stats | {block.key: _span(block.start_us, block.end_us) for block in parts if block.evaluation}


def _epoch_end_us(run: DlioRun, parts: list[Block]) -> int:
    ends_us = [(saved.ended_ns + run.journal.wall_clock_offset_ns) // 1000 for saved in _checkpoints(run, parts)]
    return max([block.end_us for block in parts] + ends_us)


def _checkpoints(run: DlioRun, parts: list[Block]) -> list[SavedCheckpoint]:
    """Return the checkpoints of the blocks' epoch."""
    return [saved for saved in run.journal.checkpoints if saved.epoch == parts[0].epoch]


def _span(start_us: int, end_us: int) -> dict[str, Any]:
    return {"start": stamp(start_us), "end": stamp(end_us), "duration": f"{(end_us - start_us) / 1e6:.2f}"}


def _checkpoint(run: DlioRun, saved: SavedCheckpoint) -> dict[str, Any]:
    return {
        "start": run.stamp(saved.started_ns),
        "end": run.stamp(saved.ended_ns),
        "duration": saved.seconds,
        "throughput": saved.bytes / GIB / saved.seconds if saved.seconds else 0.0,
    }


def _metric(run: DlioRun) -> dict[str, Any]:
    metric = _phase(run, "train", rated_epochs(run)) | _phase(run, "eval", rated_epochs(run, evaluation=True))
    saved = [_checkpoint(run, checkpoint) for checkpoint in run.journal.checkpoints]
    if saved:
        rates, seconds = [each["throughput"] for each in saved], [each["duration"] for each in saved]
        metric |= {
            "save_checkpoint_io_mean_GB_per_second": float(np.mean(rates)),
            "save_checkpoint_io_stdev_GB_per_second": float(np.std(rates)),
            "save_checkpoint_duration_mean_seconds": float(np.mean(seconds)),
            "save_checkpoint_duration_stdev_seconds": float(np.std(seconds)),
            "checkpoint_size_GB": run.journal.checkpoints[0].bytes / GIB,
        }
    return metric


def _phase(run: DlioRun, name: str, epochs: list[Rated]) -> dict[str, Any]:
    """Return one phase's metrics: each epoch's, then mean and std over epochs."""
    if not epochs:
        return {}
    au, rate = np.array([100 * epoch.au for epoch in epochs]), np.array([epoch.samples_per_second for epoch in epochs])
    mib = run.workload.dataset.record_length_bytes / MIB
    passed = au.mean() >= 100 * run.workload.metric.au
    return {
        f"{name}_au_percentage": au.tolist(),
        f"{name}_au_mean_percentage": float(au.mean()),
        f"{name}_au_meet_expectation": "success" if passed else "fail",
        f"{name}_au_stdev_percentage": float(au.std()),
        f"{name}_throughput_samples_per_second": rate.tolist(),
        f"{name}_throughput_mean_samples_per_second": float(rate.mean()),
        f"{name}_throughput_stdev_samples_per_second": float(rate.std()),
        f"{name}_io_mean_MB_per_second": float(rate.mean()) * mib,
        f"{name}_io_stdev_MB_per_second": float(rate.std()) * mib,
    }


def rated_epochs(run: DlioRun, *, evaluation: bool = False) -> list[Rated]:
    """Return AU and samples/s over all ranks of each epoch's training, or of its evaluation."""
    ranks = [[block for block in blocks if block.evaluation == evaluation] for blocks in run.blocks.values()]
    by_rank = [
        [over_blocks([block.rated for block in parts], [block.seconds.steps for block in parts]) for parts in epochs]
        for epochs in (_by_epoch(blocks).values() for blocks in ranks)
    ]
    return [over_ranks(epoch) for epoch in zip(*by_rank, strict=True)]

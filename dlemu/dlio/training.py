"""DLIO's result files for a training run. MB/s is nominal: samples/s x record length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.config.schema import Workload
from dlemu.dlio.files import GIB, stamp
from dlemu.dlio.results import DlioRun, checkpoint_figures
from dlemu.metrics.au import BlockTimes, Rated, evaluated_per_second, over_blocks, over_ranks, rate_v2
from dlemu.metrics.rows import StepTable
from dlemu.results.exported import ExportedSteps

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of steps, or one evaluation, of one rank; as in DLIO, AU and samples/s are 0 if no step counts."""

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


def blocks_by_rank(run: ExportedSteps) -> dict[int, list[Block]]:
    """Return each rank's training blocks and evaluations in chronological order.

    All ranks start a block at the same moment, so other hosts' clocks are aligned with rank 0's at each block's start.
    """
    parts = [
        (int(part["rank"][0]), evaluation, part)
        for evaluation, table in ((False, run.training), (True, run.evaluation))
        for part in table.by_block
    ]
    starts_ns = {
        (evaluation, int(part["epoch"][0]), int(part["block"][0])): int(part["free_ns"][0])
        for rank, evaluation, part in reversed(parts)  # reversed: the lowest rank's start remains
    }
    ranks: dict[int, list[Block]] = {}
    for rank, evaluation, part in parts:
        start_ns = starts_ns[evaluation, int(part["epoch"][0]), int(part["block"][0])]
        shift_ns = start_ns - int(part["free_ns"][0]) + run.journal.wall_clock_offset_ns
        ranks.setdefault(rank, []).append(_block(part, evaluation, run.workload, shift_ns))
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
class DlioTraining(DlioRun[ExportedSteps]):
    """A training run in DLIO's terms."""

    @cached_property
    def blocks(self) -> dict[int, list[Block]]:
        """Each rank's blocks and evaluations."""
        return blocks_by_rank(self.run)

    @property
    def data_gib_per_host(self) -> float:
        """GiB that the first host's ranks read in an epoch, by DLIO's formula (nominal)."""
        local, data = self.run.journal.rank_nodes.count(0), self.workload.dataset
        samples = local * data.num_samples_per_file * self.run.num_files_train // self.run.ranks
        return samples * data.record_length_bytes / GIB

    def counts(self) -> dict[str, int]:
        """Return summary.json's numbers of files and epochs."""
        return {
            "num_files_train": self.run.num_files_train,
            "num_files_eval": self.run.num_files_eval,
            "num_samples_per_file": self.workload.dataset.num_samples_per_file,
            "epochs": len({block.epoch for block in self.blocks[0] if not block.evaluation}),
        }

    def epochs_of(self, rank: int) -> dict[str, Any]:
        """Return for each epoch the seconds of each step, and the AU and samples/s of each block."""
        return {
            str(epoch): {
                "load": {block.key: block.seconds.load.tolist() for block in parts},
                "proc": {block.key: block.seconds.proc.tolist() for block in parts},
                "throughput": {block.key: block.rated.samples_per_second for block in parts},
                "au": {block.key: block.rated.au_percent for block in parts},
                "compute": {block.key: block.seconds.measured.tolist() for block in parts},
                "end": stamp(self._epoch_end_us(parts)),
            }
            for epoch, parts in _by_epoch(self.blocks[rank]).items()
        }

    def stats_of(self, rank: int) -> dict[str, Any]:
        """Return when each epoch, block, checkpoint and evaluation began and ended."""
        return {str(epoch): self._epoch_stats(parts) for epoch, parts in _by_epoch(self.blocks[rank]).items()}

    def _epoch_stats(self, parts: list[Block]) -> dict[str, Any]:
        training = [block for block in parts if not block.evaluation]
        saved = {checkpoint.block: checkpoint for checkpoint in self._saved_in(parts)}
        stats: dict[str, Any] = {"start": stamp(parts[0].start_us)}
        for block in training:
            stats[block.key] = _span(block.start_us, block.end_us)
            if block.number in saved:
                stats[f"save_ckpt{block.number}"] = self._checkpoint(saved[block.number])
        trained_us = self._epoch_end_us(training)
        stats["end"] = stamp(self._epoch_end_us(parts))
        stats["duration"] = _span(parts[0].start_us, trained_us)["duration"]  # DLIO's duration excludes the evaluation
        return stats | {block.key: _span(block.start_us, block.end_us) for block in parts if block.evaluation}

    def _epoch_end_us(self, parts: list[Block]) -> int:
        return max([block.end_us for block in parts] + [self.us(saved.ended_ns) for saved in self._saved_in(parts)])

    def _saved_in(self, parts: list[Block]) -> list[SavedCheckpoint]:
        """Return the checkpoints saved in the epoch that these blocks belong to."""
        return [saved for saved in self.run.saved if saved.epoch == parts[0].epoch]

    def _checkpoint(self, saved: SavedCheckpoint) -> dict[str, Any]:
        return {
            "start": self.stamp(saved.started_ns),
            "end": self.stamp(saved.ended_ns),
            "duration": saved.seconds,
            "throughput": saved.bytes / GIB / saved.seconds if saved.seconds else 0.0,
        }

    def metric(self) -> dict[str, Any]:
        """Return each epoch's figures, and their mean and deviation over epochs."""
        saved = [self._checkpoint(checkpoint) for checkpoint in self.run.saved]
        rates, seconds = [part["throughput"] for part in saved], [part["duration"] for part in saved]
        figures: dict[str, Any] = checkpoint_figures("save", rates, seconds)
        figures |= {"checkpoint_size_GB": self.run.saved[0].bytes / GIB} if saved else {}
        return self._phase("train", evaluation=False) | self._phase("eval", evaluation=True) | figures

    def _phase(self, name: str, *, evaluation: bool) -> dict[str, Any]:
        epochs = self.rated_epochs(evaluation=evaluation)
        if not epochs:
            return {}
        au = np.array([100 * epoch.au for epoch in epochs])
        rate = np.array([epoch.samples_per_second for epoch in epochs])
        mib = self.workload.dataset.record_length_bytes / MIB
        passed = au.mean() >= 100 * self.workload.metric.au
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

    def rated_epochs(self, *, evaluation: bool = False) -> list[Rated]:
        """Return for each epoch the AU and samples/s of its training, or of its evaluation, over all ranks."""
        ranks = [[block for block in blocks if block.evaluation == evaluation] for blocks in self.blocks.values()]
        by_rank = [
            [over_blocks([part.rated for part in parts], [part.seconds.steps for part in parts]) for parts in epochs]
            for epochs in (_by_epoch(blocks).values() for blocks in ranks)
        ]
        return [over_ranks(epoch) for epoch in zip(*by_rank, strict=True)]

    def lines(self) -> Iterator[str]:
        """Yield a line for the start and end of each epoch and of its parts."""
        for epoch, stats in self.stats_of(0).items():
            yield f"{stats['start']} epoch {epoch} begins"
            for name, span in stats.items():
                if isinstance(span, dict):
                    yield f"{span['end']} epoch {epoch}: {name} ended after {float(span['duration']):.2f} s"
            yield f"{stats['end']} epoch {epoch} ended, {stats['duration']} s of training"


def _by_epoch(parts: list[Block]) -> dict[int, list[Block]]:
    epochs: dict[int, list[Block]] = {}
    for block in parts:
        epochs.setdefault(block.epoch, []).append(block)
    return epochs


def _span(start_us: int, end_us: int) -> dict[str, Any]:
    return {"start": stamp(start_us), "end": stamp(end_us), "duration": f"{(end_us - start_us) / 1e6:.2f}"}

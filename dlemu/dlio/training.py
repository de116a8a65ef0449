"""DLIO's result files for a training run. MB/s is nominal: samples/s x record length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.config.schema import Workload
from dlemu.dlio.files import GIB, stamp
from dlemu.dlio.results import DlioRun, checkpoint_figures, mean_and_deviation
from dlemu.metrics.au import BlockTimes, Rated, over_blocks, over_ranks, rate_v1, rate_v2
from dlemu.metrics.rows import StepTable
from dlemu.results.exported import ExportedSteps


@dataclass(frozen=True, kw_only=True)
class Block:
    """A rank's block (its steps between epoch starts and checkpoints) or evaluation, with DLIO's figures."""

    epoch: int
    number: int
    evaluation: bool
    start_us: int
    """Microseconds since 1970, UTC."""
    end_us: int
    times: BlockTimes  # in seconds
    rated: Rated

    @property
    def key(self) -> str:  # name of the block in DLIO's files
        return "eval" if self.evaluation else f"block{self.number}"


def _block(rows: StepTable, evaluation: bool, workload: Workload, shift_ns: int) -> Block:
    """Return the block of these rows; `shift_ns` converts their clock to nanoseconds since 1970, UTC."""
    settings = workload.metric
    start_us = (int(rows["asked_ns"][0]) + shift_ns) // 1000
    end_us = (int(rows["met_ns"][-1]) + shift_ns) // 1000
    times = BlockTimes(
        load=(rows["got_ns"] - rows["asked_ns"]) / np.float64(1e9),
        proc=(rows["slept_ns"] - rows["asked_ns"]) / np.float64(1e9),
        configured=rows["compute_ns"] / np.float64(1e9),
        measured=(rows["slept_ns"] - rows["got_ns"]) / np.float64(1e9),
        total=(end_us - start_us) / 1e6,
    )
    rated = rate_v2(times, settings.exclude_start_steps, settings.exclude_end_steps, workload.reader.batch_size)
    rate = (rate_v1(times, workload.reader.batch_size_eval) if evaluation else rated).samples_per_second
    au, samples_per_second = np.nan_to_num([rated.au, rate]).tolist()  # as in DLIO, 0 if no step counts
    return Block(
        epoch=int(rows["epoch"][0]),
        number=int(rows["block"][0]),
        evaluation=evaluation,
        start_us=start_us,
        end_us=end_us,
        times=times,
        rated=Rated(au, samples_per_second),
    )


@dataclass(frozen=True, kw_only=True)
class DlioTraining(DlioRun):
    """A training run in DLIO's terms."""

    exported: ExportedSteps

    @cached_property
    def blocks(self) -> dict[int, list[Block]]:
        """Rank -> its training blocks and evaluations in chronological order.

        All ranks start a block at the same moment, but the hosts' clocks differ. So the times of each rank's block are
        shifted to start with the block of the lowest rank.
        """
        wall_offset_ns = self.exported.journal.wall_clock_offset_ns
        blocks_by_rank: dict[int, list[Block]] = {}
        for evaluation, table in ((False, self.exported.training), (True, self.exported.evaluation)):
            block_starts_ns: dict[tuple[int, int], int] = {}
            for rows in table.by_block:  # rank by rank, the lowest first
                start_ns = int(rows["free_ns"][0])
                block_key = int(rows["epoch"][0]), int(rows["block"][0])
                shift_ns = block_starts_ns.setdefault(block_key, start_ns) - start_ns
                block = _block(rows, evaluation, self.exported.workload, shift_ns + wall_offset_ns)
                blocks_by_rank.setdefault(int(rows["rank"][0]), []).append(block)
        return {
            rank: sorted(blocks, key=lambda block: (block.epoch, block.evaluation, block.number))
            for rank, blocks in sorted(blocks_by_rank.items())
        }

    @property
    def data_gib_per_host(self) -> float:
        """GiB that the first host's ranks read in an epoch, by DLIO's formula (nominal)."""
        ranks_of_host = self.exported.journal.rank_nodes.count(0)
        data = self.exported.workload.dataset
        samples = ranks_of_host * data.num_samples_per_file * self.exported.num_files_train // self.exported.ranks
        return samples * data.record_length_bytes / GIB

    def dataset_counts(self) -> dict[str, int]:
        return {
            "num_files_train": self.exported.num_files_train,
            "num_files_eval": self.exported.num_files_eval,
            "num_samples_per_file": self.exported.workload.dataset.num_samples_per_file,
            "epochs": len({block.epoch for block in self.blocks[0] if not block.evaluation}),
        }

    def rank_epochs(self, rank: int) -> dict[str, Any]:
        """Return for each epoch the seconds of each step, and the AU and samples/s of each block."""
        return {
            str(epoch): {
                "load": {block.key: block.times.load.tolist() for block in blocks},
                "proc": {block.key: block.times.proc.tolist() for block in blocks},
                "throughput": {block.key: block.rated.samples_per_second for block in blocks},
                "au": {block.key: block.rated.au_percent for block in blocks},
                "compute": {block.key: block.times.measured.tolist() for block in blocks},
                "end": stamp(self._epoch_end_us(blocks)),
            }
            for epoch, blocks in _by_epoch(self.blocks[rank]).items()
        }

    def rank_stats(self, rank: int) -> dict[str, Any]:
        return {str(epoch): self._epoch_stats(blocks) for epoch, blocks in _by_epoch(self.blocks[rank]).items()}

    def _epoch_stats(self, blocks: list[Block]) -> dict[str, Any]:
        training = [block for block in blocks if not block.evaluation]
        checkpoint_after_block = {saved.block: saved for saved in self.exported.saved if saved.epoch == blocks[0].epoch}
        stats: dict[str, Any] = {"start": stamp(blocks[0].start_us)}
        for block in training:
            stats[block.key] = _span_entry(block.start_us, block.end_us)
            if block.number in checkpoint_after_block:
                stats[f"save_ckpt{block.number}"] = self._saved_entry(checkpoint_after_block[block.number])
        stats["end"] = stamp(self._epoch_end_us(blocks))
        # DLIO's duration does not include the evaluation.
        stats["duration"] = _span_entry(blocks[0].start_us, self._epoch_end_us(training))["duration"]
        return stats | {block.key: _span_entry(block.start_us, block.end_us) for block in blocks if block.evaluation}

    def _epoch_end_us(self, blocks: list[Block]) -> int:
        saved_us = [self.wall_us(saved.ended_ns) for saved in self.exported.saved if saved.epoch == blocks[0].epoch]
        return max([*(block.end_us for block in blocks), *saved_us])

    def _saved_entry(self, saved: SavedCheckpoint) -> dict[str, Any]:
        return self.checkpoint_entry(saved.started_ns, saved.ended_ns, saved.seconds, saved.bytes / GIB)

    def metrics(self) -> dict[str, Any]:
        """Return each epoch's figures, and their mean and deviation over epochs."""
        figures = self._phase_figures("train", evaluation=False) | self._phase_figures("eval", evaluation=True)
        if self.exported.saved:
            figures |= checkpoint_figures("save", list(map(self._saved_entry, self.exported.saved)))
            figures["checkpoint_size_GB"] = self.exported.saved[0].bytes / GIB
        return figures

    def _phase_figures(self, name: str, *, evaluation: bool) -> dict[str, Any]:
        rated_by_epoch: dict[int, list[Rated]] = {}
        for all_blocks in self.blocks.values():
            for epoch, blocks in _by_epoch([block for block in all_blocks if block.evaluation == evaluation]).items():
                rated = over_blocks([block.rated for block in blocks], [block.times.steps for block in blocks])
                rated_by_epoch.setdefault(epoch, []).append(rated)
        if not rated_by_epoch:
            return {}
        epochs = list(map(over_ranks, rated_by_epoch.values()))
        au = [epoch.au_percent for epoch in epochs]
        rates = [epoch.samples_per_second for epoch in epochs]
        sample_mib = self.exported.workload.dataset.record_length_bytes / 2**20
        return {
            f"{name}_au_percentage": au,
            **mean_and_deviation(f"{name}_au", "percentage", au),
            f"{name}_au_meet_expectation": "success" if fmean(au) >= 100 * self.exported.workload.metric.au else "fail",
            f"{name}_throughput_samples_per_second": rates,
            **mean_and_deviation(f"{name}_throughput", "samples_per_second", rates),
            **mean_and_deviation(f"{name}_io", "MB_per_second", [rate * sample_mib for rate in rates]),
        }

    def progress_lines(self) -> Iterator[str]:
        """Yield a line for the start and end of each epoch and of its parts."""
        for epoch, stats in self.rank_stats(0).items():
            yield f"{stats['start']} epoch {epoch} begins"
            for name, span in stats.items():
                if isinstance(span, dict):
                    yield f"{span['end']} epoch {epoch}: {name} ended after {float(span['duration']):.2f} s"
            yield f"{stats['end']} epoch {epoch} ended, {stats['duration']} s of training"


def _by_epoch(blocks: list[Block]) -> dict[int, list[Block]]:
    return {epoch: list(group) for epoch, group in groupby(blocks, attrgetter("epoch"))}  # they are sorted by epoch


def _span_entry(start_us: int, end_us: int) -> dict[str, Any]:
    return {"start": stamp(start_us), "end": stamp(end_us), "duration": f"{(end_us - start_us) / 1e6:.2f}"}

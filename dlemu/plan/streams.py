"""Plans for reading files as streams: each rank reads its files from start to end, several of them in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DatasetError
from datagen.layout import Runs
from dlemu.plan.samples import Plan, permute


@dataclass(frozen=True, eq=False)
class Streams:
    """The records that a rank uses in an epoch: of each of its files, the records `first + k * stride`."""

    files: NDArray[np.int64]  # file numbers, in the order of opening
    counts: NDArray[np.int64]  # number of records to use from each file
    first: int
    stride: int  # above 1 if ranks share files: this rank also reads the records between, which other ranks use
    seed: int  # of the window that shuffles samples


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Plan):
    """Plans which files ranks read from start to end: as by `tf.data`, each of R ranks has every R-th shuffled file.

    If there are fewer files than ranks, every rank reads all files and uses every R-th record. A rank reads its files
    in groups of `cycle` files; in each turn, it takes `block_length` records from every file of the group. The loader
    may then shuffle samples in a window, so the plan tells which samples an epoch has, but not when each one is used.

    Files a, b, c of 4 records, `cycle` 2, `block_length` 2: a0 a1 b0 b1 a2 a3 b2 b3 c0 c1 c2 c3.
    """

    cycle: int  # number of files that a rank reads at a time
    block_length: int = 1  # number of records that a rank uses of a file before it goes on to the next file

    @property
    def by_file(self) -> bool:
        """Whether each rank has files of its own; otherwise, all ranks share all files."""
        return self.num_files >= self.ranks

    @property
    def files_per_rank(self) -> int:
        return self.num_files // self.ranks if self.by_file else self.num_files

    @property
    def used_per_file(self) -> int:
        """Number of records that a rank uses from each of its files."""
        return self.num_samples_per_file if self.by_file else self.num_samples_per_file // self.ranks

    @property
    def steps_per_epoch(self) -> int:
        return self.files_per_rank * self.used_per_file // self.batch_size

    def check(self, split: str) -> None:
        """Raise DatasetError if a rank's records do not fill one step."""
        if self.steps_per_epoch:
            return
        ranks, fewer = ("the one rank", "") if self.ranks == 1 else (f"each of {self.ranks} ranks", "fewer ranks, ")
        raise DatasetError(
            f"the {split} set has {self.num_files} files x {self.num_samples_per_file} samples; read as streams, "
            f"{ranks} has {self.files_per_rank} files and uses {self.used_per_file} samples of each, "
            f"which do not fill a batch of {self.batch_size}: use {fewer}a smaller batch, more files, or "
            "reader.data_loader=pytorch, which picks samples one by one"
        )

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at `positions` of an epoch's order: first all of rank 0, then all of rank 1, and so on."""
        rank, rank_position = np.divmod(positions, max(1, self.steps_per_epoch * self.batch_size))
        group, group_position = np.divmod(rank_position, self.cycle * self.used_per_file)
        group_files = np.minimum(self.cycle, self.files_per_rank - group * self.cycle)  # fewer in the last group
        turn, turn_position = np.divmod(group_position, group_files * self.block_length)
        first_record = turn * self.block_length
        turn_records = np.minimum(self.block_length, self.used_per_file - first_record)  # fewer in the last turn
        file_in_group, record = np.divmod(turn_position, turn_records)
        record += first_record
        files = self._files(epoch, group * self.cycle + file_in_group, rank)
        if not self.by_file:
            record = record * self.ranks + rank
        return np.asarray(files * self.num_samples_per_file + record)

    def runs(self, rank: int, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return None: files are read in turn, so batches do not consist of long runs."""
        return None

    def streams(self, rank: int, epoch: int, steps: int) -> Streams:
        """Return the files and records that a rank reads for the first `steps` steps of an epoch."""
        # In closed form, the samples that `samples_at` gives one by one; tests/plan/test_samples.py compares the two.
        full_groups, group_records = divmod(steps * self.batch_size, self.cycle * self.used_per_file)
        full_files = min(full_groups * self.cycle, self.files_per_rank)
        group_files = min(self.cycle, self.files_per_rank - full_files)  # of the last group, which is read in part
        full_turns, last_turn_records = divmod(group_records, max(1, group_files) * self.block_length)
        first_record = full_turns * self.block_length
        length = min(self.block_length, self.used_per_file - first_record)  # records of a file in the last turn
        last_counts = first_record + np.clip(last_turn_records - np.arange(group_files) * length, 0, length)
        counts = np.concatenate([np.full(full_files, self.used_per_file), last_counts[last_counts > 0]])
        return Streams(
            files=self._files(epoch, np.arange(len(counts)), np.int64(rank)),
            counts=counts.astype(np.int64),
            first=0 if self.by_file else rank,
            stride=1 if self.by_file else self.ranks,
            seed=self.epoch_seed(epoch),
        )

    def _files(self, epoch: int, numbers: NDArray[np.int64], rank: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
        """Return the files at positions `numbers` (from 0) of a rank's order."""
        positions = numbers * self.ranks + rank if self.by_file else numbers
        return permute(positions, self.num_files, self.epoch_seed(epoch)) if self.file_shuffle else positions

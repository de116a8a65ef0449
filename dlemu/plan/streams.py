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
    """The records that a rank uses in an epoch: of each of its files, `counts` records, from `first` by `stride`."""

    files: NDArray[np.int64]  # file numbers, in the order of opening
    counts: NDArray[np.int64]  # number of records to use from each file
    first: int
    stride: int  # above 1 if ranks share files: this rank also reads the records between, which other ranks use
    seed: int  # of the window that shuffles samples


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Plan):
    """Plans which files ranks read from start to end: as in `tf.data`, each of R ranks has every R-th shuffled file.

    If there are fewer files than ranks, every rank reads all files and uses every R-th record. A rank reads its files
    in groups of `cycle` files; in each turn, it takes `block_length` records from every file of the group. The loader
    may then shuffle samples in a window, so the plan tells which samples an epoch has, but not when each one is used.

    Files a, b, c of 5 records, `cycle` 2, `block_length` 2: a0 a1 b0 b1, a2 a3 b2 b3, a4 b4 (3 turns); c0 c1, c2 c3, c4
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
        # The numbers in the comments are for position 9 of rank 0 in the example above: b4.
        rank, rank_position = np.divmod(positions, max(1, self.steps_per_epoch * self.batch_size))  # 0, 9
        group, group_position = np.divmod(rank_position, self.cycle * self.used_per_file)  # 0, 9
        group_files = np.minimum(self.cycle, self.files_per_rank - group * self.cycle)  # 2: fewer in the last group
        turn, turn_position = np.divmod(group_position, group_files * self.block_length)  # 2, 1
        first_record = turn * self.block_length  # 4
        turn_records = np.minimum(self.block_length, self.used_per_file - first_record)  # 1: fewer in the last turn
        file_in_group, record = np.divmod(turn_position, turn_records)  # 1, 0
        record += first_record  # 4
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
        # The numbers in the comments are for 7 records of the example above: 4 of file a, and 3 of b.
        full_groups, group_records = divmod(steps * self.batch_size, self.cycle * self.used_per_file)  # 0, 7
        full_files = min(full_groups * self.cycle, self.files_per_rank)  # 0
        group_files = min(self.cycle, self.files_per_rank - full_files)  # 2, of the last group, which is read in part
        full_turns, last_turn_records = divmod(group_records, max(1, group_files) * self.block_length)  # 1, 3
        first_record = full_turns * self.block_length  # 2
        length = min(self.block_length, self.used_per_file - first_record)  # 2 records of a file in the last turn
        last_counts = first_record + np.clip(last_turn_records - np.arange(group_files) * length, 0, length)  # 4, 3
        counts = np.concatenate([np.full(full_files, self.used_per_file), last_counts[last_counts > 0]])
        return Streams(
            files=self._files(epoch, np.arange(len(counts)), np.int64(rank)),
            counts=counts.astype(np.int64),
            first=0 if self.by_file else rank,
            stride=1 if self.by_file else self.ranks,
            seed=self.epoch_seed(epoch),
        )

    def _files(self, epoch: int, numbers: NDArray[np.int64], rank: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
        """Return the files at the positions `numbers` (from 0) in a rank's order."""
        positions = numbers * self.ranks + rank if self.by_file else numbers
        return permute(positions, self.num_files, self.epoch_seed(epoch)) if self.file_shuffle else positions

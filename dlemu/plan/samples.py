"""Who reads what: the samples of every batch of every rank, by arithmetic, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DatasetError
from datagen.runs import Runs
from dlemu.plan.permutation import permute

_FILES_OF_A_BATCH = 8
"""Batches that span more files than about so many are planned sample by sample, in arrays."""


class BatchPlan(Protocol):
    """Says which samples one rank's batch holds; picklable, and the same in every process."""

    def sample_ids(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the sample numbers of `step` (from 1) of `epoch` (from 1), shape (batch_size,)."""
        ...

    def batches(self, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample numbers of several steps at once, shape (steps, batch_size)."""
        ...

    def runs(self, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the same, a step an item, as runs of neighbours in files; None where samples do not come in runs."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One epoch is a shuffled order of all samples, cut into as many equal parts as there are ranks.

    Each rank reads its part in order, batch by batch, so that without a shuffle a file's samples are read one after
    the other by one rank. What is left when every rank has had the same number of whole batches is dropped.
    With `worker_streams` a rank's part is cut into as many stretches, and its steps take a batch of each in turn: a
    loader that deals batches to so many workers then has each of them read a stretch of its own, from its beginning.
    """

    num_files: int
    num_samples_per_file: int
    batch_size: int
    ranks: int
    file_shuffle: bool
    sample_shuffle: bool
    seed: int
    seed_change_epoch: bool
    worker_streams: int = 1

    @property
    def num_samples(self) -> int:
        """Samples in the dataset."""
        return self.num_files * self.num_samples_per_file

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self.num_samples // (self.batch_size * self.ranks)

    @property
    def dropped_samples(self) -> int:
        """Samples of an epoch that no rank reads, because they do not fill a batch on every rank."""
        return self.num_samples - self.steps_per_epoch * self.batch_size * self.ranks

    def check(self, split: str) -> None:
        """Raise DatasetError when the samples do not fill one step."""
        wanted = self.batch_size * self.ranks
        if self.num_samples < wanted:
            files = -(-wanted // self.num_samples_per_file)
            key = "num_files_train" if split == "train" else "num_files_eval"
            raise DatasetError(
                f"the {split} set has {self.num_samples} samples ({self.num_files} files x "
                f"{self.num_samples_per_file}); one step of {self.ranks} ranks x batch {self.batch_size} needs "
                f"{wanted}: use fewer ranks, a smaller batch, or a dataset with dataset.{key}={files} or more"
            )

    def sample_ids(self, rank: int, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the samples of a batch, shape (batch_size,); `epoch` and `step` count from 1."""
        return self.batches(rank, epoch, np.array([step])).ravel()

    def batches(self, rank: int, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of some of a rank's batches, shape (steps, batch_size)."""
        first = self._places(rank, steps) * self.batch_size
        positions = first[:, np.newaxis] + np.arange(self.batch_size)
        return self.samples_at(epoch, positions.ravel()).reshape(positions.shape)

    def runs(self, rank: int, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the samples of some of a rank's batches as runs; None where a batch is not a few runs of neighbours.

        What a batch costs then does not grow with its samples, of which a step of small rows has many thousands.
        """
        per_file, batch_size = self.num_samples_per_file, self.batch_size
        if self.sample_shuffle or per_file < 2 or per_file * _FILES_OF_A_BATCH < batch_size:
            return None
        begins = (self._places(rank, steps) * batch_size).tolist()
        wanted = [range(begin // per_file, (begin + batch_size - 1) // per_file + 1) for begin in begins]
        files = np.array([file for batch_files in wanted for file in batch_files], np.int64)
        order = permute(files, self.num_files, self.epoch_seed(epoch)) if self.file_shuffle else files
        shuffled = dict(zip(files.tolist(), order.tolist(), strict=True))
        batches = []
        for begin, batch_files in zip(begins, wanted, strict=True):
            runs = []
            for file in batch_files:
                first = max(begin, file * per_file)
                last = min(begin + batch_size, (file + 1) * per_file)
                runs.append((first + (shuffled[file] - file) * per_file, last - first))
            batches.append(Runs(runs))
        return batches

    def _places(self, rank: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which batches of an epoch's order, from 0, a rank's steps, from 1, are."""
        places = steps - 1
        if self.worker_streams > 1:
            length = self.steps_per_epoch // self.worker_streams
            in_turn, stream = np.divmod(places, self.worker_streams)
            # What does not fill a last turn stays where it is, behind all stretches.
            places = np.where(in_turn < length, stream * length + in_turn, places)
        return np.asarray(rank * self.steps_per_epoch + places)

    def epoch_seed(self, epoch: int) -> int:
        """Return the seed of an epoch's shuffles, by DLIO's rule."""
        return self.seed + epoch if self.seed_change_epoch else self.seed

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that stand at `positions` of an epoch's order."""
        seed = self.epoch_seed(epoch)
        if self.sample_shuffle:
            return permute(positions, self.num_samples, seed)
        if not self.file_shuffle:
            return positions
        files, within = np.divmod(positions, self.num_samples_per_file)
        return self._shuffled_files(files, seed) * self.num_samples_per_file + within

    def _shuffled_files(self, files: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Shuffle file numbers; where many samples are in few files, each file only once."""
        if not files.size:
            return files
        first, last = int(files.min()), int(files.max())
        if last - first + 1 >= files.size:
            return permute(files, self.num_files, seed)
        return np.asarray(permute(np.arange(first, last + 1), self.num_files, seed)[files - first])


@dataclass(frozen=True)
class RankPlan:
    """One rank's part of a plan, as its loader sees it."""

    plan: Plan
    rank: int

    def sample_ids(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the samples of a batch, shape (batch_size,)."""
        return self.plan.sample_ids(self.rank, epoch, step)

    def batches(self, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of some batches, shape (steps, batch_size); steps beyond the last repeat it."""
        return self.plan.batches(self.rank, epoch, np.minimum(steps, self.plan.steps_per_epoch))

    def runs(self, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the same as runs of neighbours; None where samples do not come in runs."""
        return self.plan.runs(self.rank, epoch, np.minimum(steps, self.plan.steps_per_epoch))


@dataclass(frozen=True)
class EndlessPlan:
    """One rank's part of a plan, begun again when it ends; for measuring the emulator with any number of steps."""

    plan: Plan
    rank: int

    def sample_ids(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the samples of a batch, shape (batch_size,)."""
        return self.batches(epoch, np.array([step])).ravel()

    def batches(self, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of some batches, shape (steps, batch_size)."""
        return self.plan.batches(self.rank, epoch, (steps - 1) % self.plan.steps_per_epoch + 1)

    def runs(self, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the same as runs of neighbours; None where samples do not come in runs."""
        return self.plan.runs(self.rank, epoch, (steps - 1) % self.plan.steps_per_epoch + 1)


class PlannedBatch(NamedTuple):
    """One batch, ready to be read."""

    samples: NDArray[np.int64] | Runs
    """Sample numbers in their order."""
    sample_hash: int
    """`hash_samples` of them."""


class PlanAhead:
    """Takes many batches at a time from a plan: a shuffle costs as much for one sample as for hundreds."""

    _SAMPLES = 4096
    _STEPS_OF_RUNS = 64

    def __init__(self, plan: BatchPlan, batch_size: int) -> None:
        self._plan, self._steps = plan, max(1, self._SAMPLES // batch_size)
        self._epoch, self._first = -1, 0
        self._batches: Sequence[NDArray[np.int64] | Runs] = ()
        self._hashes: list[int] = []
        """Of the same batches; none where they are so large that hashing one by one costs no more."""

    def batch(self, epoch: int, step: int) -> PlannedBatch:
        """Return the batch of a step, both counted from 1."""
        if epoch != self._epoch or not 0 <= step - self._first < len(self._batches):
            self._plan_from(epoch, step)
        samples = self._batches[step - self._first]
        if self._hashes:
            return PlannedBatch(samples, self._hashes[step - self._first])
        return PlannedBatch(samples, hash_runs(samples) if isinstance(samples, Runs) else hash_samples(samples))

    def _plan_from(self, epoch: int, step: int) -> None:
        self._epoch, self._first = epoch, step
        runs = self._plan.runs(epoch, np.arange(step, step + max(self._steps, self._STEPS_OF_RUNS)))
        if runs is None:
            ids = self._plan.batches(epoch, np.arange(step, step + self._steps))
            self._batches, self._hashes = list(ids), _hash_rows(ids.astype(np.uint64))
        else:
            self._batches = runs
            self._hashes = _hash_each(runs) if self._steps >= self._STEPS_OF_RUNS else []


def hash_samples(sample_ids: NDArray[np.int64]) -> int:
    """Return the sum of splitmix64 of each id modulo 2^64, as a signed int64: equal for equal multisets in any order.

    Constants: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    return _hash_rows(sample_ids.astype(np.uint64).reshape(1, -1))[0]


def hash_runs(runs: Runs) -> int:
    """Return `hash_samples` of the samples of runs."""
    return _hash_each([runs])[0]


def _hash_each(batches: Sequence[Runs]) -> list[int]:
    """Return `hash_samples` of some batches of equal size."""
    ids = [np.arange(first, first + count, dtype=np.uint64) for batch in batches for first, count in batch.runs]
    return _hash_rows((np.concatenate(ids) if len(ids) > 1 else ids[0]).reshape(len(batches), -1))


def _hash_rows(z: NDArray[np.uint64]) -> list[int]:
    """Return `hash_samples` of each row, whose memory is used up: of many samples, fresh memory costs half of it."""
    z += np.uint64(0x9E3779B97F4A7C15)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    hashes: list[int] = z.sum(axis=1, dtype=np.uint64).astype(np.int64).tolist()
    return hashes

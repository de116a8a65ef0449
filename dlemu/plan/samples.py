"""Plans for reading samples by number: the samples of each batch of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DatasetError
from datagen.layout import Runs

_ROUNDS = 6  # 4 are enough with strong round functions (Luby and Rackoff, 1988); these are weak, but fast
# Constants of splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: spreads neighbours
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of all ranks. An epoch is a shuffled order of all samples, cut into one equal part for each rank.

    Each rank reads its part in order, batch by batch: without a shuffle, one rank reads a file from its start to its
    end. Samples that do not fill a batch on every rank are dropped.

    With `worker_streams` > 1, a rank's part is cut into that many ranges, and its steps take a batch of each in turn.
    A loader that assigns batches in turn to as many workers then lets each worker read one range from its start: with 6
    batches and 2 streams, steps 1 to 6 take batches 0, 3, 1, 4, 2, 5.
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
        return self.num_files * self.num_samples_per_file

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, equal on all ranks."""
        return self.num_samples // (self.batch_size * self.ranks)

    def check(self, split: str) -> None:
        """Raise DatasetError if the samples do not fill one step."""
        step_samples = self.batch_size * self.ranks
        if self.num_samples < step_samples:
            files = -(-step_samples // self.num_samples_per_file)
            key = "num_files_train" if split == "train" else "num_files_eval"
            ranks, fewer = ("1 rank", "") if self.ranks == 1 else (f"{self.ranks} ranks", "fewer ranks, ")
            raise DatasetError(
                f"the {split} set has {self.num_samples} samples ({self.num_files} files x "
                f"{self.num_samples_per_file}); one step of {ranks} x batch {self.batch_size} needs "
                f"{step_samples}: use {fewer}a smaller batch, or a dataset with dataset.{key}={files} or more"
            )

    def batches(self, rank: int, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of a rank's batches at `steps` (from 1), shape (steps, batch_size)."""
        positions = self.first_positions(rank, steps)[:, np.newaxis] + np.arange(self.batch_size)
        return self.samples_at(epoch, positions.ravel()).reshape(positions.shape)

    def runs(self, rank: int, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the samples of a rank's batches at `steps` as runs; None if batches do not consist of few long runs.

        A run is a range of samples. Planning runs takes the same time for any batch: batches of small rows can be huge.
        """
        per_file, batch_size = self.num_samples_per_file, self.batch_size
        if self.sample_shuffle or per_file < 2 or per_file * 8 < batch_size:  # a batch spans more than about 8 files
            return None
        begins = self.first_positions(rank, steps).tolist()
        # `file_at`: ordinal in the epoch -> file number. If file 7 of 10 samples is first, position 3 is sample 73.
        spans = [range(begin // per_file, (begin + batch_size - 1) // per_file + 1) for begin in begins]  # of ordinals
        ordinals = np.array([ordinal for span in spans for ordinal in span], np.int64)
        files = permute(ordinals, self.num_files, self.epoch_seed(epoch)) if self.file_shuffle else ordinals
        file_at = dict(zip(ordinals.tolist(), files.tolist(), strict=True))
        batches = []
        for begin, span in zip(begins, spans, strict=True):
            runs = []
            for ordinal in span:
                first = max(begin, ordinal * per_file)
                end = min(begin + batch_size, (ordinal + 1) * per_file)
                runs.append((first + (file_at[ordinal] - ordinal) * per_file, end - first))
            batches.append(Runs(runs))
        return batches

    def first_positions(self, rank: int | NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position in the epoch's order at which a rank's batches begin, for `steps` (from 1).

        With ranks of shape (ranks, 1), the result has the shape (ranks, steps).
        """
        batches = steps - 1
        if self.worker_streams > 1:
            length = self.steps_per_epoch // self.worker_streams  # of each range, in batches
            turn, stream = np.divmod(batches, self.worker_streams)
            # A turn takes a batch of each range; the batches left over after all ranges come last, in order
            batches = np.where(turn < length, stream * length + turn, batches)
        return np.asarray((rank * self.steps_per_epoch + batches) * self.batch_size)

    def epoch_seed(self, epoch: int) -> int:
        """Return the seed of an epoch's shuffles, by DLIO's rule."""
        return self.seed + epoch if self.seed_change_epoch else self.seed

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at `positions` of an epoch's order."""
        seed = self.epoch_seed(epoch)
        if self.sample_shuffle:
            return permute(positions, self.num_samples, seed)
        if not self.file_shuffle:
            return positions
        ordinals, samples = np.divmod(positions, self.num_samples_per_file)  # of the file, and within it
        first, end = (int(ordinals.min()), int(ordinals.max()) + 1) if ordinals.size else (0, 0)
        if end - first < ordinals.size:  # many samples in few files: shuffle each file only once
            files = permute(np.arange(first, end), self.num_files, seed)[ordinals - first]
        else:
            files = permute(ordinals, self.num_files, seed)
        return np.asarray(files * self.num_samples_per_file + samples)


@dataclass(frozen=True)
class RankPlan:
    """One rank's part of a plan, for its loader. It can be pickled, and gives the same results in every process."""

    plan: Plan
    rank: int
    endless: bool = False  # whether steps after the last start over at step 1, as the ceiling needs, or repeat the last

    def sample_ids(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the samples of a batch, shape (batch_size,); `epoch` and `step` count from 1."""
        return self.batches(epoch, np.array([step])).ravel()

    def batches(self, epoch: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of the batches at `steps`, shape (steps, batch_size)."""
        return self.plan.batches(self.rank, epoch, self._planned(steps))

    def runs(self, epoch: int, steps: NDArray[np.int64]) -> list[Runs] | None:
        """Return the samples of `batches` as `Plan.runs` does; None if batches do not consist of few long runs."""
        return self.plan.runs(self.rank, epoch, self._planned(steps))

    def _planned(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map steps after the last one to planned steps."""
        last = self.plan.steps_per_epoch
        return (steps - 1) % last + 1 if self.endless else np.minimum(steps, last)


class PlanAhead:
    """Plans many batches at a time, and returns them one by one: one sample takes as long to shuffle as hundreds."""

    _SAMPLES_AHEAD = 4096
    _RUN_STEPS_AHEAD = 64  # minimum for batches of runs: planning one takes the same time for any number of samples

    def __init__(self, plan: RankPlan, batch_size: int) -> None:
        self._plan, self._steps = plan, max(1, self._SAMPLES_AHEAD // batch_size)
        self._epoch, self._first = -1, 0
        self._batches: Sequence[NDArray[np.int64] | Runs] = ()
        self._hashes: list[int] = []  # of `_batches`; empty for batches so large that each is hashed when it is used

    def batch(self, epoch: int, step: int) -> tuple[NDArray[np.int64] | Runs, int]:
        """Return the samples of a batch, in order, and their `hash_samples`; `epoch` and `step` count from 1."""
        if epoch != self._epoch or not 0 <= step - self._first < len(self._batches):
            self._epoch, self._first = epoch, step
            runs = self._plan.runs(epoch, np.arange(step, step + max(self._steps, self._RUN_STEPS_AHEAD)))
            if runs is None:
                ids = self._plan.batches(epoch, np.arange(step, step + self._steps))
                self._batches, self._hashes = list(ids), _hash_rows(ids.astype(np.uint64))
            else:
                self._batches = runs
                self._hashes = _hash_each(runs) if self._steps >= self._RUN_STEPS_AHEAD else []
        samples = self._batches[step - self._first]
        return samples, self._hashes[step - self._first] if self._hashes else hash_samples(samples)


def hash_samples(samples: NDArray[np.int64] | Runs) -> int:
    """Return the sum of the numbers' splitmix64 hashes, modulo 2^64, as a signed int64; their order does not matter."""
    if isinstance(samples, Runs):
        return _hash_each([samples])[0]
    return _hash_rows(samples.astype(np.uint64).reshape(1, -1))[0]


def _hash_each(batches: Sequence[Runs]) -> list[int]:
    """Return `hash_samples` of each batch; all have the same size."""
    ids = [np.arange(first, first + count, dtype=np.uint64) for batch in batches for first, count in batch.runs]
    return _hash_rows((np.concatenate(ids) if len(ids) > 1 else ids[0]).reshape(len(batches), -1))


def _hash_rows(z: NDArray[np.uint64]) -> list[int]:
    """Return `hash_samples` of each row. Overwrites `z`, because new memory for many samples would double the time."""
    z += _GAMMA
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= _MULTIPLIER_1
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= _MULTIPLIER_2
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    hashes: list[int] = z.sum(axis=1, dtype=np.uint64).astype(np.int64).tolist()
    return hashes


def permute(positions: NDArray[np.int64], n: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers at `positions` of range(n) in an order shuffled by `seed`; each number occurs exactly once.

    The shuffle is a Feistel network over the smallest even number of bits that holds n - 1. A result of n or more is
    encrypted again until it is below n: less than 4 times on average (cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", 2002).
    """
    if n < 2:
        return positions.copy()
    half = np.uint64((int(n - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, n]).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    values = _encrypt(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        values[outside] = _encrypt(values[outside], half, keys)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _encrypt(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Encrypt numbers of 2 x `half` bits, each to another number of as many bits, by one Feistel round per key."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        mixed = (right * _GAMMA) ^ key
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MULTIPLIER_1
        left, right = right, left ^ ((mixed >> np.uint64(29)) & mask)
    return (left << half) | right

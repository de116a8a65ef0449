"""A loader's interface: its spec, the batches it delivers, and `BatchMaker`, with which most loaders make a batch."""

from __future__ import annotations

import os
import struct
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from datagen.fetch import Fetcher, FetchSpec
from datagen.layout import Places
from dlemu.config.duration import draw_seconds, is_zero
from dlemu.config.schema import Reader
from dlemu.machine.clock import BurnerThreads
from dlemu.machine.thread_accounting import ThreadAccounting
from dlemu.plan.samples import PlanAhead, RankPlan

DRAWN_AT_ONCE = 1024  # samples whose times are drawn together: a batch has too few for an even spread of times
_NUMBERS = struct.Struct("<14q")  # the numbers of a `BatchTrace`: `slot`, and all fields after `places`
S = TypeVar("S")


class Preprocessing:
    """Emulates the preprocessing of one worker's samples: each takes a time drawn from `duration`."""

    def __init__(self, reader: Reader, random: np.random.Generator, threads: int = 1) -> None:
        """`threads`: how many threads share the samples of one batch."""
        self._duration, self._random, self._threads = reader.preprocess_time, random, threads
        burns = reader.preprocess == "burn" and not is_zero(self._duration)
        self._burners = BurnerThreads(threads) if burns else None
        self._drawn_seconds: NDArray[np.float64] = np.empty(0)

    def spend(self, samples: int) -> tuple[int, int]:
        """Preprocess this number of samples; return the wall time and the CPU time that it took, in ns."""
        if is_zero(self._duration) or not samples:
            return 0, 0
        if len(self._drawn_seconds) < samples:
            more = draw_seconds(self._duration, self._random, max(DRAWN_AT_ONCE, samples))
            self._drawn_seconds = np.concatenate([self._drawn_seconds, more])
        batch_seconds, self._drawn_seconds = np.split(self._drawn_seconds, [samples])
        seconds, cpu_ns = float(batch_seconds.sum()), 0
        began_ns = time.monotonic_ns()
        if self._burners is None:
            time.sleep(seconds / self._threads)
        else:
            cpu_ns = self._burners.burn(seconds)
        return time.monotonic_ns() - began_ns, cpu_ns


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """How a rank reads several files as streams: with 2 files of block length 3, records AAABBBAAABBB..."""

    files: int  # files read at a time
    block_length: int = 1  # records to take from a file before the next file's turn
    files_ahead: int = 0  # further files that are opened and read before their turn


@dataclass(frozen=True)
class Phase:
    """One stream of batches: training, evaluation, or the ceiling (the emulator's own limit, without storage)."""

    fetch: FetchSpec
    plan: RankPlan
    batch_size: int
    preprocesses: bool = True  # whether samples are preprocessed; those of the ceiling are not


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """All a loader needs to know; the same for every loader."""

    rank: int
    phases: Mapping[str, Phase]
    reader: Reader
    interleave: Interleave | None  # how files read as streams take turns; None: samples are read by their position
    seed: int

    @property
    def shuffle_window(self) -> int:
        """Samples in the window that shuffles streams; 0 when samples are not shuffled."""
        return self.reader.shuffle_size if self.reader.sample_shuffle != "off" else 0

    @property
    def computation_threads(self) -> int:
        """Threads that parse batches, if not the readers parse them; no more than cores."""
        return min(self.reader.computation_threads, len(os.sched_getaffinity(0)))

    @property
    def computation_calls(self) -> int:
        """Batches parsed at a time: at least two, so that the next is assembled while one is parsed."""
        return max(2, self.computation_threads)

    @property
    def prefetch_per_worker(self) -> int:
        return self.reader.prefetch_per_worker

    @property
    def slots(self) -> int:
        """Batch buffers of a rank whose batches come in order: for those ready or under way, and two of the trainer.

        The trainer takes one batch ahead of the one in training. Batch k is in buffer k modulo `slots`, whichever
        worker makes it.
        """
        return max(1, self.reader.read_threads) * self.prefetch_per_worker + 2

    @property
    def slot_bytes(self) -> int:
        return max((phase.fetch.slot_bytes(phase.batch_size) for phase in self.phases.values()), default=0)


class BatchTrace(NamedTuple):
    """How one batch was made. Times are nanoseconds of CLOCK_MONOTONIC; `places` are (offset, length) in the slot."""

    slot: int
    places: Sequence[tuple[int, int]] | Places
    started_ns: int
    finished_ns: int
    read_ns: int
    decode_ns: int  # time of decoding and of emulated preprocessing
    worker: int
    samples: int
    app_bytes: int
    read_calls: int
    sample_hash: int  # sum of a 64-bit hash of each sample's number, modulo 2^64
    cpu_ns: int = 0  # CPU time of the worker; 0, and `cpu_wait_ns` 0 too, where it is not known
    cpu_wait_ns: int = 0  # time the worker was runnable but waited for a core
    storage_bytes: int = 0
    """Bytes that the kernel fetched from storage for the worker meanwhile; the page cache served the others."""
    preprocess_cpu_ns: int = 0  # the part of `cpu_ns` spent on emulated preprocessing

    def packed(self) -> bytes:
        """Return the trace as bytes, to cross to another process: pickling each number costs ten times as much."""
        slot, places, *numbers = self
        return _NUMBERS.pack(slot, *numbers) + np.asarray(places, np.int64).tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> BatchTrace:
        slot, *numbers = _NUMBERS.unpack_from(data)
        return cls(slot, np.frombuffer(data, np.int64, offset=_NUMBERS.size).reshape(-1, 2), *numbers)


Cut = Callable[[memoryview, int, int], S]  # makes a sample of (slot, offset, length): a view of these bytes, no copy


class Samples(Sequence[S]):
    """The samples of a batch, each cut out of its slot when it is requested: most trainers need none, or all."""

    def __init__(self, slot: memoryview, places: Sequence[tuple[int, int]] | Places, cut: Cut[S]) -> None:
        self._slot, self._places, self._cut = slot, places, cut

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> S:  # type: ignore[override]  # no slices
        start, size = self._places[index]
        return self._cut(self._slot, int(start), int(size))


class Batch(NamedTuple):
    """A batch in the trainer's hands. `data` is the loader's own type, valid until the next batch but one is taken."""

    data: Any
    trace: BatchTrace


class TimedBatches(Iterator[Batch]):
    """The batches of an epoch, in order, of a loader that tells whether the next one is ready."""

    @abstractmethod
    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        """Return the next batch; None if it is not ready within the time: it can then be requested again.

        The first batch, with which the workers begin the epoch, can be requested only once.

        Raises StopIteration after the last batch, and DlemuError when a batch can't be made.
        """

    def __next__(self) -> Batch:
        batch = self.take()
        assert batch is not None  # there is no time limit
        return batch


class Loader(Protocol):
    """Streams batches in planned order. It is constructed before its workers exist; `start` starts them.

    A loader that inherits from it need only implement `__init__` and `batches`, if it has no workers.
    """

    def __init__(self, spec: LoaderSpec) -> None: ...

    def start(self) -> None:
        """Start the workers, so that no batch's time includes their start."""
        return

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        """Deliver the batches of one epoch, if possible as `TimedBatches`, which spare the trainer a thread.

        Raises DlemuError when a batch can't be made.
        """

    def explain(self, error: Exception) -> DlemuError | None:
        """Turn a framework's exception about a dead worker into one for users; None for any other."""
        return None

    def close(self) -> None:
        """End the workers and wait for them."""
        return


class BatchMaker:
    """Makes batches in one worker: fetches the planned samples into a buffer, and records times, bytes and CPU."""

    def __init__(self, spec: LoaderSpec, worker: int) -> None:
        self._worker, self._phases = worker, spec.phases
        self._plans = {name: PlanAhead(phase.plan, phase.batch_size) for name, phase in spec.phases.items()}
        self._fetchers = {name: Fetcher(phase.fetch) for name, phase in spec.phases.items()}
        self._accounting = ThreadAccounting()
        random = np.random.default_rng([spec.seed, spec.rank, worker])
        self._preprocessing = Preprocessing(spec.reader, random)

    def make(self, phase: str, epoch: int, step: int, slot: int, out: memoryview) -> BatchTrace:
        """Fill `out` with the batch of `step` and return its trace."""
        before = self._accounting.look()
        started_ns = time.monotonic_ns()
        ids, sample_hash = self._plans[phase].batch(epoch, step)
        samples = len(ids)
        fetched = self._fetchers[phase].fetch(ids, out)
        took_ns, preprocess_cpu_ns = self._preprocessing.spend(samples if self._phases[phase].preprocesses else 0)
        finished_ns = time.monotonic_ns()
        after = self._accounting.look()
        return BatchTrace(
            slot=slot,
            places=fetched.places,
            started_ns=started_ns,
            finished_ns=finished_ns,
            read_ns=fetched.read_ns,
            decode_ns=fetched.decode_ns + took_ns,
            worker=self._worker,
            samples=samples,
            app_bytes=fetched.app_bytes,
            read_calls=fetched.read_calls,
            sample_hash=sample_hash,
            cpu_ns=after.cpu_ns - before.cpu_ns,
            cpu_wait_ns=after.cpu_wait_ns - before.cpu_wait_ns,
            storage_bytes=after.storage_bytes - before.storage_bytes + fetched.remote_bytes,
            preprocess_cpu_ns=preprocess_cpu_ns,
        )

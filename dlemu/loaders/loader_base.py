"""The interface of a loader: its spec, the batches it delivers, and `BatchMaker`, which makes them in most loaders."""

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

DRAWN_AT_ONCE = 1024  # preprocessing times drawn at a time; fewer would not be evenly spread over the distribution
_NUMBERS = struct.Struct("<14q")  # the numbers of a `BatchTrace`: `slot`, and all fields after `places`
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """How a rank reads several files as streams in turn. With 2 files and block length 3: records AAABBBAAABBB..."""

    files: int  # number of files read at a time
    block_length: int = 1  # number of records to take from a file before the next file's turn
    files_ahead: int = 0  # number of further files that are opened and read before their turn


@dataclass(frozen=True)
class Phase:
    """A stream of batches: training, evaluation, or the ceiling (the emulator's own limit, without storage)."""

    fetch: FetchSpec
    plan: RankPlan
    batch_size: int
    preprocesses: bool = True  # false for the ceiling


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """What every loader is constructed with."""

    rank: int
    phases: Mapping[str, Phase]
    reader: Reader
    interleave: Interleave | None  # how files read as streams take turns; None: samples are read by position
    seed: int

    @property
    def shuffle_window(self) -> int:
        """Number of samples in the window that shuffles streams; 0 if samples are not shuffled."""
        return self.reader.shuffle_size if self.reader.sample_shuffle != "off" else 0

    @property
    def computation_threads(self) -> int:
        """Threads that parse batches, in loaders that do not parse in their readers; at most one per core."""
        return min(self.reader.computation_threads, len(os.sched_getaffinity(0)))

    @property
    def computation_calls(self) -> int:
        """Batches parsed at a time: at least two, so that one is assembled while another is parsed."""
        return max(2, self.computation_threads)

    @property
    def slots(self) -> int:
        """Number of batch buffers (slots) of a rank whose batches come in order; batch k is in buffer k modulo `slots`.

        Each batch that is ready or in the making has a buffer; the trainer has two, for its batch and the next one.
        """
        return max(1, self.reader.read_threads) * self.reader.prefetch_per_worker + 2

    @property
    def slot_bytes(self) -> int:
        return max((phase.fetch.slot_bytes(phase.batch_size) for phase in self.phases.values()), default=0)


class BatchTrace(NamedTuple):
    """How a worker made a batch. The times `started_ns` and `finished_ns` are of CLOCK_MONOTONIC."""

    slot: int  # index of the batch buffer that holds the samples
    places: Sequence[tuple[int, int]] | Places  # (offset, length) of each sample in the slot
    started_ns: int
    finished_ns: int
    read_ns: int  # time spent in reads
    decode_ns: int  # time of decoding and of emulated preprocessing
    worker: int
    samples: int
    app_bytes: int
    read_calls: int
    sample_hash: int  # sum of a 64-bit hash of each sample's number, modulo 2^64
    cpu_ns: int = 0  # CPU time of the worker; 0 if unknown
    cpu_wait_ns: int = 0  # time in which the worker was runnable but waited for a core; 0 if unknown
    storage_bytes: int = 0  # bytes that the kernel read from storage for the worker, not served by the page cache
    preprocess_cpu_ns: int = 0  # the part of `cpu_ns` spent on emulated preprocessing

    def packed(self) -> bytes:
        """Return the trace as bytes for another process; pickling it would take ten times as long."""
        slot, places, *numbers = self
        return _NUMBERS.pack(slot, *numbers) + np.asarray(places, np.int64).tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> BatchTrace:
        slot, *numbers = _NUMBERS.unpack_from(data)
        return cls(slot, np.frombuffer(data, np.int64, offset=_NUMBERS.size).reshape(-1, 2), *numbers)


Cut = Callable[[memoryview, int, int], S]  # returns a view of the sample, given the slot's memory, offset and length


class Samples(Sequence[S]):
    """The samples of a batch. A view of a sample is made only on request, because many trainers use none."""

    def __init__(self, slot: memoryview, places: Sequence[tuple[int, int]] | Places, cut: Cut[S]) -> None:
        self._slot, self._places, self._cut = slot, places, cut

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> S:  # type: ignore[override]  # no slices
        start, size = self._places[index]
        return self._cut(self._slot, int(start), int(size))


class Batch(NamedTuple):
    """A batch for the trainer."""

    data: Any  # of the loader's own type; valid until the trainer takes the batch after the next
    trace: BatchTrace


class TimedBatches(Iterator[Batch]):
    """The batches of an epoch, in order, with a time limit for the next one."""

    @abstractmethod
    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        """Return the next batch, or None if it is not ready within the timeout.

        After None, call again. Only the first batch can't be requested again, because its request begins the epoch.
        Raises StopIteration after the last batch, and DlemuError if a batch can't be made.
        """

    def __next__(self) -> Batch:
        batch = self.take()
        assert batch is not None  # without a timeout, `take` waits
        return batch


class Loader(Protocol):
    """Delivers batches in planned order. It is constructed before its workers exist; `start` starts them.

    A subclass without workers need only implement `__init__` and `batches`.
    """

    def __init__(self, spec: LoaderSpec) -> None: ...

    def start(self) -> None:
        """Start the workers, so that no batch's time includes their start."""
        return

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        """Deliver an epoch's batches, if possible as `TimedBatches`: these need no thread. Raises DlemuError."""

    def explain(self, error: Exception) -> DlemuError | None:
        """Return an error for users if `error` is the framework's exception for a worker that died, else None."""
        return None

    def close(self) -> None:
        """End the workers and wait for them."""
        return


class Preprocessing:
    """Emulates the preprocessing of a worker's samples; each takes a time drawn from `reader.preprocess_time`."""

    def __init__(self, reader: Reader, random: np.random.Generator, threads: int = 1) -> None:
        """`threads` is the number of threads that share the samples of a batch."""
        self._duration = reader.preprocess_time
        self._random = random
        self._threads = threads
        burns = reader.preprocess == "burn" and not is_zero(self._duration)
        self._burners = BurnerThreads(threads) if burns else None
        self._drawn_seconds: NDArray[np.float64] = np.empty(0)

    def spend(self, samples: int) -> tuple[int, int]:
        """Take as long as preprocessing `samples` samples would; return (wall time, CPU time) in ns."""
        if is_zero(self._duration) or not samples:
            return 0, 0
        if len(self._drawn_seconds) < samples:
            drawn = draw_seconds(self._duration, self._random, max(DRAWN_AT_ONCE, samples))
            self._drawn_seconds = np.concatenate([self._drawn_seconds, drawn])
        batch_seconds, self._drawn_seconds = np.split(self._drawn_seconds, [samples])
        seconds = float(batch_seconds.sum())
        cpu_ns = 0
        began_ns = time.monotonic_ns()
        if self._burners is None:
            time.sleep(seconds / self._threads)
        else:
            cpu_ns = self._burners.burn(seconds)
        return time.monotonic_ns() - began_ns, cpu_ns


class BatchMaker:
    """Makes batches in one worker: fetches the planned samples into a buffer, and records times, bytes and CPU time."""

    def __init__(self, spec: LoaderSpec, worker: int) -> None:
        self._worker = worker
        self._phases = spec.phases
        self._plans = {name: PlanAhead(phase.plan, phase.batch_size) for name, phase in spec.phases.items()}
        self._fetchers = {name: Fetcher(phase.fetch) for name, phase in spec.phases.items()}
        self._accounting = ThreadAccounting()
        random = np.random.default_rng([spec.seed, spec.rank, worker])
        self._preprocessing = Preprocessing(spec.reader, random)

    def make(self, phase: str, epoch: int, step: int, slot: int, out: memoryview) -> BatchTrace:
        """Read the batch of `step` into `out`, which is slot `slot`, and return its trace."""
        before = self._accounting.look()
        started_ns = time.monotonic_ns()
        ids, sample_hash = self._plans[phase].batch(epoch, step)
        samples = len(ids)
        fetched = self._fetchers[phase].fetch(ids, out)
        preprocess_ns, preprocess_cpu_ns = self._preprocessing.spend(samples if self._phases[phase].preprocesses else 0)
        finished_ns = time.monotonic_ns()
        after = self._accounting.look()
        return BatchTrace(
            slot=slot,
            places=fetched.places,
            started_ns=started_ns,
            finished_ns=finished_ns,
            read_ns=fetched.read_ns,
            decode_ns=fetched.decode_ns + preprocess_ns,
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

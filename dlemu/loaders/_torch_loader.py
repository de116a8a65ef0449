"""The `pytorch` loader.

Workers write samples into slots (batch buffers in memory shared with the trainer). Through the DataLoader's queue they
send only the batch's trace, as bytes. A batch thus takes no allocation, file descriptor or copy between worker and
trainer. Tensors over a slot are made when they are requested.

With `reader.tensors`, batches are passed as in a training job: workers collate tensors into shared memory, a thread of
each worker sends them, and the trainer maps them. This costs CPU time, which the steps of a recorded job include.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.loaders._direct_queue import DirectQueue, NotInTime, direct_context
from dlemu.loaders._slots import SharedSlots
from dlemu.loaders.loader_base import Batch, BatchMaker, BatchTrace, LoaderSpec, Samples, TimedBatches
from dlemu.loaders.loader_base import Loader as LoaderBase
from dlemu.machine.cgroup_limits import out_of_memory_hint, shared_memory_problem
from dlemu.ranks import die_with_parent
from dlemu.ranks.failure import killed_by
from dlemu.ranks.process_control import ignore

Token = tuple[str, int, int, int]  # the request for a batch: phase, epoch, step, and the slot to read into
_READY_CHECK = ""  # phase of a token that requests no batch, only an answer when the worker is ready
_REMEDY = "lower reader.read_threads, reader.prefetch_size or ranks"


class _Tokens(Sampler[Token]):
    """The DataLoader's sampler: yields a token for each step of the next epoch."""

    def __init__(self, workers: int, slots: int) -> None:
        self.phase = _READY_CHECK
        self.epoch = 0
        self.steps = workers
        # Continues across epochs, so that an epoch's first batches do not overwrite the last ones of the epoch before
        self._slots = itertools.cycle(range(slots))

    def __iter__(self) -> Iterator[Token]:
        return ((self.phase, self.epoch, step, next(self._slots)) for step in range(1, self.steps + 1))

    def __len__(self) -> int:
        return self.steps


# A worker's answer: a batch's packed trace, with tensors if `reader.tensors`; an error; None to a ready check
Answer = bytes | tuple[bytes, list[torch.Tensor]] | DlemuError | None


class _Batches(Dataset[Answer]):
    """The DataLoader's dataset, used in the workers: maps each token to its answer."""

    def __init__(self, spec: LoaderSpec, slots: SharedSlots) -> None:
        self._spec, self._slots = spec, slots
        self._maker: BatchMaker | None = None  # made in the worker
        self._worker = 0
        image = torch.zeros(spec.reader.tensor_bytes, dtype=torch.uint8)
        numbers = [0] * (spec.reader.tensors - 1)  # a sample's other tensors are single numbers
        self._sample: tuple[Any, ...] = (image, *numbers)

    def __getitem__(self, token: Token) -> Answer:
        """Make a batch and return the answer, which may be an error: PyTorch would wrap a raised one in a traceback."""
        phase, epoch, step, slot = token
        try:
            if self._maker is None:  # the worker's first token
                info = get_worker_info()
                self._worker = 0 if info is None else info.id
                self._slots.take_pages()
                self._maker = BatchMaker(self._spec, self._worker)
            if phase == _READY_CHECK:
                return None
            trace = self._maker.make(phase, epoch, step, slot, self._slots.slot(slot))
            return self._collate(trace) if self._spec.reader.tensors else trace.packed()
        except DlemuError as error:
            return error
        except MemoryError:
            return SpaceError(
                f"worker {self._worker} of rank {self._spec.rank} ran out of memory for a sample; lower "
                "reader.read_threads or the number of ranks"
            )
        except Exception:
            return DlemuError(f"worker {self._worker} of rank {self._spec.rank} failed:\n{traceback.format_exc()}")

    def _collate(self, trace: BatchTrace) -> Answer:
        """Collate tensors of the batch's size; return them and the trace, which counts this work as decoding."""
        began_cpu_ns = time.thread_time_ns()
        tensors = default_collate([self._sample] * trace.samples)
        finished_ns = time.monotonic_ns()
        collate_cpu_ns = time.thread_time_ns() - began_cpu_ns
        trace = trace._replace(
            decode_ns=trace.decode_ns + finished_ns - trace.finished_ns,
            cpu_ns=trace.cpu_ns + collate_cpu_ns if trace.cpu_ns else 0,
            finished_ns=finished_ns,
        )
        return trace.packed(), tensors


def _identity(item: Any) -> Any:
    return item


def _tensor(slot: memoryview, start: int, size: int) -> torch.Tensor:
    return torch.frombuffer(slot, dtype=torch.uint8, count=size, offset=start)


def _init_worker(nice: int, rank_process: int, worker: int) -> None:
    """Lower this worker's priority, ignore Ctrl-C (the rank handles it), and let it die with the rank.

    A worker that a fork server started dies with the server, which ends with the rank. Worker 0 has a higher priority
    than the others, because the rank waits for its batch, the first of each epoch, while all workers wake up, often
    more than there are cores. In a real job each rank has a core, so this wait must not look like slow storage.
    """
    has_server = multiprocessing.get_start_method(allow_none=True) == "forkserver"
    die_with_parent(os.getppid() if has_server else rank_process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice if worker else nice // 4)
    gc.freeze()  # objects inherited from the rank stay on pages shared with it


class _Epoch(TimedBatches):
    """An epoch's batches. After a timeout of the `DirectQueue`, PyTorch's iterator can be called again."""

    def __init__(self, loader: DataLoader[Answer], make_batch: Callable[[Answer], Batch]) -> None:
        self._loader, self._make_batch = loader, make_batch
        self._next: Callable[[], Answer] = self._begin

    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        results: DirectQueue = self._loader._iterator._data_queue  # type: ignore[union-attr]  # from `start` on
        if timeout_seconds is not None:
            results.until_ns = time.monotonic_ns() + round(timeout_seconds * 1e9)
        try:
            return self._make_batch(self._next())
        except NotInTime:
            return None
        finally:
            results.until_ns = None

    def _begin(self) -> Answer:
        iterator = iter(self._loader)
        self._next = iterator.__next__
        # PyTorch's `__next__` runs `_next_data` under a profiler, which takes a tenth of a small batch's CPU time. Call
        # `_next_data` itself, unless another module has replaced `__next__`, as the hook of `dlemu record` does
        if self._next.__module__ == DataLoader.__module__:
            self._next = getattr(iterator, "_next_data", self._next)
        return self._next()


class Loader(LoaderBase):
    """The `pytorch` loader. Batches are uint8 tensors over the shared slots: one (B, resize), or `Samples`."""

    def __init__(self, spec: LoaderSpec) -> None:
        reader = spec.reader
        self._spec, self._reader = spec, reader
        self._slots = SharedSlots(spec.slots, spec.slot_bytes)
        self._tokens = _Tokens(max(1, reader.read_threads), spec.slots)
        if reader.pin_memory and not torch.cuda.is_available():
            raise UserError("reader.pin_memory=true needs a CUDA device and PyTorch sees none; leave it out")
        workers: dict[str, Any] = {}
        self._is_direct = reader.read_threads > 0 and not reader.tensors  # a queue of tensors must carry descriptors
        if reader.read_threads > 0:
            start_method = reader.multiprocessing_context
            workers = {
                "prefetch_factor": reader.prefetch_per_worker,
                "persistent_workers": True,
                "multiprocessing_context": direct_context(start_method) if self._is_direct else start_method,
                "worker_init_fn": partial(_init_worker, reader.nice, os.getpid()),
            }
        # PyTorch warns of more workers than cores; they mostly wait for storage, and the workload sets their number
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        self._loader: DataLoader[Answer] = DataLoader(
            _Batches(spec, self._slots),
            batch_size=None,
            sampler=self._tokens,
            num_workers=reader.read_threads,
            collate_fn=_identity,
            **workers,
        )

    def start(self) -> None:
        """Start the worker processes and wait until each is ready."""
        torch.set_num_threads(1)  # otherwise, PyTorch would start idle OpenMP threads in each rank
        try:
            for answer in self._loader:
                if isinstance(answer, DlemuError):
                    raise answer
        except BaseException as error:
            # Discard PyTorch's half-started workers without the traceback that it would print about missing attributes
            hook = sys.unraisablehook
            sys.unraisablehook = lambda _: None
            try:
                traceback.clear_frames(error.__traceback__)
            finally:
                sys.unraisablehook = hook
            if not isinstance(error, OSError):
                raise
            advice = "lower reader.read_threads or the number of ranks, or raise the limits (`ulimit -n`, `ulimit -u`)"
            if problem := shared_memory_problem():
                advice = f"{problem}, or set reader.data_loader=threads, which needs no shared memory"
            workers = f"rank {self._spec.rank} could not start {self._reader.read_threads} workers"
            raise SpaceError(f"{workers}: {error.strerror}; {advice}") from None

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        self._tokens.phase = phase
        self._tokens.epoch = epoch
        self._tokens.steps = steps
        make_batch = partial(self._make_batch, phase)
        if self._is_direct and not self._reader.pin_memory:
            return _Epoch(self._loader, make_batch)
        return map(make_batch, self._loader)  # pinning copies, so the trainer takes these batches in a thread

    def _make_batch(self, phase: str, answer: Answer) -> Batch:
        if isinstance(answer, DlemuError):
            raise answer
        assert answer is not None  # only `start` sends tokens that request no batch
        packed, tensors = answer if isinstance(answer, tuple) else (answer, None)
        trace = BatchTrace.unpacked(packed)
        data = tensors or self._tensors(phase, trace)
        if self._reader.pin_memory:
            data = data.pin_memory() if isinstance(data, torch.Tensor) else [tensor.pin_memory() for tensor in data]
        return Batch(data, trace)

    def _tensors(self, phase: str, trace: BatchTrace) -> Any:
        """Return the samples as tensors over the slot."""
        slot = self._slots.slot(trace.slot)
        sample_bytes = self._spec.phases[phase].fetch.resize_bytes
        if sample_bytes:
            values = torch.frombuffer(slot, dtype=torch.uint8, count=trace.samples * sample_bytes)
            return values.view(trace.samples, sample_bytes)
        return Samples(slot, trace.places, _tensor)

    def explain(self, error: Exception) -> DlemuError | None:
        """Explain PyTorch's RuntimeError for a dead worker, `DataLoader worker...`."""
        if not (isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")):
            return None
        for number, worker in enumerate(getattr(self._loader._iterator, "_workers", [])):
            if (worker.exitcode or 0) < 0:
                name = f"worker {number} of rank {self._spec.rank}"
                return DlemuError(killed_by(name, worker.pid, -worker.exitcode, _REMEDY))
        died = f"a worker of rank {self._spec.rank} died: {str(error).rstrip('. ')}"
        return DlemuError(f"{died}; {out_of_memory_hint()}, or {_REMEDY}")

    def close(self) -> None:
        """Stop the workers and free the slots."""
        iterator = self._loader._iterator
        if iterator is not None and self._reader.read_threads > 0:
            signal.signal(signal.SIGCHLD, ignore)  # from here on, the end of a worker is no failure
            iterator._shutdown_workers()  # type: ignore[attr-defined]  # PyTorch has no public way to end them
        self._slots.close()

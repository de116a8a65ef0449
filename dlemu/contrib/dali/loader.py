"""The `dali` loader. Each epoch has a pipeline of its own, because a DALI reader gets the order of its files once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from datagen.fetch import Fetcher
from datagen.formats.format_base import damaged, own_damaged
from datagen.layout import NO_PLACES
from dlemu.comm.thread_accounting import process_storage_bytes, thread_cpu_ns
from dlemu.contrib.dali import graph
from dlemu.contrib.dali.files import Files, Unread
from dlemu.contrib.dali.records import Records
from dlemu.contrib.dali.settings import num_threads
from dlemu.extend import AlignedBuffer, Batch, BatchTrace, DatasetError, DlemuError, LoaderSpec, Phase
from dlemu.loaders._process import call_niced
from dlemu.loaders.loader_base import Preprocessing, Spent


class Loader:
    """The `dali` loader. A batch is a uint8 array for each sample, or one (B, resize), over DALI's memory.

    DALI does not report how long its reads take, nor how many it makes. So a batch's trace holds: `started_ns`, when it
    was requested (the first: when the epoch began); `finished_ns`, when it was delivered and preprocessed; `decode_ns`,
    the CPU time of DALI's threads meanwhile, where they decode pictures; `read_ns`, the rest; `read_calls`, 0.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        self._pipeline: Any = None
        self._feed: graph.Feed | None = None
        random = np.random.default_rng([spec.seed, spec.rank])
        most = max((phase.batch_size for phase in spec.phases.values()), default=1)
        threads = min(most, num_threads(spec))
        self._preprocessing = Preprocessing(spec.preprocess_time, spec.preprocess, random, threads)

    def start(self) -> None:
        """Have DALI load its operators, which it does at their first use, before any epoch."""
        for phase in self._spec.phases.values():
            if phase.fetch.reads_nothing:
                graph.build(self._spec, phase, Unread(phase)).run()

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        """Deliver the batches of one epoch."""
        if not steps:
            return
        which = self._spec.phases[phase]
        begun_ns = time.monotonic_ns()
        self.close()
        feed: graph.Feed = Unread(which)
        if not which.fetch.reads_nothing:
            kind = Files if self._spec.interleave is None else Records
            feed = kind(self._spec, which, epoch, steps)
        self._feed = feed
        self._pipeline = self._guarded(which, feed, 1, lambda: graph.build(self._spec, which, feed))
        for step in range(1, steps + 1):
            yield self._batch(which, feed, step, begun_ns if step == 1 else time.monotonic_ns())

    def _batch(self, phase: Phase, feed: graph.Feed, step: int, started_ns: int) -> Batch:
        before, computed_ns = process_storage_bytes(), self._computed_ns(phase)
        shipped, read = self._guarded(phase, feed, step, self._pipeline.run)
        took_ns = time.monotonic_ns() - started_ns
        sample_hash, app_bytes = feed.account(step, read)
        decode_ns = min(took_ns, self._computed_ns(phase) - computed_ns)
        spent = self._preprocessing.spend(phase.batch_size) if phase.preprocesses else Spent()
        trace = BatchTrace(
            slot=0,
            places=NO_PLACES,
            started_ns=started_ns,
            read_ns=took_ns - decode_ns,
            decode_ns=decode_ns + spent.took_ns,
            finished_ns=time.monotonic_ns(),
            worker=0,
            samples=phase.batch_size,
            app_bytes=app_bytes,
            read_calls=0,
            sample_hash=sample_hash,
            storage_bytes=process_storage_bytes() - before,
            preprocess_cpu_ns=spent.cpu_ns,
        )
        if phase.fetch.resize_bytes:
            return Batch(np.asarray(shipped.as_tensor()), trace)
        return Batch([np.asarray(sample) for sample in shipped], trace)

    def _computed_ns(self, phase: Phase) -> int:
        """Return the CPU time of DALI's decoding threads so far, averaged over the threads; 0 if nothing is decoded."""
        if phase.fetch.decode == "none":
            return 0
        # DALI's decoding threads have such names.
        cpu_ns = thread_cpu_ns(lambda name: name.startswith("[DALI][TP") and name.endswith("Exec"))
        return cpu_ns // num_threads(self._spec)

    def _guarded(self, phase: Phase, feed: graph.Feed, step: int, call: Callable[[], Any]) -> Any:
        """Call into DALI; raises DatasetError with the file's name where DALI reports that it can't read a file."""
        try:
            return call_niced(call, self._spec.nice) if step == 1 else call()
        except RuntimeError as error:
            raise self._fault(phase, feed.suspects(step), str(error)) from None

    def _fault(self, phase: Phase, suspects: list[int], text: str) -> DlemuError:
        """Return the error for users: it names the file, which DALI's own text names only among much else."""
        lines = text.partition("encountered:")[2].split("\n") or [text]  # one of them states the cause
        line = next((line for line in lines if line.strip()), text.strip())
        layout, reason = phase.fetch.layout, line.rpartition(" failed: ")[2].strip()
        paths = {sample: layout.path(layout.locate(sample)[0]) for sample in suspects}
        named = [sample for sample, path in paths.items() if path in text]
        fetcher, buffer = Fetcher(phase.fetch), AlignedBuffer().view(phase.fetch.slot_bytes(1))
        for sample in named or suspects:
            try:
                fetcher.fetch([sample], buffer)
            except DatasetError as fault:
                return fault
        if named:
            error = damaged(paths[named[0]], f"DALI can't read it ({reason})")
            return own_damaged(error) if phase.fetch.dataset.source == "folder" else error
        return DlemuError(f"DALI could not make a batch of files in {layout.folder}: {reason}")

    def explain(self, error: Exception) -> DlemuError | None:
        """Threads do not die by themselves."""
        return None

    def close(self) -> None:
        """End the pipeline and its threads."""
        self._pipeline = None  # before the feed, whose files in memory it may still be reading
        self._feed = None

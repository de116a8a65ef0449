"""The `dali` loader. It builds a pipeline for each epoch, because a DALI reader gets the order of files only once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dlemu.contrib.dali.pipeline import Feed, FileFeed, build
from dlemu.extend import AlignedBuffer, DatasetError, DlemuError, fetch, loader_base, thread_accounting
from dlemu.extend import layout as dataset_layout


class Loader(loader_base.Loader):
    """The `dali` loader. A batch is a uint8 array for each sample, or one array (batch, resize), in DALI's memory.

    DALI reports neither the duration nor the number of its reads. So in the trace of a batch,
    - `started_ns`: when it was requested (the first: when the epoch began); `finished_ns`: when it was preprocessed
    - `decode_ns`: the mean CPU time of DALI's threads until it was delivered, if they decode, plus the preprocessing
    - `read_ns`: the remaining time until it was delivered
    """

    def __init__(self, spec: loader_base.LoaderSpec) -> None:
        self._spec, self._threads = spec, max(1, spec.reader.read_threads)
        self._pipeline: Any = None
        self._feed: Feed | None = None
        random = np.random.default_rng([spec.seed, spec.rank])
        threads = min(self._threads, max((phase.batch_size for phase in spec.phases.values()), default=1))
        self._preprocessing = loader_base.Preprocessing(spec.reader, random, threads)

    def start(self) -> None:
        """Run a pipeline without files: DALI loads its operators on first use, which must not delay an epoch."""
        for phase in self._spec.phases.values():
            if phase.fetch.reads_nothing:
                build(Feed(self._spec, phase), self._threads).run()

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[loader_base.Batch]:
        if not steps:
            return
        phase_spec = self._spec.phases[phase]
        epoch_began_ns = time.monotonic_ns()
        self.close()
        self._storage_bytes = thread_accounting.process_storage_bytes()
        reads_nothing = phase_spec.fetch.reads_nothing
        feed = Feed(self._spec, phase_spec) if reads_nothing else FileFeed(self._spec, phase_spec, epoch, steps)
        self._feed = feed
        self._pipeline = self._run_dali(feed, 1, lambda: build(feed, self._threads))
        for step in range(1, steps + 1):
            yield self._batch(feed, step, epoch_began_ns if step == 1 else time.monotonic_ns())

    def _batch(self, feed: Feed, step: int, started_ns: int) -> loader_base.Batch:
        phase = feed.phase
        storage_before, decode_cpu_before = self._storage_bytes, self._decode_cpu_ns(phase)
        delivered, read = self._run_dali(feed, step, self._pipeline.run)
        run_ns = time.monotonic_ns() - started_ns
        self._storage_bytes = thread_accounting.process_storage_bytes()  # DALI reads on while the trainer computes
        sample_hash, app_bytes = feed.check(step, read)
        decode_ns = min(run_ns, self._decode_cpu_ns(phase) - decode_cpu_before)
        preprocess_ns, preprocess_cpu_ns = self._preprocessing.spend(phase.batch_size if phase.preprocesses else 0)
        trace = loader_base.BatchTrace(
            slot=0,
            places=dataset_layout.NO_PLACES,
            started_ns=started_ns,
            read_ns=run_ns - decode_ns,
            decode_ns=decode_ns + preprocess_ns,
            finished_ns=time.monotonic_ns(),
            worker=0,
            samples=phase.batch_size,
            app_bytes=app_bytes,
            read_calls=0,
            sample_hash=sample_hash,
            storage_bytes=self._storage_bytes - storage_before,
            preprocess_cpu_ns=preprocess_cpu_ns,
        )
        data = np.asarray(delivered.as_tensor()) if phase.fetch.resize_bytes else list(map(np.asarray, delivered))
        return loader_base.Batch(data, trace)

    def _decode_cpu_ns(self, phase: loader_base.Phase) -> int:
        """Return the mean CPU time so far of DALI's decoding threads, named [DALI][TP...Exec; 0 without decoding."""
        if phase.fetch.decode == "none":
            return 0
        cpu_ns = thread_accounting.thread_cpu_ns(lambda name: name.startswith("[DALI][TP") and name.endswith("Exec"))
        return cpu_ns // self._threads

    def _run_dali(self, feed: Feed, step: int, call: Callable[[], Any]) -> Any:
        """Return the result of `call`, in step 1 on a niced thread; raises DatasetError, which names a faulty file."""
        try:
            if step > 1:
                return call()
            # DALI starts its threads in the first call, and they inherit the calling thread's niceness.
            with ThreadPoolExecutor(1, initializer=os.nice, initargs=(self._spec.reader.nice,)) as niced_thread:
                return niced_thread.submit(call).result()
        except RuntimeError as error:
            raise _error_for(feed.phase.fetch, feed.suspects(step), str(error)) from None

    def close(self) -> None:
        """End the pipeline and its threads."""
        self._pipeline = self._feed = None  # the pipeline first, as it may still read the feed's files in memory


def _error_for(spec: fetch.FetchSpec, suspects: list[int], message: str) -> DlemuError:
    """Return the error for a message of DALI; it names the faulty file, found by reading the suspects without DALI."""
    line = message.partition("encountered:")[2].strip().partition("\n")[0] or message
    reason = line.rpartition(" failed: ")[2].strip()
    paths = {sample: spec.layout.path(spec.layout.locate(sample)[0]) for sample in suspects}
    in_message = [sample for sample, path in paths.items() if path in message]
    fetcher, buffer = fetch.Fetcher(spec), AlignedBuffer().view(spec.slot_bytes(1))
    for sample in in_message or suspects:
        try:
            fetcher.fetch([sample], buffer)
        except DatasetError as error:
            return error
    if in_message:
        return DatasetError(f"{paths[in_message[0]]}: DALI can't read it ({reason}): restore it, or move it away")
    return DlemuError(f"DALI could not make a batch of files in {spec.layout.folder}: {reason}")

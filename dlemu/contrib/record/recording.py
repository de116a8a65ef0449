"""Computes the recording of a job from the hook's rows: compute times, waits and reads in its steady training."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import msgspec
import numpy as np

from dlemu.contrib.record.answer import MAX_CORE_WAIT_PERCENT, Loading, Parts, Recording, Saves, Spread
from dlemu.contrib.record.loops import Loop, training_loop
from dlemu.contrib.record.rows import Fetch, Pass, ProcessRows
from dlemu.extend import UserError

MIN_STEPS = 20
_MIN_READY = 8  # With fewer steps whose batch was ready, the compute time is taken from all steps.
_EQUAL_SHARE = 0.95  # Batches have one size if this share has the median size: the last of a pass may be smaller.
_DEVICE_READS_SHARE = 0.1  # A larger share of batches with device reads but no read calls shows mapped files.
_MIN_CALLS_PER_BATCH = 0.01  # A job with no more read calls than this does not read its samples by calls.
_MIN_SAMPLE_BYTES = 512  # If no data file was seen, calls that read less per sample read no samples (pipes, locks).
_OVERHEAD_BYTES = 4096  # allowance per batch for bytes that the hook and the loader's queue read
_CODE_BYTES = 16 << 20  # allowance for bytes from devices that are no data: pages of libraries on first use


@dataclass(frozen=True)
class _Reader:
    """A process that loads batches of a trainer: a worker, or the trainer itself."""

    loop: Loop
    is_trainer: bool
    rows: ProcessRows
    training: Sequence[Fetch]  # the batches that it loaded for the training, without those for evaluations
    measured: Sequence[Fetch]  # those of `training` that have samples and were loaded while the loop was measured


def analyse(processes: Sequence[ProcessRows], skip: int) -> Recording:
    """Return the recording of a job without its first `skip` batches; raises UserError if no training is left."""
    processes, item_notes = _with_items_as_samples(processes)
    readers = _readers(processes, skip)
    _check_training(processes, readers, skip)
    loops = [*{id(reader.loop): reader.loop for reader in readers}.values()]
    longest = max(loops, key=lambda loop: len(loop.wait))  # stands for all ranks where they should be alike
    trainers = [rows for rows in processes if rows.passes or rows.steps]
    ranks = max(len(loops), *(rows.process.ranks for rows in trainers))
    fetches = [fetch for reader in readers for fetch in reader.measured]
    training_fetches = [fetch for reader in readers for fetch in reader.training]  # measured or not
    batch_samples = np.array([samples_of(fetch) for fetch in fetches], float)
    samples = float(batch_samples.sum())
    mean_batch = float(batch_samples.mean())
    batch_size = int(np.median(batch_samples))  # of the recipe's batches, which all have one size
    size_notes = []
    if (batch_samples == batch_size).mean() < _EQUAL_SHARE:
        batch_size = max(1, round(mean_batch))
        sizes = f"its batches have {batch_samples.min():.0f} to {batch_samples.max():.0f} samples"
        size_notes.append(f"{sizes}: those of the recipe all have {batch_size}, the mean")
    # The trainers' steps: their compute time is taken from those whose batch was ready, if there are enough of them.
    step_cpu = np.concatenate([loop.group_means(np.minimum(loop.cpu, loop.computation)) for loop in loops])
    ready = np.concatenate([loop.ready() for loop in loops])
    ready_waits = np.concatenate([loop.group_means(loop.wait) for loop in loops])[ready]
    compute_times = np.concatenate([loop.group_means(loop.computation) for loop in loops])
    few_ready = int(ready.sum()) < _MIN_READY
    parts = _parts(loops, fetches)
    # What the batches took: CPU time, and bytes from files and devices.
    user_cpu = np.array([max(0, cpu_ns(fetch) - fetch.system_cpu) for fetch in fetches], float) / 1e9
    worker_seconds, worker_fetches = worker_cpu((reader.measured, reader.is_trainer) for reader in readers)
    mean_cpu = float(user_cpu.sum() / batch_samples.sum())
    # The mean of a batch of n samples varies less than the time of a sample, by the square root of n.
    sample_cpu = np.maximum(mean_cpu + (user_cpu / batch_samples - mean_cpu) * np.sqrt(batch_samples), 0)
    read_bytes = _bytes_read(processes, fetches, samples)
    devices_read = sum(fetch.device > 0 for fetch in fetches) > _DEVICE_READS_SHARE * len(fetches)
    return Recording(
        ranks=ranks,
        loaders=1 if len(loops) == 1 else ranks,
        loading=_loading(longest.passes[-1], fetches, samples),
        batch_size=batch_size,
        steps=len(longest.wait),
        samples_per_second=sum(mean_batch * len(loop.wait) / float((loop.wait + loop.body).sum()) for loop in loops),
        computation=Spread.of(compute_times if few_ready else compute_times[ready]),
        step_cpu=Spread.of(step_cpu),
        gradient_accumulation_steps=longest.accumulation,
        synchronous=longest.is_synchronous,
        hand_over=float(np.median(ready_waits)) if len(ready_waits) else 0.0,
        parts=parts,
        preprocess=Spread.of(sample_cpu).scaled(mean_cpu),
        worker_cpu_per_sample=worker_seconds / max(1, sum(map(samples_of, worker_fetches))),
        read_bytes_per_sample=read_bytes / samples,
        calls_per_sample=sum(max(fetch.calls, 0) for fetch in fetches) / samples,
        device_bytes_per_sample=sum(max(fetch.device, 0) for fetch in fetches) / samples,
        opens_per_sample=sum(fetch.opens for fetch in fetches) / samples,
        mapped=2 * sum(fetch.map_bytes for fetch in fetches) > read_bytes,
        maps_files=any(fetch.mapped for fetch in training_fetches) or (devices_read and not read_bytes),
        samples_before=sum(samples_of(fetch) for fetch in training_fetches if fetch.t0 < longest.begin_ns),
        shipped_bytes_per_sample=sum(fetch.bytes for fetch in fetches) / samples,
        arrays=int(np.median([fetch.arrays for fetch in fetches])),
        coverage_percent=_coverage(readers),
        saves=_saves(loops),
        problems=tuple(_problems(trainers, loops, fetches)),
        notes=(*_notes(ranks, loops, parts, few_ready=few_ready and not loops[0].by_device), *item_notes, *size_notes),
    )


def files_of(processes: Sequence[ProcessRows], skip: int) -> list[str]:
    """Return the paths of the files that the samples came from, sorted."""
    paths = set[str]()
    for reader in _readers(processes, skip):
        training = {path for fetch in reader.training for path in fetch.files}
        # The hook records a path once per process. So if an evaluation opened a file first, its folder decides.
        folders = set(map(os.path.dirname, training))
        opened = {path for fetch in reader.rows.fetches if not fetch.maps for path in fetch.files}
        paths |= training | {path for path in opened if not training or os.path.dirname(path) in folders}
    return sorted(paths)


def _with_items_as_samples(processes: Sequence[ProcessRows]) -> tuple[Sequence[ProcessRows], Sequence[str]]:
    """Return the rows, and notes: if a dataset's items are batches that are read in one piece, each is now one sample.

    Example: an item of 2048 rows of a table is 1 sample if 30 calls read it, and 2048 samples if 2048 calls do.
    """
    fetches = [fetch for rows in processes for fetch in rows.fetches if 0 < (fetch.items or 0) < (fetch.n or 0)]
    samples = sum(fetch.n or 0 for fetch in fetches)
    if 2 * sum(max(fetch.calls, fetch.maps) for fetch in fetches) >= samples:
        return processes, ()
    item_samples = round(samples / sum(fetch.items or 0 for fetch in fetches))
    note = f"its dataset makes batches of {item_samples} samples by itself, read as one piece: each is a sample here"
    rows_by_item = [
        replace(rows, fetches=[msgspec.structs.replace(fetch, n=fetch.items or fetch.n) for fetch in rows.fetches])
        for rows in processes
    ]
    return rows_by_item, (note,)


def _readers(processes: Sequence[ProcessRows], skip: int) -> list[_Reader]:
    """Return the processes that loaded batches for each trainer: its workers, or the trainer itself without workers."""
    rows_of_pid = {rows.process.pid: rows for rows in processes}
    readers = []
    for trainer in processes:
        loop = training_loop(trainer, skip)
        if loop is None:
            continue
        passes = {training_pass.number for training_pass in loop.passes}
        batches = [batch for batch in trainer.batches if batch.number in passes]
        worker_pids = {pid for batch in batches for pid in batch.pids} & rows_of_pid.keys()
        for rows in [rows_of_pid[pid] for pid in sorted(worker_pids)] or [trainer]:
            training = rows.fetches
            if rows is trainer:  # It may also load for evaluations: keep what it loaded during waits of the training.
                batches.sort(key=attrgetter("t0", "t1"))
                training = []
                for fetch in rows.fetches:
                    index = bisect.bisect(batches, fetch.t0, key=attrgetter("t0")) - 1
                    if index >= 0 and fetch.t1 <= batches[index].t1:
                        training.append(fetch)
            measured = [fetch for fetch in training if loop.begin_ns <= fetch.t0 <= loop.end_ns and samples_of(fetch)]
            readers.append(_Reader(loop, rows is trainer, rows, training, measured))
    return readers


def _check_training(processes: Sequence[ProcessRows], readers: Sequence[_Reader], skip: int) -> None:
    """Raise UserError for a job without rows, without a measured step of a training, or without loaded batches."""
    if not processes:
        raise UserError(
            "the job left no rows: wanted a script that takes batches from a PyTorch DataLoader (TensorFlow's "
            "tf.data and JAX can't be recorded). Where a launcher drops the environment (containers, ssh, python -I), "
            "write `import dlemu.contrib.record.recorder` as the first line of the script, and then: "
            "dlemu record --rows FOLDER"
        )
    batches = sum(len(rows.batches) for rows in processes)
    steps = sum(len(rows.steps) for rows in processes)
    if not readers:
        raise UserError(
            f"{batches} batches of a PyTorch DataLoader and {steps} steps of an optimizer were seen, but no step on a "
            f"batch after the first {skip}, which are left out as warm-up: record more, pass --skip N, or wrap reads "
            "of your own in a Dataset and a DataLoader (optimizers of JAX, TensorFlow and DeepSpeed can't be recorded)"
        )
    if not any(reader.measured for reader in readers):
        raise UserError(
            "the trainer's batches were seen, but not how they were made: wanted PyTorch's own fetchers in its "
            "workers; where they don't inherit the environment, write `import dlemu.contrib.record.recorder` as the "
            "script's first line"
        )


def samples_of(fetch: Fetch) -> int:
    """Return a batch's number of samples; if no array shows it, the number of opened files, or 1 if it only read."""
    return fetch.n if fetch.n is not None else fetch.opens or int(fetch.read > 0 or fetch.map_bytes > 0)


def cpu_ns(fetch: Fetch) -> int:
    """Return the CPU time of loading a batch, ns: its thread's or, if longer, its process's, at most one core."""
    return max(fetch.cpu, min(fetch.process_cpu_in, fetch.t1 - fetch.t0))


def worker_cpu(processes: Iterable[tuple[Sequence[Fetch], bool]]) -> tuple[float, list[Fetch]]:
    """Return the CPU seconds in which processes loaded batches, and these batches.

    Each process is (its batches, whether it is a trainer). A worker only loads, so all its CPU time after the first
    batch counts; a trainer's counts only while it loads.
    """
    cpu_seconds, batches = 0.0, list[Fetch]()
    for fetches, is_trainer in processes:
        if is_trainer or len(fetches) < 2:
            cpu_seconds += sum(map(cpu_ns, fetches)) / 1e9
            batches += fetches
        else:
            cpu_seconds += (fetches[-1].process_cpu - fetches[0].process_cpu) / 1e9
            batches += fetches[1:]
    return cpu_seconds, batches


def _loading(loader: Pass, fetches: Sequence[Fetch], samples: float) -> Loading:
    """Return the settings of a DataLoader, with its dataset's length in samples, of which an item may hold several."""
    items = sum(fetch.items or samples_of(fetch) for fetch in fetches)
    return Loading(
        iterable=loader.iterable,
        workers=loader.workers,
        prefetch=loader.prefetch or 2,
        start_method=loader.method,
        order=loader.order,
        samples=None if loader.samples is None else round(loader.samples * samples / items),
    )


def _parts(loops: Sequence[Loop], fetches: Sequence[Fetch]) -> Parts:
    """Return where the time of a mean step went.

    A wait for a batch that was not ready, up to the mean time to load one, is split as the workers spent that time:
    blocked, on a core, or waiting for one. The rest is the hand-over to the trainer. Example: loading takes 8 ms, 6
    blocked and 2 on a core, and the trainer waits 10 ms -> 6 ms storage, 2 ms preprocessing, 2 ms hand-over.
    """
    wait = np.concatenate([loop.group_means(loop.wait - loop.wait_queue) for loop in loops])
    body = np.concatenate([loop.group_means(loop.body - loop.queue) for loop in loops])
    trainer_queue = float(np.concatenate([loop.queue + loop.wait_queue for loop in loops]).mean())
    ready = np.concatenate([loop.ready() for loop in loops])
    load_ns = sum(fetch.t1 - fetch.t0 for fetch in fetches)
    on_core_ns = min(sum(map(cpu_ns, fetches)), load_ns)
    queue_ns = min(sum(max(fetch.queue, 0) for fetch in fetches), load_ns - on_core_ns)
    if not loops[0].passes[0].workers:  # The trainer itself loads, so `trainer_queue` includes its queueing.
        load_ns -= queue_ns
        queue_ns = 0
    wait_for_load = float(np.minimum(wait[~ready], load_ns / len(fetches) / 1e9).sum()) / len(wait)
    wait_per_ns = wait_for_load / max(1, load_ns)  # seconds of a mean step for each ns of loading
    return Parts(
        computing=float(body.mean()),
        storage=wait_per_ns * (load_ns - on_core_ns - queue_ns),
        cpu_queue=wait_per_ns * queue_ns + trainer_queue,
        preprocessing=wait_per_ns * on_core_ns,
        hand_over=float(wait.mean()) - wait_per_ns * load_ns,
    )


def _bytes_read(processes: Sequence[ProcessRows], fetches: Sequence[Fetch], samples: float) -> int:
    """Return the bytes read for all samples, by read calls and from mapped arrays; 0 if the calls read no samples."""
    read_bytes = sum(max(fetch.read, 0) + fetch.map_bytes for fetch in fetches)
    if any(fetch.maps for fetch in fetches):
        return read_bytes
    first_fetches = {id(rows.fetches[0]) for rows in processes if rows.fetches}  # These read libraries, too.
    later = [fetch for fetch in fetches if id(fetch) not in first_fetches] or fetches
    if sum(abs(fetch.calls) for fetch in later) <= _MIN_CALLS_PER_BATCH * len(later):  # -1 (unknown) counts as 1
        return 0
    has_files = any(fetch.files or fetch.opens for rows in processes for fetch in rows.fetches)
    return read_bytes if has_files or read_bytes / samples >= _MIN_SAMPLE_BYTES else 0


def _coverage(readers: Sequence[_Reader]) -> float:
    """Return the share of the workers' bytes that the hook saw, %: of read calls or of devices, if that is smaller."""
    seen_read = seen_device = total_read = total_device = 0
    for reader in readers:
        fetches = reader.measured[1:]
        if reader.is_trainer or not fetches or fetches[0].process_read < 0:
            continue  # A trainer reads more than batches; a negative total: the kernel reports none.
        first = reader.measured[0]  # The process's totals count from this batch's end.
        read = sum(max(fetch.read, fetch.map_bytes) for fetch in fetches)
        device = sum(max(fetch.device, 0) for fetch in fetches)
        process_read = fetches[-1].process_read - first.process_read - _OVERHEAD_BYTES * len(fetches)
        seen_read += read
        seen_device += device
        total_read += max(read, process_read)
        total_device += max(device, fetches[-1].process_device - first.process_device)
    total_device = max(seen_device, total_device - _CODE_BYTES)
    shares = [100 * seen / total for seen, total in ((seen_read, total_read), (seen_device, total_device)) if total > 0]
    return min(shares, default=100.0)


def _saves(loops: Sequence[Loop]) -> Saves | None:
    """Return the checkpoints that all ranks saved, at the interval of the first rank that saved any; None without."""
    saving = [loop for loop in loops if loop.rows.saves]
    if not saving:
        return None
    rows = saving[0].rows
    training = {training_pass.number for training_pass in saving[0].passes}
    batch_times = sorted(batch.t0 for batch in rows.batches if batch.number in training)
    end_times = sorted(pass_end.t0 for pass_end in rows.pass_ends if pass_end.number in training)
    # Batches before a checkpoint -> passes before it: files saved after the same batch are one checkpoint.
    passes_before = {bisect.bisect(batch_times, save.t0): bisect.bisect(end_times, save.t0) for save in rows.saves}
    pairs = itertools.pairwise(sorted(passes_before))
    gaps = [later - earlier for earlier, later in pairs if passes_before[earlier] == passes_before[later]]
    return Saves(
        bytes=round(sum(save.bytes for loop in saving for save in loop.rows.saves) / len(passes_before)),
        batches_between=round(sum(gaps) / len(gaps)) if gaps else None,
    )


def _problems(trainers: Sequence[ProcessRows], loops: Sequence[Loop], fetches: Sequence[Fetch]) -> Iterator[str]:
    first = loops[0]
    loader_settings = attrgetter("iterable", "workers", "prefetch", "batch", "samples", "order")
    if len(set(map(loader_settings, first.passes))) > 1 or first.interleaved:
        yield "several loaders feed the training, but a workload has one"
    if any(loop.reads_ahead and not loop.by_device for loop in loops):
        yield "another thread than the trainer's takes the batches: without a GPU's events, a step's time is not known"
    ranks = max(rows.process.ranks for rows in trainers)
    # A launcher's ranks may run on several hosts, whose clocks differ.
    if len(trainers) > ranks and max(loop.begin_ns for loop in loops) > min(loop.end_ns for loop in loops):
        yield "its trainers ran one after another: these are rows of several runs; record into an empty folder"
    if len(trainers) < ranks:
        yield f"{len(trainers)} of {ranks} ranks were recorded: the others run on other hosts"
    if len(first.wait) < MIN_STEPS:
        yield f"{len(first.wait)} batches counted: wanted {MIN_STEPS} or more"
    if min(fetch.device for fetch in fetches) < 0:
        yield "this kernel does not report what processes read (/proc/self/io)"


def _notes(ranks: int, loops: Sequence[Loop], parts: Parts, *, few_ready: bool) -> Iterator[str]:
    if parts.core_wait_percent > MAX_CORE_WAIT_PERCENT:
        share = f"{parts.core_wait_percent:.0f} % of a step"
        yield f"{share} is waiting for a core: other load on this host affects the recording"
    if few_ready:
        yield "few batches were ready when the trainer requested them: the compute time is taken from all steps"
    cpu = sum(float(loop.cpu.sum()) for loop in loops)
    computation = sum(float(loop.computation.sum()) for loop in loops)
    if cpu > 1.2 * computation:  # a smaller excess over one core may be an error of the kernel's accounting
        yield f"the trainer uses {cpu / computation:.1f} cores; a replay uses one at most"
    if len(loops) == 1 < ranks:
        yield f"one rank reads for {ranks}: the recipe has only that one, with all its reads and the same step time"
    if ranks > 1:
        yield "communication between ranks is part of the step, as recorded: it does not scale with the number of ranks"

"""Computes the recording of a job from the hook's rows: compute times, waits and reads of its steady training."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.record.answer import MAX_CORE_WAIT_PERCENT, Loading, Parts, Recording, Saves, Spread
from dlemu.contrib.record.loops import Loop, training_loop
from dlemu.contrib.record.rows import Fetch, ProcessRows
from dlemu.extend import UserError

MIN_STEPS = 20
_MIN_READY = 8
"""The compute time is taken from steps whose batch was ready, if there are at least this many, else from all steps."""
_EQUAL_SHARE = 0.95
"""Batches count as equal in size if this share has the median size: the last of a pass may be smaller."""
_FEW = 0.1  # of the batches: mapped files may be opened anew, and are then seen in some batches only
_DRAINED = 0.8
"""Training counts as synchronous if the accelerator was idle at the end of at least this share of the steps."""
_FEW_CALLS = 0.01  # per batch: nothing is read by calls
_FEW_BYTES = 512  # of a sample, by calls, where no file was seen that they could read: no data
_OVERHEAD_BYTES = 4096
"""Allowance per batch for bytes that the hook itself and the loader's queue read: not counted as the job's."""
_CODE_BYTES = 16 << 20
"""Allowance for bytes from devices that are not data: pages of libraries on their first use."""


@dataclass(frozen=True)
class _Reader:
    """A process that loads batches of a trainer: a worker, or the trainer itself."""

    loop: Loop
    rows: ProcessRows
    training: Sequence[Fetch]
    """The batches of training: a trainer also loads those of evaluations."""
    measured: Sequence[Fetch]
    """Of these, the batches that were loaded while the loop was measured, and have samples."""

    @property
    def is_trainer(self) -> bool:
        return self.rows is self.loop.rows


def analyse(processes: Sequence[ProcessRows], skip: int) -> Recording:
    """Return the recording of a job; raises UserError where its rows hold no training that could be emulated."""
    processes, of_batches = _by_item(processes)
    readers = _readers(processes, skip)
    loops = [*{id(one.loop): one.loop for one in readers}.values()]
    if not loops:
        raise UserError(_no_training_message(processes, skip))
    loop = max(loops, key=lambda one: len(one.wait))
    fetches = [fetch for one in readers for fetch in one.measured]
    if not fetches:
        raise UserError(
            "the trainer's batches were seen, but not how they were made: wanted PyTorch's own fetchers in its "
            "workers; where they don't inherit the environment, write `import dlemu.contrib.record.recorder` as the "
            "script's first line"
        )
    counts = np.array([samples_of(fetch) for fetch in fetches], float)
    samples = float(counts.sum())
    ranks = max([len(loops), *(rows.process.ranks for rows in processes if rows.passes or rows.steps)])
    alike = bool((counts == np.median(counts)).mean() >= _EQUAL_SHARE)
    size = int(np.median(counts)) if alike else max(1, round(float(counts.mean())))
    if not alike:
        differ = f"its batches have {counts.min():.0f} to {counts.max():.0f} samples"
        of_batches = (*of_batches, f"{differ}: those of the recipe all have {size}, the mean")
    computation, few_ready = _computation(loops)
    ready_waits = np.concatenate([one.groups(one.wait)[one.ready()] for one in loops])
    read = np.array([max(fetch.read, 0) + fetch.map_bytes for fetch in fetches], float)
    cpu = np.array([max(0, cpu_ns(fetch) - fetch.system_cpu) for fetch in fetches], float) / 1e9
    made = [fetch for one in readers for fetch in one.training]
    if not any(fetch.maps for fetch in fetches) and _reads_nothing(processes, fetches, float(read.sum()) / samples):
        read[:] = 0
    from_devices = sum(fetch.device > 0 for fetch in fetches) > _FEW * len(fetches)
    of_dataset = loop.passes[-1].samples
    items = sum(fetch.items or samples_of(fetch) for fetch in fetches)
    parts = _parts(loops, fetches)
    cpu_seconds, cpu_fetches = worker_cpu([(one.measured, one.is_trainer) for one in readers])
    return Recording(
        ranks=ranks,
        loaders=1 if len(loops) == 1 else ranks,
        loading=Loading(
            iterable=loop.passes[-1].iterable,
            workers=loop.passes[-1].workers,
            prefetch=loop.passes[-1].prefetch or 2,
            start_method=loop.passes[-1].method,
            order=loop.passes[-1].order,
            samples=of_dataset and round(of_dataset * samples / items),
        ),
        batch_size=size,
        steps=len(loop.wait),
        samples_per_second=sum(float(counts.mean()) * len(one.wait) / one.seconds for one in loops),
        computation=computation,
        step_cpu=Spread.of(np.concatenate([one.groups(np.minimum(one.cpu, one.computation)) for one in loops])),
        gradient_accumulation_steps=loop.accumulation,
        synchronous=(loop.drained is None and not loop.ahead) or (loop.drained or 0) >= _DRAINED,
        hand_over=float(np.median(ready_waits)) if len(ready_waits) else 0.0,
        parts=parts,
        preprocess=_per_sample(cpu, counts),
        worker_cpu_per_sample=cpu_seconds / max(1, sum(map(samples_of, cpu_fetches))),
        read_bytes_per_sample=float(read.sum()) / samples,
        calls_per_sample=sum(max(fetch.calls, 0) for fetch in fetches) / samples,
        device_bytes_per_sample=sum(max(fetch.device, 0) for fetch in fetches) / samples,
        opens_per_sample=sum(fetch.opens for fetch in fetches) / samples,
        mapped=2 * sum(fetch.map_bytes for fetch in fetches) > float(read.sum()),
        maps_files=any(fetch.mapped for fetch in made) or (from_devices and not read.any()),
        samples_before=sum(samples_of(fetch) for fetch in made if fetch.t0 < loop.begin_ns),
        shipped_bytes_per_sample=sum(fetch.bytes for fetch in fetches) / samples,
        arrays=int(np.median([fetch.arrays for fetch in fetches])),
        coverage_percent=_coverage(readers),
        saves=_saves(loops),
        problems=tuple(_problems(processes, loops, fetches)),
        notes=(*_notes(loops, parts, few_ready=few_ready), *of_batches),
    )


def _by_item(processes: Sequence[ProcessRows]) -> tuple[Sequence[ProcessRows], Sequence[str]]:
    """Return the rows with each item of a dataset as one sample if it is a batch that few reads bring; and notes."""
    larger = [fetch for rows in processes for fetch in rows.fetches if 0 < (fetch.items or 0) < (fetch.n or 0)]
    samples = sum(fetch.n or 0 for fetch in larger)
    if 2 * sum(max(fetch.calls, fetch.maps) for fetch in larger) >= samples:
        return processes, ()
    together = round(samples / sum(fetch.items or 0 for fetch in larger))
    note = f"its dataset makes batches of {together} samples by itself, read as one piece: each is a sample here"
    each = [[msgspec.structs.replace(one, n=one.items or one.n) for one in rows.fetches] for rows in processes]
    return [replace(rows, fetches=own) for rows, own in zip(processes, each, strict=True)], (note,)


def files_of(processes: Sequence[ProcessRows], skip: int) -> list[str]:
    """Return the files that the samples came from."""
    found = set[str]()
    for one in _readers(processes, skip):  # a name is recorded on first use, which may be in the warm-up
        own = {name for fetch in one.training for name in fetch.files}
        # Evaluations may have been first to open files of the same folders; mapped files are known by name.
        folders = set(map(os.path.dirname, own))
        opened = {name for fetch in one.rows.fetches if not fetch.maps for name in fetch.files}
        found |= own | {name for name in opened if not own or os.path.dirname(name) in folders}
    return sorted(found)


def _readers(processes: Sequence[ProcessRows], skip: int) -> list[_Reader]:
    """Return what loaded the batches of each trainer; of a trainer whose workers left no rows, only itself."""
    of_process, found = {rows.process.pid: rows for rows in processes}, []
    for trainer in processes:
        if (loop := training_loop(trainer, skip)) is None:
            continue
        numbers = {one.number for one in loop.passes}
        batches = [batch for batch in trainer.batches if batch.number in numbers]
        pids = {pid for batch in batches for pid in batch.pids}
        for rows in [of_process[pid] for pid in sorted(pids & of_process.keys())] or [trainer]:
            training: Sequence[Fetch] = rows.fetches
            if rows is trainer:
                begins = sorted((batch.t0, batch.t1) for batch in batches)
                places = [bisect.bisect(begins, (fetch.t0, 1 << 62)) - 1 for fetch in rows.fetches]
                both = zip(rows.fetches, places, strict=True)
                training = [fetch for fetch, place in both if place >= 0 and fetch.t1 <= begins[place][1]]
            within = [fetch for fetch in training if loop.begin_ns <= fetch.t0 <= loop.end_ns and samples_of(fetch)]
            found.append(_Reader(loop, rows, training, within))
    return found


def _no_training_message(processes: Sequence[ProcessRows], skip: int) -> str:
    if not processes:
        return (
            "the job left no rows: wanted a script that takes batches from a PyTorch DataLoader (TensorFlow's "
            "tf.data and JAX can't be recorded). Where a launcher drops the environment (containers, ssh, python -I), "
            "write `import dlemu.contrib.record.recorder` as the first line of the script, and then: "
            "dlemu record --rows FOLDER"
        )
    batches, steps = (sum(len(getattr(rows, each)) for rows in processes) for each in ("batches", "steps"))
    return (
        f"{batches} batches of a PyTorch DataLoader and {steps} steps of an optimizer were seen, but no step on a "
        f"batch after the first {skip}, which are left out as warm-up: record more, pass --skip N, or wrap reads of "
        "your own in a Dataset and a DataLoader (optimizers of JAX, TensorFlow and DeepSpeed can't be recorded)"
    )


def samples_of(fetch: Fetch) -> int:
    """Return the samples of a batch; if no array shows them, the number of opened files."""
    return fetch.n if fetch.n is not None else fetch.opens or int(fetch.read > 0 or fetch.map_bytes > 0)


def cpu_ns(fetch: Fetch) -> int:
    return max(fetch.cpu, min(fetch.process_cpu_in, fetch.t1 - fetch.t0))


def worker_cpu(readers: Iterable[tuple[Sequence[Fetch], bool]]) -> tuple[float, list[Fetch]]:
    """Return CPU seconds and the batches they were spent on; `readers`: the batches of a process, if it is a trainer.

    Of a worker these are all seconds since its first batch, of a trainer those of loading.
    """
    seconds, batches = 0.0, list[Fetch]()
    for fetches, is_trainer in readers:
        if is_trainer or len(fetches) < 2:
            seconds += sum(map(cpu_ns, fetches)) / 1e9
            batches += fetches
        else:
            seconds += (fetches[-1].process_cpu - fetches[0].process_cpu) / 1e9
            batches += fetches[1:]
    return seconds, batches


def _computation(loops: Sequence[Loop]) -> tuple[Spread, bool]:
    """Return the compute times of batches, and whether they are of all steps, as too few batches were ready."""
    every = [one.groups(one.computation) for one in loops]
    ready = np.concatenate([values[one.ready()] for values, one in zip(every, loops, strict=True)])
    if len(ready) >= _MIN_READY:
        return Spread.of(ready), False
    return Spread.of(np.concatenate(every)), not loops[0].by_device


def _parts(loops: Sequence[Loop], fetches: Sequence[Fetch]) -> Parts:
    """Split the waits for batches, up to the mean time to load one, by what the workers did meanwhile.

    The rest of a wait is the transfer to the trainer. The trainer's own waits for a core are part of `cpu_queue`.
    """
    wait = np.concatenate([one.groups(one.wait - one.wait_queue) for one in loops])
    body = np.concatenate([one.groups(one.body - one.queue) for one in loops])
    core_wait = float(np.concatenate([one.queue + one.wait_queue for one in loops]).mean())
    ready = np.concatenate([one.ready() for one in loops])
    took = sum(fetch.t1 - fetch.t0 for fetch in fetches)
    computed = min(sum(cpu_ns(fetch) for fetch in fetches), took)
    queued = min(sum(max(fetch.queue, 0) for fetch in fetches), took - computed)
    if not loops[0].passes[0].workers:  # the trainer loads: its queueing is already in core_wait
        took, queued = took - queued, 0
    most = took / len(fetches) / 1e9
    waited = float(np.minimum(wait[~ready], most).sum()) / len(wait)
    shares = [part / max(1, took) for part in (took - computed - queued, queued, computed)]
    return Parts(
        computing=float(body.mean()),
        storage=waited * shares[0],
        cpu_queue=waited * shares[1] + core_wait,
        preprocessing=waited * shares[2],
        hand_over=float(wait.mean()) - waited * sum(shares),
    )


def _per_sample(batches: NDArray[np.float64], counts: NDArray[np.float64]) -> Spread:
    """Return the distribution per sample: the deviation of a batch's mean is a sample's divided by the root of n."""
    mean = float(batches.sum() / counts.sum())
    values = np.maximum(mean + (batches / counts - mean) * np.sqrt(counts), 0)
    return Spread.of(values).scaled(mean) if values.mean() > 0 else Spread.of(values)


def _reads_nothing(processes: Sequence[ProcessRows], fetches: Sequence[Fetch], bytes_per_sample: float) -> bool:
    """Return whether calls read no data: the headers of libraries that a worker loads with its first batch are none."""
    first = {id(rows.fetches[0]) for rows in processes if rows.fetches}
    later = [fetch for fetch in fetches if id(fetch) not in first] or fetches
    files = any(fetch.files or fetch.opens for rows in processes for fetch in rows.fetches)
    few = sum(abs(fetch.calls) for fetch in later) <= _FEW_CALLS * len(later)
    return few or (not files and bytes_per_sample < _FEW_BYTES)


def _coverage(readers: Sequence[_Reader]) -> float:
    """Return the share of the workers' bytes that the hook saw, %: of bytes read by calls or from devices, the smaller.

    A trainer that reads by itself reads other things as well, when it loads no batch.
    """
    seen, total = np.zeros(2), np.zeros(2)
    for one in readers:
        made = one.measured[1:]  # of the first, only the totals at its end are used
        if one.is_trainer or not made or made[0].process_read < 0:
            continue
        found = np.array([sum(max(f.read, f.map_bytes) for f in made), sum(max(f.device, 0) for f in made)], float)
        read = made[-1].process_read - one.measured[0].process_read - _OVERHEAD_BYTES * len(made)
        seen += found
        total += np.maximum(found, [read, made[-1].process_device - one.measured[0].process_device])
    total[1] = max(seen[1], total[1] - _CODE_BYTES)
    shares = [100 * part / whole for part, whole in zip(seen, total, strict=True) if whole > 0]
    return float(min(shares, default=100.0))


def _saves(loops: Sequence[Loop]) -> Saves | None:
    saves = [(loop, save) for loop in loops for save in loop.rows.saves]
    if not saves:
        return None
    first = next(loop for loop, _ in saves)
    own = [save for loop, save in saves if loop is first]
    training = {one.number for one in first.passes}
    batches = sorted(batch.t0 for batch in first.rows.batches if batch.number in training)
    ends = sorted(over.t0 for over in first.rows.overs if over.number in training)
    # A model, its optimizer and more, saved one after another, are one checkpoint.
    places = sorted({bisect.bisect(batches, save.t0): bisect.bisect(ends, save.t0) for save in own}.items())
    gaps = [later - before for (before, one), (later, other) in itertools.pairwise(places) if one == other]
    return Saves(
        bytes=round(sum(save.bytes for _, save in saves) / len(places)),
        batches_between=round(sum(gaps) / len(gaps)) if gaps else None,
    )


def _problems(processes: Sequence[ProcessRows], loops: Sequence[Loop], fetches: Sequence[Fetch]) -> Iterator[str]:
    settings = {(one.iterable, one.workers, one.prefetch, one.batch, one.samples, one.order) for one in loops[0].passes}
    if len(settings) > 1 or loops[0].interleaved:
        yield "several loaders feed the training, but a workload has one"
    if any(one.ahead and not one.by_device for one in loops):
        yield "another thread than the trainer's takes the batches: without a GPU's events, a step's time is not known"
    there = [rows for rows in processes if rows.passes or rows.steps]
    ranks = max(rows.process.ranks for rows in there)
    if len(there) < ranks:
        yield f"{len(there)} of {ranks} ranks were recorded: the others run on other hosts"
    if len(loops[0].wait) < MIN_STEPS:
        yield f"{len(loops[0].wait)} batches counted: wanted {MIN_STEPS} or more"
    if min(fetch.device for fetch in fetches) < 0:
        yield "this kernel does not report what processes read (/proc/self/io)"


def _notes(loops: Sequence[Loop], parts: Parts, *, few_ready: bool) -> Iterator[str]:
    if parts.core_wait_percent > MAX_CORE_WAIT_PERCENT:
        share = f"{parts.core_wait_percent:.0f} % of a step"
        yield f"{share} is waiting for a core: other load on this host affects the recording"
    if few_ready:
        yield "few batches were ready when the trainer requested them: the compute time is taken from all steps"
    cpu, body = (sum(float(getattr(one, part).sum()) for one in loops) for part in ("cpu", "computation"))
    if cpu > 1.2 * body:  # a smaller excess over one core may be accounting error
        yield f"the trainer uses {cpu / body:.1f} cores; a replay uses one at most"
    ranks = max(len(loops), loops[0].rows.process.ranks)
    if len(loops) == 1 < ranks:
        yield f"one rank reads for {ranks}: the recipe has only that one, with all its reads and the same step time"
    if ranks > 1:
        yield "communication between ranks is part of the step, as recorded: it does not scale with the number of ranks"

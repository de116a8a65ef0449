"""Computes the recording of a job from the hook's rows: compute times, waits and reads of its steady training."""

from __future__ import annotations

import bisect
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

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


def analyse(processes: Sequence[ProcessRows], skip: int) -> Recording:
    """Return the recording of a job; raises UserError where its rows hold no training that could be emulated."""
    processes, of_batches = _by_item(processes)
    loops = [loop for loop in (training_loop(rows, skip) for rows in processes) if loop is not None]
    if not loops:
        raise UserError(_no_training_message(processes, skip))
    loop = max(loops, key=lambda one: len(one.wait))
    workers = {rows.process.pid: rows for rows in processes}
    fetches = [fetch for one in loops for fetch in _fetches(one, workers)]
    if not fetches:
        raise UserError(
            "the trainer's batches were seen, but not how they were made: wanted PyTorch's own fetchers in its "
            "workers; where they don't inherit the environment, write `import dlemu.contrib.record.recorder` as the "
            "script's first line"
        )
    counts = np.array([_samples(fetch) for fetch in fetches], float)
    samples = float(counts.sum())
    ranks = max([len(loops), *(rows.process.ranks for rows in processes if rows.passes or rows.steps)])
    reads: Literal["all", "first"] = "first" if ranks > 1 and len(loops) == 1 else "all"
    rate = sum(float(counts.mean()) * len(one.wait) / one.seconds for one in loops)
    alike = bool((counts == np.median(counts)).mean() >= _EQUAL_SHARE)
    size = int(np.median(counts)) if alike else max(1, round(float(counts.mean())))
    if not alike:
        differ = f"its batches have {counts.min():.0f} to {counts.max():.0f} samples"
        of_batches = (*of_batches, f"{differ}: those of the recipe all have {size}, the mean")
    computation, source = _computation(loops)
    wait = np.concatenate([one.wait for one in loops])
    read = np.array([max(fetch.read, 0) + fetch.map_bytes for fetch in fetches], float)
    cpu = np.array([_cpu_ns(fetch) for fetch in fetches], float) / 1e9
    own_cpu = np.maximum(cpu - np.array([fetch.system_cpu for fetch in fetches]) / 1e9, 0)
    device = sum(max(fetch.device, 0) for fetch in fetches)
    sees_maps = any(fetch.maps for fetch in fetches)
    made = [fetch for one in loops for rows in _readers(one, workers) for fetch in _of_training(one, rows)]
    if not sees_maps and _reads_nothing(processes, fetches, float(read.sum()) / samples):
        read[:] = 0
    from_devices = sum(fetch.device > 0 for fetch in fetches) > _FEW * len(fetches)
    items = sum(fetch.items or _samples(fetch) for fetch in fetches)
    loading = _loading(loop)
    return Recording(
        ranks=ranks,
        ranks_that_read=reads,
        loading=replace(loading, samples=loading.samples and round(loading.samples * samples / items)),
        batch_size=size,
        steps=len(loop.wait),
        samples_per_second=rate,
        computation=computation,
        computation_from=source,
        step_cpu=Spread.of(np.concatenate([one.groups(np.minimum(one.cpu, one.computation)) for one in loops])),
        hand_over_cpu=float(np.concatenate([one.taking_cpu for one in loops]).mean()),
        gradient_accumulation_steps=loop.accumulation,
        synchronous=(loop.drained is None and not loop.ahead) or (loop.drained or 0) >= _DRAINED,
        wait_p50=float(np.quantile(wait, 0.5)),
        wait_p99=float(np.quantile(wait, 0.99)),
        hand_over=_hand_over(loops),
        parts=_parts(loops, fetches),
        preprocess=_per_sample(own_cpu, counts),
        worker_cpu_per_sample=_worker_cpu(loops, workers),
        read_bytes_per_sample=float(read.sum()) / samples,
        calls_per_sample=float(sum(max(fetch.calls, 0) for fetch in fetches)) / samples,
        device_bytes_per_sample=device / samples,
        opens_per_sample=float(sum(fetch.opens for fetch in fetches)) / samples,
        mapped=2 * sum(fetch.map_bytes for fetch in fetches) > float(read.sum()),
        maps_files=any(fetch.mapped for fetch in made) or (from_devices and not read.any()),
        samples_before=sum(_samples(fetch) for fetch in made if fetch.t0 < loop.begin_ns),
        read_before_bytes=sum(_read_before(one, workers) for one in loops),
        shipped_bytes_per_sample=float(sum(fetch.bytes for fetch in fetches)) / samples,
        arrays=int(np.median([fetch.arrays for fetch in fetches])),
        coverage_percent=_coverage(loops, workers),
        saves=_saves(loops),
        problems=tuple(_problems(processes, loops, fetches)),
        notes=(*_notes(loops, fetches, source), *of_batches),
    )


def _by_item(processes: Sequence[ProcessRows]) -> tuple[Sequence[ProcessRows], Sequence[str]]:
    """Return the rows with each item of a dataset as one sample if it is a batch that is read as one piece; and notes.

    Such a batch takes fewer reads than it has samples.
    """
    larger = [fetch for rows in processes for fetch in rows.fetches if 0 < (fetch.items or 0) < (fetch.n or 0)]
    samples = sum(fetch.n or 0 for fetch in larger)
    if 2 * sum(max(fetch.calls, fetch.maps) for fetch in larger) >= samples:
        return processes, ()
    together = round(samples / sum(fetch.items or 0 for fetch in larger))
    note = f"its dataset makes batches of {together} samples by itself, read as one piece: each is a sample here"
    each = [[msgspec.structs.replace(one, n=one.items or one.n) for one in rows.fetches] for rows in processes]
    return [replace(rows, fetches=own) for rows, own in zip(processes, each, strict=True)], (note,)


def files_of(processes: Sequence[ProcessRows], skip: int) -> Counter[str]:
    workers = {rows.process.pid: rows for rows in processes}
    loops = [loop for loop in (training_loop(rows, skip) for rows in processes) if loop is not None]
    found: Counter[str] = Counter()
    for loop in loops:
        for rows in _readers(loop, workers):  # a name is recorded on first use, which may be in the warm-up
            named = Counter(name for fetch in rows.fetches for name in fetch.files)
            if own := {name for fetch in _of_training(loop, rows) for name in fetch.files}:
                # Evaluations may have been first to open files of the same folders; mapped files are known by name.
                folders = set(map(os.path.dirname, own))
                opened = {name for fetch in rows.fetches if not fetch.maps for name in fetch.files}
                own |= {name for name in opened if os.path.dirname(name) in folders}
                named = Counter({name: uses for name, uses in named.items() if name in own})
            found += named
    return found


def _no_training_message(processes: Sequence[ProcessRows], skip: int) -> str:
    if not processes:
        return (
            "the job left no rows: wanted a script that takes batches from a PyTorch DataLoader (TensorFlow's "
            "tf.data and JAX can't be recorded). Where a launcher drops the environment (containers, ssh, python -I), "
            "write `import dlemu.contrib.record.recorder` as the first line of the script, and then: "
            "dlemu record --rows FOLDER"
        )
    steps = sum(len(rows.steps) for rows in processes)
    batches = sum(len(rows.batches) for rows in processes)
    if any(map(_trains, processes)):
        return (
            f"{batches} batches were seen, and the first {skip} are left out as warm-up: record more, or pass --skip N"
        )
    if steps:
        return (
            f"{steps} steps of an optimizer were seen, but none on a batch of a PyTorch DataLoader: wrap the reads in "
            "a Dataset and a DataLoader"
        )
    return (
        f"{batches} batches were seen, none of them in training: wanted steps of an optimizer after them (those "
        "of JAX, TensorFlow and DeepSpeed can't be recorded)"
    )


def _trains(rows: ProcessRows) -> bool:
    """Return whether the optimizer stepped after a batch, before another was requested or the pass was over."""
    asked = [*(one.t0 for one in rows.batches), *(one.t0 for one in rows.overs)]
    events = sorted([*((one.t1, True) for one in rows.batches if one.grad), *((at, False) for at in asked)])
    before = (bisect.bisect(events, (step.t, True)) for step in rows.steps)
    return any(events[place - 1][1] for place in before if place)


def _readers(loop: Loop, workers: dict[int, ProcessRows]) -> Iterator[ProcessRows]:
    training = {one.number for one in loop.passes}
    pids = {pid for batch in loop.rows.batches if batch.number in training for pid in batch.pids}
    if not pids:
        yield loop.rows
    for pid in sorted(pids & workers.keys()):
        yield workers[pid]


def _fetches(loop: Loop, workers: dict[int, ProcessRows]) -> Iterator[Fetch]:
    for rows in _readers(loop, workers):
        for fetch in _of_training(loop, rows):
            if loop.begin_ns <= fetch.t0 <= loop.end_ns and _samples(fetch):
                yield fetch


def _of_training(loop: Loop, rows: ProcessRows) -> Iterator[Fetch]:
    """Yield the fetches that load batches of training; a trainer also loads those of evaluations."""
    if rows is not loop.rows:
        yield from rows.fetches
        return
    training = {one.number for one in loop.passes}
    begins = sorted((batch.t0, batch.t1) for batch in rows.batches if batch.number in training)
    for fetch in rows.fetches:
        place = bisect.bisect(begins, (fetch.t0, 1 << 62)) - 1
        if place >= 0 and fetch.t1 <= begins[place][1]:
            yield fetch


def _samples(fetch: Fetch) -> int:
    """Return the samples of a batch; if no array shows them, the number of opened files."""
    return fetch.n if fetch.n is not None else fetch.opens or int(fetch.read > 0 or fetch.map_bytes > 0)


def _cpu_ns(fetch: Fetch) -> int:
    return max(fetch.cpu, min(fetch.process_cpu_in, fetch.t1 - fetch.t0))


def _computation(loops: Sequence[Loop]) -> tuple[Spread, Literal["device", "ready steps", "all steps"]]:
    """Return the compute times of batches and their source: steps whose batch was ready, if those are enough."""
    every = [one.groups(one.computation) for one in loops]
    ready = np.concatenate([values[one.ready()] for values, one in zip(every, loops, strict=True)])
    if len(ready) >= _MIN_READY:
        return Spread.of(ready), "device" if loops[0].by_device else "ready steps"
    return Spread.of(np.concatenate(every)), "device" if loops[0].by_device else "all steps"


def _hand_over(loops: Sequence[Loop]) -> float:
    found = np.concatenate([one.groups(one.wait - one.wait_queue)[one.ready()] for one in loops])
    return float(np.median(found)) if len(found) else 0.0


def _parts(loops: Sequence[Loop], fetches: Sequence[Fetch]) -> Parts:
    """Split the waits for batches, up to the mean time to load one, by what the workers did meanwhile.

    The rest of a wait is the transfer to the trainer. The trainer's own waits for a core are part of `cpu_queue`.
    """
    wait = np.concatenate([one.groups(one.wait - one.wait_queue) for one in loops])
    body = np.concatenate([one.groups(one.body - one.queue) for one in loops])
    core_wait = float(np.concatenate([one.queue + one.wait_queue for one in loops]).mean())
    ready = np.concatenate([one.ready() for one in loops])
    took = sum(fetch.t1 - fetch.t0 for fetch in fetches)
    computed = min(sum(_cpu_ns(fetch) for fetch in fetches), took)
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


def _read_before(loop: Loop, workers: dict[int, ProcessRows]) -> int:
    """Return the size of data files that were opened before the first batch, and the bytes of batches left out."""
    found = max(one.opened for one in loop.passes)
    for rows in _readers(loop, workers):
        before = [fetch for fetch in rows.fetches if fetch.t0 < loop.begin_ns]
        found += sum(max(0, fetch.read) for fetch in before if fetch.calls)
        found += max([fetch.opened for fetch in before if rows is not loop.rows], default=0)
    return found


def _worker_cpu(loops: Sequence[Loop], workers: dict[int, ProcessRows]) -> float:
    seconds = samples = 0.0
    for loop in loops:
        for rows in _readers(loop, workers):
            made = [fetch for fetch in rows.fetches if loop.begin_ns <= fetch.t0 <= loop.end_ns and _samples(fetch)]
            if rows is loop.rows or len(made) < 2:
                seconds += sum(_cpu_ns(fetch) for fetch in made) / 1e9
                samples += sum(map(_samples, made))
            else:
                seconds += (made[-1].process_cpu - made[0].process_cpu) / 1e9
                samples += sum(map(_samples, made[1:]))
    return seconds / samples if samples else 0.0


def _coverage(loops: Sequence[Loop], workers: dict[int, ProcessRows]) -> float:
    """Return the share of the job's bytes that the hook saw, %: of bytes read by calls or from devices, the smaller.

    Of a trainer that reads by itself only the time of loading counts, as it reads other things as well.
    """
    seen = np.zeros(2)
    total = np.zeros(2)
    for loop in loops:
        for rows in _readers(loop, workers):
            made = [fetch for fetch in rows.fetches if loop.begin_ns <= fetch.t0 <= loop.end_ns]
            first, made = made[0] if made else None, made[1:]  # only the totals at its end are used
            if first is None or not made or first.process_read < 0:
                continue
            found = np.array([sum(max(f.read, f.map_bytes) for f in made), sum(max(f.device, 0) for f in made)], float)
            if rows is loop.rows:
                read, device = (
                    sum(getattr(f, part) for f in made) for part in ("process_read_in", "process_device_in")
                )
            else:
                read = made[-1].process_read - first.process_read
                device = made[-1].process_device - first.process_device
            seen += found
            total += np.maximum(found, [read - _OVERHEAD_BYTES * len(made), device])
        if loop.passes[0].workers:
            total[1] += _trainer_device_bytes(loop)
    total[1] = max(seen[1], total[1] - _CODE_BYTES)
    shares = [100 * part / whole for part, whole in zip(seen, total, strict=True) if whole > 0]
    return float(min(shares, default=100.0))


def _trainer_device_bytes(loop: Loop) -> int:
    """Return what the trainer read from devices within passes; at an end, exited workers add their bytes."""
    training = {one.number for one in loop.passes}
    batches = [one for one in loop.rows.batches if loop.begin_ns <= one.t0 <= loop.end_ns]
    return sum(
        following.device - one.device
        for one, following in itertools.pairwise(batches)
        if one.number == following.number and one.number in training
    )


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
        seconds=sum(save.t1 - save.t0 for save in own) / len(places) / 1e9,
        batches_between=round(sum(gaps) / len(gaps)) if gaps else None,
    )


def _loading(loop: Loop) -> Loading:
    one = loop.passes[-1]
    return Loading(
        iterable=one.iterable,
        workers=one.workers,
        prefetch=one.prefetch or 2,
        start_method=one.method,
        order=one.order,
        samples=one.samples,
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


def _notes(loops: Sequence[Loop], fetches: Sequence[Fetch], source: str) -> Iterator[str]:
    parts = _parts(loops, fetches)
    if parts.core_wait_percent > MAX_CORE_WAIT_PERCENT:
        share = f"{parts.core_wait_percent:.0f} % of a step"
        yield f"{share} is waiting for a core: other load on this host affects the recording"
    if source == "all steps":
        yield "few batches were ready when the trainer requested them: the compute time is taken from all steps"
    cpu, body = (sum(float(getattr(one, part).sum()) for one in loops) for part in ("cpu", "computation"))
    if cpu > 1.2 * body:  # a smaller excess over one core may be accounting error
        yield f"the trainer uses {cpu / body:.1f} cores; a replay uses one at most"
    if len(loops) == 1 and loops[0].rows.process.ranks > 1:
        ranks = loops[0].rows.process.ranks
        yield f"one rank reads for {ranks}: the recipe has only that one, with all its reads and the same step time"
    if len(loops) > 1 or loops[0].rows.process.ranks > 1:
        yield "communication between ranks is part of the step, as recorded: it does not scale with the number of ranks"

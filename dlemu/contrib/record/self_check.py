"""Replays a recipe (the workload made from a recording) on the same storage, to check that it behaves like the job.

A replay is `dlemu train` with the same hook, so calls, bytes and CPU time are measured in the same way as in the job.
The CPU time of dlemu's own reader is known only after a replay: the emulated preprocessing is then adjusted to match
the recorded CPU time, and the reader engine is chosen whose number of read calls is closest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import yaml

from dlemu.config.overrides import override
from dlemu.contrib.record.answer import MAX_CORE_WAIT_PERCENT, Data, Recording, Replay
from dlemu.contrib.record.data_seen import cached_before, cached_words
from dlemu.contrib.record.recipe import workload_of
from dlemu.contrib.record.recording import worker_cpu
from dlemu.contrib.record.rows import ROWS, read_rows, with_hook
from dlemu.extend import child_run, owned, write_text
from dlemu.results.kinds import read_result

MAX_ERROR_PERCENT = 5.0  # larger differences in samples/s: the recipe is marked as not replayable
MIN_COVERAGE_PERCENT = 95.0  # below it too many of the job's reads were not seen
MAX_BYTES_ERROR_PERCENT = 10.0
"""Allowed difference in bytes from devices, where these are more than _DEVICE_SHARE of the job's reads."""
_CALLS_TOLERANCE = 0.1  # larger accepts other request patterns; smaller repeats replays for headers and ends of files
_CPU_TOLERANCE = 0.03  # below MAX_ERROR_PERCENT, the tolerance of a replay's samples/s
_CORE_TOLERANCE = 0.01
"""Share of a worker's core: a smaller difference in CPU time does not change throughput."""
_STEP_TOLERANCE = 0.005  # a tenth of MAX_ERROR_PERCENT
_LARGE_CALL_BYTES = 131_072
"""For larger read calls, the kernel's read-ahead (this is its usual window) determines the requests to the device."""
_MAX_STEPS = 1000  # enough for throughput and CPU time; more would only take longer
_DEVICE_SHARE = 0.1  # if devices served less than this share of the bytes, they do not limit the job's speed
WORKLOAD = "workload.yaml"
_COLUMNS = ("rank", "epoch", "step", "wait_ns", "compute_ns", "sync_ns", "samples", "asked_ns", "finished_ns")


def check_by_replay(
    recording: Recording, replays: Callable[[Recording, str, str], Replay], *, one_engine: bool = False
) -> tuple[Recording, str, list[Replay]]:
    """Replay a recording by the reader engine whose read calls are nearest, then with CPU times adjusted to the job's.

    `replays` takes a recording, a reader engine and a folder's name. Returns the recording with adjusted preprocessing,
    the reader engine, and one to three replays; `one_engine`: by `matched` alone.
    """
    done = [replays(recording, "matched", "replay-1")]
    calls, wanted = done[0].calls_per_sample, recording.calls_per_sample
    large = max(calls, wanted) * _LARGE_CALL_BYTES <= recording.read_bytes_per_sample
    if not (one_engine or recording.mapped or large) and _relative_error(calls, wanted) > _CALLS_TOLERANCE:
        done.append(replays(recording, "fast" if wanted < calls else "library", "replay-2"))
    best = min(done, key=lambda one: _relative_error(one.calls_per_sample, wanted))
    missing = recording.worker_cpu_per_sample - best.worker_cpu_per_sample
    core = _CORE_TOLERANCE * max(1, recording.loading.workers) * recording.loaders / recording.samples_per_second
    fits = abs(missing) <= max(_CPU_TOLERANCE * recording.worker_cpu_per_sample, core)
    preprocess = recording.preprocess.mean if fits else max(0.0, recording.preprocess.mean + missing)
    # What the job takes longer than the replay to receive a ready batch delays the steps of a synchronous trainer.
    longer = recording.hand_over - best.hand_over
    known = recording.synchronous and best.hand_over > 0 and recording.hand_over > 0
    added = longer if known and abs(longer) > _STEP_TOLERANCE * recording.parts.step else 0.0
    if best is not done[-1] or preprocess != recording.preprocess.mean or added:
        recording = replace(
            recording,
            preprocess=recording.preprocess.scaled(preprocess),
            computation=recording.computation.longer(added),
        )
        done.append(replays(recording, best.engine, f"replay-{len(done) + 1}"))
    return recording, best.engine, done


def verdict(recording: Recording, replay: Replay | None, failure: str = "") -> tuple[bool | None, str]:
    """Return whether a recipe is replayable, None if that was not verified, and why it is not ("" if it is)."""
    if recording.problems:
        return False, "; ".join(recording.problems)
    if recording.coverage_percent < MIN_COVERAGE_PERCENT:
        seen = f"{recording.coverage_percent:.1f} % of the bytes that the job read"
        return False, f"the recorder saw {seen}: wanted {MIN_COVERAGE_PERCENT:g} %"
    if replay is None:
        return None, failure or "it was not replayed"
    error = replay.error_percent(recording)
    if abs(error) > MAX_ERROR_PERCENT:
        message = f"its replay differs by {error:+.1f} % in samples/s: wanted {MAX_ERROR_PERCENT:g} % at most"
        waits = ((recording.parts.core_wait_percent, "the job"), (replay.core_wait_percent, "the replay"))
        waited, who = max(waits)
        if waited <= min(MAX_CORE_WAIT_PERCENT, abs(error) - MAX_ERROR_PERCENT):  # it can't be the reason
            return False, message
        return None, f"{message}, but other load on this host kept {who} waiting for a core, {waited:.0f} % of a step"
    device = recording.device_bytes_per_sample
    off = 100 * _relative_error(replay.device_bytes_per_sample, device)
    if device > _DEVICE_SHARE * recording.read_bytes_per_sample and off > MAX_BYTES_ERROR_PERCENT:
        hint = "; if the page cache held a part of the mapped files, record it again with an empty or a full page cache"
        message = (
            f"its replay differs by {off:.0f} % in bytes from devices: wanted {MAX_BYTES_ERROR_PERCENT:g} % at most"
        )
        return False, message + (hint if recording.mapped and replay.device_bytes_per_sample > device else "")
    return True, ""


def _relative_error(value: float, wanted: float) -> float:
    return abs(value / wanted - 1) if wanted > 0 else float(value > 0)


def run_replay(
    parent: str, recording: Recording, engine: str, name: str, *, data: Data, skip: int, on_step: Callable[[str], None]
) -> Replay:
    on_step(f"{name}, engine {engine}")
    folder = owned.fresh_folder(parent, name)
    write_text(folder, WORKLOAD, yaml.safe_dump(workload_of(recording, data, engine=engine)))
    rows = os.path.join(folder, ROWS)
    overrides = [f"workload={os.path.join(folder, WORKLOAD)}", *_overrides(recording, data, skip)]
    results = owned.fresh_folder(folder, "results")
    launcher = ["env", *(f"{key}={value}" for key, value in with_hook(parent, rows, minutes=60.0).items())]
    child_run.run_train(overrides, results, lambda: None, launcher)
    lead = skip + recording.loading.workers * recording.loading.prefetch
    return replay_of(name, results, rows, engine, lead, recording.files_per_sample)


def _overrides(recording: Recording, data: Data, skip: int) -> list[str]:
    steps = min(recording.steps, _MAX_STEPS) + skip + recording.loading.workers * recording.loading.prefetch
    samples = data.files * max(1, round(data.samples_per_file)) / recording.files_per_sample
    pass_steps = max(1, int(samples / (recording.batch_size * recording.loaders)))
    cached = cached_before(data, recording)
    return [
        "dataset.source=folder",
        override(("dataset", "data_folder"), data.folder),
        f"ranks={recording.loaders}",
        f"train.epochs={math.ceil(steps / pass_steps)}",
        f"train.total_training_steps={steps}",
        *(["reader.evict_page_cache=never"] if cached == 100 else cached_words(cached)),
        "workflow.checkpoint=false",
        "metric.cached=true",
        "metric.ceiling_seconds=0",
        "metric.scaling_seconds=0",
        "telemetry.enabled=false",
        "output.report=false",
    ]


def replay_of(name: str, results: str, rows: str, engine: str, lead: int, files_per_sample: int = 1) -> Replay:
    """Return the measurements of a replay, per sample of the job, without the first `lead` steps of each rank."""
    steps = read_result(results).training
    columns = {name: np.asarray(steps[name]) for name in _COLUMNS}
    order = np.lexsort((columns["step"], columns["epoch"], columns["rank"]))
    _, first, taken = np.unique(columns["rank"][order], return_index=True, return_counts=True)
    number = np.arange(len(order)) - np.repeat(first, taken)  # of each step within its rank
    measured = number >= lead if (number >= lead).any() else number >= 0
    kept = {name: values[order][measured] for name, values in columns.items()}
    seconds = float((kept["wait_ns"] + kept["compute_ns"] + kept["sync_ns"]).sum()) / 1e9
    wait, samples = kept["wait_ns"] / 1e9, kept["samples"] / files_per_sample
    processes = read_rows(rows)
    # A worker's first two batches include its start and files that are opened only once.
    made = [(one.fetches[2:] if len(one.fetches) > 4 else one.fetches[1:], bool(one.passes)) for one in processes]
    fetches = [fetch for own, _ in made for fetch in own]
    # As much is cached as in the recording once a trainer has requested the `lead` batches.
    requested = [sorted(batch.t0 for batch in one.batches) for one in processes]
    begin_ns = min((times[lead] for times in requested if len(times) > lead), default=0)
    later = [fetch for one in processes for fetch in one.fetches if fetch.t0 >= begin_ns]
    per_batch = max(1.0, float(samples.mean()))
    cpu_seconds, cpu_batches = worker_cpu(made)
    was_ready = kept["finished_ns"] <= kept["asked_ns"]
    ends = [(one.batches[0], one.batches[-1]) for one in processes if one.batches]
    queued = sum(last.queue1 - first.queue1 for first, last in ends)
    return Replay(
        folder=name,
        engine=engine,
        samples_per_second=float(samples.sum()) / seconds * len(first) if seconds else 0.0,
        hand_over=float(np.median(wait[was_ready])) if was_ready.any() else 0.0,
        calls_per_sample=sum(max(fetch.calls, 0) for fetch in fetches) / max(1.0, per_batch * len(fetches)),
        device_bytes_per_sample=sum(max(fetch.device, 0) for fetch in later) / max(1.0, per_batch * len(later)),
        worker_cpu_per_sample=cpu_seconds / max(1.0, per_batch * len(cpu_batches)),
        core_wait_percent=100 * max(0, queued) / max(1, sum(last.t1 - first.t1 for first, last in ends)),
    )

"""Replays a recipe (the workload made from a recording) on the same storage, to check that it behaves like the job.

A replay is `dlemu train` with the same hook, so it is measured like the job. After the first replay, the reader engine
with the closest number of read calls is chosen, and the emulated preprocessing is adjusted to the recorded CPU time.
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
from dlemu.contrib.record.dataset import cache_overrides, cached_before
from dlemu.contrib.record.recipe import workload_of
from dlemu.contrib.record.recording import worker_cpu
from dlemu.contrib.record.rows import ROWS, read_rows, with_hook
from dlemu.extend import child_run, owned, write_text
from dlemu.results.kinds import read_result

MAX_ERROR_PERCENT = 5.0  # A recipe with a larger difference in samples/s is not replayable.
MIN_COVERAGE_PERCENT = 95.0  # With a smaller coverage, the recorder missed too many of the job's reads.
MAX_BYTES_ERROR_PERCENT = 10.0  # of the bytes from devices, if these are more than _DEVICE_SHARE of the job's reads
_CALLS_TOLERANCE = 0.1  # Headers and the ends of files cause smaller differences; larger ones are other requests.
_CPU_TOLERANCE = 0.03  # less than MAX_ERROR_PERCENT, the tolerance of samples/s
_CORE_TOLERANCE = 0.01  # CPU time of less than 1 % of a worker's core does not change the throughput.
_STEP_TOLERANCE = 0.005  # a tenth of MAX_ERROR_PERCENT
_LARGE_CALL_BYTES = 131_072  # the kernel's usual read-ahead, which is the size of requests for larger read calls
_MAX_STEPS = 1000  # enough to measure throughput and CPU time
_DEVICE_SHARE = 0.1  # If devices served less than this share of the bytes, they do not limit the job's speed.
WORKLOAD = "workload.yaml"


def check_by_replay(
    recording: Recording, replay: Callable[[Recording, str, str], Replay], *, one_engine: bool = False
) -> tuple[Recording, str, list[Replay]]:
    """Replay a recording up to three times, and fit its recipe to the job.

    `replay` takes a recording, a reader engine and a folder's name. The second replay may have another engine (unless
    `one_engine`), the last one adjusted times. Returns the recording with these times, the best engine, all replays.
    """
    replays = [replay(recording, "matched", "replay-1")]
    calls, recorded_calls = replays[0].calls_per_sample, recording.calls_per_sample
    has_large_calls = max(calls, recorded_calls) * _LARGE_CALL_BYTES <= recording.read_bytes_per_sample
    calls_matter = not (one_engine or recording.mapped or has_large_calls)
    if calls_matter and _relative_error(calls, recorded_calls) > _CALLS_TOLERANCE:
        replays.append(replay(recording, "fast" if recorded_calls < calls else "library", "replay-2"))
    best = min(replays, key=lambda candidate: _relative_error(candidate.calls_per_sample, recorded_calls))
    adjusted = recording
    missing_cpu = recording.worker_cpu_per_sample - best.worker_cpu_per_sample
    core_seconds = max(1, recording.loading.workers) * recording.loaders / recording.samples_per_second  # per sample
    if abs(missing_cpu) > max(_CPU_TOLERANCE * recording.worker_cpu_per_sample, _CORE_TOLERANCE * core_seconds):
        mean = max(0.0, recording.preprocess.mean + missing_cpu)
        adjusted = replace(adjusted, preprocess=recording.preprocess.scaled(mean))
    # Add to the computation time how much longer the job takes to receive a ready batch than its replay (medians).
    missing_hand_over = recording.hand_over - best.hand_over
    is_known = recording.synchronous and best.hand_over > 0 and recording.hand_over > 0
    if is_known and abs(missing_hand_over) > _STEP_TOLERANCE * recording.parts.step:
        adjusted = replace(adjusted, computation=recording.computation.shifted(missing_hand_over))
    if adjusted is not recording or best is not replays[-1]:
        replays.append(replay(adjusted, best.engine, f"replay-{len(replays) + 1}"))
    return adjusted, best.engine, replays


def verdict(recording: Recording, replay: Replay | None, failure: str = "") -> tuple[bool | None, str]:
    """Return whether a recipe is replayable (None: not verified) and, if not, why: `failure` if a replay failed."""
    if recording.problems:
        return False, "; ".join(recording.problems)
    if recording.coverage_percent < MIN_COVERAGE_PERCENT:
        coverage = f"{recording.coverage_percent:.1f} % of the bytes that the job read"
        return False, f"the recorder saw {coverage}: wanted {MIN_COVERAGE_PERCENT:g} %"
    if replay is None:
        return None, failure or "it was not replayed"
    error = replay.error_percent(recording)
    if abs(error) > MAX_ERROR_PERCENT:
        message = f"its replay differs by {error:+.1f} % in samples/s: wanted {MAX_ERROR_PERCENT:g} % at most"
        longest, who = max((recording.parts.core_wait_percent, "the job"), (replay.core_wait_percent, "the replay"))
        if longest <= min(MAX_CORE_WAIT_PERCENT, abs(error) - MAX_ERROR_PERCENT):  # too short to be the reason
            return False, message
        return None, f"{message}, but other load on this host kept {who} waiting for a core, {longest:.0f} % of a step"
    device = recording.device_bytes_per_sample
    bytes_error = 100 * _relative_error(replay.device_bytes_per_sample, device)
    if device > _DEVICE_SHARE * recording.read_bytes_per_sample and bytes_error > MAX_BYTES_ERROR_PERCENT:
        limit = f"wanted {MAX_BYTES_ERROR_PERCENT:g} % at most"
        message = f"its replay differs by {bytes_error:.0f} % in bytes from devices: {limit}"
        if recording.mapped and replay.device_bytes_per_sample > device:
            advice = "record it again with an empty or a full page cache"
            message += f"; if the page cache held a part of the mapped files, {advice}"
        return False, message
    return True, ""


def _relative_error(value: float, expected: float) -> float:
    return abs(value / expected - 1) if expected > 0 else float(value > 0)


def run_replay(
    parent: str, recording: Recording, engine: str, name: str, *, data: Data, skip: int, on_step: Callable[[str], None]
) -> Replay:
    """Replay a recording with a reader engine in the new folder `parent`/`name`; return what was measured."""
    on_step(f"{name}, engine {engine}")
    folder = owned.fresh_folder(parent, name)
    write_text(folder, WORKLOAD, yaml.safe_dump(workload_of(recording, data, engine=engine)))
    rows = os.path.join(folder, ROWS)
    overrides = [f"workload={os.path.join(folder, WORKLOAD)}", *_overrides(recording, data, skip)]
    results = owned.fresh_folder(folder, "results")
    launcher = ["env", *(f"{key}={value}" for key, value in with_hook(parent, rows, minutes=60.0).items())]
    child_run.run_train(overrides, results, lambda: None, launcher)
    warm_up = skip + recording.loading.workers * recording.loading.prefetch
    return _measure(name, engine, results, rows, warm_up, recording.files_per_sample)


def _overrides(recording: Recording, data: Data, skip: int) -> list[str]:
    """Return a replay's settings: the job's files and page cache; after a warm-up, at most _MAX_STEPS steps."""
    steps = min(recording.steps, _MAX_STEPS) + skip + recording.loading.workers * recording.loading.prefetch
    samples = data.files * max(1, round(data.samples_per_file)) / recording.files_per_sample
    epoch_steps = max(1, int(samples / (recording.batch_size * recording.loaders)))
    return [
        "dataset.source=folder",
        override(("dataset", "data_folder"), data.folder),
        f"ranks={recording.loaders}",
        f"train.epochs={math.ceil(steps / epoch_steps)}",
        f"train.total_training_steps={steps}",
        *cache_overrides(cached_before(data, recording)),
        "workflow.checkpoint=false",
        "metric.cached=true",
        "metric.ceiling_seconds=0",
        "metric.scaling_seconds=0",
        "telemetry.enabled=false",
        "output.report=false",
    ]


def _measure(name: str, engine: str, results: str, rows: str, warm_up: int, files_per_sample: int) -> Replay:
    """Return the measurements of a replay, per sample of the job; comments say which part of the replay each covers."""
    # Samples/s, and the times to receive a ready batch: after `warm_up` steps of each rank, at a steady rate.
    ranks = read_result(results).training.by_rank
    measured = [steps[warm_up:] for steps in ranks]
    if not any(map(len, measured)):
        measured = ranks  # Each is shorter than the warm-up.
    samples = sum(int(steps["samples"].sum()) for steps in measured) / files_per_sample  # A replay's samples are files.
    batch_samples = max(1.0, samples / max(1, sum(map(len, measured))))
    seconds = sum(int((steps["wait_ns"] + steps["compute_ns"] + steps["sync_ns"]).sum()) for steps in measured) / 1e9
    ready_waits_ns = [ns for steps in measured for ns in steps["wait_ns"][steps["finished_ns"] <= steps["asked_ns"]]]
    # Calls and CPU time: without a worker's first two batches (of few, one), with its start and files opened once.
    processes = read_rows(rows)
    loaded = [(process.fetches[2 if len(process.fetches) > 4 else 1 :], bool(process.passes)) for process in processes]
    fetches = [fetch for batches, _ in loaded for fetch in batches]
    cpu_seconds, cpu_fetches = worker_cpu(loaded)
    # Bytes from devices: after `warm_up` batches of a rank, when the page cache holds as much as in the recording.
    request_times = [sorted(batch.t0 for batch in process.batches) for process in processes]
    warm_ns = min((times[warm_up] for times in request_times if len(times) > warm_up), default=0)
    warm = [fetch for process in processes for fetch in process.fetches if fetch.t0 >= warm_ns]
    # A trainer's waits for a core: from its first batch to its last, the warm-up included.
    trainers = [(process.batches[0], process.batches[-1]) for process in processes if process.batches]
    core_wait_ns = sum(last.queue1 - first.queue1 for first, last in trainers)
    return Replay(
        folder=name,
        engine=engine,
        samples_per_second=samples / seconds * len(ranks) if seconds else 0.0,
        hand_over=float(np.median(ready_waits_ns)) / 1e9 if ready_waits_ns else 0.0,
        calls_per_sample=sum(max(fetch.calls, 0) for fetch in fetches) / max(1.0, batch_samples * len(fetches)),
        device_bytes_per_sample=sum(max(fetch.device, 0) for fetch in warm) / max(1.0, batch_samples * len(warm)),
        worker_cpu_per_sample=cpu_seconds / max(1.0, batch_samples * len(cpu_fetches)),
        core_wait_percent=100 * max(0, core_wait_ns) / max(1, sum(last.t1 - first.t1 for first, last in trainers)),
    )

"""Writes the recipe: a short workload file that emulates the recorded job, and can be shared.

It contains only numbers and words of dlemu's own, no paths or names. The section `recorded` has the job's measurements.
Counts and sizes are rounded to 3 digits; mean times are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dlemu.studies.record.answer import Data, Recording, Replay, Spread

RECIPE_VERSION = 1
_NARROW = 0.001
"""If all quantiles of a time lie within this share of its mean, it is written as one number."""
_VERSION = re.compile(r"\d+(\.\d+){0,2}")

_HEAD = """\
# A training job as recorded by dlemu: a workload like any other.
#   dlemu train workload=THIS.yaml dataset.data_folder=/mnt/drive/data ranks=8 --make
# It names no path, file, host or person. Counts and sizes are rounded to 3 digits; lists are quantiles.
"""


def recipe_text(
    recording: Recording, data: Data | None, *, engine: str, replayable: bool, reason: str, replay: Replay | None
) -> str:
    """Return the recipe as YAML."""
    tree = workload_of(recording, data, engine=engine)
    tree["recorded"] = _recorded(recording, replayable=replayable, reason=reason, replay=replay)
    return _HEAD + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


def workload_of(recording: Recording, data: Data | None, *, engine: str) -> dict[str, Any]:
    """Return the recipe's workload, without the section `recorded`."""
    tree: dict[str, Any] = {"model": {"name": "recorded"}, "framework": "pytorch", "ranks": recording.loaders}
    tree["workflow"] = {"checkpoint": recording.saves is not None}
    if data is not None:
        tree["dataset"] = _dataset(recording, data)
    tree["reader"] = _reader(recording, engine)
    tree["train"] = {
        "epochs": 1,
        "computation_time": duration(recording.computation),
        "step_cpu_time": duration(recording.step_cpu),
        "synchronous": recording.synchronous,
    }
    if recording.saves is not None:
        tree["model"]["model_size_bytes"] = int(rounded(recording.saves.bytes))
        between = recording.saves.batches_between
        tree["checkpoint"] = {"steps_between_checkpoints": between or -1, "type": "rank_zero"}
    return tree


def not_emulated(recording: Recording) -> Iterator[str]:
    """Yield what the job does but no workload setting can express."""
    if recording.batch_sizes is not None:
        yield "its batches differ in size, but a workload has only batches of equal size"
    if recording.loaders > 1 and recording.gradient_accumulation_steps > 1:
        batches = recording.gradient_accumulation_steps
        yield f"its ranks synchronise every {batches} batches (gradient accumulation), but in a workload after each"


def _dataset(recording: Recording, data: Data) -> dict[str, Any]:
    each = max(1, round(data.samples_per_file))
    mapped = recording.mapped and recording.read_bytes_per_sample > 0
    length = recording.read_bytes_per_sample if mapped else data.bytes / data.files / each
    tree: dict[str, Any] = {
        "format": data.format or "npy",
        "num_files_train": int(rounded(data.files)),
        "num_samples_per_file": int(rounded(each)),
        "record_length_bytes": int(rounded(length)),
    }
    sizes = data.sizes.quantiles
    if not mapped and sizes[-1] - sizes[0] > 0.01 * data.sizes.mean:  # within 1 %: one size
        tree["record_length_bytes_quantiles"] = ascending([rounded(size / each) for size in sizes], rounded(length))
    shipped = int(rounded(recording.shipped_bytes_per_sample))
    if 0 < shipped < length:
        tree["record_length_bytes_resize"] = shipped
    return tree


def _reader(recording: Recording, engine: str) -> dict[str, Any]:
    loading = recording.loading
    shuffle = "off" if loading.order == "in order" else "seed"
    return {
        "data_loader": "pytorch",
        "batch_size": recording.read_batch_size,
        "read_threads": loading.workers,
        "prefetch_size": loading.workers * loading.prefetch,
        "multiprocessing_context": loading.start_method,
        "file_shuffle": shuffle,
        "sample_shuffle": "off" if loading.iterable else shuffle,
        "worker_streams": loading.iterable,
        "engine": engine,
        "nice": 0,
        "preprocess": "burn",
        "preprocess_time": duration(recording.preprocess),
    }


def _recorded(recording: Recording, *, replayable: bool, reason: str, replay: Replay | None) -> dict[str, Any]:
    loading = recording.loading
    return {
        "version": RECIPE_VERSION,
        "replayable": replayable,
        "reason": reason,
        "coverage_percent": _few(recording.coverage_percent),
        "steps": recording.steps,
        "ranks": recording.ranks,
        "workers": loading.workers,
        "samples_per_second": _both("samples_per_second", recording, replay),
        "wait_p50_seconds": _both("wait_p50", recording, replay),
        "wait_p99_seconds": _both("wait_p99", recording, replay),
        "calls_per_sample": _few(recording.calls_per_sample),
        "device_bytes_per_sample": int(rounded(recording.device_bytes_per_sample)),
        "torch": _version(recording.torch),
        "python": _version(recording.python),
        "cores": recording.cores,
        "memory_gib": recording.memory_gib,
        "loader": {
            "dataset": "iterable" if loading.iterable else "map",
            "start_method": loading.start_method,
            "prefetch_factor": loading.prefetch,
            "pin_memory": loading.pin,
            "persistent_workers": loading.persistent,
        },
    }


def _both(name: str, recording: Recording, replay: Replay | None) -> dict[str, float]:
    """Return a figure of the job, and of its replay if there is one."""
    sides = {"recorded": recording, "replayed": replay}
    return {side: _few(getattr(one, name)) for side, one in sides.items() if one is not None}


def duration(spread: Spread) -> float | dict[str, Any]:
    """Return a time as a workload setting: a number if it hardly varies, else its quantiles and exact mean."""
    low, high = spread.quantiles[0], spread.quantiles[-1]
    if high - low <= _NARROW * spread.mean:
        return spread.mean
    quantiles = ascending([float(f"{value:.4g}") for value in spread.quantiles], spread.mean)
    return {"type": "empirical", "mean": spread.mean, "seconds": quantiles}


def ascending(quantiles: list[float], mean: float) -> list[float]:
    """Return rounded quantiles, with the outer ones widened if rounding left the mean outside of them."""
    return [min(quantiles[0], mean), *quantiles[1:-1], max(quantiles[-1], mean)]


def rounded(value: float) -> float:
    """Return a count or a size with 3 digits: exact ones could identify the data."""
    return float(f"{value:.3g}")


def _few(value: float) -> float:
    return float(f"{value:.4g}")


def _version(text: str) -> str:
    """Return the numeric part of a version: the suffix of a private build may identify its site."""
    found = _VERSION.match(text)
    return found[0] if found else ""


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers in flow style, on few lines."""


def _number_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


def _mapping(dumper: yaml.SafeDumper, values: Mapping[str, Any]) -> yaml.MappingNode:
    flow = len(values) > 0 and not any(isinstance(value, (list, dict)) for value in values.values()) and len(values) < 3
    return dumper.represent_mapping("tag:yaml.org,2002:map", values, flow_style=flow)


_Dumper.add_representer(list, _number_list)
_Dumper.add_representer(dict, _mapping)

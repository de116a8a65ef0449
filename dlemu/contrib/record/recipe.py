"""Writes the recipe: a short workload file that emulates the recorded job and can be shared.

It contains only numbers and dlemu's own words, no paths or names. Its section `recorded` tells whether a replay agreed
with the job; record.json has the measurements. Counts and sizes are rounded to 3 digits; mean times are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from dlemu.contrib.record.answer import Data, RecordAnswer, Recording, Spread

RECIPE_VERSION = 1
PIECES = "indexed_binary"  # the format by which dlemu reads any file as records of equal length, without an index
_NARROW = 0.001  # A time whose quantiles are within this share of its mean is written as one number.
_HEAD = """\
# A training job as recorded by dlemu: a workload like any other.
#   dlemu train workload=THIS.yaml dataset.data_folder=/mnt/drive/data ranks=8 --make
# It names no path, file, host or person. Counts and sizes are rounded to 3 digits; lists are quantiles.
"""


def recipe_text(answer: RecordAnswer, recording: Recording, data: Data | None, engine: str) -> str:
    """Return the recipe's text; `answer` has the verdict and the replays."""
    tree = workload_of(recording, data, engine=engine)
    tree["recorded"] = {
        "version": RECIPE_VERSION,
        "replayable": answer.replayable,
        "reason": answer.reason,
        "coverage_percent": rounded(recording.coverage_percent, 4),
        "ranks": recording.loaders,
        "samples_per_second": rounded(recording.samples_per_second, 4),
        "hand_over_seconds": rounded(answer.replays[-1].hand_over, 4) if answer.replays else 0.0,
    }
    return _HEAD + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


def workload_of(recording: Recording, data: Data | None, *, engine: str) -> dict[str, Any]:
    """Return the sections of the workload that emulates the recorded job, read by a reader engine."""
    tree: dict[str, Any] = {"model": {"name": "recorded"}, "framework": "pytorch", "ranks": recording.loaders}
    tree["workflow"] = {"checkpoint": recording.saves is not None}
    if data is not None:
        tree["dataset"] = _dataset(recording, data)
    tree["reader"] = _reader(recording, engine)
    tree["train"] = {
        "epochs": 1,
        "computation_time": duration(recording.computation),
        # It is part of the computation time, which is 0 if a replay needs the whole step to receive a batch.
        "step_cpu_time": duration(recording.step_cpu if recording.computation.mean else Spread.of([0.0])),
        "synchronous": recording.synchronous,
    }
    if recording.saves is not None:
        tree["model"]["model_size_bytes"] = int(rounded(recording.saves.bytes))
        tree["checkpoint"] = {"steps_between_checkpoints": recording.saves.batches_between or -1, "type": "rank_zero"}
    return tree


def simplified(recording: Recording, data: Data | None) -> Iterator[str]:
    """Yield notes on simplifications in the recipe; the replay shows whether they matter."""
    batches = recording.gradient_accumulation_steps
    if recording.loaders > 1 and batches > 1:
        yield f"its ranks synchronise every {batches} batches: in a replay they do after each"
    files = recording.files_per_sample
    if data is not None and files > 1:
        yield f"each sample is read from {files} files ({data.ending}): in the recipe each file is a sample"
    if data is not None and reads_parts(data, recording):
        part = f"{recording.read_bytes_per_sample / files:,.0f} bytes"
        yield f"it reads a part of a file for each sample, {part}: a replay reads such pieces from all over the files"


def reads_parts(data: Data, recording: Recording) -> bool:
    """Return whether a replay reads PIECES of files, as the job reads parts of them."""
    return data.format == PIECES and not recording.mapped


def _dataset(recording: Recording, data: Data) -> dict[str, Any]:
    file_samples = max(1, round(data.samples_per_file))
    piece_bytes = recording.read_bytes_per_sample / recording.files_per_sample
    is_cut = recording.mapped or reads_parts(data, recording)
    length = piece_bytes if is_cut and piece_bytes > 0 else data.bytes / data.files / file_samples
    tree: dict[str, Any] = {
        "format": data.format or "npy",
        "num_files_train": int(rounded(data.files)),
        "num_samples_per_file": int(rounded(file_samples)),
        "record_length_bytes": int(rounded(length)),
    }
    sizes = data.sizes.quantiles
    if not is_cut and sizes[-1] - sizes[0] > 0.01 * data.sizes.mean:  # sizes within 1 % are written as one size
        quantiles = [rounded(size / file_samples) for size in sizes]
        tree["record_length_bytes_quantiles"] = ascending(quantiles, rounded(length))
    if data.group_rows:
        tree["parquet"] = {"row_group_size": int(rounded(data.group_rows))}
    shipped = int(rounded(recording.shipped_bytes_per_sample / recording.files_per_sample))
    if 0 < shipped < length:
        tree["record_length_bytes_resize"] = shipped
    return tree


def _reader(recording: Recording, engine: str) -> dict[str, Any]:
    loading, files = recording.loading, recording.files_per_sample
    shuffle = "off" if loading.order == "in order" else "seed"
    shipped = rounded(recording.shipped_bytes_per_sample / files)
    tensors = {}
    if loading.workers and recording.arrays and shipped >= 1:  # workers send tensors to the trainer
        tensors = {"tensors": min(recording.arrays, 64), "tensor_bytes": int(shipped)}
    return {
        "data_loader": "pytorch",
        "batch_size": recording.batch_size * files,
        "read_threads": loading.workers,
        "prefetch_size": loading.workers * loading.prefetch,
        "multiprocessing_context": loading.start_method,
        "file_shuffle": shuffle,
        "sample_shuffle": "off" if loading.iterable else shuffle,
        "worker_streams": loading.iterable,
        "engine": engine,
        "nice": 0,
        "preprocess": "burn",
        "preprocess_time": duration(recording.preprocess.scaled(recording.preprocess.mean / files)),
        **tensors,
    }


def duration(spread: Spread) -> float | dict[str, Any]:
    """Return a time as a setting: a number if it hardly varies, else its quantiles and its exact mean."""
    if spread.quantiles[-1] - spread.quantiles[0] <= _NARROW * spread.mean:
        return spread.mean
    quantiles = ascending([rounded(value, 4) for value in spread.quantiles], spread.mean)
    return {"type": "empirical", "mean": spread.mean, "seconds": quantiles}


def ascending(quantiles: list[float], mean: float) -> list[float]:
    """Return rounded quantiles, of which the outer ones are widened if rounding left the mean outside."""
    return [min(quantiles[0], mean), *quantiles[1:-1], max(quantiles[-1], mean)]


def rounded(value: float, digits: int = 3) -> float:
    """Return a count or a size with few digits, as the exact one could identify the data."""
    return float(f"{value:.{digits}g}")


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers in flow style."""


_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)

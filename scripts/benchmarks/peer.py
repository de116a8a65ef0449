"""Runs DLIO in the virtual environment of `--peer ENV`, and reads its results."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from benchmarks.processes import Ended, run
from datagen.errors import DlemuError, UserError

_COMMAND = "from dlio_benchmark.main import main; main()"
_LIMIT = ("++workload.workflow.checkpoint=False", "++workload.workflow.evaluation=False")
_ERROR = r"[\w.]*(Error|Exception)\b"
_MAX_LETTERS = 200
_STAMP = r"(\d{4}-\d\d-\d\dT[\d:.]+) "


class PeerFailed(DlemuError):
    """The peer could not be measured; other comparisons are still made."""


class PeerTrained(NamedTuple):
    """Times and resources of a training run."""

    step_seconds: list[float]
    """Mean step time of each epoch."""
    cpu_seconds: float
    pss_bytes: int
    read_bytes: int
    """Bytes of read calls."""


class PeerSaved(NamedTuple):
    """Times and resources of a run that saves and restores checkpoints."""

    seconds_to_first: float
    """From the command to the start of the first checkpoint."""
    write_gib_per_second: float
    """Rate of rank 0."""
    read_gib_per_second: float
    pss_bytes: int


class Peer:
    """DLIO in a virtual environment; raises UserError if it is not there."""

    def __init__(self, environment: str) -> None:
        self._bin = os.path.join(os.path.abspath(environment), "bin")
        self._python = os.path.join(self._bin, "python")
        if not os.path.exists(self._python):
            raise UserError(f"--peer {environment}: there is no {self._python}; wanted a virtual environment with DLIO")
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('dlio_benchmark') is None)"
        if run([self._python, "-c", code], accepted=(0, 1)).status:
            raise UserError(
                f"--peer {environment}: no dlio_benchmark in it; wanted: {self._bin}/pip install dlio-benchmark"
            )

    def make(self, folder: str, dataset: Mapping[str, int | str], **settings: int | str) -> float:
        """Make a dataset in a folder; return the time of the generation alone. Raises PeerFailed."""
        ended = self._run(folder, dataset, "generate_data=True", "train=False", *_changes(settings))
        start, end = (
            re.search(_STAMP + message, ended.output) for message in ("Starting data generation", "Generation done")
        )
        if not start or not end:
            raise PeerFailed(f"it reported no begin and end of making data: {_error_line(ended.output)}")
        return (datetime.fromisoformat(end[1]) - datetime.fromisoformat(start[1])).total_seconds()

    def train(self, folder: str, dataset: Mapping[str, int | str], ranks: int, **settings: int | str) -> PeerTrained:
        """Train on `ranks` ranks. Raises PeerFailed."""
        ended = self._run(folder, dataset, "generate_data=False", "train=True", *_changes(settings), ranks=ranks)
        output = self._output(folder)
        try:
            seconds = [
                _block_seconds(epoch) / count for epoch, count in zip(_epochs(output), _steps(output), strict=True)
            ]
        except (OSError, ValueError, KeyError) as error:
            raise PeerFailed(f"it left no times of its steps ({error!r}): {_error_line(ended.output)}") from None
        return PeerTrained(seconds, ended.cpu_seconds, ended.pss_bytes, ended.read_bytes)

    def save(self, folder: str, workload: str, model: Mapping[str, int], ranks: int, checkpoints: int) -> PeerSaved:
        """Write and read checkpoints of one of DLIO's workloads, with the changes in `model`. Raises PeerFailed."""
        output = self._output(folder)
        shutil.rmtree(output, ignore_errors=True)
        checkpoint = {
            "checkpoint_folder": folder,
            "num_checkpoints_write": checkpoints,
            "num_checkpoints_read": checkpoints,
            "time_between_checkpoints": 0,
        }
        overrides = [f"++workload.checkpoint.{name}={value}" for name, value in checkpoint.items()]
        overrides += [f"++workload.model.transformer.{name}={value}" for name, value in model.items()]
        overrides += [f"hydra.run.dir={output}", f"++workload.output.folder={output}"]
        launcher = [os.path.join(self._bin, "mpirun"), "-np", str(ranks)]
        start = datetime.now()
        ended = run(
            [*launcher, self._python, "-W", "ignore", "-c", _COMMAND, f"workload={workload}", *overrides],
            accepted=range(-64, 256),
        )
        first = re.search(_STAMP + "Starting saving checkpoint 1 ", ended.output)
        if ended.status or not first:
            raise PeerFailed(f"it ended with status {ended.status}: {_error_line(ended.output)}")
        with open(os.path.join(output, "summary.json")) as lines:
            metric = json.load(lines)["metric"]
        return PeerSaved(
            (datetime.fromisoformat(first[1]) - start).total_seconds(),
            metric["save_checkpoint_io_mean_GB_per_second"],
            metric["load_checkpoint_io_mean_GB_per_second"],
            ended.pss_bytes,
        )

    def _run(self, folder: str, dataset: Mapping[str, int | str], *changes: str, ranks: int = 1) -> Ended:
        """Run DLIO's command; sizes of records are also given by their older keys."""
        values = dict(dataset)
        for name in [name for name in values if name.startswith("record_length_bytes")]:
            values[name.replace("_bytes", "")] = values[name]
        overrides = [f"++workload.dataset.{name}={value}" for name, value in values.items()]
        overrides += [
            change if change.startswith("++") else f"++workload.workflow.{change}"
            for change in (*changes, f"++workload.dataset.data_folder={folder}", *_LIMIT)
        ]
        overrides += [f"++workload.dataset.{name}=0" for name in ("num_subfolders_train", "num_files_eval")]
        output = self._output(folder)
        shutil.rmtree(output, ignore_errors=True)  # of an earlier run
        overrides += [f"hydra.run.dir={output}", f"++workload.output.folder={output}"]
        path = f"PATH={self._bin}:{os.environ.get('PATH', '')}"  # for its helper programs, such as tfrecord2idx
        launcher = [os.path.join(self._bin, "mpirun"), "-np", str(ranks)] if ranks > 1 else []
        ended = run(
            ["env", path, *launcher, self._python, "-W", "ignore", "-c", _COMMAND, "workload=default", *overrides],
            accepted=range(-64, 256),
        )
        if ended.status:
            raise PeerFailed(f"it ended with status {ended.status}: {_error_line(ended.output)}")
        return ended

    def _output(self, folder: str) -> str:
        return folder + "-peer"


def _changes(settings: Mapping[str, int | str]) -> list[str]:
    return [f"++workload.{name.replace('__', '.')}={value}" for name, value in settings.items()]


def _epochs(output: str) -> list[dict[str, Any]]:
    """Read the times of each epoch; the name of the file differs between DLIO's releases."""
    for name in ("0_per_epoch_stats.json", "per_epoch_stats.json"):
        path = os.path.join(output, name)
        if os.path.exists(path):
            with open(path) as lines:
                return list(json.load(lines).values())
    raise FileNotFoundError("no per_epoch_stats.json")


def _steps(output: str) -> list[int]:
    """Read the number of steps really trained in each epoch: some releases silently lose steps.

    Raises ValueError if an epoch has no step, and so no step time.
    """
    with open(os.path.join(output, "0_output.json")) as lines:
        epochs_by_key = json.load(lines)
    epochs = sorted((key for key in epochs_by_key if key.isdecimal()), key=int)
    steps = [len(epochs_by_key[epoch]["load"]["block1"]) for epoch in epochs]
    if not steps or not all(steps):
        raise ValueError("an epoch without a step")
    return steps


def _error_line(output: str) -> str:
    """Return the last line that names an error, or else the last line; launchers and hydra print lines after it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(_ERROR, line)]
    return (errors or lines or ["it printed nothing"])[-1][:_MAX_LETTERS]


def _block_seconds(epoch: Mapping[str, Any]) -> float:
    block = epoch["block1"]
    return (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"])).total_seconds()

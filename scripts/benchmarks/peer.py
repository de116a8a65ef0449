"""DLIO itself, in a virtual environment of its own that `--peer ENV` names: its command, and what its files tell."""

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
_MOST_LETTERS = 200
_STAMP = r"(\d{4}-\d\d-\d\dT[\d:.]+) "


class PeerFailed(DlemuError):
    """The peer could not do what was asked of it: a finding, beside which the others are measured all the same."""


class PeerTrained(NamedTuple):
    """What its run took."""

    step_seconds: list[float]
    """Of each epoch."""
    cpu_seconds: float
    pss_bytes: int
    read_bytes: int
    """By read calls."""


class PeerSaved(NamedTuple):
    """What its checkpoints took."""

    seconds_to_first: float
    """From the command to the first checkpoint's begin."""
    write_gib_per_second: float
    """By rank 0."""
    read_gib_per_second: float
    pss_bytes: int


class Peer:
    """DLIO in an environment; raises UserError when there is none."""

    def __init__(self, environment: str) -> None:
        self._bin = os.path.join(os.path.abspath(environment), "bin")
        self._python = os.path.join(self._bin, "python")
        if not os.path.exists(self._python):
            raise UserError(f"--peer {environment}: there is no {self._python}; wanted a virtual environment with DLIO")
        asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('dlio_benchmark') is None)"
        if run([self._python, "-c", asked], accepted=(0, 1)).status:
            raise UserError(
                f"--peer {environment}: no dlio_benchmark in it; wanted: {self._bin}/pip install dlio-benchmark"
            )

    def make(self, folder: str, dataset: Mapping[str, int | str], **settings: int | str) -> float:
        """Make a dataset in a folder; return the seconds of the generation alone. Raises PeerFailed."""
        ended = self._run(folder, dataset, "generate_data=True", "train=False", *_changes(settings))
        begun, done = (
            re.search(_STAMP + words, ended.output) for words in ("Starting data generation", "Generation done")
        )
        if not begun or not done:
            raise PeerFailed(f"it reported no begin and end of making data: {_last_words(ended.output)}")
        return (datetime.fromisoformat(done[1]) - datetime.fromisoformat(begun[1])).total_seconds()

    def train(self, folder: str, dataset: Mapping[str, int | str], ranks: int, **settings: int | str) -> PeerTrained:
        """Train on so many ranks. Raises PeerFailed."""
        ended = self._run(folder, dataset, "generate_data=False", "train=True", *_changes(settings), ranks=ranks)
        output = self._output(folder)
        try:
            seconds = [
                _block_seconds(epoch) / count for epoch, count in zip(_epochs(output), _steps(output), strict=True)
            ]
        except (OSError, ValueError, KeyError) as error:
            raise PeerFailed(f"it left no times of its steps ({error!r}): {_last_words(ended.output)}") from None
        return PeerTrained(seconds, ended.cpu_seconds, ended.pss_bytes, ended.read_bytes)

    def save(self, folder: str, workload: str, model: Mapping[str, int], ranks: int, checkpoints: int) -> PeerSaved:
        """Write and read checkpoints of one of its own workloads, cut to `model`. Raises PeerFailed."""
        output = self._output(folder)
        shutil.rmtree(output, ignore_errors=True)
        saves = {
            "checkpoint_folder": folder,
            "num_checkpoints_write": checkpoints,
            "num_checkpoints_read": checkpoints,
            "time_between_checkpoints": 0,
        }
        words = [f"++workload.checkpoint.{name}={value}" for name, value in saves.items()]
        words += [f"++workload.model.transformer.{name}={value}" for name, value in model.items()]
        words += [f"hydra.run.dir={output}", f"++workload.output.folder={output}"]
        launcher = [os.path.join(self._bin, "mpirun"), "-np", str(ranks)]
        begun = datetime.now()
        ended = run(
            [*launcher, self._python, "-W", "ignore", "-c", _COMMAND, f"workload={workload}", *words],
            accepted=range(-64, 256),
        )
        first = re.search(_STAMP + "Starting saving checkpoint 1 ", ended.output)
        if ended.status or not first:
            raise PeerFailed(f"it ended with status {ended.status}: {_last_words(ended.output)}")
        with open(os.path.join(output, "summary.json")) as lines:
            metric = json.load(lines)["metric"]
        return PeerSaved(
            (datetime.fromisoformat(first[1]) - begun).total_seconds(),
            metric["save_checkpoint_io_mean_GB_per_second"],
            metric["load_checkpoint_io_mean_GB_per_second"],
            ended.pss_bytes,
        )

    def _run(self, folder: str, dataset: Mapping[str, int | str], *changes: str, ranks: int = 1) -> Ended:
        """Run DLIO's command; keys are given by their old names too."""
        values = dict(dataset)
        for name in [name for name in values if name.startswith("record_length_bytes")]:
            values[name.replace("_bytes", "")] = values[name]
        words = [f"++workload.dataset.{name}={value}" for name, value in values.items()]
        words += [
            change if change.startswith("++") else f"++workload.workflow.{change}"
            for change in (*changes, f"++workload.dataset.data_folder={folder}", *_LIMIT)
        ]
        words += [f"++workload.dataset.{name}=0" for name in ("num_subfolders_train", "num_files_eval")]
        output = self._output(folder)
        shutil.rmtree(output, ignore_errors=True)  # of an earlier run, which did not fail
        place = [f"hydra.run.dir={output}", f"++workload.output.folder={output}"]
        path = f"PATH={self._bin}:{os.environ.get('PATH', '')}"  # where its helpers lie, tfrecord2idx for one
        launcher = [os.path.join(self._bin, "mpirun"), "-np", str(ranks)] if ranks > 1 else []
        ended = run(
            ["env", path, *launcher, self._python, "-W", "ignore", "-c", _COMMAND, "workload=default", *words, *place],
            accepted=range(-64, 256),
        )
        if ended.status:
            raise PeerFailed(f"it ended with status {ended.status}: {_last_words(ended.output)}")
        return ended

    def _output(self, folder: str) -> str:
        return folder + "-peer"


def _changes(settings: Mapping[str, int | str]) -> list[str]:
    return [f"++workload.{name.replace('__', '.')}={value}" for name, value in settings.items()]


def _epochs(output: str) -> list[dict[str, Any]]:
    """Read the times of each epoch; the file's name changed with DLIO's releases."""
    for name in ("0_per_epoch_stats.json", "per_epoch_stats.json"):
        path = os.path.join(output, name)
        if os.path.exists(path):
            with open(path) as lines:
                return list(json.load(lines).values())
    raise FileNotFoundError("no per_epoch_stats.json")


def _steps(output: str) -> list[int]:
    """Read how many steps were really trained in each epoch: some releases silently lose some of them.

    Raises ValueError when an epoch trained none: a time for them would be nobody's.
    """
    with open(os.path.join(output, "0_output.json")) as lines:
        epochs_by_key = json.load(lines)
    epochs = sorted((key for key in epochs_by_key if key.isdecimal()), key=int)
    steps = [len(epochs_by_key[epoch]["load"]["block1"]) for epoch in epochs]
    if not steps or not all(steps):
        raise ValueError("an epoch without a step")
    return steps


def _last_words(output: str) -> str:
    """Return the last line that names an error, else the last one: launchers and hydra add lines of their own."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(_ERROR, line)]
    return (errors or lines or ["it printed nothing"])[-1][:_MOST_LETTERS]


def _block_seconds(epoch: Mapping[str, Any]) -> float:
    block = epoch["block1"]
    return (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"])).total_seconds()

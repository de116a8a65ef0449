"""What all benchmarks share: a folder, the number of rounds, and runs of dlemu's commands and of plain programs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from measuring.runs import dlemu, finished, started

from benchmarks.peer import Peer
from benchmarks.processes import Child, Ended, MemoryWatch, children_cpu_seconds, run, run_together
from dlemu.config.schema import Reader

LAPTOP = ("workload=unet3d", "scale=laptop", "workflow.checkpoint=false")
"""Laptop-size unet3d: samples of 0.57 MB, batches of 7, 4 workers per rank."""

Measured = TypeVar("Measured")
"""The result of one measurement."""

MB = 1e6


@dataclass(frozen=True)
class Trained:
    """A completed run."""

    metrics: dict[str, Any]
    """`metrics` of its summary.json."""
    cpu_seconds: float
    """CPU time of all its processes, from start to end."""
    pss_bytes: int
    """Maximum memory of its processes together; 0 if the run ended before the first sample."""


class Took(NamedTuple):
    """Rate and cost of reading, without start-up."""

    mb_per_second: float
    """From the second epoch on; the plain readers, too, read the files once before they count."""
    cpu_seconds_per_gb: float


class Bench:
    """What one call of `scripts/bench` measures with. The caller makes and removes `folder`."""

    def __init__(
        self, folder: str, *, quick: bool, peer: Peer | None = None, ranks: int = 1, engine: str = "fast"
    ) -> None:
        self.folder, self.quick, self.peer = folder, quick, peer
        self.ranks, self.engine = ranks, engine
        """For the benchmarks of workloads; others have their own."""

    def rounds(self, full: int) -> int:
        """Return the number of rounds: `full`, or 1 if quick."""
        return 1 if self.quick else full

    def interleaved(self, full_rounds: int, *measures: Callable[[], Measured]) -> list[tuple[Measured, ...]]:
        """Run all measures, round after round, and return each round's results in the order of the arguments.

        Every other round runs backwards, so that what a measure leaves behind (free memory, a warm core) affects all.
        """
        rounds = []
        for number in range(self.rounds(full_rounds)):
            order = range(len(measures)) if number % 2 == 0 else reversed(range(len(measures)))
            results = {index: measures[index]() for index in order}
            rounds.append(tuple(results[index] for index in range(len(measures))))
        return rounds

    def dlemu(self, *arguments: str) -> Ended:
        """Run a command of dlemu."""
        return run(dlemu(*arguments))

    def plain(self, name: str, *arguments: object) -> dict[str, Any]:
        """Run one of the plain programs that dlemu is compared with, and return the JSON object that it prints."""
        result: dict[str, Any] = json.loads(run(self._module(name, *arguments)).output)
        return result

    def plain_together(self, commands: Sequence[Sequence[object]]) -> tuple[Took, int]:
        """Run plain readers at the same time, with the niceness of dlemu's workers; return rate, cost and bytes."""
        outputs = run_together([self._module(*map(str, command)) for command in commands], niceness=Reader().nice)
        results = [json.loads(output) for output in outputs]
        read_bytes = sum(result["bytes"] for result in results)
        mb_per_second = sum(result["bytes"] / result["wall_seconds"] for result in results) / MB
        return Took(mb_per_second, sum(result["cpu_seconds"] for result in results) / (read_bytes / 1e9)), read_bytes

    def make_dataset(self, name: str, *overrides: str) -> str:
        """Generate a dataset, which leaves it in the page cache, and return the setting of its folder."""
        folder = f"dataset.data_folder={os.path.join(self.folder, name)}"
        self.dlemu("datagen", *overrides, folder)
        return folder

    @functools.cached_property
    def laptop(self) -> tuple[str, ...]:
        """Settings of laptop-size unet3d with a dataset, made at first use, of 20 steps for 18 ranks (5 if quick)."""
        files = ("dataset.num_files_train=630",) if self.quick else ()
        return (*LAPTOP, *files, self.make_dataset("laptop", *LAPTOP, *files))

    @contextlib.contextmanager
    def training(self, *overrides: str) -> Iterator[tuple[Child, str]]:
        """Start `dlemu train`; yield the process and its results folder, which is removed at the end."""
        folder = None
        try:
            with started("train", overrides, within=self.folder) as (child, folder):
                yield child, folder
        finally:
            shutil.rmtree(folder or "", ignore_errors=True)

    def train(self, *overrides: str) -> Trained:
        """Run `dlemu train` to its end."""
        before = children_cpu_seconds()
        with self.training(*overrides) as (child, folder), MemoryWatch(child) as memory:
            metrics = finished(child, folder).summary["metrics"]
            return Trained(metrics, children_cpu_seconds() - before, memory.max_pss_bytes)

    def train_undisturbed(self, *overrides: str) -> dict[str, Any]:
        """Run `dlemu train` to its end without sampling its memory, which would slow it down; return its metrics."""
        with self.training(*overrides) as (child, folder):
            metrics: dict[str, Any] = finished(child, folder).summary["metrics"]
            return metrics

    def by_difference(self, *overrides: str, fewer: int, more: int) -> Took:
        """Return rate and cost without start-up: by the difference between runs of fewer and of more epochs."""
        few, many = (self.train(*overrides, f"train.epochs={epochs}") for epochs in (fewer, more))
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        by_epoch = many.metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), (many.cpu_seconds - few.cpu_seconds) / more_gb)

    def python(self, *arguments: str) -> Ended:
        """Run the interpreter that runs dlemu."""
        return run([sys.executable, *arguments])

    def _module(self, name: str, *arguments: object) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]

"""What every benchmark is given: a folder, a size, and dlemu's commands as a user would type them."""

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
"""Laptop-size unet3d: samples of 0.57 MB, batches of 7, 4 workers a rank."""

Measured = TypeVar("Measured")
"""What one measurement returns."""

MB = 1e6


@dataclass(frozen=True)
class Trained:
    """A run that was measured to its end."""

    metrics: dict[str, Any]
    """`metrics` of its summary.json."""
    cpu_seconds: float
    """Of all its processes, from start to end."""
    pss_bytes: int
    """The most memory that they held together at any look; 0 when the run ended before."""


class Took(NamedTuple):
    """What reading took, free of start-up."""

    mb_per_second: float
    """From the second epoch on: the plain readers, too, go through the files once before they begin to count."""
    cpu_seconds_per_gb: float


class Bench:
    """One call of the benchmarks. `folder` is emptied by who made it."""

    def __init__(
        self, folder: str, *, quick: bool, peer: Peer | None = None, ranks: int = 1, engine: str = "fast"
    ) -> None:
        self.folder, self.quick, self.peer = folder, quick, peer
        self.ranks, self.engine = ranks, engine
        """Of the workloads' benchmarks; the others have their own."""

    def rounds(self, full: int) -> int:
        """How often to measure: `full` times, once when quick."""
        return 1 if self.quick else full

    def interleaved(self, full_rounds: int, *measures: Callable[[], Measured]) -> list[tuple[Measured, ...]]:
        """Measure several things in turn, round after round, and return each round's results in the order given.

        Every other round runs backwards: what one leaves behind for the next (free memory, a warm core) falls on all.
        """
        rounds = []
        for number in range(self.rounds(full_rounds)):
            order = range(len(measures)) if number % 2 == 0 else reversed(range(len(measures)))
            results = {place: measures[place]() for place in order}
            rounds.append(tuple(results[place] for place in range(len(measures))))
        return rounds

    def dlemu(self, *words: str) -> Ended:
        """Run a command of dlemu."""
        return run(dlemu(*words))

    def plain(self, name: str, *words: object) -> dict[str, Any]:
        """Run one of the plain programs that stand beside dlemu, and return the JSON object that it prints."""
        took: dict[str, Any] = json.loads(run(self._module(name, *words)).output)
        return took

    def plain_together(self, commands: Sequence[Sequence[object]]) -> tuple[Took, int]:
        """Run plain readers at a time, at the niceness that dlemu gives its workers; return it and their bytes."""
        outputs = run_together([self._module(*map(str, words)) for words in commands], niceness=Reader().nice)
        took = [json.loads(output) for output in outputs]
        read_bytes = sum(one["bytes"] for one in took)
        mb_per_second = sum(one["bytes"] / one["wall_seconds"] for one in took) / MB
        return Took(mb_per_second, sum(one["cpu_seconds"] for one in took) / (read_bytes / 1e9)), read_bytes

    def make_dataset(self, name: str, *overrides: str) -> str:
        """Generate a dataset, as warm in the page cache as writing leaves it, and return the override that finds it."""
        where = f"dataset.data_folder={os.path.join(self.folder, name)}"
        self.dlemu("datagen", *overrides, where)
        return where

    @functools.cached_property
    def laptop(self) -> tuple[str, ...]:
        """Overrides of laptop-size unet3d with a dataset made at first use: 20 steps an epoch for 18 ranks, or 5."""
        files = ("dataset.num_files_train=630",) if self.quick else ()
        return (*LAPTOP, *files, self.make_dataset("laptop", *LAPTOP, *files))

    @contextlib.contextmanager
    def training(self, *overrides: str) -> Iterator[tuple[Child, str]]:
        """Start `dlemu train`; give the process and its results folder, which is removed in the end."""
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
            return Trained(metrics, children_cpu_seconds() - before, memory.most_pss_bytes)

    def train_undisturbed(self, *overrides: str) -> dict[str, Any]:
        """Run `dlemu train` to its end, its memory not looked at, which holds it up each time; return its metrics."""
        with self.training(*overrides) as (child, folder):
            metrics: dict[str, Any] = finished(child, folder).summary["metrics"]
            return metrics

    def by_difference(self, *overrides: str, fewer: int, more: int) -> Took:
        """Train for fewer and for more epochs: their difference is free of start-up."""
        few, many = (self.train(*overrides, f"train.epochs={epochs}") for epochs in (fewer, more))
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        by_epoch = many.metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), (many.cpu_seconds - few.cpu_seconds) / more_gb)

    def python(self, *words: str) -> Ended:
        """Run the interpreter that runs dlemu."""
        return run([sys.executable, *words])

    def _module(self, name: str, *words: object) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]

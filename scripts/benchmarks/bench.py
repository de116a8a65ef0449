"""What every benchmark is given: a folder, a size, and dlemu's commands as a user would type them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.peer import Peer
from benchmarks.processes import Child, Ended, MemoryWatch, children_cpu_seconds, run, running
from datagen.errors import UserError
from dlemu.metrics.verdict import COMPLETED

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


class Bench:
    """One call of the benchmarks. `folder` is emptied by who made it."""

    def __init__(
        self, folder: str, *, quick: bool, peer: Peer | None = None, ranks: int = 1, engine: str = "fast"
    ) -> None:
        self.folder, self.quick, self.peer = folder, quick, peer
        self.ranks, self.engine = ranks, engine
        """Of the workloads' benchmarks; the others have their own."""
        self._dlemu = _installed_dlemu()

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

    def dlemu(self, *words: str) -> list[str]:
        """Return a command line of dlemu."""
        return [self._dlemu, *words]

    def module(self, name: str, *words: str) -> list[str]:
        """Return a command line of one of the plain programs that stand beside dlemu."""
        return [sys.executable, "-m", f"benchmarks.{name}", *words]

    def make_dataset(self, name: str, *overrides: str) -> str:
        """Generate a dataset, as warm in the page cache as writing leaves it, and return the override that finds it."""
        where = f"dataset.data_folder={os.path.join(self.folder, name)}"
        run(self.dlemu("datagen", *overrides, where))
        return where

    @functools.cached_property
    def laptop(self) -> tuple[str, ...]:
        """Overrides of laptop-size unet3d with a dataset made at first use: 20 steps an epoch for 18 ranks, or 5."""
        files = ("dataset.num_files_train=630",) if self.quick else ()
        return (*LAPTOP, *files, self.make_dataset("laptop", *LAPTOP, *files))

    @contextlib.contextmanager
    def training(self, *overrides: str) -> Iterator[tuple[Child, str]]:
        """Start `dlemu train`; give the process and its results folder, which is removed in the end."""
        folder = tempfile.mkdtemp(prefix="run-", dir=self.folder)
        try:
            with running(self.dlemu("train", *overrides, f"output.folder={folder}", "output.report=false")) as child:
                yield child, folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def train(self, *overrides: str) -> Trained:
        """Run `dlemu train` to its end."""
        before = children_cpu_seconds()
        with self.training(*overrides) as (child, folder), MemoryWatch(child) as memory:
            child.end(COMPLETED)
            return Trained(_metrics(folder), children_cpu_seconds() - before, memory.most_pss_bytes)

    def train_undisturbed(self, *overrides: str) -> dict[str, Any]:
        """Run `dlemu train` to its end, its memory not looked at, which holds it up each time; return its metrics."""
        with self.training(*overrides) as (child, folder):
            child.end(COMPLETED)
            return _metrics(folder)

    def python(self, *words: str) -> Ended:
        """Run the interpreter that runs dlemu."""
        return run([sys.executable, *words])


def _metrics(folder: str) -> dict[str, Any]:
    with open(os.path.join(folder, "summary.json")) as lines:
        metrics: dict[str, Any] = json.load(lines)["metrics"]
    return metrics


def _installed_dlemu() -> str:
    path = os.path.join(os.path.dirname(sys.executable), "dlemu")
    if not os.path.exists(path):
        raise UserError(f"there is no {path}: run the benchmarks by scripts/bench, which installs dlemu first")
    return path

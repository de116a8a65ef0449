"""`scripts/guard [REV]`: compares the cost of this working tree with that of an older commit (CONTRIBUTING.md).

Both sides run their own commands on their own datasets, in turn, and are compared pair by pair, so that other load of
the machine affects both. A row whose median ratio is over LIMIT is measured MAX_PAIRS times. It is worse if the median
is still over LIMIT and at most one pair is better: equal code gives so many pairs on one side once in 16 times, and
rarely with such a median. After MAX_SECONDS, other rows are undecided (exit status 2); `--only ROW` has time for one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
from measuring.main import guarded
from measuring.runs import bucket, section
from validation.drive import KnownDrive, Speed, known_drive, why_no_drive

from benchmarks.cases import CASES, Case
from benchmarks.objects import server
from benchmarks.processes import children_cpu_seconds, running
from datagen.errors import DlemuError, UserError

ROOT = Path(__file__).parents[2]
LIMIT = 1.05
PAIRS, MAX_PAIRS, MAX_SECONDS = 3, 7, 450
COMPLETED = (0, 1, 4)
"""Exit statuses of runs: passed, failed, too short for a verdict."""
WARM = ("reader.data_loader=pytorch", "train.computation_time=0", "metric.ceiling_seconds=0")
TAR = Case(
    format="webdataset", files=8, samples_per_file=500, record_bytes=100_000, batch_size=50, read_threads=2, epochs=25
)
READ = {CASES["unet3d"]: 60, CASES["hdf5"]: 60, CASES["bert_pytorch"]: 24, CASES["retinanet"]: 60, TAR: TAR.epochs}
"""Datasets that are read from the page cache, and numbers of epochs that take seconds of CPU."""
OBJECTS = Case(format="npy", files=32, record_bytes=8_000_000, batch_size=2, read_threads=2, epochs=48)
SMALL = Case(format="npz", files=504, record_bytes=100_000, batch_size=1, read_threads=4, epochs=1)
ON_DRIVE = Case(format="npz", files=300, record_bytes=1_000_000, batch_size=1, read_threads=2, epochs=2)


class Ran(NamedTuple):
    """A completed training."""

    cpu_seconds: float
    seconds_to_first_step: float
    """From the command until the last rank began its first step."""
    metrics: dict[str, Any]


class Side:
    """One of the two commits."""

    def __init__(self, root: Path, data: str, endpoint: str, drive: KnownDrive | None) -> None:
        self.root, self.data, self.endpoint, self.drive = root, data, endpoint, drive
        self._datasets: set[str] = set()  # folders of the datasets that exist
        os.mkdir(data)
        code = "import datagen, dlemu, dlemu.configs as c; print(*datagen.__path__, *dlemu.__path__, *c.__path__)"
        elsewhere = [path for path in self.python("-c", code)[0].split() if not path.startswith(f"{root}/")]
        if elsewhere:
            raise UserError(f"{root} is to be measured, and Python would import {', '.join(elsewhere)}")

    def python(self, *arguments: str, slowed: bool = False) -> tuple[str, float, int]:
        """Run Python with this side's code; return its output, its CPU seconds, and the time of its start, ns."""
        path = f"PYTHONPATH={self.root}:{self.root}/scripts"
        argv, before = ["env", "-C", self.data, path, sys.executable, *arguments], children_cpu_seconds()
        with running(self.drive.command(argv) if slowed and self.drive else argv) as child:
            child.end(COMPLETED)
            return child.output, children_cpu_seconds() - before, child.started_ns

    def train(self, case: Case, *settings: str, folder: str = "", slowed: bool = False) -> Ran:
        """Train on a dataset, which the first call makes; only `slowed` runs are limited to the drive's speed."""
        data_folder = folder or f"{case.format}-{case.files}"
        dataset = section("dataset", **case.dataset(quick=False), data_folder=data_folder)
        dataset += ["workload=default", *(setting for setting in settings if setting.startswith("storage."))]
        if data_folder not in self._datasets:
            self._datasets.add(data_folder)
            self.python("-m", "dlemu", "datagen", *dataset)
        results = tempfile.mkdtemp(dir=self.data)
        reader = section("reader", batch_size=case.batch_size, read_threads=case.read_threads)
        arguments = (
            *dataset,
            *reader,
            "workflow.checkpoint=false",
            "output.report=false",
            f"output.folder={results}",
            *settings,
        )
        _, cpu_seconds, start_ns = self.python("-m", "dlemu", "train", *arguments, slowed=slowed)
        steps = pyarrow.parquet.read_table(f"{results}/steps.parquet", filters=[("step", "=", 1), ("epoch", "=", 1)])
        first_ns = max(row["free_ns"] + row["wait_ns"] for row in steps.to_pylist())
        metrics = json.loads(Path(results, "summary.json").read_text())["metrics"]
        return Ran(cpu_seconds, (first_ns - start_ns) / 1e9, metrics)

    def start(self, ranks: int) -> Ran:
        return self.train(SMALL, *WARM, f"ranks={ranks}", "train.total_training_steps=1")

    def read(self, case: Case, epochs: int, *settings: str) -> float:
        """Return CPU seconds per GB, without those of a run of one step, which each pair measures anew."""
        ahead = f"reader.prefetch_size={2 * case.read_threads}"
        ran = self.train(case, *WARM, ahead, f"train.epochs={epochs}", *settings)
        return 1e9 * (ran.cpu_seconds - self.start(1).cpu_seconds) / float(ran.metrics["app_bytes"])

    def objects(self) -> float:
        return self.read(OBJECTS, OBJECTS.epochs, *bucket(self.endpoint))

    def ceiling(self) -> float:
        settings = "train.computation_time=0.000375", "train.total_training_steps=4", "metric.ceiling_seconds=2"
        return float(self.train(SMALL, *settings).metrics["ceiling_au_percent"])

    def on_drive(self) -> float:
        """Return the AU of two ranks with a demand of 125 MB/s on a drive of 100 MB/s."""
        assert self.drive is not None
        reader = section("reader", odirect=True, prefetch_size=10, file_shuffle="seed")
        settings = "ranks=2", "train.computation_time=0.016", "train.epochs=2", "metric.ceiling_seconds=0"
        folder = f"{self.drive.folder}/{os.path.basename(self.data)}"
        ran = self.train(ON_DRIVE, *reader, *settings, "metric.exclude_start_steps=8", folder=folder, slowed=True)
        return float(ran.metrics["au_percent"]["mean"])

    def barrier(self, ranks: int) -> float:
        return float(self.python("-m", "benchmarks.barrier", str(ranks))[0])


ROWS: dict[str, tuple[str, Callable[[Side], float]]] = {
    **{case.format: ("CPU s/GB", partial(Side.read, case=case, epochs=epochs)) for case, epochs in READ.items()},
    "s3": ("CPU s/GB", Side.objects),
    "start": ("s, 18 ranks to the first step", lambda side: side.start(18).seconds_to_first_step),
    "torch": ("s, one rank with torch to the first step", lambda side: side.start(1).seconds_to_first_step),
    "ceiling": ("% AU, steps of 0.375 ms", Side.ceiling),
    "drive": ("% AU, a drive of known speed", Side.on_drive),
    "barrier-64": ("us", partial(Side.barrier, ranks=64)),
    "barrier-256": ("us", partial(Side.barrier, ranks=256)),
}


@contextlib.contextmanager
def sides(commit: str, slow: bool) -> Iterator[tuple[Side, Side]]:
    """Check out the commit, with its workloads where an installed dlemu has them; everything is removed at the end."""
    os.makedirs(ROOT / "data", exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="guard-", dir=ROOT / "data"))
        root, git = Path(folder, "tree"), ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), commit], check=True)
        stack.callback(subprocess.run, [*git, "remove", "--force", str(root)], check=True)
        with contextlib.suppress(FileExistsError):
            (root / "dlemu/configs").symlink_to("../configs")
            # The commit's own entry points, which are found before those of the installed dlemu
            subprocess.run([sys.executable, "setup.py", "-q", "egg_info"], cwd=root, check=True, capture_output=True)
        limit = Speed(read_bytes_per_second=100_000_000)
        drive = stack.enter_context(known_drive(limit, size_bytes=1 << 30)) if slow else None
        endpoint = stack.enter_context(server())
        yield Side(root, f"{folder}/old", endpoint, drive), Side(ROOT, f"{folder}/new", endpoint, drive)


def verdict(ratios: Sequence[float]) -> str:
    """Return the verdict of a row from its ratios; `undecided` if it takes more of them."""
    if len(ratios) >= PAIRS and statistics.median(ratios) <= LIMIT:
        return "ok"
    if len(ratios) < MAX_PAIRS:
        return "undecided"
    return "WORSE" if sum(ratio <= 1 for ratio in ratios) <= 1 else "noise"


def compare(commit: str, names: Sequence[str]) -> int:
    """Print each row; return 1 if one is worse, else 2 if one is undecided, else 0."""
    start, verdicts = time.monotonic(), set[str]()
    if "drive" in names and (reason := why_no_drive()):
        print(f"drive skipped: {reason}")
        names = [name for name in names if name != "drive"]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    print("Over 1 the new side is worse: ratios are new / old, of AU old / new.", flush=True)
    with sides(commit, "drive" in names) as both:
        for number in range(MAX_PAIRS):
            for name in names:
                if verdict(ratios[name]) != "undecided" or time.monotonic() - start > MAX_SECONDS:
                    continue
                unit, measure = ROWS[name]
                try:
                    pair = {side: measure(both[side]) for side in ((0, 1), (1, 0))[number % 2]}
                except (DlemuError, LookupError, ValueError) as error:
                    print(f"{name} not measured: {error}", flush=True)
                    continue
                ratios[name].append(pair[0] / pair[1] if "AU" in unit else pair[1] / pair[0])
                print(f"{name:<12} old {pair[0]:<9.4g} new {pair[1]:<9.4g} {unit}", flush=True)
    for name, measured in ratios.items():
        verdicts.add(verdict(measured))
        low, high = min(measured, default=math.nan), max(measured, default=math.nan)
        spread = f"{statistics.median(measured or [math.nan]):.3f} ({low:.3f} to {high:.3f}, {len(measured)} pairs)"
        print(f"{name:<12} ratio {spread:<34} {verdict(measured)}")
    return 1 if "WORSE" in verdicts else 2 if "undecided" in verdicts else 0


def main() -> int:
    """Compare with the commit on the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/guard", description="Compare this tree with an older commit.")
    parser.add_argument("rev", nargs="?", default="main", help="the commit, or a branch that this one began at")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    args = parser.parse_args()
    command = ["git", "-C", str(ROOT), "merge-base", "HEAD", args.rev]
    commit = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    if not commit:
        parser.error(f"{args.rev}: wanted a commit or branch that this working tree has a commit in common with")
    return guarded("guard", lambda: compare(commit, args.only or list(ROWS)))


if __name__ == "__main__":
    sys.exit(main())

"""The runner: `scripts/bench [NAME...]`. The only module here that prints and exits."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial

import psutil

from benchmarks import (
    au,
    barrier,
    beside,
    ceiling,
    checkpoint,
    datagen,
    growth,
    help,
    library,
    many_files,
    objects,
    pack,
    read,
    start,
)
from benchmarks.bench import Bench
from benchmarks.cases import CASES
from benchmarks.figure import Figure, Unmeasured
from benchmarks.peer import Peer
from benchmarks.processes import interrupt_once
from datagen.errors import DlemuError

BENCHMARKS: dict[str, Callable[[Bench], Iterator[Figure | Unmeasured]]] = {
    module.__name__.rpartition(".")[2]: module.measure
    for module in (
        help,
        barrier,
        read,
        objects,
        library,
        datagen,
        checkpoint,
        many_files,
        pack,
        ceiling,
        growth,
        au,
        start,
    )
} | {name: partial(beside.measure, case) for name, case in CASES.items()}
"""Name -> what measures it; the short ones come first."""
WORKLOADS = "workloads"
"""The name of all cases together."""


def main() -> int:
    """Run the benchmarks and return the exit status: 0 nothing missed, 1 something was, 2 or 3 as for dlemu.

    It is 3 too when nothing was missed but a comparison asked for could not be made.
    """
    asked = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    try:
        os.makedirs(asked.folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.folder) as folder:
            peer = Peer(asked.peer) if asked.peer else None
            bench = Bench(folder, quick=asked.quick, peer=peer, ranks=asked.ranks, engine=asked.engine)
            missed, unmeasured = _run(_names(asked.names), bench)
            return 1 if missed else 3 if unmeasured else 0
    except DlemuError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("bench: interrupted; processes and data are removed", file=sys.stderr)
        return 130


def _run(names: list[str], bench: Bench) -> tuple[int, int]:
    """Print every figure as it is known; return how many missed what was wanted, and how many could not be had.

    Small data is held to no bound.
    """
    print(_machine(), flush=True)
    missed = unmeasured = 0
    for name in names:
        for measured in BENCHMARKS[name](bench):
            if isinstance(measured, Unmeasured):
                print(f"{name:<12} {measured.line}", flush=True)
                unmeasured += 1
                continue
            figure = replace(measured, wanted=None) if bench.quick else measured
            print(f"{name:<12} {figure.line}", flush=True)
            missed += figure.missed
    without = f"; {unmeasured} not compared" if unmeasured else ""
    if without or not bench.quick:
        print((f"{missed} missed" if missed else "nothing missed") + without)
    return missed, unmeasured


def _names(asked: list[str]) -> list[str]:
    """Return the benchmarks asked for; `workloads` stands for all of those that are held beside a peer."""
    return [name for word in asked or list(BENCHMARKS) for name in (CASES if word == WORKLOADS else [word])]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure dlemu itself, beside plain programs that do the same (docs/benchmarks.md).",
        epilog="Exit status: 0 nothing missed, 1 something missed, 2 or 3 a benchmark or a comparison could not run.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which ones: {', '.join(BENCHMARKS)}, or {WORKLOADS} for all of {', '.join(CASES)}; default: all",
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round, nothing judged")
    parser.add_argument(
        "--peer", metavar="ENV", help="a virtual environment in which DLIO is installed, to compare with"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help=f"of {WORKLOADS} (default: %(default)s)")
    parser.add_argument(
        "--engine", choices=("fast", "library"), default="fast", help=f"dlemu's, in {WORKLOADS} (default: %(default)s)"
    )
    parser.add_argument("--folder", default="data", help="where the temporary data lies (default: %(default)s)")
    asked = parser.parse_args()
    if asked.ranks < 1:
        parser.error(f"--ranks {asked.ranks}: wanted 1 or more")
    unknown = [name for name in asked.names if name not in {*BENCHMARKS, WORKLOADS}]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]}: wanted {', '.join([*BENCHMARKS, WORKLOADS])}")
    others = set(asked.names or BENCHMARKS) - {*CASES, WORKLOADS}
    if others and (asked.ranks, asked.engine) != (1, "fast"):
        parser.error(f"--ranks and --engine are for {WORKLOADS}, not for {', '.join(sorted(others))}")
    return asked


def _machine() -> str:
    """Say when and where the figures below hold, and how busy the machine was with other things."""
    memory_gb = psutil.virtual_memory().total / 1e9
    return (
        f"{datetime.now().astimezone():%Y-%m-%d %H:%M}, {len(os.sched_getaffinity(0))} cores, {memory_gb:.0f} GB, "
        f"{platform.machine()}, load of the last minute {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())

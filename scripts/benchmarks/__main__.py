"""`scripts/bench [NAME...]`: every figure beside a plain program (docs/benchmarks.md)."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from measuring import evidence
from measuring.main import Group, add_arguments, guarded, measure, wanted_names

from benchmarks import barrier, beside, checkpoint, datagen, emulator, growth, many_files, objects, pack, read, recorder
from benchmarks.bench import Bench
from benchmarks.cases import CASES
from benchmarks.figure import Figure
from benchmarks.peer import Peer

BENCHMARKS = {
    "help": Group(emulator.measure_help),
    "barrier": Group(barrier.measure),
    "recorder": Group(recorder.measure),
    "read": Group(read.measure),
    "objects": Group(objects.measure),
    "datagen": Group(datagen.measure),
    "checkpoint": Group(checkpoint.measure),
    "many_files": Group(many_files.measure),
    "pack": Group(pack.measure),
    "ceiling": Group(emulator.measure_ceiling),
    "growth": Group(growth.measure),
    "au": Group(emulator.measure_au),
    "start": Group(emulator.measure_start),
} | {name: Group(partial(beside.measure, case)) for name, case in CASES.items()}
"""A new benchmark is a module with a generator of figures, and its line here; the short ones come first."""
WORKLOADS = "workloads"
"""The name of all cases together."""
EVIDENCE = "docs/evidence/benchmarks"


def main() -> int:
    """Measure what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure dlemu itself, beside plain programs that do the same (docs/benchmarks.md). "
        f"The name {WORKLOADS} is short for {', '.join(CASES)}.",
    )
    add_arguments(parser, BENCHMARKS, EVIDENCE)
    parser.add_argument("--quick", action="store_true", help="little data, one round, nothing judged")
    parser.add_argument("--peer", metavar="ENV", help="a virtual environment with DLIO, to compare with")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help=f"of {WORKLOADS} (default: %(default)s)")
    engines = f"dlemu's, in {WORKLOADS} (default: %(default)s)"
    parser.add_argument("--engine", choices=("fast", "library"), default="fast", help=engines)
    parser.add_argument("--folder", default="data", help="where the temporary data lies (default: %(default)s)")
    asked = parser.parse_args()
    if asked.ranks < 1:
        parser.error(f"--ranks {asked.ranks}: wanted 1 or more")
    words = [name for word in asked.names for name in (CASES if word == WORKLOADS else [word])]
    names = wanted_names(parser, words, BENCHMARKS)
    if set(names) - set(CASES) and (asked.ranks, asked.engine) != (1, "fast"):
        parser.error(f"--ranks and --engine are for {WORKLOADS}, not for {', '.join(sorted(set(names) - set(CASES)))}")
    if asked.quick and asked.save:
        parser.error("--quick measures too little to be saved")

    def work() -> int:
        os.makedirs(asked.folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.folder) as folder:
            peer = Peer(asked.peer) if asked.peer else None
            bench = Bench(folder, quick=asked.quick, peer=peer, ranks=asked.ranks, engine=asked.engine)
            kept = str(evidence.FOLDER / "benchmarks") if asked.save else None
            groups = {name: _unjudged(BENCHMARKS[name]) for name in names} if asked.quick else BENCHMARKS
            return measure("bench", names, groups, bench, judged=not asked.quick, folder=kept)

    return guarded("bench", work)


def _unjudged(group: Group) -> Group:
    """Return a group whose figures are held to no bound: so little data says nothing."""

    def measure(bench: Bench) -> Iterator[evidence.Line]:
        for line in group.measure(bench):
            yield replace(line, wanted=None) if isinstance(line, Figure) else line

    return Group(measure)


if __name__ == "__main__":
    sys.exit(main())

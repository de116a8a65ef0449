"""`scripts/bench [NAME...]`: measures dlemu, and compares it with plain programs (docs/benchmarks.md)."""

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
"""To add a benchmark, write a module with a generator of figures, and add a line here; short ones come first."""
WORKLOADS = "workloads"
"""The name for all cases together."""
EVIDENCE = "docs/evidence/benchmarks"


def main() -> int:
    """Measure the benchmarks on the command line; return the exit status."""
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
    args = parser.parse_args()
    if args.ranks < 1:
        parser.error(f"--ranks {args.ranks}: wanted 1 or more")
    expanded = [name for argument in args.names for name in (CASES if argument == WORKLOADS else [argument])]
    names = wanted_names(parser, expanded, BENCHMARKS)
    if set(names) - set(CASES) and (args.ranks, args.engine) != (1, "fast"):
        parser.error(f"--ranks and --engine are for {WORKLOADS}, not for {', '.join(sorted(set(names) - set(CASES)))}")
    if args.quick and args.save:
        parser.error("--quick measures too little to be saved")

    def work() -> int:
        os.makedirs(args.folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=args.folder) as folder:
            peer = Peer(args.peer) if args.peer else None
            bench = Bench(folder, quick=args.quick, peer=peer, ranks=args.ranks, engine=args.engine)
            save_folder = str(evidence.FOLDER / "benchmarks") if args.save else None
            groups = {name: _unjudged(BENCHMARKS[name]) for name in names} if args.quick else BENCHMARKS
            return measure("bench", names, groups, bench, judged=not args.quick, folder=save_folder)

    return guarded("bench", work)


def _unjudged(group: Group) -> Group:
    """Return a group whose figures are not judged, because so little data proves nothing."""

    def measure(bench: Bench) -> Iterator[evidence.Line]:
        for line in group.measure(bench):
            yield replace(line, wanted=None) if isinstance(line, Figure) else line

    return Group(measure)


if __name__ == "__main__":
    sys.exit(main())

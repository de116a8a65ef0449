"""What `scripts/bench` and `scripts/validate` share: their arguments, and a loop that prints and saves each line."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import interrupt_once

from datagen.errors import DlemuError
from measuring import evidence


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Group:
    """The measurements under one name."""

    measure: Callable[[Any], Iterator[evidence.Line]]
    """Takes the program's `Bench` or `Bed`, and yields a line for each measurement."""
    why_not: Callable[[], str | None] = _nothing
    """Returns why the group can't be measured on this host; None if it can."""
    by_name: bool = False
    """Measured only if named on the command line, because it takes long or belongs to another page."""


def add_arguments(parser: argparse.ArgumentParser, groups: Mapping[str, Group], evidence_folder: str) -> None:
    """Add the arguments that both programs have."""
    excluded = ", ".join(name for name, group in groups.items() if group.by_name)
    default = f"all but {excluded}" if excluded else "all"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(groups)}; default: {default}")
    parser.add_argument("--save", action="store_true", help=f"keep what is measured in {evidence_folder}")
    parser.epilog = (
        "Exit status: 0 nothing missed (or skipped, with the reason); 1 missed; 2 or 3 not measured; 4 no drive."
    )


def wanted_names(parser: argparse.ArgumentParser, names: Sequence[str], groups: Mapping[str, Group]) -> list[str]:
    """Return the names on the command line; if there are none, all groups that need not be named."""
    unknown = [name for name in names if name not in groups]
    if unknown:
        parser.error(f"there is no {unknown[0]}: wanted {', '.join(groups)}")
    return list(names) or [name for name, group in groups.items() if not group.by_name]


def guarded(prog: str, work: Callable[[], int]) -> int:
    """Return the exit status of `work`; after an error or a signal, clean up and print a message."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    try:
        return work()
    except DlemuError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; its processes and data are removed", file=sys.stderr)
        return 130


def measure(
    prog: str,
    names: Sequence[str],
    groups: Mapping[str, Group],
    program: object,
    *,
    judged: bool = True,
    folder: str | None = None,
) -> int:
    """Measure groups with `program` (a `Bench` or a `Bed`), also if one fails; return the exit status."""
    counts = dict.fromkeys(evidence.STATUSES, 0)
    worst_status = 0
    print(evidence.machine(), flush=True)
    for name in names:
        reason = groups[name].why_not()
        if reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        lines, start = [], time.monotonic()
        try:
            for line in groups[name].measure(program):
                lines.append(line)
                print(f"{name:<12} {line.text}", flush=True)
        except DlemuError as error:
            print(f"{prog}: {name}: {error}", file=sys.stderr, flush=True)
            worst_status = max(worst_status, error.exit_status)
            continue
        for line in lines:
            counts[line.status] += 1
        if folder:
            evidence.save(folder, name, lines, minutes=(time.monotonic() - start) / 60)
    missed, unmeasured = counts["MISSED"] if judged else 0, counts["not compared"]
    if judged or unmeasured:
        outcome = f"{missed} missed" if missed else "nothing missed of what was measured"
        print(f"{outcome}; {unmeasured} not compared" if unmeasured else outcome)
    return worst_status or (1 if missed else 3 if unmeasured else 0)

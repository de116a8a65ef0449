"""`scripts/fuzz [--cases N] [--seed S] [INTERFACE...]`: every kind of damage at every interface."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzzing.ends import endings_of
from tests.fuzzing.faults import faults_of
from tests.fuzzing.interfaces import interfaces
from tests.fuzzing.rounds import round_of

_ROUND = 500
COMMANDS = {"ends": endings_of, "faults": faults_of}
"""Doors whose cases are whole commands."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    there = f"of {', '.join(interfaces())} [all]; or ends, faults: commands, which take seconds a case"
    parser.add_argument("interfaces", nargs="*", metavar="INTERFACE", help=there)
    parser.add_argument("--cases", type=int, default=100_000, help="at each interface [100000]")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to see one again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], metavar="COMMAND", help="of ends and faults: these commands")
    given = parser.parse_args()
    bad = 0
    for interface in given.interfaces or interfaces():
        begun = time.monotonic()
        end = given.first + given.cases
        rounds = [range(start, min(start + _ROUND, end)) for start in range(given.first, end, _ROUND)]

        def one(cases: range, interface: str = interface) -> list[str]:
            with tempfile.TemporaryDirectory() as folder:
                if interface in COMMANDS:
                    return COMMANDS[interface](given.seed, cases, Path(folder), given.only)
                return round_of(interface, given.seed, cases, Path(folder) / "data")

        with ThreadPoolExecutor(given.processes) as pool:
            findings = [finding for round_findings in pool.map(one, rounds) for finding in round_findings]
        print(
            f"{interface}: {given.cases} cases, {len(findings)} findings, {time.monotonic() - begun:.0f} s", flush=True
        )
        for finding in findings[:20]:
            print(finding, flush=True)
        bad += len(findings)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

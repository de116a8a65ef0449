"""The runner: `scripts/validate [GROUP...]`. Prints and exits; so do only the programs it starts."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.processes import interrupt_once

from datagen.errors import DlemuError
from validation import (
    bandwidth,
    cached,
    causes,
    checkpoints,
    client,
    coverage,
    fio,
    jitter,
    latency,
    object_cases,
    prediction,
    probing,
    published,
    short_epochs,
    table,
    verdicts,
)
from validation.bed import Bed, make_bed
from validation.check import Check
from validation.drive import why_no_drive

GROUPS: dict[str, Callable[[Bed], Iterator[Check]]] = {
    "ratios": bandwidth.measure_ratios,
    "shapes": bandwidth.measure_shapes,
    "requests": bandwidth.measure_requests,
    "client": client.measure,
    "fio": fio.measure,
    "latency": latency.measure,
    "verdicts": verdicts.measure,
    "short": short_epochs.measure,
    "causes": causes.measure,
    "checkpoints": checkpoints.measure,
    "objects": object_cases.measure,
    "cached": cached.measure,
    "jitter": jitter.measure,
    "coverage": coverage.measure,
    "probe": probing.measure,
    "prediction": prediction.measure,
    "published": published.measure,
}
NEEDS = {
    "fio": fio.why_no_fio,
    "latency": latency.why_no_model,
    "jitter": latency.why_no_model,
    "prediction": prediction.why_no_prediction,
    "probe": probing.why_no_probe,
    "published": published.why_no_published,
}
"""What a group needs beside the drive: returns why it can't be measured, or None."""


BY_NAME = ("coverage", "prediction", "published")
"""Measured only when asked for by name: what takes long, or stands on another page."""


def main() -> int:
    """Measure and return the exit status: 0 all hold (or nothing can be measured here), 1 some do not."""
    asked = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    reason = why_no_drive()
    if reason:
        print(f"validate: skipped: {reason}")
        return 0
    try:
        return _measure(asked.groups, asked.table)
    except DlemuError as error:
        print(f"validate: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("validate: interrupted; the drive is removed", file=sys.stderr)
        return 130


def _measure(groups: list[str], page: str | None) -> int:
    """Print every check as it is known; return the exit status. A group that fails does not keep the others from it."""
    missed, worst = 0, 0
    with make_bed() as bed:
        for group in groups:
            reason = NEEDS.get(group, lambda: None)()
            if reason:
                print(f"{group}: skipped: {reason}")
                continue
            print(f"{group}:", flush=True)
            try:
                checks = _checked(GROUPS[group](bed))
            except DlemuError as error:
                print(f"validate: {group}: {error}", file=sys.stderr, flush=True)
                worst = max(worst, error.exit_status)
                continue
            missed += sum(not check.holds for check in checks)
            if page:
                table.put(page, group, table.markdown(checks))
    print(f"{missed} missed" if missed else "all that was measured holds" if worst else "all hold")
    return worst or (1 if missed else 0)


def _checked(measured: Iterator[Check]) -> list[Check]:
    """Print each check, and how long all of them took."""
    checks, began = [], time.monotonic()
    for check in measured:
        checks.append(check)
        print("  " + table.line(check), flush=True)
    print(f"  {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return checks


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/validate",
        description="Hold what dlemu says against drives of known speed (docs/validation.md). Needs root.",
        epilog="Exit status: 0 all hold, or skipped with the reason; 1 some do not; 2 or 3 it could not run.",
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"which: {', '.join(GROUPS)}; default: all but {', '.join(BY_NAME)}"
    )
    parser.add_argument("--table", metavar="PAGE", help="write the tables into this page, such as docs/validation.md")
    asked = parser.parse_args()
    unknown = [group for group in asked.groups if group not in GROUPS]
    if unknown:
        parser.error(f"no group is called {unknown[0]}: wanted {', '.join(GROUPS)}")
    asked.groups = asked.groups or [group for group in GROUPS if group not in BY_NAME]
    table.check_argument(parser, asked.table, asked.groups)
    return asked


if __name__ == "__main__":
    sys.exit(main())

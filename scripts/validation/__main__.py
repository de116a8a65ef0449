"""`scripts/validate [GROUP...]`: compares dlemu's results with what must be true (docs/validation.md)."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from measuring import evidence
from measuring.main import Group, add_arguments, guarded, measure, wanted_names

from validation import (
    bandwidth,
    beside,
    cached,
    causes,
    checkpoints,
    client,
    fio,
    jitter,
    kvcache,
    latency,
    libraries,
    object_cases,
    prediction,
    probing,
    published,
    real,
    sizes,
    sustained,
    tried,
    verdicts,
)
from validation.bed import Bed, make_bed
from validation.drive import why_no_drive

GROUPS = {
    "ratios": Group(partial(bandwidth.measure, bandwidth.RATIOS)),
    "shapes": Group(partial(bandwidth.measure, bandwidth.SHAPES)),
    "requests": Group(partial(bandwidth.measure, bandwidth.REQUESTS)),
    "libraries": Group(libraries.measure),
    "client": Group(client.measure),
    "fio": Group(fio.measure, fio.why_no_fio),
    "latency": Group(latency.measure, latency.why_no_model),
    "verdicts": Group(verdicts.measure),
    "short": Group(sustained.measure_short),
    "causes": Group(causes.measure),
    "checkpoints": Group(checkpoints.measure),
    "objects": Group(object_cases.measure),
    "cached": Group(cached.measure),
    "jitter": Group(jitter.measure, latency.why_no_model),
    "probe": Group(probing.measure, fio.why_no_fio),
    "coverage": Group(sustained.measure_coverage, by_name=True),
    "kvcache": Group(kvcache.measure, by_name=True),
    "sizes": Group(sizes.measure, by_name=True),
    "try": Group(tried.measure),
    "prediction": Group(prediction.measure, latency.why_no_model, by_name=True),
    "beside": Group(beside.measure, by_name=True),
    "published": Group(published.measure, by_name=True),
    "real": Group(real.measure, real.why_no_real, by_name=True),
}
"""To add a group, write a module with a generator of checks that takes the bed, and add a line here."""
NO_DRIVE = {"published"}
"""Groups that need no drive of known speed, and so no root. They get None instead of a bed."""
EVIDENCE = "docs/evidence/validation"
NO_DRIVE_STATUS = 4
"""Exit status if no drive can be made, and so nothing was measured."""


def main() -> int:
    """Measure the groups on the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/validate",
        description="Compare what dlemu says with what must be true on drives of known speed. Needs root.",
    )
    add_arguments(parser, GROUPS, EVIDENCE)
    args = parser.parse_args()
    names = wanted_names(parser, args.names, GROUPS)
    needs_drive = not set(names) <= NO_DRIVE
    reason = why_no_drive() if needs_drive else None
    if reason:
        print(f"validate: nothing was measured: {reason}", file=sys.stderr)
        return NO_DRIVE_STATUS

    def work() -> int:
        folder = str(evidence.FOLDER / "validation") if args.save else None
        with make_bed() if needs_drive else contextlib.nullcontext() as bed:
            return measure("validate", names, {name: _then_clear(GROUPS[name]) for name in names}, bed, folder=folder)

    return guarded("validate", work)


def _then_clear(group: Group) -> Group:
    """Return a group whose datasets are removed when it ends, because those of all groups would fill the drive."""

    def measure_and_clear(bed: Bed | None) -> Iterator[evidence.Line]:
        try:
            yield from group.measure(bed)
        finally:  # also if the group fails
            if bed is not None:
                bed.clear()

    return replace(group, measure=measure_and_clear)


if __name__ == "__main__":
    sys.exit(main())

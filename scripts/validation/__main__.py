"""`scripts/validate [GROUP...]`: what dlemu says beside what must be true (docs/validation.md)."""

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
"""A new group is a module with a generator of checks, which is given the bed, and its line here."""
NO_DRIVE = {"published"}
"""Groups that need no drive of known speed, and so no root; they are given None."""
EVIDENCE = "docs/evidence/validation"
NO_DRIVE_STATUS = 4
"""Exit status where no drive can be made, so that nothing was measured."""


def main() -> int:
    """Measure what was asked for; return the exit status: NO_DRIVE_STATUS, with the reason, without a drive."""
    parser = argparse.ArgumentParser(
        prog="scripts/validate",
        description="Compare what dlemu says with what must be true on drives of known speed. Needs root.",
    )
    add_arguments(parser, GROUPS, EVIDENCE)
    asked = parser.parse_args()
    names = wanted_names(parser, asked.names, GROUPS)
    needs_drive = not set(names) <= NO_DRIVE
    reason = why_no_drive() if needs_drive else None
    if reason:
        print(f"validate: nothing was measured: {reason}", file=sys.stderr)
        return NO_DRIVE_STATUS

    def work() -> int:
        kept = str(evidence.FOLDER / "validation") if asked.save else None
        with make_bed() if needs_drive else contextlib.nullcontext() as bed:
            return measure("validate", names, {name: _then_clear(GROUPS[name]) for name in names}, bed, folder=kept)

    return guarded("validate", work)


def _then_clear(group: Group) -> Group:
    """Return a group whose datasets are removed when it ends: those of all groups would fill the drive."""

    def measured(bed: Bed | None) -> Iterator[evidence.Line]:
        try:
            yield from group.measure(bed)
        finally:  # a group that failed leaves no less room for the others
            if bed is not None:
                bed.clear()

    return replace(group, measure=measured)


if __name__ == "__main__":
    sys.exit(main())

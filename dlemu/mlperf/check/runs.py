"""Rules on the runs of one result together: how many, how far apart, alike, each with a shuffle of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from dlemu.mlperf.audit.tolerant import stamp_us
from dlemu.mlperf.check.model import Leaf, Located, Result, Rule
from dlemu.mlperf.finding import Finding, Severity

GAP_FACTOR = 2
"""Run folders begin less than so many times the shortest run's duration apart (2.1.18 of v3.0's checker)."""
SPREAD = 0.05
"""Runs of one result are replicable within this share (v1.0 to v3.0, results section)."""


def number(result: Result) -> Iterator[Located]:
    """As many folders of runs as the edition wants."""
    edition, seen = result.edition, len(result.runs)
    if result.single:
        fix = "check the folder above, when there are more runs of it"
        wanted = f"{_wanted(result)} of one result"
        told = "a single run: how many there are, and the time between them, is not judged"
        yield Located(result.path, Finding("info", "runs.single", told, wanted, fix))
    elif seen < edition.measured_runs or (edition.counts_runs and seen != edition.run_folders):
        fix = "dlemu mlperf run goes on where it ended" if seen < edition.run_folders else "keep one sequence of runs"
        names = ", ".join(leaf.name for leaf in result.runs) or "none"
        yield _located(result, "error", "runs.count", f"{seen} runs: {names}", _wanted(result), fix)
    elif seen != edition.run_folders:
        fix = "keep the warm-up run and the measured ones, and no others"
        yield _located(result, "warning", "runs.count", f"{seen} runs", _wanted(result), fix)


def _wanted(result: Result) -> str:
    warm_up = "a warm-up run and " if result.edition.warm_up else ""
    return f"{warm_up}{result.edition.measured_runs} runs"


def stamps(result: Result) -> Iterator[Located]:
    """Run folders are named by the time they began."""
    for leaf in result.runs if result.phased else ():
        if leaf.stamp is None:
            fix = "leave the folder's name as the tool made it"
            told = f"a run's folder is called {leaf.name!r}"
            yield Located(leaf.path, Finding("error", "runs.stamp", told, "YYYYMMDD_HHMMSS", fix))


def ended(result: Result) -> Iterator[Located]:
    """Every folder of a run holds a run that ended."""
    for leaf in result.runs:
        if leaf.run is None or "summary.json" not in leaf.files:
            there = "summary.json" in leaf.files
            seen = "a summary of no training" if there else "no summary.json: the run did not end"
            fix = "repeat the runs; a failed run ends the sequence"
            yield Located(leaf.path, Finding("error", "runs.ended", seen, "a run that ended", fix))


def gaps(result: Result) -> Iterator[Located]:
    """Nothing else ran between two runs."""
    if result.single:
        return
    severity: Severity = "error" if result.edition.checks_tree else "warning"
    timed = [(leaf, *_span(leaf)) for leaf in result.runs]
    known = [(leaf, start, end) for leaf, start, end in timed if start is not None and end is not None]
    for leaf, start, end in known:
        if end < start:
            seen, fix = f"the run ended at {end}, before it began at {start}", "set the host's clock"
            yield Located(leaf.path, Finding("error", "runs.clock", seen, "an end after the start", fix))
    shortest = min((end - start for _, start, end in known if end >= start), default=None)
    begun = sorted([(leaf.stamp or start, leaf) for leaf, start, _ in known], key=lambda one: one[0])
    apart = [(second - first, leaf) for (first, _), (second, leaf) in pairwise(begun)]
    wide = [(gap, leaf) for gap, leaf in apart if shortest is not None and gap >= GAP_FACTOR * shortest]
    if shortest is not None and wide:
        longest, leaf = max(wide, key=lambda one: one[0])
        seen = f"{len(wide)} of {len(apart)} gaps, up to {longest} from one run's start to the next ({leaf.name})"
        wanted = f"less than {GAP_FACTOR * shortest}: {GAP_FACTOR} x the shortest run"
        fix = "repeat the runs, one right after another (dlemu mlperf run in a new folder)"
        yield _located(result, severity, "runs.gap", seen, wanted, fix)


def _span(leaf: Leaf) -> tuple[datetime | None, datetime | None]:
    return _moment(leaf.printed.start), _moment(leaf.printed.end)


def _moment(stamp: str | None) -> datetime | None:
    microseconds = stamp_us(stamp)
    return None if microseconds is None else datetime(1970, 1, 1) + timedelta(microseconds=microseconds)


def alike(result: Result) -> Iterator[Located]:
    """All runs are the same job on the same hosts."""
    for what, values in (
        ("workload", [leaf.setup.workload for leaf in result.runs]),
        ("accelerator", [leaf.setup.accelerator for leaf in result.runs]),
        ("number of accelerators", [leaf.printed.accelerators for leaf in result.runs]),
        ("number of hosts", [leaf.printed.hosts for leaf in result.runs]),
        ("reader.read_threads", [leaf.section("reader").get("read_threads") for leaf in result.runs]),
        ("reader.odirect", [leaf.section("reader").get("odirect") for leaf in result.runs]),
    ):
        seen = sorted({str(value) for value in values if value is not None})
        if len(seen) > 1:
            fix = "repeat the runs with the same settings on the same hosts"
            yield _located(
                result, "error", "runs.differ", f"{what}: {' and '.join(seen[:3])}", "the same in all runs", fix
            )


def shuffled_anew(result: Result) -> Iterator[Located]:
    """Each run shuffles with a seed of its own, where the seeds are told."""
    seeds = [leaf.section("train").get("seed") for leaf in result.runs]
    known = [seed for seed in seeds if isinstance(seed, int)]
    if len(known) > 1 and len(set(known)) < len(known):
        seen = f"train.seed: {', '.join(map(str, known))}"
        fix = "nothing, if mlpstorage ran it: DLIO's seed stays; dlemu mlperf run changes it"
        yield _located(result, "info", "runs.seed", seen, "another seed for each run, says the rules' text", fix)


def replicable(result: Result) -> Iterator[Located]:
    """Samples/s of the measured runs lie within 5 %."""
    rates = [leaf.printed.samples_per_second for leaf in result.measured]
    known = [rate for rate in rates if rate]
    if len(known) > 1 and (max(known) - min(known)) / (sum(known) / len(known)) > SPREAD:
        seen = f"{min(known):.2f} to {max(known):.2f} samples/s"
        fix = "see what else used the storage or the hosts"
        yield _located(result, "warning", "runs.spread", seen, f"within {100 * SPREAD:g} % of each other", fix)


def _located(result: Result, severity: Severity, rule: str, seen: str, wanted: str, fix: str) -> Located:
    return Located(result.path, Finding(severity, rule, seen, wanted, fix))


RULES: tuple[Rule, ...] = (number, stamps, ended, gaps, alike, shuffled_anew, replicable)

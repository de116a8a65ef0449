"""Rules on what is too good to be measured: copies, runs at the same time, stamps and sums that contradict the runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from dlemu.mlperf.audit.tolerant import mapping, number, read_json, stamp_us, text
from dlemu.mlperf.check.submission_tree import Leaf, Result, Rule, stamp_of
from dlemu.mlperf.check.tree_rules import sums_of
from dlemu.mlperf.rules import unapplied
from dlemu.results.finding import Finding, Located, Severity

_DIGITS = 6
"""A measured number has more digits than this; two runs do not measure all of them alike."""
_LATE, _EARLY = timedelta(minutes=45), timedelta(minutes=5)
"""How long after the time in its folder's name a run may begin (mlpstorage looks at the hosts first), and before it."""
_ZONE = timedelta(minutes=30)
"""Time zones lie whole multiples of this apart."""
_SAME = 1e-6
"""Relative: sums of the same runs."""


def copied_runs(results: Sequence[Result]) -> Iterator[Located]:
    """No run has the numbers of another: not in its result, and not in another one."""
    known: dict[object, tuple[Result, Leaf]] = {}
    for result in results:
        for leaf in result.runs:
            first = next((known[key] for key in _prints(leaf) if key in known), None)
            for key in _prints(leaf):
                known.setdefault(key, (result, leaf))
            if first is not None:
                other = first[1].name if first[0] is result else os.path.relpath(first[1].path, leaf.path)
                seen = f"all numbers are those of {other}, to the last digit"
                fix = "hand in what was measured; repeat the run"
                yield Located(leaf.path, Finding("error", "runs.copied", seen, "a run of its own", fix))


def _prints(leaf: Leaf) -> Iterator[object]:
    """Yield what no two runs have in common: their ranks' steps, and the figures of their epochs."""
    if leaf.run is not None and leaf.run.steps_digest is not None:
        yield leaf.run.steps_digest
    figures = leaf.printed.au_by_epoch + leaf.printed.samples_per_second_by_epoch
    measured = [figure for figure in figures if round(figure, _DIGITS) != figure]
    if len(measured) >= 3:
        yield figures


def runs_overlap(result: Result) -> Iterator[Located]:
    """A run begins when the one before it has ended."""
    timed = [(*span, leaf) for leaf in result.runs if (span := _span(leaf)) is not None]
    timed.sort(key=lambda run: run[0])
    for (_, ended, before), (begun, _, leaf) in pairwise(timed):
        if begun < ended - timedelta(seconds=1):
            seen = f"began at {begun}, {before.name} ended at {ended}"
            fix = "run them one after another; a copy tells the time of its original"
            yield Located(leaf.path, Finding("error", "runs.overlap", seen, "runs one after another", fix))


def _span(leaf: Leaf) -> tuple[datetime, datetime] | None:
    begun, ended = stamp_us(leaf.printed.start), stamp_us(leaf.printed.end)
    if begun is None or ended is None or ended < begun:
        return None
    return _moment(begun), _moment(ended)


def _moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=microseconds)


def stamps_agree(result: Result) -> Iterator[Located]:
    """A run began soon after the time that its folder is named by, and its metadata tell the same time."""
    begun = [(leaf, leaf.stamp, _moment(start)) for leaf in result.runs if (start := stamp_us(leaf.printed.start))]
    apart = [(leaf, start - stamp) for leaf, stamp, start in begun if stamp is not None]
    zone = _zone([offset for _, offset in apart])
    for leaf, offset in apart:
        if not -_EARLY <= offset - zone <= _LATE:
            seen = f"the folder is called {leaf.name}, the run began at {leaf.printed.start}"
            yield _misdated(leaf, seen)
    for leaf in result.runs:
        told = text(mapping(leaf.metadata).get("run_datetime"))
        if leaf.stamp is not None and told is not None and told != leaf.name and stamp_of(told) is not None:
            yield _misdated(leaf, f"the folder is called {leaf.name}, its metadata say {told}")


def _zone(offsets: Sequence[timedelta]) -> timedelta:
    """Return how far the time zones of launcher and ranks lie apart, by all runs; nothing within the usual delay."""
    if not offsets:
        return timedelta()
    usual = timedelta(seconds=median(offset.total_seconds() for offset in offsets))
    return timedelta() if -_EARLY <= usual <= _LATE else round(usual / _ZONE) * _ZONE


def _misdated(leaf: Leaf, seen: str) -> Located:
    fix = "leave folders and files as the tool made them"
    return Located(leaf.path, Finding("error", "runs.misdated", seen, "one time for one run", fix))


def same_hosts(result: Result) -> Iterator[Located]:
    """All runs are on the same hosts; which of them rank 0 was on may change from run to run."""
    named = {frozenset(leaf.run.hostnames) for leaf in result.runs if leaf.run and leaf.run.hostnames}
    first = {leaf.printed.hostname for leaf in result.runs if leaf.printed.hostname}
    severity: Severity = "error"
    if len(named) > 1:
        seen = "; ".join(sorted(", ".join(sorted(names)[:3]) for names in named)[:3])
    elif not named and len(first) > 1:
        single = all(leaf.printed.hosts == 1 for leaf in result.runs)
        severity, seen = ("error" if single else "warning"), f"rank 0 ran on {', '.join(sorted(first)[:3])}"
    else:
        return
    fix = "repeat the runs on the same hosts"
    yield Located(result.path, Finding(severity, "hosts.changed", seen, "the same hosts in all runs", fix))


def division_told(result: Result) -> Iterator[Located]:
    """mlpstorage's metadata name the division that the tree has the run in."""
    for leaf in (*result.runs, *result.datagen):
        told = text(mapping(leaf.metadata).get("verification"))
        if told in ("closed", "open", "invalid") and told != result.division:
            seen = f"in {result.division}, its metadata say {told}"
            severity: Severity = "warning" if told == "closed" else "error"
            fix = "move the result to the division that it was run for, or run it for this one"
            yield Located(leaf.path, Finding(severity, "division.differs", seen, "one division", fix))


def sums_agree(result: Result) -> Iterator[Located]:
    """The sums over all runs, which are what gets published, follow from the runs."""
    path = sums_of(result)
    if path is None:
        return
    if len([leaf for leaf in result.runs if leaf.run]) != result.edition.run_folders:
        yield from (Located(path, finding) for finding in unapplied("results.differ", the_runs_all_of_them=None))
        return
    broken: list[Finding] = []
    content = read_json(path, broken)
    yield from (Located(path, finding) for finding in broken)
    if broken:
        return
    sums, rows = _sums(result), _rows(result)
    compared, apart = 0, []
    for where, row, told in _mappings(content, ""):
        run = next((leaf for leaf in result.runs if leaf.name == where.rpartition(".")[2]), None)
        for key, seen in told.items():
            printed = number(seen) if isinstance(seen, int | float) else _number_in(seen)
            choices = _of_run(run).get(key, ()) if run else (rows if row else sums).get(key, ())
            if printed is None or not choices:
                continue
            compared += 1
            if not any(math.isclose(printed, choice, rel_tol=_SAME, abs_tol=1e-9) for choice in choices):
                apart.append(f"{where + '.' if where else ''}{key} is {printed:.10g}; the runs give {choices[0]:.10g}")
    if apart:
        seen, fix = "; ".join(apart[:3]), "let the tool sum the runs up again"
        yield Located(path, Finding("error", "results.differ", seen, "the sums of the runs below", fix))
    if not compared:
        yield from (Located(path, finding) for finding in unapplied("results.differ", sums_of_the_runs=None))


def _number_in(value: object) -> float | None:
    """Return the number that a text is: v1.0's report.py writes some so."""
    return float(value) if isinstance(value, str) and value.replace(".", "", 1).isdecimal() else None


def _mappings(content: object, where: str, row: bool = False) -> Iterator[tuple[str, bool, Mapping[str, Any]]]:
    """Yield every mapping with where it stands and whether it is a row of a list."""
    if isinstance(content, Mapping):
        yield where, row, content
        for key, value in content.items():
            yield from _mappings(value, f"{where}.{key}" if where else str(key), row)
    elif isinstance(content, list):
        for value in content:
            yield from _mappings(value, where, True)


def _sums(result: Result) -> dict[str, tuple[float, ...]]:
    """Return what the sums may be, by key: over the measured runs, or over all of them."""
    every = [leaf for leaf in result.runs if leaf.run]
    sums: dict[str, tuple[float, ...]] = {}
    for leaves in ([leaf for leaf in result.measured if leaf.run], every):
        for name, values in (
            ("au", [leaf.printed.au_percent for leaf in leaves]),
            ("rate", [leaf.printed.samples_per_second for leaf in leaves]),
            ("mib", [leaf.printed.mib_per_second for leaf in leaves]),
        ):
            known = [value for value in values if value is not None]
            if known and len(known) == len(leaves):
                for keys, value in ((_MEANS[name], fmean(known)), (_DEVIATIONS[name], pstdev(known))):
                    sums.update({key: (*sums.get(key, ()), value) for key in keys})
    for leaf in every:
        sums.update({key: (*sums.get(key, ()), value) for key, value in _counts(leaf).items()})
    return sums


def _rows(result: Result) -> dict[str, tuple[float, ...]]:
    """Return what a row of a table may be: the sums, or any run's."""
    rows = _sums(result)
    for leaf in result.runs:
        rows.update({key: (*rows.get(key, ()), *values) for key, values in _of_run(leaf).items()})
    return rows


def _counts(leaf: Leaf) -> dict[str, float]:
    accelerators, files = leaf.printed.accelerators, leaf.printed.num_files
    counts = {"num_accelerators": accelerators, "train_num_accelerators": accelerators, "num_files_train": files}
    return {key: float(value) for key, value in counts.items() if value is not None}


def _of_run(leaf: Leaf) -> dict[str, tuple[float, ...]]:
    """Return a run's own figures, as report.py and mlpstorage call them."""
    printed = leaf.printed
    figures = {
        "train_au_mean_percentage": printed.au_percent,
        "train_throughput_mean_samples_per_second": printed.samples_per_second,
        "train_throughput_samples_per_second": printed.samples_per_second,
        "train_io_mean_MB_per_second": printed.mib_per_second,
        "train_throughput_MB_per_second": printed.mib_per_second,
        **_counts(leaf),
    }
    return {key: (value,) for key, value in figures.items() if value is not None}


_MEANS = {
    "au": ("train_au_mean_percentage",),
    "rate": ("train_throughput_mean_samples_per_second",),
    "mib": ("train_io_mean_MB_per_second", "train_throughput_mean_MB_per_second"),
}
_DEVIATIONS = {
    "au": ("train_au_stdev_percentage",),
    "rate": ("train_throughput_stdev_samples_per_second",),
    "mib": ("train_io_stdev_MB_per_second", "train_throughput_stdev_MB_per_second"),
}
COPY_RULES: tuple[Rule, ...] = (runs_overlap, stamps_agree, same_hosts, division_told, sums_agree)

"""Rules on times: the order of the phases, the duration of calls, folders named by their time, and plausible years.

Folder names and metadata hold times by the launcher's clock, summary.json by the clock of rank 0's host, whose time
zone may differ. So before such times are compared, the difference of the zones is estimated from all calls.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from dlemu.contrib.mlperf.audit.papers import Papers
from dlemu.contrib.mlperf.audit.tolerant import mapping, moment, number, text
from dlemu.contrib.mlperf.check.submission_tree import Result
from dlemu.contrib.mlperf.rules.editions import FIRST_YEAR
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule_at

_MAX_START_AFTER_NAME = timedelta(minutes=45)  # mlpstorage inspects the hosts between the two
_MAX_START_BEFORE_NAME = timedelta(minutes=5)
_MAX_CALL_FROM_NAME = timedelta(minutes=2)  # the tool takes the time of the call and of its folder's name itself
_DURATION_SLACK_SECONDS = 5.0
"""A run may last this much longer, by its summary.json, than the call of the tool that started it."""
_FASTEST_HOST = 100e9  # bytes/s that no host writes: two ports of 400 Gbit/s
_ZONE_STEP = timedelta(minutes=30)  # time zones are taken to differ by whole multiples of this


def _years(result: Result[Any]) -> Iterator[Finding]:
    now = datetime.now() + timedelta(days=1)
    for leaf in result.leaves:
        times = {"the folder's name": leaf.stamp, "summary.json": leaf.began, "invocation_start_time": _invoked(leaf)}
        known = {source: time for source, time in times.items() if time is not None}
        odd = [f"{source} says {time}" for source, time in known.items() if time.year < FIRST_YEAR or time > now]
        if odd:
            is_ahead = any(time > now for time in known.values())
            severity: Severity = "error" if is_ahead or result.edition.checks_tree else "warning"
            yield by_rule_at(leaf.path, "time.year", "; ".join(odd), severity=severity)


def _folder_names(result: Result[Any]) -> Iterator[Finding]:
    """A call began soon after the time in its folder's name, and its metadata have that same time."""
    yield from _misdated(result, lambda leaf: leaf.began, _MAX_START_AFTER_NAME, _MAX_START_BEFORE_NAME)
    yield from _misdated(result, _invoked, _MAX_CALL_FROM_NAME, _MAX_CALL_FROM_NAME)
    for leaf in result.leaves:
        value = text(leaf.metadata.get("run_datetime"))
        if leaf.stamp is not None and value is not None and value != leaf.name:
            yield by_rule_at(leaf.path, "runs.misdated", f"the folder is named {leaf.name}, its metadata has {value}")


def _invoked(leaf: Papers) -> datetime | None:
    return moment(leaf.metadata.get("invocation_start_time"))


def _misdated(
    result: Result[Any], time_of: Callable[[Papers], datetime | None], most_after: timedelta, most_before: timedelta
) -> Iterator[Finding]:
    """Yield the calls whose time is too long after, or before, the time in the folder's name."""
    timed = [(leaf, leaf.stamp, time_of(leaf)) for leaf in result.leaves]
    offsets = [(leaf, time, time - stamp) for leaf, stamp, time in timed if stamp is not None and time is not None]
    zone = _zone_difference([offset for _, _, offset in offsets], most_after, most_before)
    for leaf, time, offset in offsets:
        if not -most_before <= offset - zone <= most_after:
            yield by_rule_at(leaf.path, "runs.misdated", f"the folder is named {leaf.name}, the call began at {time}")


def _zone_difference(offsets: Sequence[timedelta], most_after: timedelta, most_before: timedelta) -> timedelta:
    """Return the difference of the launcher's and the ranks' time zones: the median over all calls, rounded.

    It is 0 where the usual delay of a start explains the median.
    """
    if not offsets:
        return timedelta()
    usual = timedelta(seconds=median(offset.total_seconds() for offset in offsets))
    zone = round(usual / _ZONE_STEP) * _ZONE_STEP
    if -most_before <= usual <= most_after or abs(zone) > timedelta(hours=14):  # UTC+14 is the farthest
        return timedelta()
    return zone


def _phase_order(result: Result[Any]) -> Iterator[Finding]:
    """The last datasize call precedes datagen and the runs; the last datagen call precedes the runs."""
    by_phase = {
        phase: sorted((leaf.stamp, leaf.path) for leaf in result.leaves if leaf.phase == phase and leaf.stamp)
        for phase in ("datasize", "datagen", "run")
    }
    for phase, later in (("datagen", "run"), ("datasize", "run"), ("datasize", "datagen")):
        if by_phase[phase] and by_phase[later]:
            (last, path), (first, later_path) = by_phase[phase][-1], by_phase[later][0]
            if last > first:
                seen = f"{phase} at {last}, after the first {later} ({os.path.basename(later_path)})"
                yield by_rule_at(path, "time.phases", seen)


def _durations(result: Result[Any]) -> Iterator[Finding]:
    """A call of the tool lasted at least as long as the run that it started."""
    for leaf in result.leaves:
        runtime = number(leaf.metadata.get("runtime"))
        if runtime is not None and leaf.began is not None and leaf.ended is not None:
            took = (leaf.ended - leaf.began).total_seconds()
            if took > runtime + _DURATION_SLACK_SECONDS:
                seen = f"summary.json reports {took:.1f} s, the metadata's runtime is {runtime:.1f} s"
                yield by_rule_at(leaf.path, "time.length", seen)


def _datagen(result: Result[Any]) -> Iterator[Finding]:
    """The dataset was made in a time in which hosts can write it, and before the first run began."""
    first = min((leaf.stamp for leaf in result.leaves if leaf.phase == "run" and leaf.stamp), default=None)
    for leaf in (leaf for leaf in result.leaves if leaf.phase == "datagen"):
        runtime, hosts = number(leaf.metadata.get("runtime")), leaf.args.get("hosts")
        if runtime is None:
            continue
        if first and leaf.stamp and leaf.stamp + timedelta(seconds=runtime) > first:
            seen = f"datagen took {runtime:,.0f} s, until after the first run began"
            yield by_rule_at(leaf.path, "time.phases", seen)
        dataset = {**mapping(leaf.parameters.get("dataset")), **leaf.section("dataset")}
        keys = ("num_files_train", "num_samples_per_file", "record_length_bytes")
        size = math.prod(number(dataset.get(key)) or 0 for key in keys)
        if size > runtime * _FASTEST_HOST * max(1, len(hosts) if isinstance(hosts, list) else 1):
            yield by_rule_at(leaf.path, "time.datagen", f"{size / 1e9:,.0f} GB made in {runtime:.1f} s")


TIME_RULES = (_years, _folder_names, _phase_order, _durations, _datagen)
"""Contradictions between the times of one result's calls."""

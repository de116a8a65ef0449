"""Rules on times: the order of the phases, the duration of calls, folders named by their time, and plausible years.

Folder names and metadata hold times by the launcher's clock, summary.json by the clock of rank 0's host, whose time
zone may differ. So before such times are compared, the difference of the zones is estimated from all calls.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median

from dlemu.contrib.mlperf.audit.tolerant import mapping, moment, number, text
from dlemu.contrib.mlperf.check.run_records import RunRecords
from dlemu.contrib.mlperf.rules.editions import FIRST_YEAR
from dlemu.contrib.mlperf.rules.known import Located, Severity, by_rule_at

_MAX_START_AFTER_NAME, _MAX_START_BEFORE_NAME = timedelta(minutes=45), timedelta(minutes=5)
"""A run may begin this long after (mlpstorage inspects the hosts first) or before the time in its folder's name."""
_MAX_CALL_FROM_NAME = timedelta(minutes=2)
"""Largest difference between the time of the call and its folder's name; the tool takes both itself."""
_DURATION_SLACK_SECONDS = 5.0
"""A run may last this much longer, by its summary.json, than the call of the tool that started it."""
_FASTEST_HOST = 100e9
"""Bytes/s that no host writes: two ports of 400 Gbit/s."""
_ZONE_STEP = timedelta(minutes=30)
"""Time zones are taken to differ by whole multiples of this."""


def _began(records: RunRecords) -> datetime | None:
    """Return when the run began, by the clock of rank 0's host."""
    return moment(records.summary.get("start"))


def _invoked(records: RunRecords) -> datetime | None:
    """Return when the tool was called, by the launcher's clock or in UTC."""
    return moment(records.metadata.get("invocation_start_time"))


def times(calls: Sequence[RunRecords]) -> Iterator[Located]:
    """Yield contradictions between the times of one result's calls."""
    yield from _years(calls)
    yield from _folder_names(calls)
    yield from _phase_order(calls)
    yield from _durations(calls)
    yield from _datagen(calls)


def _years(calls: Iterable[RunRecords]) -> Iterator[Located]:
    now = datetime.now() + timedelta(days=1)
    for records in calls:
        stated = {
            "the folder's name": records.stamp,
            "summary.json": _began(records),
            "invocation_start_time": _invoked(records),
        }
        known = {who: at for who, at in stated.items() if at is not None}
        odd = [f"{who} says {at}" for who, at in known.items() if at.year < FIRST_YEAR or at > now]
        if odd:
            ahead = any(at > now for at in known.values())
            severity: Severity = "error" if ahead or records.edition.checks_tree else "warning"
            wanted = f"{FIRST_YEAR} or later, when the first runs began, and not in the future"
            yield by_rule_at(records.path, "time.year", "; ".join(odd), wanted, severity=severity)


def _folder_names(calls: Sequence[RunRecords]) -> Iterator[Located]:
    """A call began soon after the time in its folder's name, and its metadata have that same time."""
    for began, late, early in (
        (_began, _MAX_START_AFTER_NAME, _MAX_START_BEFORE_NAME),
        (_invoked, _MAX_CALL_FROM_NAME, _MAX_CALL_FROM_NAME),
    ):
        timed = [(records, records.stamp, began(records)) for records in calls]
        offsets = [(records, at - stamp) for records, stamp, at in timed if stamp is not None and at is not None]
        zone = _zone_difference([offset for _, offset in offsets], late, early)
        for records, offset in offsets:
            if not -early <= offset - zone <= late:
                yield _misdated(records, f"the folder is named {records.name}, the call began at {began(records)}")
    for records in calls:
        stated = text(records.metadata.get("run_datetime"))
        if records.stamp is not None and stated is not None and stated != records.name:
            yield _misdated(records, f"the folder is named {records.name}, its metadata has {stated}")


def _zone_difference(offsets: Sequence[timedelta], late: timedelta, early: timedelta) -> timedelta:
    """Return the difference of the launcher's and the ranks' time zones: the median over all calls, rounded.

    It is 0 where the usual delay of a start explains the median.
    """
    if not offsets:
        return timedelta()
    usual = timedelta(seconds=median(offset.total_seconds() for offset in offsets))
    zone = round(usual / _ZONE_STEP) * _ZONE_STEP
    return timedelta() if -early <= usual <= late or abs(zone) > timedelta(hours=14) else zone  # UTC+14 is the farthest


def _misdated(records: RunRecords, seen: str) -> Located:
    return by_rule_at(records.path, "runs.misdated", seen)


def _phase_order(calls: Sequence[RunRecords]) -> Iterator[Located]:
    """The last datasize call precedes datagen and the runs; the last datagen call precedes the runs."""
    by_phase = {
        phase: sorted((records.stamp, records.path) for records in calls if records.phase == phase and records.stamp)
        for phase in ("datasize", "datagen", "run")
    }
    for phase, later in (("datagen", "run"), ("datasize", "run"), ("datasize", "datagen")):
        if by_phase[phase] and by_phase[later] and by_phase[phase][-1][0] > by_phase[later][0][0]:
            (at, path), first = by_phase[phase][-1], by_phase[later][0]
            seen = f"{phase} at {at}, after the first {later} ({os.path.basename(first[1])})"
            yield by_rule_at(path, "time.phases", seen)


def _durations(calls: Iterable[RunRecords]) -> Iterator[Located]:
    """A call of the tool lasted at least as long as the run that it started."""
    for records in calls:
        runtime = number(records.metadata.get("runtime"))
        began, ended = _began(records), moment(records.summary.get("end"))
        if runtime is not None and began is not None and ended is not None:
            took = (ended - began).total_seconds()
            if took > runtime + _DURATION_SLACK_SECONDS:
                seen = f"summary.json reports {took:.1f} s, the metadata's runtime is {runtime:.1f} s"
                yield by_rule_at(records.path, "time.length", seen)


def _datagen(calls: Sequence[RunRecords]) -> Iterator[Located]:
    """The dataset was made in a time in which hosts can write it, and before the first run began."""
    first = min((records.stamp for records in calls if records.phase == "run" and records.stamp), default=None)
    for records in (records for records in calls if records.phase == "datagen"):
        runtime, hosts = number(records.metadata.get("runtime")), records.args.get("hosts")
        if runtime is None:
            continue
        if first and records.stamp and records.stamp + timedelta(seconds=runtime) > first:
            yield by_rule_at(
                records.path, "time.phases", f"datagen took {runtime:,.0f} s, until after the first run began"
            )
        noted, data = dict(mapping(records.parameters.get("dataset"))), dict(records.section("dataset"))
        keys = ("num_files_train", "num_samples_per_file", "record_length_bytes")
        size = math.prod(number((noted | data).get(key)) or 0 for key in keys)
        if size > runtime * _FASTEST_HOST * max(1, len(hosts) if isinstance(hosts, list) else 1):
            yield by_rule_at(records.path, "time.datagen", f"{size / 1e9:,.0f} GB made in {runtime:.1f} s")

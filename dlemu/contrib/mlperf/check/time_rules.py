"""Rules on times: order and duration of calls, folders named by time, plausible years, gaps between checkpoint calls.

Times in folder names and metadata are by the launcher's clock, those in summary.json by the clock of rank 0's host,
whose time zone may differ. So before the two are compared, the difference of the zones is estimated from all calls.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import fmean, median
from typing import Any

from dlemu.contrib.mlperf.audit.call_records import CallRecords
from dlemu.contrib.mlperf.audit.tolerant import mapping, moment, nested, number, sequence, text
from dlemu.contrib.mlperf.check.submission_tree import CheckpointResult, Result, Rules
from dlemu.contrib.mlperf.check.system_description import described_capabilities, remap_seconds
from dlemu.contrib.mlperf.rules.checkpoints import GAP_SECONDS
from dlemu.contrib.mlperf.rules.editions import FIRST_YEAR
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule_at, unapplied, with_path

_MAX_START_AFTER_NAME = timedelta(minutes=45)  # mlpstorage names the folder, inspects the hosts and starts the run
_MAX_START_BEFORE_NAME = timedelta(minutes=5)
_MAX_CALL_FROM_NAME = timedelta(minutes=2)  # one process, mlpstorage, records the call's start and names the folder
_DURATION_SLACK_SECONDS = 5.0  # a run may last this much longer by summary.json than the call that started it
_MAX_HOST_BYTES_PER_SECOND = 100e9  # no host writes faster: two ports of 400 Gbit/s
_ZONE_STEP = timedelta(minutes=30)  # time zones are taken to differ by whole multiples of this


def _years(result: Result[Any]) -> Iterator[Finding]:
    """No call began before the first measurements or in the future; up to one day ahead is allowed for time zones."""
    latest = datetime.now() + timedelta(days=1)
    for call in result.calls:
        times = {"the folder's name": call.stamp, "summary.json": call.start, "invocation_start_time": _invoked(call)}
        wrong = {source: time for source, time in times.items() if time and (time.year < FIRST_YEAR or time > latest)}
        if wrong:
            is_future = any(time > latest for time in wrong.values())
            severity: Severity = "error" if is_future or result.edition.checks_tree else "warning"
            seen = "; ".join(f"{source} says {time}" for source, time in wrong.items())
            yield by_rule_at(call.path, "time.year", seen, severity=severity)


def _folder_names(result: Result[Any]) -> Iterator[Finding]:
    """A call began soon after the time in its folder's name, and its metadata have the same time."""
    yield from _far_from_folder_name(result, lambda call: call.start, _MAX_START_AFTER_NAME, _MAX_START_BEFORE_NAME)
    yield from _far_from_folder_name(result, _invoked, _MAX_CALL_FROM_NAME, _MAX_CALL_FROM_NAME)
    for call in result.calls:
        value = text(call.metadata.get("run_datetime"))
        if call.stamp is not None and value is not None and value != call.name:
            yield by_rule_at(call.path, "runs.misdated", f"the folder is named {call.name}, its metadata has {value}")


def _invoked(call: CallRecords) -> datetime | None:
    return moment(call.metadata.get("invocation_start_time"))


def _far_from_folder_name(
    result: Result[Any], time_of: Callable[[CallRecords], datetime | None], max_late: timedelta, max_early: timedelta
) -> Iterator[Finding]:
    """Report the calls whose time is too long after, or too long before, the time in the folder's name."""
    timed = [(call, call.stamp, time_of(call)) for call in result.calls]
    offsets = [(call, time, time - stamp) for call, stamp, time in timed if stamp is not None and time is not None]
    zone = _zone_difference([offset for _, _, offset in offsets], max_late, max_early)
    for call, time, offset in offsets:
        if not -max_early <= offset - zone <= max_late:
            yield by_rule_at(call.path, "runs.misdated", f"the folder is named {call.name}, the call began at {time}")


def _zone_difference(offsets: Sequence[timedelta], max_late: timedelta, max_early: timedelta) -> timedelta:
    """Return the ranks' time zone less the launcher's: the median offset, rounded; 0 if the usual delay explains it."""
    if not offsets:
        return timedelta()
    median_offset = timedelta(seconds=median(offset.total_seconds() for offset in offsets))
    zone = round(median_offset / _ZONE_STEP) * _ZONE_STEP
    if -max_early <= median_offset <= max_late or abs(zone) > timedelta(hours=14):  # UTC+14 is the farthest
        return timedelta()
    return zone


def _phase_order(result: Result[Any]) -> Iterator[Finding]:
    """The last datasize call precedes datagen and the runs; the last datagen call precedes the runs."""
    by_phase = {
        phase: sorted((call.stamp, call.path) for call in result.in_phase(phase) if call.stamp)
        for phase in ("datasize", "datagen", "run")
    }
    for phase, later in (("datagen", "run"), ("datasize", "run"), ("datasize", "datagen")):
        if by_phase[phase] and by_phase[later]:
            last, path = by_phase[phase][-1]
            first, later_path = by_phase[later][0]
            if last > first:
                seen = f"{phase} at {last}, after the first {later} ({os.path.basename(later_path)})"
                yield by_rule_at(path, "time.phases", seen)


def _durations(result: Result[Any]) -> Iterator[Finding]:
    """A call of the tool lasted at least as long as the run that it started."""
    for call in result.calls:
        runtime = number(call.metadata.get("runtime"))
        if runtime is not None and call.start is not None and call.end is not None:
            run_seconds = (call.end - call.start).total_seconds()
            if run_seconds > runtime + _DURATION_SLACK_SECONDS:
                seen = f"summary.json reports {run_seconds:.1f} s, the metadata's runtime is {runtime:.1f} s"
                yield by_rule_at(call.path, "time.length", seen)


def _datagen(result: Result[Any]) -> Iterator[Finding]:
    """Datagen ended before the first run began, and wrote the dataset no faster than its hosts can."""
    first_run = min((call.stamp for call in result.runs if call.stamp), default=None)
    for call in result.in_phase("datagen"):
        runtime = number(call.metadata.get("runtime"))
        hosts = sequence(call.args.get("hosts"))
        if runtime is None:
            continue
        if first_run and call.stamp and call.stamp + timedelta(seconds=runtime) > first_run:
            seen = f"datagen took {runtime:,.0f} s, until after the first run began"
            yield by_rule_at(call.path, "time.phases", seen)
        dataset = {**mapping(call.parameters.get("dataset")), **call.section("dataset")}
        keys = ("num_files_train", "num_samples_per_file", "record_length_bytes")
        size_bytes = math.prod(number(dataset.get(key)) or 0 for key in keys)
        if size_bytes > runtime * _MAX_HOST_BYTES_PER_SECOND * max(1, len(hosts)):
            yield by_rule_at(call.path, "time.datagen", f"{size_bytes / 1e9:,.0f} GB made in {runtime:.1f} s")


def _checkpoint_gap(result: CheckpointResult) -> Iterator[Finding]:
    """At most 30 s pass from the end of the write call to the start of the read call (4.7.1 of v3.0)."""
    if len(result.calls) != 2 or not result.edition.checks_tree:
        return
    write, read = result.calls
    end = write.metadata.get("invocation_end_time") or _last_collection(write) or write.summary.get("end")
    start = read.metadata.get("invocation_start_time") or read.summary.get("start")
    gap = _seconds_between(end, start)
    summary_gap = seconds_between_calls(result)
    if gap is None:
        gap = summary_gap
    if gap is None:
        yield from with_path(result.path, unapplied("checkpoint.gap", {"times of both calls": None}))
    elif gap > GAP_SECONDS:
        yield by_rule_at(result.path, "checkpoint.gap", f"{gap:.1f} s")
    elif result.closed and summary_gap is not None and summary_gap < 0:
        seen = f"the read call began {-summary_gap:.1f} s before the write call had ended"
        yield by_rule_at(result.path, "checkpoint.overlap", seen)
    elif gap < 0:
        seen = f"{gap:.1f} s: the hosts' clocks differ, or the calls overlap"
        yield by_rule_at(result.path, "checkpoint.gap", seen, severity="warning")


def _last_collection(write: CallRecords) -> str | None:
    """Return when the last host's facts were collected after the write: the end of a call that recorded no end.

    The stamps end in Z, for UTC, but are compared as local times, as the checker does.
    """
    stamps_after = []
    for key, stamp in nested(write.metadata):
        if key == "collection_timestamp" and isinstance(stamp, str):
            local = stamp.strip().removesuffix("Z")
            seconds = _seconds_between(write.summary.get("end"), local)
            if seconds is not None and seconds >= 0:
                stamps_after.append(local)
    return max(stamps_after, key=datetime.fromisoformat, default=None)


def _seconds_between(start: Any, end: Any) -> float | None:
    """Return the seconds between two ISO 8601 times; None if either is invalid, or only one has a time zone."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return None


def seconds_between_calls(result: CheckpointResult) -> float | None:
    """Return the seconds from the end of the first call to the start of the last, by their summaries."""
    return _seconds_between(result.calls[0].summary.get("end"), result.calls[-1].summary.get("start"))


def _checkpoint_duration(result: CheckpointResult) -> Iterator[Finding]:
    """Report the time from the first write to the last read, and the time of a load including remapping."""
    if not result.edition.checks_tree:
        return
    first, last = result.calls[0], result.calls[-1]
    total = _seconds_between(first.summary.get("start"), last.summary.get("end"))
    if total is None:
        seen, fix = "no total time can be computed from the calls' summaries", "keep them as the tool wrote them"
        yield by_rule_at(result.path, "checkpoint.duration", seen, fix=fix, severity="error")
        return
    seen = f"{total:,.1f} s in total"
    gap = seconds_between_calls(result)
    if first is not last and gap is not None:
        seen += f", including {gap:.1f} s between the calls"
    remap = remap_seconds(described_capabilities(result.path)[1])
    loads = [transfer.seconds for transfer in last.rank_0_transfers if transfer.kind == "load"]
    if remap and loads:
        load = fmean(loads)
        seen += f"; a load by rank 0 takes {load:.2f} s, with {remap} s of remapping {load + remap:.2f} s"
    yield by_rule_at(result.path, "checkpoint.duration", seen)


TIME_RULES: Rules[Any] = (_years, _folder_names, _phase_order, _durations, _datagen)
"""Rules on the times of a result's calls."""
CHECKPOINT_TIME_RULES = (_checkpoint_gap, _checkpoint_duration)

"""Rules on the time between writing and reading checkpoints: gap, total duration, remapping (v3.0, 4.7).

Remapping is what storage that can't be shared needs before another host reads what one host wrote.

Source: section 4.7 of v3.0's Rules.md and checkpointing_checks.py of its submission checker
(https://github.com/mlcommons/storage).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from statistics import fmean
from typing import Any

from dlemu.contrib.mlperf.audit.checkpoint_leaf import CheckpointLeaf
from dlemu.contrib.mlperf.audit.tolerant import mapping
from dlemu.contrib.mlperf.check.submission_tree import CheckpointResult
from dlemu.contrib.mlperf.check.system_description import described_system
from dlemu.contrib.mlperf.rules.checkpoints import GAP_SECONDS
from dlemu.contrib.mlperf.rules.known import Located, by_rule_at
from dlemu.contrib.mlperf.rules.training import unapplied_at

Found = Iterator[Located]
_ACCESS_FLAGS = ("simultaneous_write", "simultaneous_read")
"""Fields of a system description's `capabilities` on whether all hosts reach the checkpoints at the same time."""
_REMAP_KEY = "remap_time_in_seconds"
_MIN_REMAP_SHARE = 0.5
"""Share of the stated remapping time that must at least pass between the two calls (4.7.3, the checker)."""


def gap(result: CheckpointResult) -> Found:
    """At most 30 s from the end of the write call to the start of the read call (4.7.1)."""
    if len(result.leaves) != 2 or not result.edition.checks_tree:
        return
    write, read = result.leaves
    by_summaries = write.summary.get("end"), read.summary.get("start")
    ended = write.metadata.get("invocation_end_time") or _last_collection(write) or by_summaries[0]
    began = read.metadata.get("invocation_start_time") or by_summaries[1]
    seconds = seconds_between(ended, began)
    summary_gap = seconds_between(*by_summaries)
    seconds = summary_gap if seconds is None else seconds
    if seconds is None:
        yield from unapplied_at(result.path, "checkpoint.gap", times_of_both_calls=None)
        return
    wanted = f"at most {GAP_SECONDS} s from the end of the write call to the start of the read call"
    if seconds > GAP_SECONDS:
        yield by_rule_at(result.path, "checkpoint.gap", f"{seconds:.1f} s", wanted)
    elif result.closed and summary_gap is not None and summary_gap < 0:
        seen = f"the read call began {-summary_gap:.1f} s before the write call had ended"
        yield by_rule_at(result.path, "checkpoint.overlap", seen)
    elif seconds < 0:
        seen = f"{seconds:.1f} s: the hosts' clocks differ, or the calls overlap"
        yield by_rule_at(result.path, "checkpoint.gap", seen, wanted, severity="warning")


def _last_collection(write: CheckpointLeaf) -> str | None:
    """Return when the last host's facts were collected after the write phase: the end of a call without a recorded end.

    These stamps end in Z, for UTC, but like the checker we compare them as local times.
    """
    after = write.summary.get("end")
    found = (stamp.strip().removesuffix("Z") for stamp in _collection_times(write.metadata))
    later = [stamp for stamp in found if (seconds_between(after, stamp) or -1.0) >= 0]
    return max(later, key=datetime.fromisoformat, default=None)


def _collection_times(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "collection_timestamp" and isinstance(item, str):
                yield item
            else:
                yield from _collection_times(item)
    elif isinstance(value, list):
        for item in value:
            yield from _collection_times(item)


def seconds_between(begin: Any, end: Any) -> float | None:
    """Return the seconds between two ISO 8601 times; None if either is invalid, or only one has a time zone."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


def duration(result: CheckpointResult) -> Found:
    """Report the total time from the first write to the last read, and that of a load with remapping added."""
    if not result.edition.checks_tree:
        return
    first, last = result.leaves[0], result.leaves[-1]
    total = seconds_between(first.summary.get("start"), last.summary.get("end"))
    if total is None:
        fix = "keep each call's summary.json as the tool wrote it"
        wanted = "start of the first call and end of the last one in their summaries"
        yield by_rule_at(result.path, "checkpoint.duration", "no total time can be computed", wanted, fix, "error")
        return
    seen = f"{total:,.1f} s in total"
    if first is not last:
        between = seconds_between(first.summary.get("end"), last.summary.get("start"))
        seen += f", including {between:.1f} s between the calls" if between is not None else ""
    remap = _stated_capabilities(result).get(_REMAP_KEY)
    loads = [part.seconds for part in last.parts.get(min(last.parts, default=0), ()) if part.kind == "load"]
    if _is_seconds(remap) and remap and loads:
        load = fmean(loads)
        seen += f"; a load by rank 0 takes {load:.2f} s, with {remap} s of remapping {load + remap:.2f} s"
    yield by_rule_at(result.path, "checkpoint.duration", seen)


def capabilities(result: CheckpointResult) -> Found:
    """Compare the system description's statements on hosts, simultaneous access and remapping with the run."""
    if not result.edition.checks_tree:
        return
    described = described_system(result.path)
    if described is None:
        yield from unapplied_at(result.path, "checkpoint.simultaneous", description_of_the_system=None)
        return
    path, stated = described[0], _stated_capabilities(result)
    denied = [name for name in _ACCESS_FLAGS if stated.get(name) is False]
    if denied:
        seen = f"{' and '.join(denied)} false, but all processes of the run wrote, and read, at the same time"
        fix = "state true, or describe how another host got access to the checkpoints"
        yield by_rule_at(path, "checkpoint.simultaneous", seen, fix=fix, severity="warning")
    hosts = max((leaf.hosts or 0 for leaf in result.leaves), default=0)
    if stated.get("multi_host") is False and hosts > 1:
        seen, fix = f"multi_host is false, the run was on {hosts} hosts", "describe the system as it ran"
        yield by_rule_at(path, "checkpoint.simultaneous", seen, fix=fix)
    yield from _remapping(result, path, stated)


def _remapping(result: CheckpointResult, path: str, stated: Mapping[str, Any]) -> Found:
    remap, both = stated.get(_REMAP_KEY), all(stated.get(name) is True for name in _ACCESS_FLAGS)
    if not _is_seconds(remap):
        return  # `mlpstorage validate` refuses a description without it
    known = all(isinstance(stated.get(name), bool) for name in _ACCESS_FLAGS)
    if known and both != (remap == 0):
        are = "both" if both else "not both"
        seen = f"{_REMAP_KEY} is {remap}, simultaneous_write and simultaneous_read are {are} true"
        wanted = "0 exactly if both are true"
        yield by_rule_at(path, "checkpoint.remap", seen, wanted)
    if not remap or len(result.leaves) != 2:
        return
    between = seconds_between(result.leaves[0].summary.get("end"), result.leaves[1].summary.get("start"))
    if between is None:
        yield from unapplied_at(result.path, "checkpoint.remap", times_of_both_calls=None)
    elif between < _MIN_REMAP_SHARE * remap:
        seen = f"{between:.1f} s between the calls, {_REMAP_KEY} is {remap}"
        wanted = f"at least {100 * _MIN_REMAP_SHARE:g} % of it"
        yield by_rule_at(result.path, "checkpoint.remap", seen, wanted)


def _stated_capabilities(result: CheckpointResult) -> Mapping[str, Any]:
    described = described_system(result.path)
    return mapping(mapping(described[1].get("solution")).get("capabilities")) if described else {}


def _is_seconds(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

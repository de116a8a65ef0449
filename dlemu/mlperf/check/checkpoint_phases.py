"""Rules on what is between writing and reading checkpoints: the gap, the total time, remapping (v3.0, 4.7).

Source: section 4.7 of v3.0's Rules.md and checkpointing_checks.py of its submission checker
(https://github.com/mlcommons/storage).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from statistics import fmean
from typing import Any

from dlemu.mlperf.audit.checkpoint_leaf import CheckpointLeaf
from dlemu.mlperf.audit.tolerant import mapping
from dlemu.mlperf.check.checkpoint_result import CheckpointResult
from dlemu.mlperf.check.system_description import described_system
from dlemu.mlperf.check.system_schema import is_blank
from dlemu.mlperf.rules.checkpoints import (
    GAP_SECONDS,
)
from dlemu.mlperf.rules.training import unapplied
from dlemu.results.finding import Finding

Found = Iterator[tuple[str, Finding]]
_FLAGS = ("multi_host", "simultaneous_write", "simultaneous_read")
_REMAP = "remap_time_in_seconds"
_REMAP_SHARE = 0.5
"""Of the time stated for remapping, what must lie between the calls at least (4.7.3, the checker)."""


def gap(result: CheckpointResult) -> Found:
    """At most 30 s from the end of the write call to the start of the read call (4.7.1)."""
    if len(result.leaves) != 2 or not result.strict:
        return
    write, read = result.leaves
    summaries = write.summary.get("end"), read.summary.get("start")
    ended = write.metadata.get("invocation_end_time") or _released(write) or summaries[0]
    began = read.metadata.get("invocation_start_time") or summaries[1]
    seconds = next((it for pair in ((ended, began), summaries) if (it := seconds_between(*pair)) is not None), None)
    if seconds is None:
        yield from ((result.path, finding) for finding in unapplied("checkpoint.gap", times_of_both_calls=None))
        return
    fix = "start the read phase at once, by one script"
    wanted = f"at most {GAP_SECONDS} s from the end of the write call to the start of the read call"
    overlap = seconds_between(*summaries)
    if seconds > GAP_SECONDS:
        yield result.path, Finding("error", "checkpoint.gap", f"{seconds:.1f} s", wanted, fix)
    elif result.closed and overlap is not None and overlap < 0:
        seen = f"the read phase began {-overlap:.1f} s before the write phase had ended"
        yield result.path, Finding("error", "checkpoint.overlap", seen, "one after the other", fix)
    elif seconds < 0:
        seen = f"{seconds:.1f} s: the hosts' clocks differ, or the calls overlap"
        yield result.path, Finding("warning", "checkpoint.gap", seen, wanted, "set the hosts' clocks by NTP")


def _released(write: CheckpointLeaf) -> str | None:
    """Return when the last host's facts were collected after the write phase, for tools that note no end of a call.

    These stamps end in Z and are compared by the clock on the wall all the same, as the checker does.
    """
    after = write.summary.get("end")
    found = (stamp.strip().removesuffix("Z") for stamp in _collected(write.metadata))
    later = [stamp for stamp in found if (seconds_between(after, stamp) or -1.0) >= 0]
    return max(later, key=datetime.fromisoformat, default=None)


def _collected(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "collection_timestamp" and isinstance(item, str):
                yield item
            else:
                yield from _collected(item)
    elif isinstance(value, list):
        for item in value:
            yield from _collected(item)


def seconds_between(begin: Any, end: Any) -> float | None:
    """Return the time between two stamps; None for what is no stamp, or when only one states its zone."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


def duration(result: CheckpointResult) -> Found:
    """Tell the whole test's time, from the first checkpoint's write to the last one's read, remapping included."""
    if not result.strict:
        return
    first, last = result.leaves[0], result.leaves[-1]
    total = seconds_between(first.summary.get("start"), last.summary.get("end"))
    if total is None:
        fix = "keep each call's summary.json as the tool wrote it"
        wanted = "start of the first call and end of the last one in their summaries"
        yield result.path, Finding("error", "checkpoint.duration", "no total time can be computed", wanted, fix)
        return
    seen = f"{total:,.1f} s in all"
    if first is not last:
        between = seconds_between(first.summary.get("end"), last.summary.get("start"))
        seen += f", of them {between:.1f} s between the calls" if between is not None else ""
    remap = _stated(result).get(_REMAP)
    loads = [part.seconds for part in last.parts.get(min(last.parts, default=0), ()) if part.kind == "load"]
    if _is_seconds(remap) and remap and loads:
        seen += f"; a load by rank 0 takes {fmean(loads):.2f} s, with {remap} s of remapping {fmean(loads) + remap:.2f}"
    wanted = "first write to last read, with the time of remapping"
    yield result.path, Finding("info", "checkpoint.duration", seen, wanted, "nothing: for readers who want it")


def capabilities(result: CheckpointResult) -> Found:
    """Hold what the system's description states of hosts, simultaneous access and remapping against the run."""
    if not result.strict:
        return
    described = described_system(result.path)
    if described is None:
        lacking = unapplied("checkpoint.simultaneous", description_of_the_system=None)
        yield from ((result.path, finding) for finding in lacking)
        return
    path, stated = described[0], _stated(result)
    unknown = [name for name in _FLAGS if not is_blank(stated.get(name)) and not isinstance(stated.get(name), bool)]
    if unknown:
        seen = ", ".join(f"capabilities.{name} is {stated.get(name, 'missing')}" for name in unknown)
        yield path, Finding("error", "checkpoint.simultaneous", seen, "true or false", "state what the system can do")
    denied = [name for name in _FLAGS[1:] if stated.get(name) is False]
    if denied:
        seen = f"{' and '.join(denied)} false, and the run did both on what its hosts share"
        fix = "state true, or how the checkpoints were handed over"
        yield path, Finding("warning", "checkpoint.simultaneous", seen, "what the run shows", fix)
    hosts = max((leaf.hosts or 0 for leaf in result.leaves), default=0)
    if stated.get("multi_host") is False and hosts > 1:
        seen = f"multi_host is false, the run was on {hosts} hosts"
        yield (
            path,
            Finding("error", "checkpoint.simultaneous", seen, "multi_host: true", "describe the system as it ran"),
        )
    yield from _remapping(result, path, stated)


def _remapping(result: CheckpointResult, path: str, stated: Mapping[str, Any]) -> Found:
    remap, both = stated.get(_REMAP), all(stated.get(name) is True for name in _FLAGS[1:])
    if is_blank(remap):
        return
    if not _is_seconds(remap):
        seen, wanted = f"{_REMAP} is {stated.get(_REMAP, 'missing')}", "whole seconds, 0 where nothing is remapped"
        yield path, Finding("error", "checkpoint.remap", seen, wanted, "time it once, and write it there")
        return
    known = all(isinstance(stated.get(name), bool) for name in _FLAGS[1:])
    if known and both != (remap == 0):
        seen = (
            f"{_REMAP} is {remap}, simultaneous_write and simultaneous_read are {'both' if both else 'not both'} true"
        )
        wanted = "0 where both are true, and only there"
        yield (
            path,
            Finding("error", "checkpoint.remap", seen, wanted, "state how long another host waits for a checkpoint"),
        )
    if not remap or len(result.leaves) != 2:
        return
    between = seconds_between(result.leaves[0].summary.get("end"), result.leaves[1].summary.get("start"))
    if between is None:
        yield from ((result.path, one) for one in unapplied("checkpoint.remap", times_of_both_calls=None))
    elif between < _REMAP_SHARE * remap:
        seen = f"{between:.1f} s between the calls, {_REMAP} is {remap}"
        wanted = f"at least {100 * _REMAP_SHARE:g} % of it"
        yield result.path, Finding("error", "checkpoint.remap", seen, wanted, "state the time that remapping takes")


def _stated(result: CheckpointResult) -> Mapping[str, Any]:
    described = described_system(result.path)
    return mapping(mapping(described[1].get("solution")).get("capabilities")) if described else {}


def _is_seconds(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

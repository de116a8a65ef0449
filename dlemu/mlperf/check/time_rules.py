"""Rules on time: what ran before what, what cannot overlap, and years in which nothing of the edition ran.

Stamps of one clock are compared with each other alone: folders and metadata have the launcher's, the files of a rank
its host's, which may be set to another zone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median

from dlemu.mlperf.audit.tolerant import mapping, moment, number, text
from dlemu.mlperf.check.papers import RunPapers
from dlemu.results.finding import Finding, Located, Severity

_LATE, _EARLY = timedelta(minutes=45), timedelta(minutes=5)
"""How long after the time in its folder's name a run may begin (mlpstorage looks at the hosts first), and before it."""
_SOON = timedelta(minutes=2)
"""How far the moment at which the tool began may be from its folder's name: it makes that name itself."""
_SECONDS = 5.0
"""What a call took by the tool's clock may be so much less than by the run's own stamps."""
_ZONE = timedelta(minutes=30)
"""Time zones lie whole multiples of this apart."""
_KEEP = "leave folders and files as the tool made them"


def _began(papers: RunPapers) -> datetime | None:
    return moment(papers.summary.get("start"))


def _invoked(papers: RunPapers) -> datetime | None:
    """When the tool was called, by the launcher's clock or in UTC."""
    return moment(mapping(papers.metadata).get("invocation_start_time"))


def times(group: Sequence[RunPapers]) -> Iterator[Located]:
    """Yield what the times of the calls of one result contradict."""
    yield from _years(group)
    yield from _stamps(group)
    yield from _order(group)
    yield from _lengths(group)


def _years(group: Iterable[RunPapers]) -> Iterator[Located]:
    now = datetime.now() + timedelta(days=1)
    for papers in group:
        stated = {
            "the folder's name": papers.stamp,
            "summary.json": _began(papers),
            "invocation_start_time": _invoked(papers),
        }
        first = papers.edition.first_year
        odd = [f"{who} says {at}" for who, at in stated.items() if at is not None and (at.year < first or at > now)]
        if odd:
            ahead = any(at is not None and at > now for at in stated.values())
            severity: Severity = "error" if ahead or papers.edition.checks_tree else "warning"
            wanted = f"{first} or later, and not the future: v{papers.edition.name} was run then"
            yield Located(papers.path, Finding(severity, "time.year", "; ".join(odd), wanted, "set the hosts' clocks"))


def _stamps(group: Sequence[RunPapers]) -> Iterator[Located]:
    """A call began soon after the time that its folder is named by, and its metadata show the same time."""
    for began, late, early in ((_began, _LATE, _EARLY), (_invoked, _SOON, _SOON)):
        timed = [(papers, papers.stamp, began(papers)) for papers in group]
        apart = [(papers, at - stamp) for papers, stamp, at in timed if stamp is not None and at is not None]
        zone = _zone([offset for _, offset in apart], late, early)
        for papers, offset in apart:
            if not -early <= offset - zone <= late:
                yield _misdated(papers, f"the folder is named {papers.name}, the call began at {began(papers)}")
    for papers in group:
        stated = text(mapping(papers.metadata).get("run_datetime"))
        if papers.stamp is not None and stated is not None and stated != papers.name:
            yield _misdated(papers, f"the folder is named {papers.name}, its metadata has {stated}")


def _zone(offsets: Sequence[timedelta], late: timedelta, early: timedelta) -> timedelta:
    """Return how far the time zones of launcher and ranks lie apart, by all calls; nothing within the usual delay."""
    if not offsets:
        return timedelta()
    usual = timedelta(seconds=median(offset.total_seconds() for offset in offsets))
    zone = round(usual / _ZONE) * _ZONE
    return timedelta() if -early <= usual <= late or abs(zone) > timedelta(hours=14) else zone  # UTC+14 is the farthest


def _misdated(papers: RunPapers, seen: str) -> Located:
    return Located(papers.path, Finding("error", "runs.misdated", seen, "one time for one run", _KEEP))


def _order(group: Sequence[RunPapers]) -> Iterator[Located]:
    """The data are made before they are read, and their size is requested before they are made."""
    by_phase = {
        phase: sorted((papers.stamp, papers.path) for papers in group if papers.phase == phase and papers.stamp)
        for phase in ("datasize", "datagen", "run")
    }
    for phase, later in (("datagen", "run"), ("datasize", "run"), ("datasize", "datagen")):
        if by_phase[phase] and by_phase[later] and by_phase[phase][-1][0] > by_phase[later][0][0]:
            (at, path), first = by_phase[phase][-1], by_phase[later][0]
            seen = f"{phase} at {at}, {later} ({os.path.basename(first[1])}) before it"
            yield Located(path, Finding("error", "time.phases", seen, "datasize, then datagen, then the runs", _KEEP))


def _lengths(group: Iterable[RunPapers]) -> Iterator[Located]:
    """The tool ran for as long as the run that it started, at the least."""
    for papers in group:
        runtime, began, ended = (
            number(mapping(papers.metadata).get("runtime")),
            _began(papers),
            moment(papers.summary.get("end")),
        )
        if runtime is not None and began is not None and ended is not None:
            took = (ended - began).total_seconds()
            if took > runtime + _SECONDS:
                seen = f"summary.json reports {took:.1f} s, the metadata's runtime is {runtime:.1f} s"
                wanted = "a run no longer than the call that started it"
                yield Located(papers.path, Finding("error", "time.length", seen, wanted, _KEEP))

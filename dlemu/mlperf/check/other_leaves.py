"""Runs that are not of training: checkpoints, whose figures are recomputed, and others, which are listed.

Leaves are `CATEGORY/.../TIME`, as mlpstorage of v2.0 and v3.0 leaves them. A checkpoint's figures are those of rank 0:
mean and population's deviation of its saves and loads (`save_checkpoint_*`, `load_checkpoint_*` of DLIO's summary).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from dlemu.mlperf.audit.step_files import epochs_of
from dlemu.mlperf.audit.tolerant import mapping, number, read_json, stamp_us
from dlemu.mlperf.check.submission_tree import category_of, stamp_of
from dlemu.mlperf.finding import Finding, Located
from dlemu.mlperf.rules import unapplied

CHECKPOINTING = "checkpointing"
CHECKPOINTS = 10
"""Of each kind in a result: 10 are saved and 10 loaded, in one call or two (v3.0, section 4)."""
_PART = re.compile(r"^(save|load)_ckpt(\d+)$")
_STATS = re.compile(r"^(\d+)_per_epoch_stats\.json$")
_SAME = 1e-6
_STAMP_SECONDS = 0.01
"""How far a duration lies from its time stamps at most."""


@dataclass(frozen=True, kw_only=True)
class OtherLeaf:
    """One run of a benchmark that is not training."""

    path: str
    category: str


@dataclass(frozen=True)
class _Part:
    """One checkpoint of rank 0."""

    kind: Literal["save", "load"]
    seconds: float
    gb_per_second: float | None
    stamped_seconds: float | None


def other_leaves(root: str) -> list[OtherLeaf]:
    """Return the runs below a folder that are not of training, by their paths."""
    leaves = []
    for folder, below, _ in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            leaves.append(OtherLeaf(path=folder, category=category))
            below[:] = []
    return leaves


def judge_others(leaves: Sequence[OtherLeaf]) -> Iterator[Located]:
    """Yield what can be said of runs that are not of training, and that the rest is not judged."""
    counts: dict[str, dict[str, int]] = {}
    for leaf in leaves:
        checkpoints = leaf.category == CHECKPOINTING
        what = "its figures are recomputed, its rules are not judged" if checkpoints else "not judged"
        fix = "check it with the edition's own checker"
        finding = Finding("info", "run.other", f"a run of {leaf.category}: {what}", "a run of training", fix)
        yield Located(leaf.path, finding)
        if checkpoints:
            parts = _parts(leaf.path)
            yield from (Located(leaf.path, finding) for finding in _checkpoints(leaf.path, parts))
            known = counts.setdefault(os.path.dirname(leaf.path), {"save": 0, "load": 0})
            for part in parts or ():
                known[part.kind] += 1
    for path, known in sorted(counts.items()):
        if sum(known.values()) and any(count != CHECKPOINTS for count in known.values()):
            seen = f"{known['save']} checkpoints saved, {known['load']} loaded"
            wanted, fix = f"{CHECKPOINTS} of each", "run the write and the read phase as the edition's tool does"
            yield Located(path, Finding("error", "checkpoint.count", seen, wanted, fix))


def _parts(folder: str) -> list[_Part] | None:
    """Return rank 0's checkpoints in their order, None where no rank kept its stamps."""
    names = {int(match[1]): match[0] for match in map(_STATS.match, os.listdir(folder)) if match}
    if not names:
        return None
    content = read_json(os.path.join(folder, names[min(names)]), [])
    parts = []
    for _, epoch in epochs_of(content):
        for name, value in epoch.items():
            match, told = _PART.match(str(name)), mapping(value)
            seconds = number(told.get("duration"))
            if match and seconds is not None:
                kind: Literal["save", "load"] = "save" if match[1] == "save" else "load"
                parts.append(_Part(kind, seconds, number(told.get("throughput")), _stamped(told)))
    return parts or None


def _stamped(told: Mapping[str, Any]) -> float | None:
    begun, ended = stamp_us(told.get("start")), stamp_us(told.get("end"))
    return None if begun is None or ended is None else (ended - begun) / 1e6


def _checkpoints(folder: str, parts: list[_Part] | None) -> Iterator[Finding]:
    findings: list[Finding] = []
    path = os.path.join(folder, "summary.json")
    metric = mapping(mapping(read_json(path, findings)).get("metric")) if os.path.isfile(path) else {}
    yield from findings
    if not parts or not metric:
        yield from unapplied("checkpoint.differs", checkpoints_of_any_rank=parts, summary=metric or None)
        return
    apart = list(_apart(parts, metric))
    if apart:
        fix = "ask for the files of the run as DLIO wrote them"
        yield Finding("error", "checkpoint.differs", "; ".join(apart[:3]), "what rank 0's checkpoints give", fix)


def _apart(parts: Sequence[_Part], metric: Mapping[str, Any]) -> Iterator[str]:
    size = number(metric.get("checkpoint_size_GB"))
    for index, part in enumerate(parts, 1):
        if part.stamped_seconds is not None and abs(part.stamped_seconds - part.seconds) > _STAMP_SECONDS:
            yield f"{part.kind} {index} took {part.seconds:g} s, its stamps say {part.stamped_seconds:g} s"
        if size and part.gb_per_second is not None and not _close(part.gb_per_second * part.seconds, size):
            moved = part.gb_per_second * part.seconds
            yield f"{part.kind} {index} moved {moved:.4f} GB, checkpoint_size_GB is {size:.4f}"
    for kind in ("save", "load"):
        seconds = [part.seconds for part in parts if part.kind == kind]
        rates = [part.gb_per_second for part in parts if part.kind == kind and part.gb_per_second is not None]
        for values, name, unit in ((seconds, "duration", "seconds"), (rates, "io", "GB_per_second")):
            for key, again in _mean_and_deviation(values, f"{kind}_checkpoint_{name}", unit):
                printed = number(metric.get(key))
                if printed is None or not _close(printed, again):
                    yield f"{key} is {printed if printed is not None else 'missing'}; recomputed {again:.6g}"


def _mean_and_deviation(values: Sequence[float], name: str, unit: str) -> Iterator[tuple[str, float]]:
    if values:
        yield f"{name}_mean_{unit}", fmean(values)
        yield f"{name}_stdev_{unit}", pstdev(values)


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_SAME, abs_tol=1e-9)

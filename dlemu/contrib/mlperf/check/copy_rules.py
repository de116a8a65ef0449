"""Rules against forged results: copied numbers, overlapping runs, changing hosts, and sums that the runs contradict."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from dlemu.contrib.mlperf.audit.checkpoint_leaf import KINDS, rounds_of
from dlemu.contrib.mlperf.audit.fingerprints import (
    STAMP_DECIMALS,
    Fingerprint,
    alike_pairs,
    copied_pairs,
    figure_fingerprints,
)
from dlemu.contrib.mlperf.audit.papers import Papers
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.contrib.mlperf.audit.tolerant import mapping, number, numbers, read_json, same_sum
from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.submission_tree import CHECKPOINTING, TRAINING, CheckpointResult, Leaf, Result, Rule
from dlemu.contrib.mlperf.check.tree_rules import RESULTS
from dlemu.contrib.mlperf.rules.editions import RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, Severity, at, by_rule_at, few, unapplied


def copied_runs(results: Sequence[Result[Any]]) -> Iterator[Finding]:
    """No run has the same measurements as another run, of the same or any other result."""
    steps: list[Fingerprint] = []
    figures: list[Fingerprint] = []
    for result in results:
        for leaf in result.runs if result.benchmark == TRAINING else ():
            steps += [replace(one, where=leaf.path) for one in (leaf.run.fingerprints if leaf.run else ())]
            per_epoch = leaf.printed.au_by_epoch + leaf.printed.samples_per_second_by_epoch
            figures += figure_fingerprints(leaf.path, per_epoch)
            blocks = leaf.run.times.training_seconds_by_epoch if leaf.run else ()
            figures += figure_fingerprints(leaf.path, blocks, STAMP_DECIMALS)
        for call in result.runs if result.benchmark == CHECKPOINTING else ():
            for parts in call.parts.values():
                figures += figure_fingerprints(call.path, (part.seconds for part in parts), STAMP_DECIMALS)
    found: dict[str, str] = {}
    for first, second in (*copied_pairs(steps), *copied_pairs(figures)):
        if first.where != second.where:
            original, copy = sorted((first.where, second.where))
            found.setdefault(copy, original)
    for copy, original in found.items():
        seen = f"the same numbers, to the last digit, as {os.path.relpath(original, copy)}"
        yield by_rule_at(copy, "runs.copied", seen)
    alike: dict[tuple[str, ...], Severity] = {}
    for one, other, severity in alike_pairs(steps):
        pair = tuple(sorted((one.where, other.where)))
        if one.where != other.where and pair[1] not in found and alike.get(pair) != "error":
            alike[pair] = severity
    for (original, copy), severity in sorted(alike.items()):
        seen = f"steps wait in the order of those of {os.path.relpath(original, copy)}: scaled, or with noise"
        yield by_rule_at(copy, "runs.copied", seen, severity=severity)


def copied_ranks(result: CheckpointResult) -> Iterator[Finding]:
    """No rank has the same times as another rank of its call, nor a checkpoint the same on all ranks as another."""
    for call in result.leaves:
        fingerprints = [
            one
            for rank, parts in call.parts.items()
            for one in figure_fingerprints(f"rank {rank}", (part.seconds for part in parts), STAMP_DECIMALS)
        ]
        same = [f"{second.where} has the times of {first.where}" for first, second in copied_pairs(fingerprints)]
        if len(call.parts) > 1:
            for kind in KINDS:
                rounds = [Fingerprint(f"{kind} {n}", tuple(times)) for n, times in enumerate(rounds_of(call, kind), 1)]
                same += [f"{second.where} has the times of {first.where}" for first, second in copied_pairs(rounds)]
        if same:
            yield by_rule_at(call.path, "ranks.copied", few(same))


def runs_overlap(result: Result[Leaf]) -> Iterator[Finding]:
    """A run begins after the previous one has ended; 1 s of overlap is allowed: some timestamps have whole seconds."""
    spans = [(leaf.began, leaf.ended, leaf) for leaf in result.runs]
    timed = [(begun, ended, leaf) for begun, ended, leaf in spans if begun and ended and begun <= ended]
    timed.sort(key=lambda run: run[0])
    for (_, ended, before), (begun, _, leaf) in pairwise(timed):
        if begun < ended - timedelta(seconds=1):
            yield by_rule_at(leaf.path, "runs.overlap", f"began at {begun}, {before.name} ended at {ended}")


def same_hosts(result: Result[Leaf]) -> Iterator[Finding]:
    """All runs use the same hosts, but rank 0 may be on a different one of them in each run."""
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
    yield by_rule_at(result.path, "hosts.changed", seen, severity=severity)


def sums_agree(result: Result[Leaf]) -> Iterator[Finding]:
    """The sums over all runs, which get published, agree with the runs."""
    path = os.path.join(result.path, RESULTS)
    if not (result.phased and os.path.isfile(path)):
        return
    if len([leaf for leaf in result.runs if leaf.run]) != RUN_FOLDERS:
        yield from at(path, unapplied("results.differ", {"all runs of the result": None}))
        return
    own = {leaf.name: _stated(leaf) for leaf in result.runs}
    counts = [{key: value for key, value in stated.items() if "num_" in key} for stated in own.values()]
    # Sums are of the measured runs only, or of all runs with the warm-up; a row of a table is a sum, or any run's.
    of_measured, of_all = (training_sums([leaf.printed for leaf in some]) for some in (result.measured, result.runs))
    sums = _any_of([of_measured, of_all, *counts])
    rows = _any_of([of_measured, of_all, *own.values()])

    def allowed(where: str, in_row: bool, key: str) -> Sequence[float]:
        run = own.get(where.rpartition(".")[2])
        return (rows if in_row else sums).get(key, ()) if run is None else [run[key]] if key in run else ()

    yield from _compare(path, allowed, _PUBLISHED)


_PUBLISHED = {"AU": "au_.*percent", "samples/s": "samples_per_second"}


def checkpoint_sums_agree(result: CheckpointResult) -> Iterator[Finding]:
    """The sums over all calls agree with the summaries of the calls."""
    path = os.path.join(result.path, RESULTS)
    if not os.path.isfile(path):
        return
    rates = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()}
    known = _any_of([*map(_stated, result.leaves), rates])
    published = {f"GiB/s of {kind}": f"{kind}.*per_second" for kind in figures_of(result)}
    yield from _compare(path, lambda _where, _in_row, key: known.get(key, ()), published)


def _compare(
    path: str, allowed: Callable[[str, bool, str], Sequence[float]], published: Mapping[str, str]
) -> Iterator[Finding]:
    """Compare each number in a file of sums with its possible values, recomputed from the runs.

    `allowed(where, in_row, key)` returns these values, none if the number is not checked; see `_nested_mappings`.
    `published`: what must be there -> pattern of its keys. Versions of the tool write the sums over the runs, or each
    run's metrics, which are lists with a value per epoch.
    """
    broken: list[Finding] = []
    content = read_json(path, broken)
    yield from at(path, broken)
    if broken:
        return
    if not content:
        yield by_rule_at(path, "results.differ", f"{os.path.basename(path)} holds {content}")
        return
    compared, keys, differences = 0, [], []
    for where, in_row, stated in _nested_mappings(content, ""):
        for key, seen in stated.items():
            printed, choices = number(seen), allowed(where, in_row, key)
            keys += [key] if printed is not None or numbers(seen) else []
            if printed is None or not choices:
                continue
            compared += 1
            if not any(same_sum(printed, choice) for choice in choices):
                name = f"{where}.{key}" if where else key
                differences.append(f"{name} is {printed:.10g}; the runs give {choices[0]:.10g}")
    lacking = [name for name, pattern in published.items() if not any(re.search(pattern, key) for key in keys)]
    if differences:
        yield by_rule_at(path, "results.differ", few(differences))
    if lacking:
        yield by_rule_at(path, "results.differ", f"no {' and no '.join(lacking)}")
    if not compared:
        yield from at(path, unapplied("results.differ", {"sums of the runs": None}))


def _nested_mappings(content: object, where: str, in_row: bool = False) -> Iterator[tuple[str, bool, Any]]:
    """Yield every nested mapping with its dotted path and whether it is inside a list (a row of a table)."""
    if isinstance(content, Mapping):
        yield where, in_row, content
        for key, value in content.items():
            yield from _nested_mappings(value, f"{where}.{key}" if where else str(key), in_row)
    elif isinstance(content, list):
        for value in content:
            yield from _nested_mappings(value, where, True)


def training_sums(runs: Sequence[Printed]) -> dict[str, float]:
    """Return the sums over runs under mlpstorage's keys: means, and standard deviations of the population."""
    sums: dict[str, float] = {}
    for name, unit, values in (
        ("train_au", "percentage", [run.au_percent for run in runs]),
        ("train_throughput", "samples_per_second", [run.samples_per_second for run in runs]),
        ("train_io", "MB_per_second", [run.mib_per_second for run in runs]),
    ):
        known = [value for value in values if value is not None]
        if known and len(known) == len(runs):
            sums |= {f"{name}_mean_{unit}": fmean(known), f"{name}_stdev_{unit}": pstdev(known)}
    return sums


def _stated(leaf: Papers) -> dict[str, float]:
    """Return the numbers that the summary of a call states, by the keys of results.json."""
    processes = leaf.summary.get("num_accelerators")
    counts = dict.fromkeys(("num_accelerators", "num_processes", "train_num_accelerators"), processes)
    stated = {**mapping(leaf.summary.get("metric")), **counts, "num_hosts": leaf.hosts}
    stated["num_files_train"] = leaf.summary.get("num_files_train")
    return {key: value for key, each in stated.items() if (value := number(each)) is not None}


def _any_of(stated: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return key -> its values in several mappings."""
    found: dict[str, list[float]] = {}
    for each in stated:
        for key, value in each.items():
            found.setdefault(key, []).append(value)
    return found


COPY_RULES: tuple[Rule, ...] = (runs_overlap, same_hosts, sums_agree)
CHECKPOINT_COPY_RULES = (copied_ranks, checkpoint_sums_agree)

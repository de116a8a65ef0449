"""Rules against forged results: copied numbers, overlapping runs, changed hosts, and sums that contradict the runs."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain, pairwise
from statistics import fmean, pstdev
from typing import Any

from dlemu.contrib.mlperf.audit import fingerprints
from dlemu.contrib.mlperf.audit.call_records import CallRecords
from dlemu.contrib.mlperf.audit.checkpoint_call import KINDS, CheckpointCall, Transfer, rounds_of
from dlemu.contrib.mlperf.audit.fingerprints import Fingerprint, copied_pairs, figure_fingerprints
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.contrib.mlperf.audit.tolerant import all_known, mapping, number, numbers, read_json, same_sum
from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.submission_tree import CheckpointResult, Result, Rules, TrainingCall, TrainingResult
from dlemu.contrib.mlperf.check.tree_rules import RESULTS
from dlemu.contrib.mlperf.rules.editions import RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule_at, first_few, unapplied, with_path

_Values = Mapping[str, Sequence[float]]  # key -> the values that it may have in a file of sums, by the runs


def copied_runs(results: Sequence[Result[Any]]) -> Iterator[Finding]:
    """No run has the measurements of another run, of whatever result: neither the same numbers nor similar steps."""
    steps: list[Fingerprint] = []
    figures: list[Fingerprint] = []
    for call in chain.from_iterable(result.runs for result in results):
        if isinstance(call, TrainingCall):
            printed = call.printed
            figures += figure_fingerprints(call.path, printed.au_by_epoch + printed.samples_per_second_by_epoch)
            if call.run:
                steps += [replace(fingerprint, where=call.path) for fingerprint in call.run.fingerprints]
                blocks = call.run.times.training_seconds_by_epoch
                figures += figure_fingerprints(call.path, blocks, fingerprints.STAMP_DECIMALS)
        elif isinstance(call, CheckpointCall):
            for transfers in call.transfers.values():
                figures += _checkpoint_times(call.path, transfers)
    original_of: dict[str, str] = {}
    for first, second in (*copied_pairs(steps), *copied_pairs(figures)):
        if first.where != second.where:
            original, copy = sorted((first.where, second.where))
            original_of.setdefault(copy, original)
    for copy, original in original_of.items():
        seen = f"the same numbers, to the last digit, as {os.path.relpath(original, copy)}"
        yield by_rule_at(copy, "runs.copied", seen)
    yield from _similar_runs(steps, exact_copies=original_of)


def _similar_runs(steps: Sequence[Fingerprint], exact_copies: Container[str]) -> Iterator[Finding]:
    """Report runs whose steps are similar to those of another run, except exact copies, which are reported already."""
    severities: dict[tuple[str, str], Severity] = {}
    for first, second, severity in fingerprints.similar_pairs(steps):
        original, copy = sorted((first.where, second.where))
        if original != copy and copy not in exact_copies and severities.get((original, copy)) != "error":
            severities[original, copy] = severity  # the worst of all pairs of epochs
    for (original, copy), severity in sorted(severities.items()):
        seen = f"steps wait in the order of those of {os.path.relpath(original, copy)}: scaled, or with noise"
        yield by_rule_at(copy, "runs.copied", seen, severity=severity)


def copied_ranks(result: CheckpointResult) -> Iterator[Finding]:
    """In a call, no two ranks have the same times, and no two checkpoints have the same times on all ranks."""
    for call in result.calls:
        times: list[Fingerprint] = []
        for rank, transfers in call.transfers.items():
            times += _checkpoint_times(f"rank {rank}", transfers)
        copies = list(copied_pairs(times))
        if len(call.transfers) > 1:
            for kind in KINDS:
                rounds = enumerate(rounds_of(call, kind), 1)
                copies += copied_pairs(Fingerprint(f"{kind} {index}", tuple(seconds)) for index, seconds in rounds)
        if copies:
            seen = [f"{second.where} has the times of {first.where}" for first, second in copies]
            yield by_rule_at(call.path, "ranks.copied", first_few(seen))


def _checkpoint_times(where: str, transfers: Iterable[Transfer]) -> tuple[Fingerprint, ...]:
    return figure_fingerprints(where, (transfer.seconds for transfer in transfers), fingerprints.STAMP_DECIMALS)


def runs_overlap(result: TrainingResult) -> Iterator[Finding]:
    """A run begins after the previous one has ended, or up to 1 s before, as some time stamps lack fractions."""
    spans = [(call.start, call.end, call) for call in result.runs]
    timed = [(start, end, call) for start, end, call in spans if start and end and start <= end]
    timed.sort(key=lambda run: run[0])
    for (_, previous_end, previous), (start, _, call) in pairwise(timed):
        if start < previous_end - timedelta(seconds=1):
            yield by_rule_at(call.path, "runs.overlap", f"began at {start}, {previous.name} ended at {previous_end}")


def same_hosts(result: TrainingResult) -> Iterator[Finding]:
    """All runs use the same hosts; rank 0 may be on any of them."""
    hosts_of_runs = {frozenset(call.run.hostnames) for call in result.runs if call.run and call.run.hostnames}
    rank_0_hosts = {call.printed.hostname for call in result.runs if call.printed.hostname}
    if len(hosts_of_runs) > 1:
        seen = first_few(sorted(first_few(sorted(hosts), ", ") for hosts in hosts_of_runs))
        yield by_rule_at(result.path, "hosts.changed", seen, severity="error")
    elif not hosts_of_runs and len(rank_0_hosts) > 1:
        all_on_one_host = all(call.printed.hosts == 1 for call in result.runs)
        seen = f"rank 0 ran on {first_few(sorted(rank_0_hosts), ', ')}"
        yield by_rule_at(result.path, "hosts.changed", seen, severity="error" if all_on_one_host else "warning")


def sums_agree(result: TrainingResult) -> Iterator[Finding]:
    """The sums over all runs, which are published, agree with the runs."""
    path = os.path.join(result.path, RESULTS)
    if not (result.phased and os.path.isfile(path)):
        return
    if len([call for call in result.runs if call.run]) != RUN_FOLDERS:
        yield from with_path(path, unapplied("results.differ", {"all runs of the result": None}))
        return
    by_run = {call.name: _summary_numbers(call) for call in result.runs}
    counts = [{key: value for key, value in run.items() if "num_" in key} for run in by_run.values()]
    # Sums are over the measured runs, or over all runs; a row of a table has such sums, or the numbers of any run.
    sums = [training_sums([call.printed for call in runs]) for runs in (result.measured, result.runs)]
    in_runs = {run: _values_by_key([values]) for run, values in by_run.items()}
    in_rows = _values_by_key([*sums, *by_run.values()])
    elsewhere = _values_by_key([*sums, *counts])
    yield from _compare(path, {"AU": "au_.*percent", "samples/s": "samples_per_second"}, in_runs, in_rows, elsewhere)


def checkpoint_sums_agree(result: CheckpointResult) -> Iterator[Finding]:
    """The sums over all calls agree with the summaries of the calls."""
    path = os.path.join(result.path, RESULTS)
    if not os.path.isfile(path):
        return
    rates = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()}
    values = _values_by_key([*map(_summary_numbers, result.calls), rates])
    required = {f"GiB/s of {kind}": f"{kind}.*per_second" for kind in figures_of(result)}
    yield from _compare(path, required, in_runs={}, in_rows=values, elsewhere=values)


def _compare(
    path: str, required: Mapping[str, str], in_runs: Mapping[str, _Values], in_rows: _Values, elsewhere: _Values
) -> Iterator[Finding]:
    """Compare each number in a file of sums with the values that its key may have; a key without any is not compared.

    `required` has the name of each figure that the file must have -> a pattern of its keys: versions of the tool write
    sums over the runs, or the metrics of each run as lists with a value for each epoch. `in_runs` has the name of each
    run -> the values for a mapping under that name; `in_rows` has those for other mappings in lists.
    """
    broken: list[Finding] = []
    content = read_json(path, broken)
    yield from with_path(path, broken)
    if broken:
        return
    if not content:
        yield by_rule_at(path, "results.differ", f"{os.path.basename(path)} holds {content}")
        return
    compared = 0
    keys: set[str] = set()
    differences = []
    for where, in_row, row in _nested_mappings(content, ""):
        last_key = where.rpartition(".")[2]
        values_by_key = in_runs.get(last_key, in_rows if in_row else elsewhere)
        for key, value in row.items():
            printed = number(value)
            values = values_by_key.get(key)
            if printed is not None or numbers(value):
                keys.add(key)
            if printed is None or not values:
                continue
            compared += 1
            if not any(same_sum(printed, candidate) for candidate in values):
                name = f"{where}.{key}" if where else key
                differences.append(f"{name} is {printed:.10g}; the runs give {values[0]:.10g}")
    if differences:
        yield by_rule_at(path, "results.differ", first_few(differences))
    missing = [name for name, pattern in required.items() if not any(re.search(pattern, key) for key in keys)]
    if missing:
        yield by_rule_at(path, "results.differ", f"no {' and no '.join(missing)}")
    if not compared:
        yield from with_path(path, unapplied("results.differ", {"sums of the runs": None}))


def _nested_mappings(content: object, where: str, in_row: bool = False) -> Iterator[tuple[str, bool, Any]]:
    """Yield the dotted path of every mapping, whether it is in a list (a row of a table), and the mapping.

    {"runs": [{"au": 1}]} -> ("", False, {"runs": ...}), ("runs", True, {"au": 1})
    """
    if isinstance(content, Mapping):
        yield where, in_row, content
        for key, value in content.items():
            yield from _nested_mappings(value, f"{where}.{key}" if where else str(key), in_row)
    elif isinstance(content, list):
        for value in content:
            yield from _nested_mappings(value, where, True)


def training_sums(runs: Sequence[Printed]) -> dict[str, float]:
    """Return the sums over runs by mlpstorage's keys: means, and standard deviations of the population."""
    sums: dict[str, float] = {}
    for name, unit, values in (
        ("train_au", "percentage", [run.au_percent for run in runs]),
        ("train_throughput", "samples_per_second", [run.samples_per_second for run in runs]),
        ("train_io", "MB_per_second", [run.mib_per_second for run in runs]),
    ):
        known = all_known(values)
        if known:
            sums |= {f"{name}_mean_{unit}": fmean(known), f"{name}_stdev_{unit}": pstdev(known)}
    return sums


def _summary_numbers(call: CallRecords) -> dict[str, float]:
    """Return the numbers in a call's summary by the keys of results.json."""
    processes = call.summary.get("num_accelerators")
    values = {
        **mapping(call.summary.get("metric")),
        **dict.fromkeys(("num_accelerators", "num_processes", "train_num_accelerators"), processes),
        "num_hosts": call.hosts,
        "num_files_train": call.summary.get("num_files_train"),
    }
    numbers_by_key = {key: number(value) for key, value in values.items()}
    return {key: value for key, value in numbers_by_key.items() if value is not None}


def _values_by_key(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return key -> its values in all rows."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            values.setdefault(key, []).append(value)
    return values


COPY_RULES: Rules[TrainingCall] = (runs_overlap, same_hosts, sums_agree)
CHECKPOINT_COPY_RULES: Rules[CheckpointCall] = (copied_ranks, checkpoint_sums_agree)

"""The lines that `dlemu mlperf` prints: the size of a dataset, the end of a rehearsal, the findings of a check."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dlemu.contrib.mlperf.rules.editions import EDITIONS
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, Severity, first_few
from dlemu.report.table import Cell, Line, Tone
from dlemu.results.wording import at_scale, count

if TYPE_CHECKING:
    from dlemu.config.schema import Workload
    from dlemu.contrib.mlperf.check.judge import Checked
    from dlemu.contrib.mlperf.rehearsal.datasize import CheckpointDatasize, Datasize

_TONES: dict[Severity, Tone] = {"error": "bad", "warning": "caution", "info": "plain"}


def datasize_lines(workload: Workload, datagen: str, size: Datasize, memory_source: str) -> Iterator[str]:
    """Yield the lines on a dataset's size; `datagen` is the command that makes it, `memory_source` a phrase."""
    bound = size.bound
    accelerators = f"{size.accelerators} x {size.accelerator}{at_scale(None, workload.scale)}"
    yield f"{size.workload}, {accelerators} on {_hosts(size, memory_source)}"
    yield f"  by memory       {bound.files_by_memory:>12,} files   5 x the memory of all hosts"
    yield f"  by steps        {bound.files_by_steps:>12,} files   500 steps of each accelerator in an epoch"
    yield f"  least           {bound.files:>12,} files   {bound.because}"
    yield f"  advised         {size.files:>12,} files"
    if size.subfolders:
        in_each = -(-size.files // size.subfolders)
        yield f"  sub-folders     {size.subfolders:>12,}         at most {in_each:,} files in each"
    yield f"  steps an epoch  {size.steps_per_epoch:>12,}"
    yield f"  size            {size.nominal_bytes / 1e9:>12,.1f} GB"
    yield from _missing_space(workload, workload.dataset.data_folder, size.nominal_bytes)
    yield from _broken_rules(size.findings)
    yield f"make it: {datagen}"


def checkpoint_datasize_lines(workload: Workload, size: CheckpointDatasize, memory_source: str) -> Iterator[str]:
    """Yield the lines on the size of a model's checkpoints; `memory_source` is a phrase such as "as given"."""
    from dlemu.contrib.mlperf.rules.checkpoints import CHECKPOINTS, MEMORY_FACTOR

    checkpoint = size.size
    yield f"{size.model}, {checkpoint.ranks} of {checkpoint.ranks_of_job} processes on {_hosts(size, memory_source)}"
    content = f"{checkpoint.files:,} files of {checkpoint.parameters:,} parameters"
    yield f"  checkpoint      {checkpoint.tensor_gib:>16,.6f} GiB  {content}"
    yield f"  largest rank    {checkpoint.largest_rank_bytes / 2**30:>16,.3f} GiB"
    yield f"  room            {size.room_gib:>16,.1f} GiB  {CHECKPOINTS} checkpoints, all kept"
    calls = "one call" if size.memory_factor > MEMORY_FACTOR else "clear caches between two calls"
    yield f"  each host       {size.written_gib_per_host:>16,.1f} GiB  {size.memory_factor:,.2f} x its memory: {calls}"
    yield from _missing_space(workload, workload.checkpoint.checkpoint_folder, size.room_gib * 2**30)
    yield from _broken_rules(size.findings)


def _hosts(size: Datasize | CheckpointDatasize, memory_source: str) -> str:
    memory = f"{size.memory_gib_per_host:,.2f} GiB ({memory_source})"
    newest = "" if size.edition == max(EDITIONS) else f" (the newest: v{max(EDITIONS)})"
    return f"{count(size.hosts, 'host')} of {memory}, by the rules of v{size.edition}{newest}"


def _missing_space(workload: Workload, folder: str, wanted_bytes: float) -> Iterator[str]:
    from dlemu.extend import environment

    if workload.storage.has_paths:  # an object store does not tell its free space
        existing_folder = environment.existing_folder(folder)
        free_bytes = shutil.disk_usage(existing_folder).free
        if free_bytes < wanted_bytes:
            yield f"  free            {free_bytes / 1e9:>12,.1f} GB in {existing_folder}: NOT ENOUGH"


def _broken_rules(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.severity} {finding.rule}: {finding.seen}; wanted {finding.wanted}; {finding.fix}"


def result_lines(checked: Checked) -> Iterator[Cell]:
    """Yield a line for each result; those of checkpoints have the published rates."""
    from dlemu.contrib.mlperf.check.judge import result_rows

    for row in result_rows(checked):
        processes = f"{count(row.processes, 'process')}, " if row.processes else ""
        if row.benchmark == "training":
            processes = f"{row.processes or '?'} x {row.accelerator or '?'}, "
        line = f"{row.path}: {row.benchmark} {row.model or 'unknown'}, {processes}{count(len(row.runs), 'run')};"
        line += f" v{row.edition} {row.division.upper()}"
        if row.rates:
            rates = ", ".join(f"{key.partition('_')[0]} {rate:.3f} GiB/s" for key, rate in row.rates.items())
            line += f" ({rates}, by rank 0)"
        yield Line(line, "strong")


def finding_lines(findings: Iterable[Finding], root: str) -> Iterator[Cell]:
    """Yield three lines for each group of findings that differ only in their paths and in what was seen."""
    for _, group in groupby(sorted(findings, key=_group_key), key=_group_key):
        alike = list(group)
        first = alike[0]
        name = f"{first.rule} [{first.official}]" if first.official else first.rule
        seen = first_few(list(dict.fromkeys(finding.seen for finding in alike)))
        yield Line(f"{first.severity} {name}: {seen}", _TONES[first.severity])
        yield f"  wanted {first.wanted}; fix: {first.fix}"
        yield f"  in {_joined(sorted({os.path.relpath(finding.path, root) for finding in alike}))}"


def _group_key(finding: Finding) -> tuple[int, str, str, str, str]:
    return SEVERITIES.index(finding.severity), finding.rule, finding.official, finding.wanted, finding.fix


def _joined(paths: list[str]) -> str:
    """Return the paths as text that names their common folder once: a/x and a/y -> "a: x, y"."""
    if len(paths) == 1:
        return paths[0]
    common = os.path.commonpath(paths)
    names = first_few([os.path.relpath(path, common or ".") for path in paths], ", ")
    return f"{common}: {names}" if common else names


def _finding_counts(checked: Checked) -> str:
    """Return the numbers of errors and warnings, and of their rules: `3 errors of 2 rules, 1 warning`."""
    texts = []
    for severity in ("error", "warning"):
        broken = [finding.rule for finding in checked.findings if finding.severity == severity]
        rules = f" of {count(len(set(broken)), 'rule')}" if len(broken) > 1 else ""
        texts.append(f"{count(len(broken), severity)}{rules}")
    return ", ".join(texts)


def verdict_line(checked: Checked) -> Line:
    """Return the line that says whether the results are valid, as far as this can be checked."""
    if checked.valid and not checked.results:
        return Line(f"NOT JUDGED: {checked.unjudged} runs of other benchmarks; {_finding_counts(checked)}", "open")
    if checked.valid:
        line = f"VALID by the rules that can be checked: {_finding_counts(checked)}"
        unapplied = sum(finding.rule == "unapplied" for finding in checked.findings)
        if unapplied:
            line += f"; facts for rules are missing {unapplied} times (unapplied)"
        return Line(line, "good")
    return Line(f"INVALID: {_finding_counts(checked)}", "bad")

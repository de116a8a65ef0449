"""Rules on a training result: on each run, on all runs together, and on the dataset that they read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dlemu.contrib.mlperf.audit.papers import SEPARATION
from dlemu.contrib.mlperf.audit.run_settings import Setup
from dlemu.contrib.mlperf.audit.tolerant import LARGEST_BYTES, mapping, text
from dlemu.contrib.mlperf.check.submission_tree import Leaf, Result, Rule, runs_differ
from dlemu.contrib.mlperf.check.system_description import stated_limit
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.core_config import NEVER_SET, OTHER_DEFAULTS, canonical, effective
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS, RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, Severity, at, by_rule, by_rule_at, few, unapplied
from dlemu.extend import UserError
from dlemu.results.answer_files import open_untrusted
from dlemu.results.wording import count

_COVERED_BY_FILE_RULES = ("summary.missing",)
"""The audit's findings that are left out because the rules on required files give the same ones."""
_COVERED_BY_COMPLETE = ("config.missing", "config.assumed")
"""The audit's findings that are left out because `config_complete` gives the same ones."""
_OF_THE_AUDIT_ALONE = ("au.rules", "au.prefetch")
"""The audit's findings on which no edition since v2.0 has a rule."""
_REQUIRED_SETTINGS = (
    *("model.name", "framework", "dataset.format", "dataset.num_files_train", "dataset.num_samples_per_file"),
    *("dataset.record_length_bytes", "reader.data_loader", "reader.batch_size"),
    *("train.epochs", "train.computation_time", "metric.au"),
)
"""Settings that config.yaml has for every edition's workloads; without them a run can't be checked."""
_CHOSEN = ("read_threads", "computation_threads", "prefetch_size", "transfer_size", "odirect", "data_loader")
"""Settings of the reader that a submitter may choose, once for all runs."""
_GENERATED = (
    *("dataset.format", "dataset.num_samples_per_file", "dataset.record_length_bytes"),
    *("dataset.compression", "dataset.record_dims", "dataset.record_length_bytes_stdev"),
)
"""Settings that decide which files datagen generates."""
_LENGTH = frozenset({"record_length_bytes", "record_length", "record_length_bytes_stdev", "record_length_stdev"})
"""The last of these is compared only where one of these is stated: without it DLIO's default is 0."""
MIN_ACCELERATORS_PER_HOST = 4
"""With fewer on a single host, v3.0's checker asks whether that host could drive more (3.3.3)."""
GAP_FACTOR = 2
"""Starts of successive runs are less than this many durations of the shortest run apart (2.1.18, v3.0's checker)."""
MAX_RATE_SPREAD = 0.05
"""Runs of one result are replicable if samples/s differ by at most this share of their mean (text, results)."""


def single_run_rules(result: Result[Leaf]) -> Iterator[Finding]:
    """Check every run by the edition's rules on single runs, with the AU recomputed from its steps."""
    limit = stated_limit(result)
    for leaf in result.runs:
        if leaf.run is not None and (leaf.printed.accelerators or leaf.setup.config is not None):
            printed = replace(leaf.printed, au_percent=leaf.run.au_percent)
            hosts, measured = leaf.printed.hosts, leaf.printed.memory_gib
            if limit and hosts is not None and measured is not None and hosts * limit.memory_gib < measured:
                printed = replace(printed, memory_gib=hosts * limit.memory_gib)
                name, gib = os.path.basename(limit.path), limit.memory_gib
                seen = f"{name} states a control group's limit of {gib:g} GiB for each host"
                yield by_rule_at(leaf.path, "dataset.limited", seen)
            setup, by_dlemu = _with_metadata(leaf), leaf.run.by_dlemu
            for finding in check_run(result.edition, setup, printed, result.division, by_dlemu=by_dlemu):
                yield replace(_for_result(finding, leaf, result), path=leaf.path)


def _with_metadata(leaf: Leaf) -> Setup:
    """Return the run's settings, with the overrides from mlpstorage's metadata added."""
    stated = mapping(leaf.metadata.get("override_parameters"))
    words = [f"++workload.{key}={value}" for key, value in stated.items()]
    if not words:
        return leaf.setup
    return replace(leaf.setup, overrides=tuple(dict.fromkeys([*(leaf.setup.overrides or ()), *words])))


def complete(leaf: Leaf, _: Result[Leaf]) -> Iterator[Finding]:
    """A run has its whole configuration, and a summary with all that DLIO writes: what is not there can't be judged."""
    if leaf.run is None:
        return
    settings = effective(leaf.setup.config) if leaf.setup.config else {}
    lacking = [key for key in _REQUIRED_SETTINGS if settings.get(key) is None]
    if lacking:
        none = len(lacking) == len(_REQUIRED_SETTINGS)
        seen = "no config.yaml that can be read" if none else f"config.yaml without {', '.join(lacking)}"
        yield by_rule("config.incomplete", seen)
    if leaf.printed.lacking and not leaf.printed.unusable:
        yield by_rule("summary.incomplete", f"summary.json without {few(leaf.printed.lacking, ', ', 4)}")


def _for_result(finding: Finding, leaf: Leaf, result: Result[Leaf]) -> Finding:
    if finding.rule != "au.low" or leaf.run is None:
        return finding
    basis = "from its steps" if leaf.run.recomputed.basis == "steps" else "as printed: the steps are missing"
    # v3.0's checker applies the AU threshold to the warm-up run, too; the rules' text to the measured runs only.
    warm_up = leaf is result.warm_up and not result.edition.checks_tree
    severity: Severity = "warning" if warm_up else finding.severity
    return replace(finding, severity=severity, seen=f"{finding.seen} ({basis})")


def audit_findings(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """Pass on the audit's findings: files that contradict each other or can't be read."""
    for finding in leaf.run.findings if leaf.run else ():
        if finding.rule in _OF_THE_AUDIT_ALONE:
            continue
        if finding.rule in _COVERED_BY_COMPLETE and leaf.printed.accelerators:
            continue
        if not result.phased or finding.rule not in _COVERED_BY_FILE_RULES:
            yield finding


def made_by_dlio(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """CLOSED results come from DLIO, unchanged (v3.0's Rules.md, section 1)."""
    if result.closed and leaf.run is not None and leaf.run.by_dlemu:
        yield by_rule("tool.other", "dlio.log says that dlemu ran as a drop-in replacement for DLIO")


def few_accelerators(result: Result[Leaf]) -> Iterator[Finding]:
    """Warn of few accelerators on a single host."""
    first = next((leaf for leaf in result.runs if leaf.printed.accelerators), None)
    if first is not None:
        accelerators = first.printed.accelerators or 0
        if first.printed.hosts == 1 and accelerators < MIN_ACCELERATORS_PER_HOST:
            yield by_rule_at(result.path, "hosts.few", f"{count(accelerators, 'accelerator')} on one host")


def run_hosts(leaf: Leaf, _: Result[Leaf]) -> Iterator[Finding]:
    """Every host runs the same number of accelerators (3.3.6), by the ranks' files, and no more hosts are named."""
    ranks_of = Counter(leaf.run.hostnames if leaf.run else ())
    if len(set(ranks_of.values())) > 1:
        seen = ", ".join(f"{host}: {ranks}" for host, ranks in ranks_of.most_common(4))
        yield by_rule("hosts.uneven", f"accelerators of the hosts: {seen}")
    named = leaf.args.get("hosts")
    if leaf.printed.hosts == 1 and isinstance(named, list) and len(named) > 1:
        yield by_rule("hosts.named", f"the run was on 1 host, its metadata names {len(named)}")


def run_count(result: Result[Leaf]) -> Iterator[Finding]:
    """There are as many run folders as the edition requires."""
    runs = len(result.runs)
    if not result.phased:
        seen = "a single run: the number of runs and the time between them are not checked"
        yield by_rule_at(result.path, "runs.single", seen)
    elif runs != RUN_FOLDERS:
        severity: Severity = "error" if result.edition.checks_tree or runs < MEASURED_RUNS else "warning"
        seen = f"{runs} runs: {', '.join(leaf.name for leaf in result.runs) or 'none'}"
        yield by_rule_at(result.path, "runs.count", seen, severity=severity)


def run_ended(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """A folder of a run is named by the time when it began, and holds a run that ended."""
    if result.phased and leaf.stamp is None:
        yield by_rule("runs.stamp", f"a run's folder is named {leaf.name!r}")
    if leaf.run is None or "summary.json" not in leaf.files:
        has_summary = "summary.json" in leaf.files
        seen = "summary.json is not of training" if has_summary else "no summary.json: the run did not end"
        yield by_rule("runs.ended", seen)


def run_gaps(result: Result[Leaf]) -> Iterator[Finding]:
    """Runs follow one another without a pause in which anything else could run."""
    if not result.phased:
        return
    timed = [(leaf, leaf.began, leaf.ended) for leaf in result.runs]
    known = [(leaf, start, end) for leaf, start, end in timed if start is not None and end is not None]
    for leaf, start, end in known:
        if end < start:
            yield by_rule_at(leaf.path, "runs.clock", f"the run ended at {end}, before it began at {start}")
    for leaf, begun_at, ended_at in timed:
        if leaf.run is not None:
            yield from at(leaf.path, unapplied("runs.gap", {"start and end": begun_at and ended_at}))
    shortest = min((end - start for _, start, end in known if end >= start), default=None)
    begun = sorted([(leaf.stamp or start, leaf) for leaf, start, _ in known], key=lambda run: run[0])
    gaps = [(second - first, leaf) for (first, _), (second, leaf) in pairwise(begun)]
    too_long = [(gap, leaf) for gap, leaf in gaps if shortest is not None and gap >= GAP_FACTOR * shortest]
    if shortest is not None and too_long:
        longest, leaf = max(too_long, key=lambda gap: gap[0])
        seen = f"{len(too_long)} of {len(gaps)} gaps, up to {longest} from one run's start to the next ({leaf.name})"
        yield by_rule_at(result.path, "runs.gap", f"{seen}; the shortest run took {shortest}")


def same_job(result: Result[Leaf]) -> Iterator[Finding]:
    """All runs have the same workload, settings, accelerators and hosts, and read the same dataset."""
    job: dict[str, list[Any]] = {
        "workload": [leaf.setup.workload for leaf in result.runs],
        "accelerator": [leaf.setup.accelerator for leaf in result.runs],
        "number of accelerators": [leaf.printed.accelerators for leaf in result.runs],
        "number of hosts": [leaf.printed.hosts for leaf in result.runs],
        **{f"reader.{key}": [_reader_setting(leaf, key) for leaf in result.runs] for key in _CHOSEN},
    }
    dataset: dict[str, list[Any]] = {
        "dataset.num_files_train": [leaf.num_files for leaf in result.runs],
        "dataset.num_samples_per_file": [leaf.printed.samples_per_file for leaf in result.runs],
        "dataset.data_folder": [leaf.data_folder for leaf in result.runs],
    }
    yield from runs_differ(result.path, "runs.differ", job)
    yield from runs_differ(result.path, "dataset.differs", dataset)


def _reader_setting(leaf: Leaf, key: str) -> Any:
    """Return a setting of the reader, or DLIO's default where the run's settings omit it; None if all are unknown."""
    reader = leaf.section("reader")
    value = canonical(reader.get(key))
    return (OTHER_DEFAULTS[f"reader.{key}"] if value is None else value) if reader else None


def rates_agree(result: Result[Leaf]) -> Iterator[Finding]:
    """Samples/s of the measured runs differ by at most 5 % of their mean."""
    rates = [leaf.printed.samples_per_second for leaf in result.measured]
    known = [rate for rate in rates if rate]
    for leaf, rate in zip(result.measured, rates, strict=True):
        if leaf.run is not None:
            yield from at(leaf.path, unapplied("runs.spread", {"samples per second": rate}))
    if len(known) > 1 and (max(known) - min(known)) / (sum(known) / len(known)) > MAX_RATE_SPREAD:
        yield by_rule_at(result.path, "runs.spread", f"{min(known):.2f} to {max(known):.2f} samples/s")


def dataset_phases(result: Result[Leaf]) -> Iterator[Finding]:
    """The runs read at least as many files as datasize requires and at most as many as datagen generated."""
    required = [leaf.num_files for leaf in result.of("datasize") if leaf.num_files]
    generated = [leaf.num_files for leaf in result.of("datagen") if leaf.num_files]
    read = [(leaf, leaf.num_files) for leaf in result.runs if leaf.num_files]
    for leaf, files in read:
        if generated and files > max(generated):
            seen = f"the run read {files:,} files, datagen generated {max(generated):,}"
            yield by_rule_at(leaf.path, "dataset.phases", seen)
        if required and files < min(required):
            seen = f"the run read {files:,} files, datasize requires {min(required):,}"
            yield by_rule_at(leaf.path, "dataset.phases", seen)
    if required and generated and max(generated) < min(required):
        seen = f"datagen generated {max(generated):,} files, datasize requires {min(required):,}"
        yield by_rule_at(result.of("datagen")[0].path, "dataset.made", seen)


def dataset_as_generated(result: Result[Leaf]) -> Iterator[Finding]:
    """The runs read files of the size and format that datagen generated: reads are counted by the runs' settings."""
    read = next((effective({"dataset": section}) for leaf in result.runs if (section := leaf.section("dataset"))), {})
    for leaf in result.of("datagen"):
        section = leaf.section("dataset")
        made = effective({"dataset": section})
        compared = _GENERATED if _LENGTH & section.keys() else _GENERATED[:-1]
        stated = {key: [each.get(key, NEVER_SET.get(key)) for each in (made, read)] for key in compared}
        different = [
            f"{key}={mine} in datagen, {theirs} in the runs"
            for key, (mine, theirs) in stated.items()
            if mine is not None and theirs is not None and mine != theirs
        ]
        if different and read:
            yield by_rule_at(leaf.path, "dataset.differs", "; ".join(different))


def separate_folders(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """The metadata have the dataset's settings (3.1.1), and data and results are in two folders on two file systems."""
    data, results = text(leaf.args.get("data_dir")), text(leaf.args.get("results_dir"))
    strict = result.phased and result.edition.checks_tree and bool(leaf.metadata)
    if strict and not mapping(leaf.parameters.get("dataset")):
        yield by_rule("dataset.told", "metadata without parameters.dataset")
    if strict and (not data or not results):
        yield by_rule("dataset.folder", f"metadata without args.{'results_dir' if data else 'data_dir'}")
    read = {os.path.normpath(folder) for folder in (data, leaf.data_folder) if folder}
    if results and os.path.normpath(results) in read:
        yield by_rule("dataset.folder", f"both are {results}")
    if leaf.separation.get("same_filesystem") is True:
        yield by_rule("dataset.filesystem", f"data and results share a file system ({SEPARATION})")
    elif SEPARATION not in leaf.files and strict and not leaf.on_object_store and not _has_df(leaf):
        yield by_rule("dataset.filesystem", f"no {SEPARATION}, and no output of df in the log")


def _has_df(leaf: Leaf) -> bool:
    try:
        path = os.path.join(leaf.path, "training_run.stdout.log")
        with open(open_untrusted(path, LARGEST_BYTES), errors="replace") as log:
            return any(line.startswith("Filesystem") and "Mounted on" in line for line in log)
    except (OSError, UserError):
        return False


_RUN_RULES = (complete, audit_findings, made_by_dlio, run_hosts, run_ended, separate_folders)


def runs_alone(result: Result[Leaf]) -> Iterator[Finding]:
    """Apply the rules on each run by itself."""
    for leaf in result.runs:
        for rule in _RUN_RULES:
            yield from at(leaf.path, rule(leaf, result))


RESULT_RULES: tuple[Rule, ...] = (
    *(single_run_rules, runs_alone, few_accelerators, run_count, run_gaps, same_job, rates_agree),
    *(dataset_phases, dataset_as_generated),
)

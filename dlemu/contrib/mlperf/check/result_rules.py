"""Rules on a training result: on each run, on all runs together, and on the dataset that they read.

A *result* is one submitted measurement: a warm-up run, measured runs, and calls that made the dataset (datasize,
datagen). A result is *phased* if it has folders for these calls; a single run that was checked alone is not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import mapping
from dlemu.contrib.mlperf.check.submission_tree import Leaf, Result, Rule, runs_differ
from dlemu.contrib.mlperf.check.system_description import stated_limit
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.core_config import NEVER_SET, OTHER_DEFAULTS, canonical, effective
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS, RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, Severity, at, by_rule, by_rule_at, few, unapplied
from dlemu.results.wording import count

_COVERED_BY_COMPLETE = ("config.missing", "config.assumed")
"""The audit's findings that are left out because `complete` gives the same ones."""
_OF_THE_AUDIT_ALONE = ("au.rules",)  # the audit's findings on which no edition since v2.0 has a rule
_REQUIRED_SETTINGS = (
    *("model.name", "framework", "dataset.format", "dataset.num_files_train", "dataset.num_samples_per_file"),
    *("dataset.record_length_bytes", "reader.data_loader", "reader.batch_size"),
    *("train.epochs", "train.computation_time", "metric.au"),
)
"""Settings that config.yaml has for every edition's workloads; without them a run can't be checked."""
_CHOSEN_SETTINGS = ("read_threads", "computation_threads", "prefetch_size", "transfer_size", "odirect", "data_loader")
"""Settings of the reader that a submitter may choose, once for all runs."""
_GENERATED_BY = (
    *("dataset.format", "dataset.num_samples_per_file", "dataset.record_length_bytes"),
    *("dataset.compression", "dataset.record_dims"),
)
"""Settings that decide which files datagen generates."""
_LENGTHS = frozenset({"record_length_bytes", "record_length", "record_length_bytes_stdev", "record_length_stdev"})
"""Settings of the dataset on the length of its records; the deviation is compared if datagen sets one of them."""
MIN_ACCELERATORS_PER_HOST = 4  # With fewer on a single host, v3.0's checker asks whether it could drive more (3.3.3).
GAP_FACTOR = 2
"""Starts of successive runs are less than this many durations of the shortest run apart (2.1.18, v3.0's checker)."""
MAX_RATE_SPREAD = 0.05  # of the mean samples/s, between the runs of one result (the rules' text, section on results)


def edition_rules_on_runs(result: Result[Leaf]) -> Iterator[Finding]:
    """Check every run by the edition's rules on single runs, with the AU recomputed from its steps."""
    limit = stated_limit(result)
    for leaf in result.runs:
        if leaf.run is None or (leaf.printed.accelerators is None and leaf.setup.config is None):
            continue
        printed = replace(leaf.printed, au_percent=leaf.run.au_percent)
        if limit and printed.hosts is not None and printed.memory_gib is not None:
            limit_gib = printed.hosts * limit.memory_gib
            if limit_gib < printed.memory_gib:
                printed = replace(printed, memory_gib=limit_gib)
                name, gib = os.path.basename(limit.path), limit.memory_gib
                seen = f"{name} states a control group's limit of {gib:g} GiB for each host"
                yield by_rule_at(leaf.path, "dataset.limited", seen)
        setup, by_dlemu = _with_metadata(leaf), leaf.run.by_dlemu
        for finding in check_run(result.edition, setup, printed, result.division, by_dlemu=by_dlemu):
            if finding.rule == "au.low":
                finding = _au_finding(finding, leaf, result)
            yield replace(finding, path=leaf.path)


def _au_finding(finding: Finding, leaf: Leaf, result: Result[Leaf]) -> Finding:
    """Return the finding of a low AU, with what it is based on."""
    has_steps = leaf.run is not None and leaf.run.recomputed.basis == "steps"
    basis = "from its steps" if has_steps else "as printed: the steps are missing"
    # v3.0's checker applies the AU threshold to the warm-up run, too; the rules' text to the measured runs only.
    is_exempt = leaf is result.warm_up and not result.edition.checks_tree
    severity: Severity = "warning" if is_exempt else finding.severity
    return replace(finding, severity=severity, seen=f"{finding.seen} ({basis})")


def _with_metadata(leaf: Leaf) -> Setup:
    """Return the run's settings, with the overrides from mlpstorage's metadata added."""
    parameters = mapping(leaf.metadata.get("override_parameters"))
    if not parameters:
        return leaf.setup
    words = [*(leaf.setup.overrides or ()), *(f"++workload.{key}={value}" for key, value in parameters.items())]
    return replace(leaf.setup, overrides=tuple(dict.fromkeys(words)))


def complete(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """A run has its whole configuration, and a summary with all that DLIO writes: what is not there can't be judged."""
    if leaf.run is None:
        return
    settings = effective(leaf.setup.config) if leaf.setup.config else {}
    missing = [key for key in _REQUIRED_SETTINGS if settings.get(key) is None]
    if len(missing) == len(_REQUIRED_SETTINGS):
        yield by_rule("config.incomplete", "no config.yaml that can be read")
    elif missing:
        yield by_rule("config.incomplete", f"config.yaml without {', '.join(missing)}")
    if result.phased and leaf.metadata and not mapping(leaf.parameters.get("dataset")):
        yield by_rule("dataset.told", "metadata without parameters.dataset")
    if leaf.printed.missing_keys and not leaf.printed.unusable:
        yield by_rule("summary.incomplete", f"summary.json without {few(leaf.printed.missing_keys, ', ', 4)}")


def audit_findings(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """Pass on the audit's findings (contradicting or unreadable files), except those that another rule reports."""
    for finding in leaf.run.findings if leaf.run else ():
        by_complete = finding.rule in _COVERED_BY_COMPLETE and leaf.printed.accelerators
        by_file_rules = finding.rule == "summary.missing" and result.phased
        if finding.rule not in _OF_THE_AUDIT_ALONE and not by_complete and not by_file_rules:
            yield finding


def few_accelerators(result: Result[Leaf]) -> Iterator[Finding]:
    """Warn of few accelerators on a single host."""
    printed = next((leaf.printed for leaf in result.runs if leaf.printed.accelerators), Printed())
    accelerators = printed.accelerators or 0
    if printed.hosts == 1 and accelerators < MIN_ACCELERATORS_PER_HOST:
        yield by_rule_at(result.path, "hosts.few", f"{count(accelerators, 'accelerator')} on one host")


def run_hosts(leaf: Leaf, _: Result[Leaf]) -> Iterator[Finding]:
    """Every host runs the same number of accelerators (3.3.6), by the ranks' files, and no more hosts are named."""
    ranks_of = Counter(leaf.run.hostnames if leaf.run else ())
    if len(set(ranks_of.values())) > 1:
        seen = ", ".join(f"{host}: {ranks}" for host, ranks in ranks_of.most_common(4))
        yield by_rule("hosts.uneven", f"accelerators of the hosts: {seen}")
    hosts = leaf.args.get("hosts")
    if leaf.printed.hosts == 1 and isinstance(hosts, list) and len(hosts) > 1:
        yield by_rule("hosts.named", f"the run was on 1 host, its metadata names {len(hosts)}")


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
    if "summary.json" not in leaf.files:
        yield by_rule("runs.ended", "no summary.json: the run did not end")
    elif leaf.run is None:
        yield by_rule("runs.ended", "summary.json is not of training")


def run_gaps(result: Result[Leaf]) -> Iterator[Finding]:
    """Runs follow one another without a pause in which anything else could run."""
    if not result.phased:
        return
    timed = [(leaf, leaf.began, leaf.ended) for leaf in result.runs if leaf.began and leaf.ended]
    for leaf, began, ended in timed:
        if ended < began:
            yield by_rule_at(leaf.path, "runs.clock", f"the run ended at {ended}, before it began at {began}")
    for leaf in result.runs:
        if leaf.run is not None:
            yield from at(leaf.path, unapplied("runs.gap", {"start and end": leaf.began and leaf.ended}))
    shortest = min((ended - began for _, began, ended in timed if ended >= began), default=None)
    starts = sorted([(leaf.stamp or began, leaf) for leaf, began, _ in timed], key=lambda start: start[0])
    gaps = [(second - first, leaf) for (first, _), (second, leaf) in pairwise(starts)]
    too_long = [(gap, leaf) for gap, leaf in gaps if shortest is not None and gap >= GAP_FACTOR * shortest]
    if too_long:
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
        **{f"reader.{key}": [_reader_setting(leaf, key) for leaf in result.runs] for key in _CHOSEN_SETTINGS},
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
    if not reader:
        return None
    value = canonical(reader.get(key))
    return OTHER_DEFAULTS[f"reader.{key}"] if value is None else value


def rates_agree(result: Result[Leaf]) -> Iterator[Finding]:
    """Samples/s of the measured runs differ by at most 5 % of their mean."""
    for leaf in result.measured:
        if leaf.run is not None:
            rate = leaf.printed.samples_per_second
            yield from at(leaf.path, unapplied("runs.spread", {"samples per second": rate}))
    rates = [leaf.printed.samples_per_second for leaf in result.measured if leaf.printed.samples_per_second]
    if len(rates) > 1 and (max(rates) - min(rates)) / (sum(rates) / len(rates)) > MAX_RATE_SPREAD:
        yield by_rule_at(result.path, "runs.spread", f"{min(rates):.2f} to {max(rates):.2f} samples/s")


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
    section = next((leaf.section("dataset") for leaf in result.runs if leaf.section("dataset")), None)
    if section is None:
        return
    in_runs = effective({"dataset": section})
    for leaf in result.of("datagen"):
        section = leaf.section("dataset")
        in_datagen = effective({"dataset": section})
        deviation = ["dataset.record_length_bytes_stdev"] if _LENGTHS & section.keys() else []
        differences = []
        for key in (*_GENERATED_BY, *deviation):
            made, read = (settings.get(key, NEVER_SET.get(key)) for settings in (in_datagen, in_runs))
            if made is not None and read is not None and made != read:
                differences.append(f"{key}={made} in datagen, {read} in the runs")
        if differences:
            yield by_rule_at(leaf.path, "dataset.differs", "; ".join(differences))


_FOLDER_RULES = (complete, audit_findings, run_hosts, run_ended)


def folder_rules_on_runs(result: Result[Leaf]) -> Iterator[Finding]:
    """Check the folder of every run: its configuration, its findings of the audit, its hosts, its end."""
    for leaf in result.runs:
        for rule in _FOLDER_RULES:
            yield from at(leaf.path, rule(leaf, result))


RESULT_RULES: tuple[Rule, ...] = (
    *(edition_rules_on_runs, folder_rules_on_runs, few_accelerators, run_count, run_gaps, same_job, rates_agree),
    *(dataset_phases, dataset_as_generated),
)

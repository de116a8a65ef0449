"""Rules on a training result: on each run, on all runs together, and on the dataset that they read.

A result is a warm-up run, the measured runs, and the calls that made the dataset (datasize, datagen). It is *phased* if
it has folders for these calls, unlike a single run that is checked alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import mapping, sequence
from dlemu.contrib.mlperf.check.submission_tree import Leaf, Result, Rules
from dlemu.contrib.mlperf.check.system_description import stated_limit
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.core_config import NEVER_SET, OTHER_DEFAULTS, canonical, effective
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS, RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at, differing, first_few, unapplied, with_path
from dlemu.results.wording import count

_COVERED_BY_COMPLETENESS = ("config.missing", "config.assumed")  # the audit's rules that `records_complete` covers
_AUDIT_ONLY = ("au.rules",)  # the audit's rules that no edition since v2.0 has
_REQUIRED_SETTINGS = (
    *("model.name", "framework", "dataset.format", "dataset.num_files_train", "dataset.num_samples_per_file"),
    *("dataset.record_length_bytes", "reader.data_loader", "reader.batch_size"),
    *("train.epochs", "train.computation_time", "metric.au"),
)
"""Settings in config.yaml without which a run can't be checked; the workload files of all editions have them."""
_READER_SETTINGS = ("read_threads", "computation_threads", "prefetch_size", "transfer_size", "odirect", "data_loader")
"""Settings of the reader that a submitter chooses once for all runs."""
_DATAGEN_SETTINGS = (
    *("dataset.format", "dataset.num_samples_per_file", "dataset.record_length_bytes"),
    *("dataset.compression", "dataset.record_dims"),
)
"""Settings that decide which files datagen generates."""
_LENGTHS = frozenset({"record_length_bytes", "record_length", "record_length_bytes_stdev", "record_length_stdev"})
"""Settings on the length of records; if datagen sets one of them, its deviation is compared with that of the runs."""
MIN_ACCELERATORS_PER_HOST = 4  # with fewer on a single host, v3.0's checker asks whether it could drive more (3.3.3)
GAP_FACTOR = 2  # successive runs must start less than 2 durations of the shortest run apart (2.1.18, v3.0's checker)
MAX_RATE_SPREAD = 0.05  # between the runs of a result, as a share of their mean (the rules' text, section on results)


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
        setup = _with_metadata(leaf)
        for finding in check_run(result.edition, setup, printed, result.division, by_dlemu=leaf.run.by_dlemu):
            if finding.rule == "au.low":
                finding = _au_finding(finding, leaf, result)
            yield replace(finding, path=leaf.path)


def _au_finding(finding: Finding, leaf: Leaf, result: Result[Leaf]) -> Finding:
    """Return the finding of a low AU, with the basis of the AU added; a warning if the run is an exempt warm-up."""
    has_steps = leaf.run is not None and leaf.run.recomputed.basis == "steps"
    basis = "from its steps" if has_steps else "as printed: the steps are missing"
    # The rules' text applies the AU threshold to the measured runs only; v3.0's checker also applies it to the warm-up.
    is_exempt = leaf is result.warm_up and not result.edition.checks_tree
    seen = f"{finding.seen} ({basis})"
    return replace(finding, severity="warning" if is_exempt else finding.severity, seen=seen)


def _with_metadata(leaf: Leaf) -> Setup:
    """Return the run's settings, completed with the overrides in mlpstorage's metadata."""
    parameters = mapping(leaf.metadata.get("override_parameters"))
    if not parameters:
        return leaf.setup
    words = [*(leaf.setup.overrides or ()), *(f"++workload.{key}={value}" for key, value in parameters.items())]
    return replace(leaf.setup, overrides=tuple(dict.fromkeys(words)))


def records_complete(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """A run has a configuration with all required settings, and a summary with everything that DLIO writes."""
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
        yield by_rule("summary.incomplete", f"summary.json without {first_few(leaf.printed.missing_keys, ', ', 4)}")


def audit_findings(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """Pass on the audit's findings, on contradicting or unreadable files, unless another rule reports the same."""
    for finding in leaf.run.findings if leaf.run else ():
        is_incomplete = finding.rule in _COVERED_BY_COMPLETENESS and leaf.printed.accelerators
        is_missing_file = finding.rule == "summary.missing" and result.phased
        if finding.rule not in _AUDIT_ONLY and not is_incomplete and not is_missing_file:
            yield finding


def few_accelerators(result: Result[Leaf]) -> Iterator[Finding]:
    """Warn if a run on a single host has few accelerators."""
    printed = next((leaf.printed for leaf in result.runs if leaf.printed.accelerators), Printed())
    accelerators = printed.accelerators or 0
    if printed.hosts == 1 and accelerators < MIN_ACCELERATORS_PER_HOST:
        yield by_rule_at(result.path, "hosts.few", f"{count(accelerators, 'accelerator')} on one host")


def run_hosts(leaf: Leaf, _: Result[Leaf]) -> Iterator[Finding]:
    """Every host runs the same number of accelerators (3.3.6), and a run on one host names no others."""
    ranks_by_host = Counter(leaf.run.hostnames if leaf.run else ())
    if len(set(ranks_by_host.values())) > 1:
        seen = ", ".join(f"{host}: {ranks}" for host, ranks in ranks_by_host.most_common(4))
        yield by_rule("hosts.uneven", f"accelerators of the hosts: {seen}")
    hosts = sequence(leaf.args.get("hosts"))
    if leaf.printed.hosts == 1 and len(hosts) > 1:
        yield by_rule("hosts.named", f"the run was on 1 host, its metadata names {len(hosts)}")


def run_count(result: Result[Leaf]) -> Iterator[Finding]:
    """There are as many run folders as the edition requires."""
    runs = len(result.runs)
    if not result.phased:
        seen = "a single run: the number of runs and the time between them are not checked"
        yield by_rule_at(result.path, "runs.single", seen)
    elif runs != RUN_FOLDERS:
        is_error = result.edition.checks_tree or runs < MEASURED_RUNS
        seen = f"{runs} runs: {', '.join(leaf.name for leaf in result.runs) or 'none'}"
        yield by_rule_at(result.path, "runs.count", seen, severity="error" if is_error else "warning")


def run_ended(leaf: Leaf, result: Result[Leaf]) -> Iterator[Finding]:
    """A run's folder is named by the time of its start, and has the summary of a training run that ended."""
    if result.phased and leaf.stamp is None:
        yield by_rule("runs.stamp", f"a run's folder is named {leaf.name!r}")
    if "summary.json" not in leaf.files:
        yield by_rule("runs.ended", "no summary.json: the run did not end")
    elif leaf.run is None:
        yield by_rule("runs.ended", "summary.json is not of training")


def run_gaps(result: Result[Leaf]) -> Iterator[Finding]:
    """Runs follow one another without pauses long enough for another run."""
    if not result.phased:
        return
    timed = [(leaf, leaf.start, leaf.end) for leaf in result.runs if leaf.start and leaf.end]
    for leaf, start, end in timed:
        if end < start:
            yield by_rule_at(leaf.path, "runs.clock", f"the run ended at {end}, before it began at {start}")
    for leaf in result.runs:
        if leaf.run is not None:
            yield from with_path(leaf.path, unapplied("runs.gap", {"start and end": leaf.start and leaf.end}))
    shortest = min((end - start for _, start, end in timed if end >= start), default=None)
    starts = sorted([(leaf.stamp or start, leaf) for leaf, start, _ in timed], key=lambda run: run[0])
    gaps = [(second - first, leaf) for (first, _), (second, leaf) in pairwise(starts)]
    too_long = [(gap, leaf) for gap, leaf in gaps if shortest is not None and gap >= GAP_FACTOR * shortest]
    if too_long:
        longest, leaf = max(too_long, key=lambda run: run[0])
        seen = f"{len(too_long)} of {len(gaps)} gaps, up to {longest} from one run's start to the next ({leaf.name})"
        yield by_rule_at(result.path, "runs.gap", f"{seen}; the shortest run took {shortest}")


def same_job(result: Result[Leaf]) -> Iterator[Finding]:
    """All runs have the same workload, settings, accelerators and hosts, and read the same dataset."""
    job: dict[str, list[Any]] = {
        "workload": [leaf.setup.workload for leaf in result.runs],
        "accelerator": [leaf.setup.accelerator for leaf in result.runs],
        "number of accelerators": [leaf.printed.accelerators for leaf in result.runs],
        "number of hosts": [leaf.printed.hosts for leaf in result.runs],
        **{f"reader.{key}": [_reader_setting(leaf, key) for leaf in result.runs] for key in _READER_SETTINGS},
    }
    dataset: dict[str, list[Any]] = {
        "dataset.num_files_train": [leaf.num_files for leaf in result.runs],
        "dataset.num_samples_per_file": [leaf.printed.samples_per_file for leaf in result.runs],
        "dataset.data_folder": [leaf.data_folder for leaf in result.runs],
    }
    yield from differing(result.path, "runs.differ", job)
    yield from differing(result.path, "dataset.differs", dataset)


def _reader_setting(leaf: Leaf, key: str) -> Any:
    """Return a setting of the reader, by default DLIO's default; None if all settings of the reader are unknown."""
    reader = leaf.section("reader")
    if not reader:
        return None
    value = canonical(reader.get(key))
    return OTHER_DEFAULTS[f"reader.{key}"] if value is None else value


def rates_agree(result: Result[Leaf]) -> Iterator[Finding]:
    """The measured runs' samples/s differ by at most 5 % of their mean."""
    for leaf in result.measured:
        if leaf.run is not None:
            rate = leaf.printed.samples_per_second
            yield from with_path(leaf.path, unapplied("runs.spread", {"samples per second": rate}))
    rates = [leaf.printed.samples_per_second for leaf in result.measured if leaf.printed.samples_per_second]
    if len(rates) > 1 and (max(rates) - min(rates)) / (sum(rates) / len(rates)) > MAX_RATE_SPREAD:
        yield by_rule_at(result.path, "runs.spread", f"{min(rates):.2f} to {max(rates):.2f} samples/s")


def dataset_phases(result: Result[Leaf]) -> Iterator[Finding]:
    """The runs read at least as many files as datasize requires and at most as many as datagen generated."""
    required = [leaf.num_files for leaf in result.in_phase("datasize") if leaf.num_files]
    generated = [leaf.num_files for leaf in result.in_phase("datagen") if leaf.num_files]
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
        yield by_rule_at(result.in_phase("datagen")[0].path, "dataset.made", seen)


def dataset_as_generated(result: Result[Leaf]) -> Iterator[Finding]:
    """The runs read files of the size and format that datagen generated, on which the number of bytes read depends."""
    section = next((leaf.section("dataset") for leaf in result.runs if leaf.section("dataset")), None)
    if section is None:
        return
    in_runs = effective({"dataset": section})
    for leaf in result.in_phase("datagen"):
        section = leaf.section("dataset")
        in_datagen = effective({"dataset": section})
        deviation = ["dataset.record_length_bytes_stdev"] if _LENGTHS & section.keys() else []
        differences = []
        for key in (*_DATAGEN_SETTINGS, *deviation):
            default = NEVER_SET.get(key)
            generated, read = in_datagen.get(key, default), in_runs.get(key, default)
            if generated is not None and read is not None and generated != read:
                differences.append(f"{key}={generated} in datagen, {read} in the runs")
        if differences:
            yield by_rule_at(leaf.path, "dataset.differs", "; ".join(differences))


_RUN_RULES = (records_complete, audit_findings, run_hosts, run_ended)


def rules_on_single_runs(result: Result[Leaf]) -> Iterator[Finding]:
    """Check the records, audit findings, hosts and end of every run."""
    for leaf in result.runs:
        for rule in _RUN_RULES:
            yield from with_path(leaf.path, rule(leaf, result))


_RULES_ON_RUNS: Rules[Leaf] = (edition_rules_on_runs, rules_on_single_runs, few_accelerators, run_count, run_gaps)
RESULT_RULES: Rules[Leaf] = (*_RULES_ON_RUNS, same_job, rates_agree, dataset_phases, dataset_as_generated)

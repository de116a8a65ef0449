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
from dlemu.contrib.mlperf.check.submission_tree import Rules, TrainingCall, TrainingResult
from dlemu.contrib.mlperf.check.system_description import stated_limit
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.core_config import NEVER_SET, OTHER_DEFAULTS, canonical, effective
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS, RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at, differing, first_few, unapplied, with_path
from dlemu.results.wording import count

_COVERED_BY_COMPLETENESS = ("config.missing", "config.assumed")  # the audit's rules that `records_complete` covers
_AUDIT_ONLY = ("au.rules",)  # the audit's rules that no edition since v2.0 has
_REQUIRED_SETTINGS = (
    "model.name", "framework", "dataset.format", "dataset.num_files_train", "dataset.num_samples_per_file",
    "dataset.record_length_bytes", "reader.data_loader", "reader.batch_size",
    "train.epochs", "train.computation_time", "metric.au",
)  # fmt: skip
"""Settings in config.yaml without which a run can't be checked; the workload files of all editions have them."""
_READER_SETTINGS = ("read_threads", "computation_threads", "prefetch_size", "transfer_size", "odirect", "data_loader")
"""Settings of the reader that a submitter chooses once for all runs."""
_DATAGEN_SETTINGS = (
    "dataset.format", "dataset.num_samples_per_file", "dataset.record_length_bytes", "dataset.compression",
    "dataset.record_dims",
)  # fmt: skip
"""Settings that decide which files datagen generates."""
_LENGTHS = frozenset({"record_length_bytes", "record_length", "record_length_bytes_stdev", "record_length_stdev"})
"""Settings on the length of records; if datagen sets one of them, its deviation is compared with that of the runs."""
MIN_ACCELERATORS_PER_HOST = 4  # with fewer on a single host, v3.0's checker asks whether it could drive more (3.3.3)
GAP_FACTOR = 2  # successive runs must start less than 2 durations of the shortest run apart (2.1.18, v3.0's checker)
MAX_RATE_SPREAD = 0.05  # between the runs of a result, as a share of their mean (the rules' text, section on results)


def edition_rules_on_runs(result: TrainingResult) -> Iterator[Finding]:
    """Check every run by the edition's rules on single runs, with the AU recomputed from its steps."""
    limit = stated_limit(result)
    for call in result.runs:
        if call.run is None or (call.printed.accelerators is None and call.setup.config is None):
            continue
        printed = replace(call.printed, au_percent=call.run.au_percent)
        if limit and printed.hosts is not None and printed.memory_gib is not None:
            limit_gib = printed.hosts * limit.memory_gib
            if limit_gib < printed.memory_gib:
                printed = replace(printed, memory_gib=limit_gib)
                name, gib = os.path.basename(limit.path), limit.memory_gib
                seen = f"{name} states a control group's limit of {gib:g} GiB for each host"
                yield by_rule_at(call.path, "dataset.limited", seen)
        setup = _with_metadata(call)
        for finding in check_run(result.edition, setup, printed, result.division, by_dlemu=call.run.by_dlemu):
            if finding.rule == "au.low":
                finding = _au_finding(finding, call, result)
            yield replace(finding, path=call.path)


def _au_finding(finding: Finding, call: TrainingCall, result: TrainingResult) -> Finding:
    """Return the finding of a low AU, with the basis of the AU added; a warning if the run is an exempt warm-up."""
    has_steps = call.run is not None and call.run.recomputed.basis == "steps"
    basis = "from its steps" if has_steps else "as printed: the steps are missing"
    # The rules' text applies the AU threshold to the measured runs only; v3.0's checker also applies it to the warm-up.
    is_exempt = call is result.warm_up and not result.edition.checks_tree
    return replace(finding, severity="warning" if is_exempt else finding.severity, seen=f"{finding.seen} ({basis})")


def _with_metadata(call: TrainingCall) -> Setup:
    """Return the run's settings, completed with the overrides in mlpstorage's metadata."""
    parameters = mapping(call.metadata.get("override_parameters"))
    if not parameters:
        return call.setup
    overrides = [*(call.setup.overrides or ()), *(f"++workload.{key}={value}" for key, value in parameters.items())]
    return replace(call.setup, overrides=tuple(dict.fromkeys(overrides)))


def records_complete(call: TrainingCall, result: TrainingResult) -> Iterator[Finding]:
    """A run has a configuration with all required settings, and a summary with everything that DLIO writes."""
    if call.run is None:
        return
    settings = effective(call.setup.config) if call.setup.config else {}
    missing = [key for key in _REQUIRED_SETTINGS if settings.get(key) is None]
    if len(missing) == len(_REQUIRED_SETTINGS):
        yield by_rule("config.incomplete", "no config.yaml that can be read")
    elif missing:
        yield by_rule("config.incomplete", f"config.yaml without {', '.join(missing)}")
    if result.phased and call.metadata and not mapping(call.parameters.get("dataset")):
        yield by_rule("dataset.told", "metadata without parameters.dataset")
    if call.printed.missing_keys and not call.printed.unusable:
        yield by_rule("summary.incomplete", f"summary.json without {first_few(call.printed.missing_keys, ', ', 4)}")


def audit_findings(call: TrainingCall, result: TrainingResult) -> Iterator[Finding]:
    """Pass on the audit's findings, on contradicting or unreadable files, unless another rule reports the same."""
    for finding in call.run.findings if call.run else ():
        is_incomplete = finding.rule in _COVERED_BY_COMPLETENESS and call.printed.accelerators
        is_missing_file = finding.rule == "summary.missing" and result.phased  # reported by `run_ended`
        if finding.rule not in _AUDIT_ONLY and not is_incomplete and not is_missing_file:
            yield finding


def few_accelerators(result: TrainingResult) -> Iterator[Finding]:
    """Warn if a run on a single host has few accelerators."""
    printed = next((call.printed for call in result.runs if call.printed.accelerators), Printed())
    accelerators = printed.accelerators or 0
    if printed.hosts == 1 and accelerators < MIN_ACCELERATORS_PER_HOST:
        yield by_rule_at(result.path, "hosts.few", f"{count(accelerators, 'accelerator')} on one host")


def run_hosts(call: TrainingCall, _: TrainingResult) -> Iterator[Finding]:
    """Every host runs the same number of accelerators (3.3.6), and a run on one host names no others."""
    ranks_by_host = Counter(call.run.hostnames if call.run else ())
    if len(set(ranks_by_host.values())) > 1:
        seen = ", ".join(f"{host}: {ranks}" for host, ranks in ranks_by_host.most_common(4))
        yield by_rule("hosts.uneven", f"accelerators of the hosts: {seen}")
    hosts = sequence(call.args.get("hosts"))
    if call.printed.hosts == 1 and len(hosts) > 1:
        yield by_rule("hosts.named", f"the run was on 1 host, its metadata names {len(hosts)}")


def run_count(result: TrainingResult) -> Iterator[Finding]:
    """There are as many run folders as the edition requires."""
    runs = len(result.runs)
    if not result.phased:
        seen = "a single run: the number of runs and the time between them are not checked"
        yield by_rule_at(result.path, "runs.single", seen)
    elif runs != RUN_FOLDERS:
        is_error = result.edition.checks_tree or runs < MEASURED_RUNS
        seen = f"{runs} runs: {', '.join(call.name for call in result.runs) or 'none'}"
        yield by_rule_at(result.path, "runs.count", seen, severity="error" if is_error else "warning")


def run_ended(call: TrainingCall, result: TrainingResult) -> Iterator[Finding]:
    """A run's folder is named by the time of its start, and has the summary of a training run that ended afterwards."""
    if result.phased and call.stamp is None:
        yield by_rule("runs.stamp", f"a run's folder is named {call.name!r}")
    if "summary.json" not in call.files:
        yield by_rule("runs.ended", "no summary.json: the run did not end")
    elif call.run is None:
        yield by_rule("runs.ended", "summary.json is not of training")
    if result.phased and call.start and call.end and call.end < call.start:
        yield by_rule("runs.clock", f"the run ended at {call.end}, before it began at {call.start}")


def run_gaps(result: TrainingResult) -> Iterator[Finding]:
    """Runs follow one another without pauses long enough for another run."""
    if not result.phased:
        return
    for call in result.runs:
        if call.run is not None:
            yield from with_path(call.path, unapplied("runs.gap", {"start and end": call.start and call.end}))
    timed = [(call, call.start, call.end) for call in result.runs if call.start and call.end]
    shortest = min((end - start for _, start, end in timed if end >= start), default=None)
    starts = sorted([(call.stamp or start, call) for call, start, _ in timed], key=lambda run: run[0])
    gaps = [(second - first, call) for (first, _), (second, call) in pairwise(starts)]
    too_long = [(gap, call) for gap, call in gaps if shortest is not None and gap >= GAP_FACTOR * shortest]
    if too_long:
        longest, call = max(too_long, key=lambda run: run[0])
        seen = f"{len(too_long)} of {len(gaps)} gaps, up to {longest} from one run's start to the next ({call.name})"
        yield by_rule_at(result.path, "runs.gap", f"{seen}; the shortest run took {shortest}")


def same_job(result: TrainingResult) -> Iterator[Finding]:
    """All runs have the same workload, settings, accelerators and hosts, and read the same dataset."""
    job: dict[str, list[Any]] = {
        "workload": [call.setup.workload for call in result.runs],
        "accelerator": [call.setup.accelerator for call in result.runs],
        "number of accelerators": [call.printed.accelerators for call in result.runs],
        "number of hosts": [call.printed.hosts for call in result.runs],
        **{f"reader.{key}": [_reader_setting(call, key) for call in result.runs] for key in _READER_SETTINGS},
    }
    dataset: dict[str, list[Any]] = {
        "dataset.num_files_train": [call.num_files for call in result.runs],
        "dataset.num_samples_per_file": [call.printed.samples_per_file for call in result.runs],
        "dataset.data_folder": [call.data_folder for call in result.runs],
    }
    yield from differing(result.path, "runs.differ", job)
    yield from differing(result.path, "dataset.differs", dataset)


def _reader_setting(call: TrainingCall, key: str) -> Any:
    """Return a setting of the reader, by default DLIO's default; None if all settings of the reader are unknown."""
    reader = call.section("reader")
    if not reader:
        return None
    value = canonical(reader.get(key))
    return OTHER_DEFAULTS[f"reader.{key}"] if value is None else value


def rates_agree(result: TrainingResult) -> Iterator[Finding]:
    """The measured runs' samples/s differ by at most 5 % of their mean."""
    for call in result.measured:
        if call.run is not None:
            rate = call.printed.samples_per_second
            yield from with_path(call.path, unapplied("runs.spread", {"samples per second": rate}))
    rates = [call.printed.samples_per_second for call in result.measured if call.printed.samples_per_second]
    if len(rates) > 1 and (max(rates) - min(rates)) / (sum(rates) / len(rates)) > MAX_RATE_SPREAD:
        yield by_rule_at(result.path, "runs.spread", f"{min(rates):.2f} to {max(rates):.2f} samples/s")


def dataset_phases(result: TrainingResult) -> Iterator[Finding]:
    """The runs read at least as many files as datasize requires and at most as many as datagen generated."""
    required = min((call.num_files for call in result.in_phase("datasize") if call.num_files), default=0)
    generated = max((call.num_files for call in result.in_phase("datagen") if call.num_files), default=float("inf"))
    read = [(call, call.num_files) for call in result.runs if call.num_files]
    for call, files in read:
        if files > generated:
            seen = f"the run read {files:,} files, datagen generated {generated:,}"
            yield by_rule_at(call.path, "dataset.phases", seen)
        if files < required:
            seen = f"the run read {files:,} files, datasize requires {required:,}"
            yield by_rule_at(call.path, "dataset.phases", seen)
    if generated < required:
        seen = f"datagen generated {generated:,} files, datasize requires {required:,}"
        yield by_rule_at(result.in_phase("datagen")[0].path, "dataset.made", seen)


def dataset_as_generated(result: TrainingResult) -> Iterator[Finding]:
    """The runs read files of the size and format that datagen generated, on which the number of bytes read depends."""
    run_section = next((call.section("dataset") for call in result.runs if call.section("dataset")), None)
    if run_section is None:
        return
    in_runs = effective({"dataset": run_section})
    for call in result.in_phase("datagen"):
        datagen_section = call.section("dataset")
        in_datagen = effective({"dataset": datagen_section})
        deviation = ["dataset.record_length_bytes_stdev"] if _LENGTHS & datagen_section.keys() else []
        differences = []
        for key in (*_DATAGEN_SETTINGS, *deviation):
            default = NEVER_SET.get(key)
            generated, read = in_datagen.get(key, default), in_runs.get(key, default)
            if generated is not None and read is not None and generated != read:
                differences.append(f"{key}={generated} in datagen, {read} in the runs")
        if differences:
            yield by_rule_at(call.path, "dataset.differs", "; ".join(differences))


_RUN_RULES = (records_complete, audit_findings, run_hosts, run_ended)


def rules_on_single_runs(result: TrainingResult) -> Iterator[Finding]:
    """Check the records, audit findings, hosts and end of every run."""
    for call in result.runs:
        for rule in _RUN_RULES:
            yield from with_path(call.path, rule(call, result))


_ON_RUNS: Rules[TrainingCall] = (edition_rules_on_runs, rules_on_single_runs, few_accelerators, run_count, run_gaps)
RESULT_RULES: Rules[TrainingCall] = (*_ON_RUNS, same_job, rates_agree, dataset_phases, dataset_as_generated)

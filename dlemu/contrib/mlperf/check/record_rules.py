"""Rules on the records of one call: its files must be complete and must not contradict each other."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from dlemu.contrib.mlperf.audit.call_records import METADATA, SEPARATION, CallRecords, device_work
from dlemu.contrib.mlperf.audit.step_files import LOG
from dlemu.contrib.mlperf.audit.tolerant import LARGEST_BYTES, integer, moment, number, read_text, text, value_at
from dlemu.contrib.mlperf.check.call_facts import CACHE_OPTION, DATA_FOLDER_KEYS, FACTS, AnyResult
from dlemu.contrib.mlperf.check.submission_tree import KV_CACHE
from dlemu.contrib.mlperf.rules.core_config import canonical, settings_of
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, first_few
from dlemu.contrib.mlperf.rules.training import GIB
from dlemu.extend import UserError
from dlemu.results.answer_files import open_untrusted

Overrides = Mapping[str, str]  # `workload.reader.odirect` -> `True`
_METADATA_KEYS = ("benchmark_type", "model", "command", "run_datetime", "num_processes", "parameters", "args")
"""Keys that the metadata of v3.0's tool always have."""
_METADATA_KEYS_V2 = ("benchmark_type", "args")
_FROM_OTHER_OPTIONS = ("workload.storage.", "workload.dataset.data_folder", "workload.checkpoint.checkpoint_folder")
"""Overrides that the tool makes from its other options, and that may hold secrets: not every record has them."""
_IN_MEMORY = re.compile(r"^(?:file:/*)?/(?:dev|run)/shm(?:/|$)")  # folders in a host's memory
_SUMMARY_KEYS = {
    "Training Accelerator Utilization [AU] (%)": "train_au_mean_percentage",
    "Training Throughput (samples/second)": "train_throughput_mean_samples_per_second",
    "Checkpoint save duration (seconds)": "save_checkpoint_duration_mean_seconds",
    "Checkpoint load duration (seconds)": "load_checkpoint_duration_mean_seconds",
}
"""Label of a figure that DLIO prints at the end of a run -> its key in summary.json."""
_METRIC = re.compile(rf"\[METRIC\] ({'|'.join(map(re.escape, _SUMMARY_KEYS))}): (\d+(?:\.\d+)?)")
_LOG_RANKS = re.compile(r"Running DLIO\b.* with (\d+) process")
_LOG_STAMP = re.compile(r"^\[\w+\] (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?) ", re.MULTILINE)
_LOG_SLACK = timedelta(seconds=60)  # DLIO may log this long after the summary's end, and list files before its start
_MIN_DEVICE_SHARE = 0.5
"""Smallest share of the run's bytes that the hosts' drives must have read (training) or written. The page cache can
keep a fifth of a dataset of 5 times the memory, and no synced checkpoint; a file system may also compress the data."""
_OTHER_DRIVES = 0.05  # drives that moved a smaller share did not hold the data: it was on another machine


def _facts_agree(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """All records of a fact have the same value."""
    for fact, values_of in FACTS.items():
        values = {source: value for source, value in values_of(call, result).items() if value not in (None, "")}
        if len(set(values.values())) > 1:
            seen = ", ".join(f"{value} ({source})" for source, value in values.items())
            yield by_rule("papers.differ", f"{fact}: {seen}")


def _settings_agree(call: CallRecords, _: AnyResult) -> Iterator[Finding]:
    """Settings in config.yaml equal those in overrides.yaml and in the metadata's parameters."""
    config = {key: canonical(value) for key, value in settings_of(call.setup.config or {})}
    pairs = _key_values(call.setup.overrides or ())
    overrides = {key.removeprefix("workload."): value for key, value in pairs if "." in key}
    for source, settings in (("overrides.yaml", overrides), ("metadata", dict(settings_of(call.parameters)))):
        differences = [
            f"{key}={canonical(value)} ({source}), {config[key]} (config.yaml)"
            for key, value in settings.items()
            if value is not None and config.get(key) is not None and str(canonical(value)) != str(config[key])
        ]
        if differences:
            yield by_rule("papers.differ", first_few(differences))


def _overrides_agree(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """Every other record of the overrides has those of overrides.yaml, with the same values."""
    if call.setup.overrides is None:
        return
    in_file = _workload_overrides(call.setup.overrides)
    for source, overrides in _other_overrides(call, result, in_file):
        differences = []
        for key in sorted({*in_file, *overrides}):
            if str(canonical(in_file.get(key))) != str(canonical(overrides.get(key))):
                file_value = in_file.get(key, "not there")
                other_value = overrides.get(key, "not there")
                differences.append(f"{key.removeprefix('workload.')}={file_value}, {other_value} in {source}")
        if differences:
            yield by_rule("overrides.differ", f"overrides.yaml has {first_few(differences)}")


def _other_overrides(call: CallRecords, result: AnyResult, in_file: Overrides) -> Iterator[tuple[str, Overrides]]:
    """Yield (source, overrides) of the other records; overrides that a source never has are added from `in_file`."""
    if call.hydra_overrides:
        yield "hydra.yaml", _workload_overrides(call.hydra_overrides)
    parameters = call.metadata.get("override_parameters")
    if isinstance(parameters, Mapping) and (parameters or result.edition.checks_tree):
        # The metadata leave out the choice of the workload, the only override without a dot.
        choice = {key: value for key, value in in_file.items() if "." not in key}
        yield "metadata", choice | {f"workload.{key}": str(value) for key, value in parameters.items()}
    from_options = {key: value for key, value in in_file.items() if key.startswith(_FROM_OTHER_OPTIONS)}
    in_command = _command_overrides(text(call.metadata.get("executed_command")) or "")
    if in_command:
        yield "the command", in_command | from_options
    if call.phase == "run":
        yield "args.params", {**in_file, **_params_overrides(call.args.get("params")), **from_options}


def _workload_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Return key -> value of the workload's overrides, such as `++workload.reader.odirect=True`."""
    return {key: value for key, value in _key_values(overrides) if key.startswith("workload")}


def _command_overrides(command: str) -> dict[str, str]:
    try:
        arguments = shlex.split(command)
    except ValueError:  # a quote is not closed
        arguments = command.split()
    return _workload_overrides(argument for argument in arguments if "=" in argument)


def _params_overrides(params: object) -> dict[str, str]:
    """Return the overrides in mlpstorage's `args.params`: a list of them, or a list of one list for each `--params`."""
    options = params if isinstance(params, list) else []
    overrides = [each for option in options for each in (option if isinstance(option, list) else [option])]
    pairs = _key_values(override for override in overrides if isinstance(override, str) and "=" in override)
    return {f"workload.{key}": value for key, value in pairs}


def _key_values(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield key and value of overrides, without prefixes such as `++` and without quotes."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        yield key, value.strip("'\"")


def _division_agrees(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """The division named by the metadata is that of the folder."""
    for source, value in (("args.mode", call.args.get("mode")), ("verification", call.metadata.get("verification"))):
        # v2.0 writes closed, v3.0 writes CLOSED, sometimes as the last part of a dotted name.
        division = (text(value) or "").lower().rpartition(".")[2]
        if division == "whatif":
            yield by_rule("division.differs", f"{source} is whatif")
        elif division and division != result.division:
            # A result by the stricter rules of CLOSED may be submitted as OPEN. So a start as CLOSED (`mode`) is no
            # contradiction, but one that passed as CLOSED (`verification`) deserves a question.
            severity: Severity = "warning" if division == "closed" else "error"
            if severity == "error" or source == "verification":
                seen = f"the run is in the folder {result.division}, its {source} is {division}"
                yield by_rule("division.differs", seen, severity=severity)


def _records_complete(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """No record is empty: `[]` and `{}` count as missing content."""
    incomplete: list[str] = []
    for name in call.files:
        if name.endswith(METADATA):
            incomplete += _missing_in_metadata(name, call.read(name), result)
        elif name == SEPARATION and not isinstance(call.separation.get("same_filesystem"), bool):
            incomplete.append(f"{name} without same_filesystem: true or false")
    if call.phase != "datasize":
        if call.setup.overrides == ():
            incomplete.append("overrides.yaml is empty: it does not even name the workload")
        if call.hydra_overrides == ():
            incomplete.append("hydra.yaml has no overrides")
        has_folder = os.path.isdir(os.path.join(call.path, "dlio_config"))
        if result.edition.checks_tree and has_folder and not call.setup.config:
            incomplete.append("config.yaml has no workload")
    if incomplete:
        yield by_rule("papers.missing", first_few(incomplete, limit=4))


def _missing_in_metadata(name: str, content: object, result: AnyResult) -> Iterator[str]:
    if not isinstance(content, Mapping) or not content:
        yield f"{name} holds {'nothing readable' if content is None else str(content)[:40]}"
        return
    required = _METADATA_KEYS if result.edition.checks_tree else _METADATA_KEYS_V2
    missing = [key for key in required if key not in content]
    if missing:
        yield f"{name} without {', '.join(missing)}"


def _call_succeeded(call: CallRecords, _: AnyResult) -> Iterator[Finding]:
    """The recorded exit status is 0."""
    status = call.metadata.get("exit_status")
    if status not in (None, 0):
        yield by_rule("runs.exit", f"the metadata's exit_status is {status}")


def _separate_folders(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """Data and results are in different folders and file systems, and the metadata name both folders (3.4, 4.4)."""
    if call.phase != "run" or result.benchmark == KV_CACHE:
        return
    section, setting, argument = DATA_FOLDER_KEYS[result.benchmark]
    data, results = text(call.args.get(argument)), text(call.args.get("results_dir"))
    needs_metadata = result.phased and result.edition.checks_tree and bool(call.metadata)
    missing = [key for key in (argument, "results_dir") if not text(call.args.get(key))]
    if needs_metadata and missing:
        yield by_rule(f"{section}.folder", f"metadata without args.{' and args.'.join(missing)}")
    folders = (data, text(call.section(section).get(setting)))
    if results and os.path.normpath(results) in {os.path.normpath(folder) for folder in folders if folder}:
        yield by_rule(f"{section}.folder", f"both are {results}")
    if call.separation.get("same_filesystem") is True:
        yield by_rule(f"{section}.filesystem", f"data and results share a file system ({SEPARATION})")
    elif SEPARATION not in call.files and needs_metadata and not call.on_object_store and not _has_df(call):
        yield by_rule(f"{section}.filesystem", f"no {SEPARATION}, and no output of df in the log of training")


def _has_df(call: CallRecords) -> bool:
    try:
        path = os.path.join(call.path, "training_run.stdout.log")
        with open(open_untrusted(path, LARGEST_BYTES), errors="replace") as log:
            return any(line.startswith("Filesystem") and "Mounted on" in line for line in log)
    except (OSError, UserError):
        return False


def _on_storage(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """The data is not in the memory of a host."""
    section, setting, argument = DATA_FOLDER_KEYS[result.benchmark]
    folders = [call.section(section).get(setting), call.args.get(argument)]
    folders += [call.separation.get("data_or_chkpt_realpath"), *CACHE_OPTION.findall(" ".join(call.all_commands))]
    in_memory = {folder for folder in map(text, folders) if folder and _IN_MEMORY.match(folder)}
    if in_memory:
        yield by_rule("data.memory", ", ".join(sorted(in_memory)))


def _logs_agree(call: CallRecords, _: AnyResult) -> Iterator[Finding]:
    """DLIO's log, and its output as the tool kept it, are of this run."""
    for name in call.files if call.phase == "run" else ():
        if name == LOG or name.endswith("_run.stdout.log"):
            log = read_text(os.path.join(call.path, name), []) or ""
            yield from _printed_figures(call, name, log)
            if name == LOG:
                yield from _ranks_and_times(call, log)


def _printed_figures(call: CallRecords, name: str, log: str) -> Iterator[Finding]:
    """Compare the last figures in a log with summary.json; DLIO prints 4 decimals."""
    for label, figure in dict(_METRIC.findall(log)).items():
        key = _SUMMARY_KEYS[label]
        in_summary = number(value_at(call.summary, f"metric.{key}"))
        if in_summary is not None and not math.isclose(in_summary, float(figure), rel_tol=1e-3, abs_tol=1e-4):
            yield by_rule("papers.differ", f"{key} is {in_summary:.4f}, {name} has {figure}")


def _ranks_and_times(call: CallRecords, log: str) -> Iterator[Finding]:
    """Compare the number of processes and the time stamps in dlio.log with summary.json."""
    running = _LOG_RANKS.search(log)
    accelerators = integer(call.summary.get("num_accelerators"))
    if running and accelerators and int(running[1]) != accelerators:
        yield by_rule("papers.differ", f"number of processes: {accelerators} (summary.json), {running[1]} ({LOG})")
    stamps = _LOG_STAMP.findall(log)
    if not stamps or call.start is None or call.end is None:
        return
    first, last = moment(stamps[0]), moment(stamps[-1])
    if first and last and not (call.start <= last <= call.end + _LOG_SLACK and first <= call.end):
        seen = f"{LOG} is of {first} to {last}, the run of {call.start} to {call.end} (summary.json)"
        yield by_rule("papers.differ", seen)


def _devices_agree(call: CallRecords, result: AnyResult) -> Iterator[Finding]:
    """The hosts' drives, if they held the data, moved at least half of the run's bytes, by their counters."""
    work = device_work(call.metadata)
    hosts_with_counters = {name.partition(":")[0] for name in work}
    if call.phase != "run" or len(hosts_with_counters) < (call.hosts or 1):
        return
    if result.benchmark == "training":
        setup = call.setup
        samples = (setup.samples_per_file or 0) * (integer(call.summary.get("num_files_train")) or 0)
        verb = "read"
        run_gib = samples * (setup.record_bytes or 0) * (setup.epochs or 0) / GIB
        device_gib = sum(device.read_gib for device in work.values())
    else:
        saves = integer(call.section("checkpoint").get("num_checkpoints_write")) or 0
        verb = "wrote"
        run_gib = saves * (number(value_at(call.summary, "metric.checkpoint_size_GB")) or 0)
        device_gib = sum(device.written_gib for device in work.values())
    if _OTHER_DRIVES * run_gib < device_gib < _MIN_DEVICE_SHARE * run_gib:
        seen = f"the hosts' drives {verb} {device_gib:,.1f} GiB, the run {run_gib:,.1f} GiB"
        yield by_rule("data.device", seen, f"at least {100 * _MIN_DEVICE_SHARE:g} % of it, by /proc/diskstats")


_AGREEMENT_RULES = (_facts_agree, _settings_agree, _overrides_agree, _division_agrees)
_DATA_RULES = (_separate_folders, _on_storage, _devices_agree)
RECORD_RULES = (*_AGREEMENT_RULES, _records_complete, _call_succeeded, _logs_agree, *_DATA_RULES)

"""Rules on what the files of one call record about it: they must be complete and must not contradict each other.

The *records* of a call are mlpstorage's metadata, hydra's config.yaml, overrides.yaml and hydra.yaml, summary.json, and
the files about its hosts and file systems. Facts such as the model or the number of processes stand in several of
them: each function in `_FACTS` yields where one fact is recorded, with the value found there.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from dlemu.contrib.mlperf.audit.kv_leaf import device_work
from dlemu.contrib.mlperf.audit.papers import COLLECTED, FILE_STORAGES, METADATA, SEPARATION, Papers
from dlemu.contrib.mlperf.audit.run_settings import meminfo_gib
from dlemu.contrib.mlperf.audit.step_files import LOG
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, moment, number, read_text, text
from dlemu.contrib.mlperf.check.submission_tree import AnyResult, CheckpointResult, KvResult, Result, phase_of
from dlemu.contrib.mlperf.check.system_description import described_system
from dlemu.contrib.mlperf.rules.checkpoints import official_model
from dlemu.contrib.mlperf.rules.core_config import canonical, settings_of
from dlemu.contrib.mlperf.rules.editions import Edition
from dlemu.contrib.mlperf.rules.known import Finding, Located, Severity, by_rule
from dlemu.contrib.mlperf.rules.training import Division

Benchmark = Literal["training", "checkpointing", "kv_cache"]
_BENCHMARK_FOLDERS = {"kvcache": "kv_cache"}
"""A benchmark in mlpstorage's metadata -> its folder, where the two names differ."""
_DATA_SETTINGS = {
    "training": ("dataset", "data_folder", "data_dir"),
    "checkpointing": ("checkpoint", "checkpoint_folder", "checkpoint_folder"),
    "kv_cache": ("", "cache_dir", "cache_dir"),
}
"""Benchmark -> section and key of the measured folder in the settings, and its name among the tool's arguments."""
_METADATA_KEYS = ("benchmark_type", "model", "command", "run_datetime", "num_processes", "parameters", "args")
"""Keys that the metadata of mlpstorage v3.0 always have."""
_METADATA_KEYS_V2 = ("benchmark_type", "args")
_NP_OPTION = re.compile(r"(?:^|\s)--?(?:n|np)[\s=]+(\d+)(?=\s)")
_CACHE_OPTION = re.compile(r"--rank-cache-base[\s=]+(\S+)")
_MEMORY_TOLERANCE = 0.01
"""Relative: summary.json, /proc/meminfo (in kB) and the metadata (in bytes) round the same memory differently."""


@dataclass(frozen=True, kw_only=True)
class RunRecords(Papers):
    """The records of one call of the tool, of any benchmark and phase, and what it is part of."""

    benchmark: Benchmark
    phase: str
    """`run`, `datagen` or `datasize`."""
    model_folder: str
    """The model, by the name of the result's folder; empty where the layout has none."""
    phased: bool
    """Whether it lies in mlpstorage's layout: other runs have no files but DLIO's."""
    edition: Edition
    division: Division


def records_of(result: AnyResult) -> list[RunRecords]:
    """Return the records of every call that belongs to a result."""
    match result:
        case KvResult():
            return [_records(leaf, result, "kv_cache", phase_of(leaf.path), result.model) for leaf in result.leaves]
        case CheckpointResult():
            model = os.path.basename(result.path)
            return [_records(leaf, result, "checkpointing", "run", model) for leaf in result.leaves]
    above, folder = os.path.split(result.workload_folder)
    model = folder if result.phased and os.path.basename(above) == "training" else ""  # a copy may have any name
    phases = (("datasize", result.datasize), ("datagen", result.datagen), ("run", result.runs))
    return [_records(leaf, result, "training", phase, model) for phase, leaves in phases for leaf in leaves]


def _records(leaf: Papers, of: AnyResult, benchmark: Benchmark, phase: str, model: str) -> RunRecords:
    return RunRecords(
        **{each.name: getattr(leaf, each.name) for each in fields(Papers)},
        benchmark=benchmark,
        phase=phase,
        model_folder=model,
        phased=not isinstance(of, Result) or of.phased,
        edition=of.edition,
        division=of.division,
    )


_Statements = Iterator[tuple[str, Any]]
"""Yields (where a fact is recorded, its value there); the value is None where it is missing."""


def _processes(records: RunRecords) -> _Statements:
    stated, words = records.metadata, text(records.metadata.get("executed_command"))
    launched = _NP_OPTION.search(words) if words else None
    yield "metadata", count(stated.get("num_processes"))
    if records.phase != "datasize":
        yield "args.num_processes", count(records.args.get("num_processes"))
        yield "the command's -n", int(launched[1]) if launched else None
    if records.phase == "run":
        yield "args.num_accelerators", count(records.args.get("num_accelerators"))
        summary = records.summary
        yield "summary.json", count(summary.get("num_accelerators")) or count(summary.get("total_ranks"))


def _host_count(records: RunRecords) -> _Statements:
    if records.phase == "run":
        yield "summary.json", records.hosts or count(records.summary.get("host_count"))
        yield "args.num_client_hosts", count(records.args.get("num_client_hosts"))
        yield COLLECTED, len(records.collected_hosts) or None


def _rank_0_host(records: RunRecords) -> _Statements:
    """Yield the host of rank 0, which must be among the collected hosts."""
    first, collected = text(records.summary.get("hostname")), sorted(map(_short_name, records.collected_hosts))
    rank = text(mapping(records.read("0_output.json")).get("hostname"))
    yield "summary.json", _short_name(first) if first else None
    yield "0_output.json", _short_name(rank) if rank and records.benchmark == "checkpointing" else None
    known = _short_name(first) if first and _short_name(first) in collected else ", ".join(collected)
    yield COLLECTED, known if first and collected else None


def _short_name(host: str) -> str:
    return host.partition(".")[0].lower()


def _model(records: RunRecords) -> _Statements:
    model, config = records.metadata.get("model"), mapping(records.setup.config).get("model")
    stated = {
        "metadata": model,
        "args.model": records.args.get("model"),
        "parameters.model.name": mapping(records.parameters.get("model")).get("name"),
        "config.yaml": config if isinstance(config, str) else mapping(config).get("name"),
        "overrides.yaml": records.setup.chosen,
        "the folder": records.model_folder,
    }
    for source, value in stated.items():
        yield source, _normalised_model(text(value), records)


def _normalised_model(name: str | None, records: RunRecords) -> str | None:
    """Return one spelling per model: llama_8b and llama3-8b are the same, and so are unet3d_h100 and unet3d_b200."""
    if not name:
        return None
    if records.benchmark == "checkpointing":
        known = official_model(name)
        return known.name if known else name
    return name.rpartition("_")[0] or name


def _accelerator(records: RunRecords) -> _Statements:
    yield "metadata", text(records.metadata.get("accelerator"))
    if records.phase != "datagen":
        yield "args.accelerator_type", text(records.args.get("accelerator_type"))
    if records.phase == "run" and records.benchmark == "training":
        yield "overrides.yaml", records.setup.chosen.rpartition("_")[2] if "_" in records.setup.chosen else None


def _benchmark(records: RunRecords) -> _Statements:
    stated = records.metadata
    for source, value in (("metadata", stated.get("benchmark_type")), ("args", records.args.get("benchmark"))):
        yield source, _BENCHMARK_FOLDERS.get(value.lower(), value.lower()) if isinstance(value, str) else None
    yield "the folder", records.benchmark


def _phase(records: RunRecords) -> _Statements:
    yield "metadata", text(records.metadata.get("command"))
    yield "args", text(records.args.get("command"))
    yield "the folder", records.phase


def _data_folder(records: RunRecords) -> _Statements:
    """Yield the folder of the dataset or the checkpoints, without the model's folder that the tool appends."""
    if records.phase == "datasize" or records.args.get("data_access_protocol") == "object":
        return  # datasize has no dataset yet; an object store's address is in other settings
    section, key, argument = _DATA_SETTINGS[records.benchmark]
    parameters = records.parameters
    stated = {
        "metadata": records.metadata.get(argument),
        "parameters": mapping(parameters.get(section) if section else parameters).get(key),
        "config.yaml": mapping(mapping(records.setup.config).get(section)).get(key),
        "args": records.args.get(argument),
        SEPARATION: records.separation.get("data_or_chkpt_path"),
        "the commands": _cache_folder(records) if records.benchmark == "kv_cache" else None,
    }
    models = (records.model_folder, records.metadata.get("model"), records.args.get("model"))
    for source, value in stated.items():
        if isinstance(value, str) and value:
            above, name = os.path.split(os.path.normpath(value))
            yield source, above if name in models else os.path.join(above, name)


def _cache_folder(records: RunRecords) -> str | None:
    """Return the folder that kv_cache's commands used, without what the tool appends; the first other one if any is."""
    stated = text(records.args.get("cache_dir"))
    used = [found[1] for found in map(_CACHE_OPTION.search, records.commands) if found]
    others = [folder for folder in used if stated is None or not f"{folder}/".startswith(stated.rstrip("/") + "/")]
    return next(iter([*others, stated]), None) if used else None


def _results_folder(records: RunRecords) -> _Statements:
    recorded = records.separation.get("results_path")
    for source, value in (("args.results_dir", records.args.get("results_dir")), (SEPARATION, recorded)):
        yield source, os.path.normpath(value) if isinstance(value, str) and value else None


def _memory(records: RunRecords) -> _Statements:
    """Yield the memory of all hosts together, in GiB; values within the tolerance count as the same."""
    if records.phase != "run":
        return
    collected = [
        meminfo_gib(mapping(mapping(host).get("meminfo")).get("MemTotal")) for host in records.collected_hosts.values()
    ]
    known = [value for value in collected if value is not None]
    noted = mapping(records.metadata.get("system_info"))
    noted_bytes, hosts = number(noted.get("total_memory_bytes")), records.hosts
    values = {
        "summary.json": records.memory_gib,
        COLLECTED: sum(known) if known and len(known) == len(records.collected_hosts) == hosts else None,
        "metadata": noted_bytes / 2**30 if noted_bytes and noted.get("num_hosts") == hosts else None,
    }
    stated = [value for value in values.values() if value is not None]
    same = stated and max(stated) <= min(stated) * (1 + _MEMORY_TOLERANCE)
    for source, value in values.items():
        yield source, None if value is None else f"{stated[0] if same else value:.2f} GiB"


def _division(records: RunRecords) -> _Statements:
    """Yield the recorded divisions. Not in `_FACTS`, as `_division_agrees` compares them."""
    yield "args.mode", _last_part(records.args.get("mode"))
    if records.metadata.get("verification") is not None:
        yield "verification", _last_part(records.metadata.get("verification"))


def _last_part(value: object) -> str | None:
    """Return the last part of a dotted name in lower case: v3.0 writes CLOSED where v2.0 wrote closed."""
    return value.lower().rpartition(".")[2] if isinstance(value, str) and value else None


def _access(records: RunRecords) -> _Statements:
    """Yield whether the data is in files or objects: by settings, arguments, address and the system's description."""
    if records.phase != "run":
        return
    section, key, argument = _DATA_SETTINGS[records.benchmark]
    kind, stated = records.section("storage").get("storage_type"), text(records.args.get("data_access_protocol"))
    address = text(records.section(section).get(key)) or text(records.args.get(argument))
    described = described_system(records.path)
    architecture = mapping(mapping(described[1].get("solution")).get("architecture")) if described else {}
    api = text(architecture.get("benchmark_API"))
    yield "storage_type", None if kind is None else "file" if kind in FILE_STORAGES else "object"
    yield "args.data_access_protocol", stated.lower() if stated else None
    yield "the data's address", "object" if address and "://" in address else None
    yield "the system's description", api.lower() if api and api.lower() in ("file", "object") else None


_FACTS: tuple[tuple[str, Callable[[RunRecords], _Statements]], ...] = (
    ("benchmark", _benchmark),
    ("phase", _phase),
    ("model", _model),
    ("accelerator", _accelerator),
    ("number of processes", _processes),
    ("number of hosts", _host_count),
    ("host of rank 0", _rank_0_host),
    ("memory of all hosts", _memory),
    ("folder of the data", _data_folder),
    ("way of access", _access),
    ("folder of the results", _results_folder),
)


def _facts_agree(records: RunRecords) -> Iterator[Finding]:
    """Yield every fact that two records give different values for."""
    for what, statements_of in _FACTS:
        stated = [(source, value) for source, value in statements_of(records) if value is not None]
        if len({value for _, value in stated}) > 1:
            seen = f"{what}: {', '.join(f'{value} ({source})' for source, value in stated)}"
            yield by_rule("papers.differ", seen, f"the same {what} in all files of a run")
    yield from _settings_agree(records)


def _settings_agree(records: RunRecords) -> Iterator[Finding]:
    """Settings in config.yaml equal those in overrides.yaml and in the metadata's parameters."""
    config = {key: canonical(value) for key, value in settings_of(mapping(records.setup.config))}
    overrides = dict(map(_key_and_value, records.setup.overrides or ()))
    sources = (
        ("overrides.yaml", {key.removeprefix("workload."): value for key, value in overrides.items() if "." in key}),
        ("metadata", dict(settings_of(records.parameters))),
    )
    for source, stated in sources:
        differences = [
            f"{key}={canonical(value)} ({source}), {config[key]} (config.yaml)"
            for key, value in stated.items()
            if key in config
            and str(canonical(value)) != str(config[key])
            and not (value is None or config[key] is None)
        ]
        if differences:
            yield by_rule("papers.differ", "; ".join(differences[:3]))
    yield from _overrides_agree(records, overrides)


def _overrides_agree(records: RunRecords, overrides: Mapping[str, str]) -> Iterator[Finding]:
    """hydra.yaml, the metadata and the command in them have the same overrides, with the same values."""
    if records.setup.overrides is None:
        return
    mine = {key: value for key, value in overrides.items() if key.startswith("workload")}
    noted = records.metadata.get("override_parameters")
    chosen = records.hydra_overrides
    others = {"hydra.yaml": dict(map(_key_and_value, chosen)) if chosen else None}
    if isinstance(noted, Mapping) and (noted or records.edition.checks_tree):
        # The metadata leave out the choice of the workload, the only override without a dot.
        kept = {key: value for key, value in mine.items() if "." not in key}
        others["metadata"] = kept | {f"workload.{key}": str(value) for key, value in noted.items()}
    placed = {key: value for key, value in mine.items() if key.startswith(_PLACES)}
    command = _of_command(text(records.metadata.get("executed_command")) or "")
    others["the command"] = command | placed if command else None
    if records.phase == "run":
        others["args.params"] = mine | _of_params(records.args.get("params")) | placed
    for source, stated in others.items():
        if stated is None:
            continue
        theirs = {key: value for key, value in stated.items() if key.startswith("workload")}
        differences = [
            f"{key.removeprefix('workload.')}={mine.get(key, 'not there')}, {theirs.get(key, 'not there')} in {source}"
            for key in sorted(mine | theirs)
            if str(canonical(mine.get(key))) != str(canonical(theirs.get(key)))
        ]
        if differences:
            yield by_rule("overrides.differ", f"overrides.yaml has {'; '.join(differences[:3])}")


_PLACES = ("workload.storage.", "workload.dataset.data_folder", "workload.checkpoint.checkpoint_folder")
"""Overrides that the tool takes from other options, and that may hold secrets."""


def _of_command(command: str) -> dict[str, str]:
    """Return the workload's overrides in a command line."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote left open
        words = command.split()
    return dict(_key_and_value(word) for word in words if word.lstrip("+~").startswith("workload") and "=" in word)


def _of_params(params: object) -> dict[str, str]:
    """Return the overrides that mlpstorage's `--params` had; several of it are lists in a list."""
    given = params if isinstance(params, list) else []
    words = [word for each in given for word in (each if isinstance(each, list) else [each])]
    pairs = [_key_and_value(word) for word in words if isinstance(word, str) and "=" in word]
    return {f"workload.{key}": value for key, value in pairs}


def _key_and_value(word: str) -> tuple[str, str]:
    key, _, value = word.lstrip("+~").partition("=")
    return key, value.strip("'\"")


def _division_agrees(records: RunRecords) -> Iterator[Finding]:
    """The division named by mlpstorage's metadata is the one whose folder the run is in."""
    for source, stated in _division(records):
        if stated not in (None, records.division, "whatif") and not (stated == "closed" and source == "args.mode"):
            seen = f"the run is in the folder {records.division}, its {source} is {stated}"
            severity: Severity = "warning" if stated == "closed" else "error"
            yield by_rule("division.differs", seen, severity=severity)
        elif stated == "whatif":
            yield by_rule("division.differs", f"{source} is whatif", records.division)


def _records_complete(records: RunRecords) -> Iterator[Finding]:
    """Every record has its content: empty ones (`[]`, `{}`) count as missing."""
    incomplete = []
    for name in records.files:
        if name.endswith(METADATA):
            content = records.read(name)
            wanted = _METADATA_KEYS if records.edition.checks_tree else _METADATA_KEYS_V2
            lacking = [key for key in wanted if key not in mapping(content)]
            if content in ([], {}) or not isinstance(content, Mapping):
                incomplete.append(f"{name} holds {'nothing readable' if content is None else str(content)[:40]}")
            elif lacking:
                incomplete.append(f"{name} without {', '.join(lacking)}")
        elif name == SEPARATION and not isinstance(mapping(records.read(name)).get("same_filesystem"), bool):
            incomplete.append(f"{name} without same_filesystem: true or false")
    if records.phase != "datasize":
        folder = os.path.join(records.path, "dlio_config")
        if records.setup.overrides == ():
            incomplete.append("overrides.yaml is empty: it does not even name the workload")
        if records.hydra_overrides == ():
            incomplete.append("hydra.yaml has no overrides")
        if records.edition.checks_tree and not records.setup.config and os.path.isdir(folder):
            incomplete.append("config.yaml has no workload")
    if incomplete:
        yield by_rule("papers.missing", "; ".join(incomplete[:4]))


def _call_succeeded(records: RunRecords) -> Iterator[Finding]:
    """The exit status that the tool recorded is 0."""
    status = records.metadata.get("exit_status")
    if status not in (None, 0):
        yield by_rule("runs.exit", f"the metadata's exit_status is {status}")


_PRELOADED = re.compile(r"\b(?:LD_PRELOAD|LD_AUDIT|PYTHONPATH)\b|(?<![^\s/])(?:eatmydata|nocache)(?!\S)")
"""Variables and programs by which other code runs in the benchmark's processes than that of the image."""
_USUAL = {"PYTHONPATH"}
"""Of these, what launchers of many clusters pass on: it can name another DLIO, but rarely does."""
_DLIO_PATH = "dlio_bin_path"
"""The tool's argument for a DLIO of one's own."""
_IN_MEMORY = re.compile(r"^(?:file:/*)?/(?:dev|run)/shm(?:/|$)")


def commands_of(records: Papers) -> Iterator[str]:
    """Yield the commands that the tool executed, by the metadata, and what it was told to add to them."""
    added = records.args.get("mpi_params")
    stated = [records.metadata.get("executed_command"), *(added if isinstance(added, list) else [added])]
    yield from (*records.commands, *filter(None, map(text, stated)))


def _no_other_code(records: RunRecords) -> Iterator[Finding]:
    """No command puts other code before the benchmark's: such code can switch off syncing, or answer from memory."""
    found = {match[0] for command in commands_of(records) for match in _PRELOADED.finditer(command)}
    if found:
        severity: Severity = "warning" if found <= _USUAL else "error"
        yield by_rule("command.preload", f"{', '.join(sorted(found))} in the executed commands", severity=severity)


def _own_dlio(records: RunRecords) -> Iterator[Finding]:
    """CLOSED runs the DLIO that the tool brings, not one from a path of the submitter's."""
    path = text(records.args.get(_DLIO_PATH))
    if path and records.division == "closed":
        yield by_rule("tool.path", f"args.{_DLIO_PATH} is {path}")


def _on_storage(records: RunRecords) -> Iterator[Finding]:
    """The data is not in the memory of a host."""
    section, key, argument = _DATA_SETTINGS[records.benchmark]
    stated = [records.section(section).get(key), records.args.get(argument), records.separation.get(_REAL_PATH)]
    stated += _CACHE_OPTION.findall(" ".join(commands_of(records)))
    places = sorted({place for place in map(text, stated) if place and _IN_MEMORY.match(place)})
    if places:
        yield by_rule("data.memory", ", ".join(places))


_REAL_PATH = "data_or_chkpt_realpath"
_METRIC = re.compile(r"\[METRIC\] (?P<label>[^:\n]+): (?P<value>\d+(?:\.\d+)?)")
_LABELS = {
    "Training Accelerator Utilization [AU] (%)": "train_au_mean_percentage",
    "Training Throughput (samples/second)": "train_throughput_mean_samples_per_second",
    "Checkpoint save duration (seconds)": "save_checkpoint_duration_mean_seconds",
    "Checkpoint load duration (seconds)": "load_checkpoint_duration_mean_seconds",
}
"""Figures that DLIO prints at the end of a run -> their keys in summary.json."""
_PRINTED_TOLERANCE = 1e-3
"""Relative, and a tenth of it absolute: DLIO prints four decimals."""


def _log_agrees(records: RunRecords) -> Iterator[Finding]:
    """The figures that DLIO printed last into its log are those of summary.json."""
    logs = [name for name in records.files if name == LOG or name.endswith("_run.stdout.log")]
    metric = mapping(records.summary.get("metric"))
    for name in logs if records.phase == "run" and metric else ():
        words = read_text(os.path.join(records.path, name), []) or ""
        printed = {
            _LABELS[each["label"]]: float(each["value"]) for each in _METRIC.finditer(words) if each["label"] in _LABELS
        }
        for key, value in printed.items():
            stated = number(metric.get(key))
            slack = _PRINTED_TOLERANCE
            if stated is not None and not math.isclose(stated, value, rel_tol=slack, abs_tol=slack / 10):
                seen = f"{key} is {stated:.4f}, {name} has {value:.4f}"
                yield by_rule("papers.differ", seen)


_LOG_RANKS = re.compile(r"Running DLIO\b.* with (\d+) process")
_LOG_STAMP = re.compile(r"^\[\w+\] (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?) ", re.MULTILINE)
_LOG_SLACK_SECONDS = 60.0
"""DLIO may log this long after the end that it puts into the summary; before the start it may list files for long."""


def _log_in_run(records: RunRecords) -> Iterator[Finding]:
    """dlio.log is of this run: by its time stamps, and by the number of its processes."""
    words = read_text(os.path.join(records.path, LOG), []) if records.phase == "run" and LOG in records.files else None
    ranks, printed = _LOG_RANKS.search(words or ""), count(records.summary.get("num_accelerators"))
    if ranks and printed and int(ranks[1]) != printed:
        yield by_rule("papers.differ", f"number of processes: {printed} (summary.json), {ranks[1]} ({LOG})")
    stamps = _LOG_STAMP.findall(words or "")
    begun, ended = moment(records.summary.get("start")), moment(records.summary.get("end"))
    first, last = (moment(stamps[0]), moment(stamps[-1])) if stamps else (None, None)
    if not (begun and ended and first and last):
        return
    if (last - ended).total_seconds() > _LOG_SLACK_SECONDS or last < begun or first > ended:
        seen = f"{LOG} is of {first} to {last}, the run of {begun} to {ended} (summary.json)"
        yield by_rule("papers.differ", seen)


_MIN_DEVICE_SHARE = 0.5
"""Least share of the bytes that the hosts' drives read (training) or wrote. A dataset of 5 times the memory leaves the
page cache a fifth of an epoch's reads, synced checkpoints leave it none; a file system may compress some of both."""
_OTHER_DRIVES = 0.05
"""Drives that moved a smaller share did not hold the data: it was on another machine."""


def _devices_agree(records: RunRecords) -> Iterator[Finding]:
    """The counters of the hosts' drives grew by what the run says that it moved, where these drives held the data."""
    setup, summary = records.setup, records.summary
    if records.benchmark == "training":
        way, place, samples = "read", 0, (setup.samples_per_file or 0) * (count(summary.get("num_files_train")) or 0)
        gib = samples * (setup.record_bytes or 0) * (setup.epochs or 0) / 2**30
    else:
        saves = count(records.section("checkpoint").get("num_checkpoints_write"), 0) or 0
        way, place = "wrote", 1
        gib = saves * (number(mapping(summary.get("metric")).get("checkpoint_size_GB")) or 0)
    work = device_work(records.metadata)
    moved = sum(each[place] for each in work.values())
    whole = len({name.partition(":")[0] for name in work}) >= (records.hosts or 1)  # the counters of every host
    if records.phase == "run" and whole and _OTHER_DRIVES * gib < moved < _MIN_DEVICE_SHARE * gib:
        seen = f"the hosts' drives {way} {moved:,.1f} GiB, the run {gib:,.1f} GiB"
        yield by_rule("data.device", seen, f"at least {100 * _MIN_DEVICE_SHARE:g} % of it, by /proc/diskstats")


_RECORD_RULES = (
    *(_facts_agree, _division_agrees, _records_complete, _call_succeeded, _log_agrees, _log_in_run),
    *(_no_other_code, _own_dlio, _on_storage, _devices_agree),
)


def record_findings(records: RunRecords) -> Iterator[Located]:
    """Yield what is wrong with the records of one call."""
    for rule in _RECORD_RULES:
        yield from (Located(records.path, finding) for finding in rule(records))

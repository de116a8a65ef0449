"""Rules on what the files of one call record about it: they must be complete and must not contradict each other.

The *records* of a call are mlpstorage's metadata, hydra's config.yaml, overrides.yaml and hydra.yaml, summary.json, and
the files about its hosts and file systems. Facts such as the model or the number of processes stand in several of
them: each function in `_FACTS` returns where one fact is recorded, with the value found there.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from dlemu.contrib.mlperf.audit.kv_leaf import device_work
from dlemu.contrib.mlperf.audit.papers import COLLECTED, FILE_STORAGES, METADATA, SEPARATION, Papers
from dlemu.contrib.mlperf.audit.run_settings import meminfo_gib
from dlemu.contrib.mlperf.audit.step_files import LOG
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, moment, number, read_text, text, value_at
from dlemu.contrib.mlperf.check.submission_tree import Result
from dlemu.contrib.mlperf.check.system_description import described_system
from dlemu.contrib.mlperf.rules.checkpoints import official_model
from dlemu.contrib.mlperf.rules.core_config import canonical, settings_of
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule

AnyResult = Result[Any]
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


_Stated = Mapping[str, Any]
"""Where a fact is recorded -> its value there; None where it is missing."""


def _processes(leaf: Papers, _: AnyResult) -> _Stated:
    summary, launched = leaf.summary, _NP_OPTION.search(text(leaf.metadata.get("executed_command")) or "")
    started = {
        "args.num_processes": count(leaf.args.get("num_processes")),
        "the command's -n": int(launched[1]) if launched else None,
    }
    ran = {
        "args.num_accelerators": count(leaf.args.get("num_accelerators")),
        "summary.json": count(summary.get("num_accelerators")) or count(summary.get("total_ranks")),
    }
    return {
        "metadata": count(leaf.metadata.get("num_processes")),
        **(started if leaf.phase != "datasize" else {}),
        **(ran if leaf.phase == "run" else {}),
    }


def _host_count(leaf: Papers, _: AnyResult) -> _Stated:
    if leaf.phase != "run":
        return {}
    return {
        "summary.json": leaf.hosts or count(leaf.summary.get("host_count")),
        "args.num_client_hosts": count(leaf.args.get("num_client_hosts")),
        COLLECTED: len(leaf.collected_hosts) or None,
    }


def _rank_0_host(leaf: Papers, result: AnyResult) -> _Stated:
    """Return the host of rank 0, which must be among the collected hosts."""
    collected = sorted(map(_short_name, leaf.collected_hosts))
    first = _short_name(text(leaf.summary.get("hostname")) or "")
    rank = _short_name(text(value_at(leaf.read("0_output.json"), "hostname")) or "")
    return {
        "summary.json": first or None,
        "0_output.json": rank or None if result.benchmark == "checkpointing" else None,
        COLLECTED: (first if first in collected else ", ".join(collected)) if first and collected else None,
    }


def _short_name(host: str) -> str:
    return host.partition(".")[0].lower()


def _model(leaf: Papers, result: AnyResult) -> _Stated:
    model, config = leaf.metadata.get("model"), mapping(leaf.setup.config).get("model")
    stated = {
        "metadata": model,
        "args.model": leaf.args.get("model"),
        "parameters.model.name": value_at(leaf.parameters, "model.name"),
        "config.yaml": config if isinstance(config, str) else mapping(config).get("name"),
        "overrides.yaml": leaf.setup.chosen,
        "the folder": result.model_folder,
    }
    return {source: _normalised_model(text(value), result.benchmark) for source, value in stated.items()}


def _normalised_model(name: str | None, benchmark: str) -> str | None:
    """Return one spelling per model: llama_8b and llama3-8b are the same, and so are unet3d_h100 and unet3d_b200."""
    if name and benchmark == "checkpointing":
        known = official_model(name)
        return known.name if known else name
    return name and (name.rpartition("_")[0] or name)


def _accelerator(leaf: Papers, result: AnyResult) -> _Stated:
    trained, chosen = leaf.phase == "run" and result.benchmark == "training", leaf.setup.chosen
    return {
        "metadata": text(leaf.metadata.get("accelerator")),
        "args.accelerator_type": text(leaf.args.get("accelerator_type")) if leaf.phase != "datagen" else None,
        "overrides.yaml": chosen.rpartition("_")[2] if trained and "_" in chosen else None,
    }


def _benchmark(leaf: Papers, result: AnyResult) -> _Stated:
    stated = {"metadata": leaf.metadata.get("benchmark_type"), "args": leaf.args.get("benchmark")}
    names = {source: value.lower() for source, value in stated.items() if isinstance(value, str)}
    folders = {source: "kv_cache" if name == "kvcache" else name for source, name in names.items()}
    return folders | {"the folder": result.benchmark}


def _phase(leaf: Papers, _: AnyResult) -> _Stated:
    stated = {"metadata": leaf.metadata.get("command"), "args": leaf.args.get("command"), "the folder": leaf.phase}
    return {source: text(value) for source, value in stated.items()}


def _data_folder(leaf: Papers, result: AnyResult) -> _Stated:
    """Return the folder of the dataset or the checkpoints, without the model's folder that the tool appends."""
    if leaf.phase == "datasize" or leaf.args.get("data_access_protocol") == "object":
        return {}  # datasize has no dataset yet; an object store's address is in other settings
    section, key, argument = _DATA_SETTINGS[result.benchmark]
    stated = {
        "metadata": leaf.metadata.get(argument),
        "parameters": value_at(leaf.parameters, f"{section}.{key}" if section else key),
        "config.yaml": value_at(leaf.setup.config, f"{section}.{key}"),
        "args": leaf.args.get(argument),
        SEPARATION: leaf.separation.get("data_or_chkpt_path"),
        "the commands": _cache_folder(leaf) if result.benchmark == "kv_cache" else None,
    }
    models = (result.model_folder, leaf.metadata.get("model"), leaf.args.get("model"))
    found = {}
    for source, value in stated.items():
        if isinstance(value, str) and value:
            above, name = os.path.split(os.path.normpath(value))
            found[source] = above if name in models else os.path.join(above, name)
    return found


def _cache_folder(leaf: Papers) -> str | None:
    """Return the folder that kv_cache's commands used, without what the tool appends; the first other one if any is."""
    stated = text(leaf.args.get("cache_dir"))
    used = [found[1] for found in map(_CACHE_OPTION.search, leaf.commands) if found]
    others = [folder for folder in used if stated is None or not f"{folder}/".startswith(stated.rstrip("/") + "/")]
    return next(iter([*others, stated]), None) if used else None


def _results_folder(leaf: Papers, _: AnyResult) -> _Stated:
    stated = {"args.results_dir": leaf.args.get("results_dir"), SEPARATION: leaf.separation.get("results_path")}
    return {source: os.path.normpath(value) for source, value in stated.items() if isinstance(value, str) and value}


def _memory(leaf: Papers, _: AnyResult) -> _Stated:
    """Return the memory of all hosts together, in GiB; values within the tolerance count as the same."""
    if leaf.phase != "run":
        return {}
    collected = [meminfo_gib(value_at(host, "meminfo.MemTotal")) for host in leaf.collected_hosts.values()]
    known = [value for value in collected if value is not None]
    noted_bytes = number(value_at(leaf.metadata, "system_info.total_memory_bytes"))
    noted_hosts = value_at(leaf.metadata, "system_info.num_hosts")
    stated = {
        "summary.json": leaf.memory_gib,
        COLLECTED: sum(known) if known and len(known) == len(collected) == leaf.hosts else None,
        "metadata": noted_bytes / 2**30 if noted_bytes and noted_hosts == leaf.hosts else None,
    }
    values = {source: value for source, value in stated.items() if value is not None}
    same = values and max(values.values()) <= min(values.values()) * (1 + _MEMORY_TOLERANCE)
    first = next(iter(values.values()), None)
    return {source: f"{first if same else value:.2f} GiB" for source, value in values.items()}


def _access(leaf: Papers, result: AnyResult) -> _Stated:
    """Return whether the data is in files or objects: by settings, arguments, address and the system's description."""
    if leaf.phase != "run":
        return {}
    section, key, argument = _DATA_SETTINGS[result.benchmark]
    kind, stated = leaf.section("storage").get("storage_type"), text(leaf.args.get("data_access_protocol"))
    address = text(leaf.section(section).get(key)) or text(leaf.args.get(argument))
    api = (text(value_at(described_system(leaf.path)[1], "solution.architecture.benchmark_API")) or "").lower()
    return {
        "storage_type": None if kind is None else "file" if kind in FILE_STORAGES else "object",
        "args.data_access_protocol": stated.lower() if stated else None,
        "the data's address": "object" if address and "://" in address else None,
        "the system's description": api if api in ("file", "object") else None,
    }


_FACTS: tuple[tuple[str, Callable[[Papers, AnyResult], _Stated]], ...] = (
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


def _facts_agree(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """Yield every fact that two records give different values for."""
    for what, statements_of in _FACTS:
        stated = {source: value for source, value in statements_of(leaf, result).items() if value is not None}
        if len(set(stated.values())) > 1:
            yield by_rule("papers.differ", f"{what}: {', '.join(f'{stated[source]} ({source})' for source in stated)}")


def _settings_agree(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """Settings in config.yaml equal those in overrides.yaml and in the metadata's parameters."""
    config = {key: canonical(value) for key, value in settings_of(mapping(leaf.setup.config))}
    overrides = {key.removeprefix("workload."): value for key, value in _pairs(leaf.setup.overrides) if "." in key}
    for source, stated in (("overrides.yaml", overrides), ("metadata", dict(settings_of(leaf.parameters)))):
        differences = [
            f"{key}={canonical(value)} ({source}), {config[key]} (config.yaml)"
            for key, value in stated.items()
            if None not in (value, config.get(key)) and str(canonical(value)) != str(config[key])
        ]
        if differences:
            yield by_rule("papers.differ", "; ".join(differences[:3]))


def _overrides_agree(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """hydra.yaml, the metadata and the command in them have the same overrides, with the same values."""
    if leaf.setup.overrides is None:
        return
    mine = {key: value for key, value in _pairs(leaf.setup.overrides) if key.startswith("workload")}
    noted = leaf.metadata.get("override_parameters")
    others: dict[str, dict[str, str]] = {}
    if leaf.hydra_overrides:
        others["hydra.yaml"] = dict(_pairs(leaf.hydra_overrides))
    if isinstance(noted, Mapping) and (noted or result.edition.checks_tree):
        # The metadata leave out the choice of the workload, the only override without a dot.
        kept = {key: value for key, value in mine.items() if "." not in key}
        others["metadata"] = kept | {f"workload.{key}": str(value) for key, value in noted.items()}
    placed = {key: value for key, value in mine.items() if key.startswith(_PLACES)}
    if command := _of_command(text(leaf.metadata.get("executed_command")) or ""):
        others["the command"] = command | placed
    if leaf.phase == "run":
        others["args.params"] = mine | _of_params(leaf.args.get("params")) | placed
    for source, stated in others.items():
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
    return dict(_pairs(word for word in words if word.lstrip("+~").startswith("workload") and "=" in word))


def _of_params(params: object) -> dict[str, str]:
    """Return the overrides that mlpstorage's `--params` had; several of it are lists in a list."""
    given = params if isinstance(params, list) else []
    words = [word for each in given for word in (each if isinstance(each, list) else [each])]
    pairs = _pairs(word for word in words if isinstance(word, str) and "=" in word)
    return {f"workload.{key}": value for key, value in pairs}


def _pairs(words: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Yield key and value of overrides."""
    for word in words or ():
        key, _, value = word.lstrip("+~").partition("=")
        yield key, value.strip("'\"")


def _division_agrees(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """The division named by mlpstorage's metadata is the one whose folder the run is in."""
    for source, value in (("args.mode", leaf.args.get("mode")), ("verification", leaf.metadata.get("verification"))):
        # v3.0 writes CLOSED, also as the last part of a dotted name, where v2.0 wrote closed.
        stated = value.lower().rpartition(".")[2] if isinstance(value, str) and value else None
        if stated == "whatif":
            yield by_rule("division.differs", f"{source} is whatif")
        elif stated not in (None, result.division) and not (stated == "closed" and source == "args.mode"):
            seen = f"the run is in the folder {result.division}, its {source} is {stated}"
            severity: Severity = "warning" if stated == "closed" else "error"
            yield by_rule("division.differs", seen, severity=severity)


def _records_complete(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """Every record has its content: empty ones (`[]`, `{}`) count as missing."""
    incomplete = []
    for name in leaf.files:
        if name.endswith(METADATA):
            content = leaf.read(name)
            wanted = _METADATA_KEYS if result.edition.checks_tree else _METADATA_KEYS_V2
            lacking = [key for key in wanted if key not in mapping(content)]
            if content in ([], {}) or not isinstance(content, Mapping):
                incomplete.append(f"{name} holds {'nothing readable' if content is None else str(content)[:40]}")
            elif lacking:
                incomplete.append(f"{name} without {', '.join(lacking)}")
        elif name == SEPARATION and not isinstance(mapping(leaf.read(name)).get("same_filesystem"), bool):
            incomplete.append(f"{name} without same_filesystem: true or false")
    if leaf.phase != "datasize":
        folder = os.path.join(leaf.path, "dlio_config")
        if leaf.setup.overrides == ():
            incomplete.append("overrides.yaml is empty: it does not even name the workload")
        if leaf.hydra_overrides == ():
            incomplete.append("hydra.yaml has no overrides")
        if result.edition.checks_tree and not leaf.setup.config and os.path.isdir(folder):
            incomplete.append("config.yaml has no workload")
    if incomplete:
        yield by_rule("papers.missing", "; ".join(incomplete[:4]))


def _call_succeeded(leaf: Papers, _: AnyResult) -> Iterator[Finding]:
    """The exit status that the tool recorded is 0."""
    status = leaf.metadata.get("exit_status")
    if status not in (None, 0):
        yield by_rule("runs.exit", f"the metadata's exit_status is {status}")


_PRELOADED = re.compile(r"\b(?:LD_PRELOAD|LD_AUDIT|PYTHONPATH)\b|(?<![^\s/])(?:eatmydata|nocache)(?!\S)")
"""Variables and programs by which other code runs in the benchmark's processes than that of the image."""
_IN_MEMORY = re.compile(r"^(?:file:/*)?/(?:dev|run)/shm(?:/|$)")


def commands_of(leaf: Papers) -> Iterator[str]:
    """Yield the commands that the tool executed, by the metadata, and what it was told to add to them."""
    added = leaf.args.get("mpi_params")
    stated = [leaf.metadata.get("executed_command"), *(added if isinstance(added, list) else [added])]
    yield from (*leaf.commands, *filter(None, map(text, stated)))


def _no_other_code(leaf: Papers, _: AnyResult) -> Iterator[Finding]:
    """No command puts other code before the benchmark's: such code can switch off syncing, or answer from memory."""
    found = {match[0] for command in commands_of(leaf) for match in _PRELOADED.finditer(command)}
    if found:
        # Launchers of many clusters pass PYTHONPATH on: it can name another DLIO, but rarely does.
        severity: Severity = "warning" if found == {"PYTHONPATH"} else "error"
        yield by_rule("command.preload", f"{', '.join(sorted(found))} in the executed commands", severity=severity)


def _own_dlio(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """CLOSED runs the DLIO that the tool brings, not one from a path of the submitter's."""
    path = text(leaf.args.get("dlio_bin_path"))
    if path and result.division == "closed":
        yield by_rule("tool.path", f"args.dlio_bin_path is {path}")


def _on_storage(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """The data is not in the memory of a host."""
    section, key, argument = _DATA_SETTINGS[result.benchmark]
    stated = [leaf.section(section).get(key), leaf.args.get(argument), leaf.separation.get("data_or_chkpt_realpath")]
    stated += _CACHE_OPTION.findall(" ".join(commands_of(leaf)))
    places = sorted({place for place in map(text, stated) if place and _IN_MEMORY.match(place)})
    if places:
        yield by_rule("data.memory", ", ".join(places))


_LABELS = {
    "Training Accelerator Utilization [AU] (%)": "train_au_mean_percentage",
    "Training Throughput (samples/second)": "train_throughput_mean_samples_per_second",
    "Checkpoint save duration (seconds)": "save_checkpoint_duration_mean_seconds",
    "Checkpoint load duration (seconds)": "load_checkpoint_duration_mean_seconds",
}
"""Figures that DLIO prints at the end of a run -> their keys in summary.json."""
_METRIC = re.compile(rf"\[METRIC\] ({'|'.join(map(re.escape, _LABELS))}): (\d+(?:\.\d+)?)")
_LOG_RANKS = re.compile(r"Running DLIO\b.* with (\d+) process")
_LOG_STAMP = re.compile(r"^\[\w+\] (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?) ", re.MULTILINE)
_LOG_SLACK = timedelta(seconds=60)
"""DLIO may log this long after the end that it puts into the summary; before the start it may list files for long."""


def _log_agrees(leaf: Papers, _: AnyResult) -> Iterator[Finding]:
    """The figures that DLIO printed last are those of summary.json, and dlio.log is of this run: by time and ranks."""
    summary, begun, ended = leaf.summary, leaf.began, leaf.ended
    for name in leaf.files if leaf.phase == "run" else ():
        if name != LOG and not name.endswith("_run.stdout.log"):
            continue
        words = read_text(os.path.join(leaf.path, name), []) or ""
        for label, value in dict(_METRIC.findall(words)).items():
            key = _LABELS[label]
            stated = number(value_at(summary, f"metric.{key}"))
            if stated is not None and not math.isclose(stated, float(value), rel_tol=1e-3, abs_tol=1e-4):  # 4 decimals
                yield by_rule("papers.differ", f"{key} is {stated:.4f}, {name} has {value}")
        if name != LOG:
            continue
        ranks, printed = _LOG_RANKS.search(words), count(summary.get("num_accelerators"))
        if ranks and printed and int(ranks[1]) != printed:
            yield by_rule("papers.differ", f"number of processes: {printed} (summary.json), {ranks[1]} ({LOG})")
        stamps = _LOG_STAMP.findall(words)
        first, last = (moment(stamps[0]), moment(stamps[-1])) if stamps else (None, None)
        if begun and ended and first and last and not (begun <= last <= ended + _LOG_SLACK and first <= ended):
            seen = f"{LOG} is of {first} to {last}, the run of {begun} to {ended} (summary.json)"
            yield by_rule("papers.differ", seen)


_MIN_DEVICE_SHARE = 0.5
"""Least share of the bytes that the hosts' drives read (training) or wrote. A dataset of 5 times the memory leaves the
page cache a fifth of an epoch's reads, synced checkpoints leave it none; a file system may compress some of both."""
_OTHER_DRIVES = 0.05
"""Drives that moved a smaller share did not hold the data: it was on another machine."""


def _devices_agree(leaf: Papers, result: AnyResult) -> Iterator[Finding]:
    """The counters of the hosts' drives grew by what the run says that it moved, where these drives held the data."""
    setup, summary = leaf.setup, leaf.summary
    if result.benchmark == "training":
        way, place, samples = "read", 0, (setup.samples_per_file or 0) * (count(summary.get("num_files_train")) or 0)
        gib = samples * (setup.record_bytes or 0) * (setup.epochs or 0) / 2**30
    else:
        saves = count(leaf.section("checkpoint").get("num_checkpoints_write"), 0) or 0
        way, place = "wrote", 1
        gib = saves * (number(value_at(summary, "metric.checkpoint_size_GB")) or 0)
    work = device_work(leaf.metadata)
    moved = sum(each[place] for each in work.values())
    whole = len({name.partition(":")[0] for name in work}) >= (leaf.hosts or 1)  # the counters of every host
    if leaf.phase == "run" and whole and _OTHER_DRIVES * gib < moved < _MIN_DEVICE_SHARE * gib:
        seen = f"the hosts' drives {way} {moved:,.1f} GiB, the run {gib:,.1f} GiB"
        yield by_rule("data.device", seen, f"at least {100 * _MIN_DEVICE_SHARE:g} % of it, by /proc/diskstats")


RECORD_RULES = (
    *(_facts_agree, _settings_agree, _overrides_agree, _division_agrees, _records_complete, _call_succeeded),
    *(_log_agrees, _no_other_code, _own_dlio, _on_storage, _devices_agree),
)
"""Rules on the records of one call."""

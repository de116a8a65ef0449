"""Facts of one call, such as its model or number of processes, that several of its files record.

The *sources* are mlpstorage's metadata, hydra's config.yaml and overrides.yaml, summary.json, and the files about the
hosts and file systems. Each function in `FACTS` returns source -> value of one fact, for example

    number of processes: {"metadata": 8, "args.num_processes": 8, "the command's -n": 4, "summary.json": 8}

A value of None or "" means that the source lacks the fact. `record_rules` reports a fact with several values, so each
function returns equal values for sources that agree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from dlemu.contrib.mlperf.audit.call_records import COLLECTED, FILE_STORAGES, SEPARATION, CallRecords
from dlemu.contrib.mlperf.audit.run_settings import meminfo_gib
from dlemu.contrib.mlperf.audit.tolerant import all_known, integer, mapping, number, text, value_at
from dlemu.contrib.mlperf.check.submission_tree import Result
from dlemu.contrib.mlperf.check.system_description import described_system
from dlemu.contrib.mlperf.rules.checkpoints import official_model

AnyResult = Result[Any]
Values = Mapping[str, Any]
DATA_FOLDER_KEYS = {
    "training": ("dataset", "data_folder", "data_dir"),
    "checkpointing": ("checkpoint", "checkpoint_folder", "checkpoint_folder"),
    "kv_cache": ("", "cache_dir", "cache_dir"),
}
"""Benchmark -> the setting with the folder under test (section, key), and the tool's argument for it."""
CACHE_OPTION = re.compile(r"--rank-cache-base[\s=]+(\S+)")  # folder of a rank's cache, in a command of kv_cache
_NP_OPTION = re.compile(r"(?:^|\s)--?(?:n|np)[\s=]+(\d+)(?=\s)")  # number of processes, in a command of mpirun
_MEMORY_TOLERANCE = 0.01  # relative; summary.json, /proc/meminfo (kB) and the metadata (bytes) round differently


def _processes(call: CallRecords, _: AnyResult) -> Values:
    values = {"metadata": integer(call.metadata.get("num_processes"))}
    if call.phase != "datasize":
        option = _NP_OPTION.search(text(call.metadata.get("executed_command")) or "")
        values["args.num_processes"] = integer(call.args.get("num_processes"))
        values["the command's -n"] = int(option[1]) if option else None
    if call.phase == "run":
        values["args.num_accelerators"] = integer(call.args.get("num_accelerators"))
        accelerators, kv_ranks = call.summary.get("num_accelerators"), call.summary.get("total_ranks")
        values["summary.json"] = integer(accelerators) or integer(kv_ranks)
    return values


def _host_count(call: CallRecords, _: AnyResult) -> Values:
    if call.phase != "run":
        return {}
    return {
        "summary.json": call.hosts or integer(call.summary.get("host_count")),
        "args.num_client_hosts": integer(call.args.get("num_client_hosts")),
        COLLECTED: len(call.collected_hosts) or None,
    }


def _rank_0_host(call: CallRecords, result: AnyResult) -> Values:
    """Return the host of rank 0; for the facts about all hosts, that same host if they include it, else all hosts."""
    host = _short_name(call.summary.get("hostname"))
    values = {"summary.json": host}
    if result.benchmark == "checkpointing":
        values["0_output.json"] = _short_name(value_at(call.read("0_output.json"), "hostname"))
    if host:
        collected = sorted(map(_short_name, call.collected_hosts))
        values[COLLECTED] = host if host in collected else ", ".join(collected)
    return values


def _short_name(host: object) -> str:
    return (text(host) or "").partition(".")[0].lower()


def _model(call: CallRecords, result: AnyResult) -> Values:
    config_model = mapping(call.setup.config).get("model")
    names = {
        "metadata": call.metadata.get("model"),
        "args.model": call.args.get("model"),
        "parameters.model.name": value_at(call.parameters, "model.name"),
        "config.yaml": config_model if isinstance(config_model, str) else mapping(config_model).get("name"),
        "overrides.yaml": call.setup.workload_override,
        "the folder": result.model_folder,
    }
    return {source: _normalised_model(text(name) or "", result.benchmark) for source, name in names.items()}


def _normalised_model(name: str, benchmark: str) -> str:
    """Return a model in one spelling: llama3-8b for llama_8b in checkpointing, else unet3d for unet3d_h100."""
    if benchmark == "checkpointing":
        official = official_model(name)
        return official.name if official else name
    return name.rpartition("_")[0] or name


def _accelerator(call: CallRecords, result: AnyResult) -> Values:
    values = {"metadata": text(call.metadata.get("accelerator"))}
    if call.phase != "datagen":
        values["args.accelerator_type"] = text(call.args.get("accelerator_type"))
    if call.phase == "run" and result.benchmark == "training" and "_" in call.setup.workload_override:
        values["overrides.yaml"] = call.setup.workload_override.rpartition("_")[2]
    return values


def _benchmark(call: CallRecords, result: AnyResult) -> Values:
    values = {}
    for source, name in (("metadata", call.metadata.get("benchmark_type")), ("args", call.args.get("benchmark"))):
        if isinstance(name, str):
            values[source] = "kv_cache" if name.lower() == "kvcache" else name.lower() or "empty"
    return {**values, "the folder": result.benchmark}


def _phase(call: CallRecords, _: AnyResult) -> Values:
    metadata, args = text(call.metadata.get("command")), text(call.args.get("command"))
    return {"metadata": metadata, "args": args, "the folder": call.phase}


def _data_folder(call: CallRecords, result: AnyResult) -> Values:
    """Return the folder under test, without the model's folder that the tool appends."""
    if call.phase == "datasize" or call.args.get("data_access_protocol") == "object":
        return {}  # datasize has no dataset yet, and an object store's address is in other settings
    section, setting, argument = DATA_FOLDER_KEYS[result.benchmark]
    folders: dict[str, Any] = {
        "metadata": call.metadata.get(argument),
        "parameters": value_at(call.parameters, f"{section}.{setting}" if section else setting),
        "config.yaml": value_at(call.setup.config, f"{section}.{setting}"),
        "args": call.args.get(argument),
        SEPARATION: call.separation.get("data_or_chkpt_path"),
        "the commands": _cache_folder(call) if result.benchmark == "kv_cache" else None,
    }
    models = (result.model_folder, call.metadata.get("model"), call.args.get("model"))
    values = {}
    for source, folder in folders.items():
        if text(folder):
            parent, name = os.path.split(os.path.normpath(folder))
            values[source] = parent if name in models else os.path.join(parent, name)
    return values


def _cache_folder(call: CallRecords) -> str | None:
    """Return `args.cache_dir` if the folders of all kv_cache commands are in it, else the first other folder."""
    cache_folder = text(call.args.get("cache_dir"))
    folders = [option[1] for option in map(CACHE_OPTION.search, call.commands) if option]
    for folder in folders:
        if cache_folder is None or not f"{folder}/".startswith(cache_folder.rstrip("/") + "/"):
            return folder
    return cache_folder if folders else None


def _results_folder(call: CallRecords, _: AnyResult) -> Values:
    folders = {"args.results_dir": call.args.get("results_dir"), SEPARATION: call.separation.get("results_path")}
    return {source: os.path.normpath(str(folder)) for source, folder in folders.items() if text(folder)}


def _memory(call: CallRecords, _: AnyResult) -> Values:
    """Return the memory of all hosts together, as text in GiB."""
    if call.phase != "run":
        return {}
    sizes_gib = {"summary.json": call.memory_gib}
    collected = all_known(meminfo_gib(value_at(host, "meminfo.MemTotal")) for host in call.collected_hosts.values())
    if collected and len(collected) == call.hosts:
        sizes_gib[COLLECTED] = sum(collected)
    total_bytes = number(value_at(call.metadata, "system_info.total_memory_bytes"))
    if total_bytes and value_at(call.metadata, "system_info.num_hosts") == call.hosts:
        sizes_gib["metadata"] = total_bytes / 2**30
    known_gib = {source: gib for source, gib in sizes_gib.items() if gib is not None}
    if known_gib and max(known_gib.values()) <= min(known_gib.values()) * (1 + _MEMORY_TOLERANCE):
        known_gib = dict.fromkeys(known_gib, next(iter(known_gib.values())))  # all sources agree
    return {source: f"{gib:.2f} GiB" for source, gib in known_gib.items()}


def _access(call: CallRecords, result: AnyResult) -> Values:
    """Return whether the data is in a `file` or an `object` store."""
    if call.phase != "run":
        return {}
    section, setting, argument = DATA_FOLDER_KEYS[result.benchmark]
    values = {}
    storage_type = call.section("storage").get("storage_type")
    if storage_type is not None:
        values["storage_type"] = "file" if storage_type in FILE_STORAGES else "object"
    values["args.data_access_protocol"] = (text(call.args.get("data_access_protocol")) or "").lower()
    address = text(call.section(section).get(setting)) or text(call.args.get(argument)) or ""
    if "://" in address:
        values["the data's address"] = "object"
    api = text(value_at(described_system(call.path)[1], "solution.architecture.benchmark_API")) or ""
    if api.lower() in ("file", "object"):
        values["the system's description"] = api.lower()
    return values


FACTS: Mapping[str, Callable[[CallRecords, AnyResult], Values]] = {
    "benchmark": _benchmark,
    "phase": _phase,
    "model": _model,
    "accelerator": _accelerator,
    "number of processes": _processes,
    "number of hosts": _host_count,
    "host of rank 0": _rank_0_host,
    "memory of all hosts": _memory,
    "folder of the data": _data_folder,
    "way of access": _access,
    "folder of the results": _results_folder,
}
"""Fact -> the function that returns its values."""

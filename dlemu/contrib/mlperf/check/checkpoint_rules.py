"""Rules on checkpointing results of v2.0 and v3.0: one model on one system, in one call of the tool or two.

`time_rules` has the rules on the time between the calls. *Remapping* makes storage that hosts can't share available to
another host. Source: section 4 of v3.0's Rules.md and checkpointing_checks.py of its submission checker
(https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from dlemu.config.translate import is_known
from dlemu.contrib.mlperf.audit.checkpoint_call import KINDS, CheckpointCall, checkpoint_numbers
from dlemu.contrib.mlperf.audit.tolerant import mapping, text
from dlemu.contrib.mlperf.check.submission_tree import CheckpointResult, Rules
from dlemu.contrib.mlperf.check.system_description import REMAP_KEY, described_capabilities, remap_seconds
from dlemu.contrib.mlperf.check.time_rules import CHECKPOINT_TIME_RULES, seconds_between_calls
from dlemu.contrib.mlperf.check.training_rules import unknown_hash
from dlemu.contrib.mlperf.check.tree_rules import results_json
from dlemu.contrib.mlperf.rules import checkpoints as official
from dlemu.contrib.mlperf.rules import core_config
from dlemu.contrib.mlperf.rules.core_config import canonical, is_checkpoint_core, settings_of
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at, differing, first_few, unapplied, with_path
from dlemu.extend import dlio_workload

_ACCESS_FLAGS = ("simultaneous_write", "simultaneous_read")  # capabilities of a system: for all hosts at the same time
_MIN_REMAP_SHARE = 0.5  # smallest gap between the two calls, in stated remapping times (4.7.3, the checker)
_ALWAYS_WRITTEN = ("start", "end", "num_accelerators", "num_hosts", "hostname", "host_memory_GB", "metric")
"""Keys that DLIO writes into the summary of every call."""
_SET_BY_TOOL = frozenset(core_config.WORKLOADS_YAML["checkpoint_overrides"])  # settings that mlpstorage sets itself


def _capabilities(result: CheckpointResult) -> Iterator[Finding]:
    """The system's description agrees with the run on hosts, simultaneous access and remapping."""
    if not result.edition.checks_tree:
        return
    path, capabilities = described_capabilities(result.path)
    if not path:
        yield from with_path(result.path, unapplied("checkpoint.simultaneous", {"description of the system": None}))
        return
    denied = [flag for flag in _ACCESS_FLAGS if capabilities.get(flag) is False]
    if denied:
        seen = f"{' and '.join(denied)} false, but all processes of the run wrote, and read, at the same time"
        yield by_rule_at(path, "checkpoint.simultaneous", seen, severity="warning")
    hosts = max((call.hosts or 0 for call in result.calls), default=0)
    if capabilities.get("multi_host") is False and hosts > 1:
        yield by_rule_at(path, "checkpoint.simultaneous", f"multi_host is false, the run was on {hosts} hosts")
    remap = remap_seconds(capabilities)
    if remap is not None:  # `mlpstorage validate` refuses a description without it
        flags = [capabilities.get(flag) for flag in _ACCESS_FLAGS]
        needs_remap = not all(flags)
        if all(isinstance(flag, bool) for flag in flags) and needs_remap != (remap > 0):
            are = "not both" if needs_remap else "both"
            seen = f"{REMAP_KEY} is {remap}, simultaneous_write and simultaneous_read are {are} true"
            yield by_rule_at(path, "checkpoint.remap", seen)
        if remap and len(result.calls) == 2:
            yield from _remapping(result, remap)


def _remapping(result: CheckpointResult, remap: int) -> Iterator[Finding]:
    """The gap between the two calls is at least half of the remapping time, in seconds."""
    between = seconds_between_calls(result)
    if between is None:
        yield from with_path(result.path, unapplied("checkpoint.remap", {"times of both calls": None}))
    elif between < _MIN_REMAP_SHARE * remap:
        yield by_rule_at(result.path, "checkpoint.remap", f"{between:.1f} s between the calls, {REMAP_KEY} is {remap}")


def _summary_complete(call: CheckpointCall, _: CheckpointResult) -> Iterator[Finding]:
    """Every call's summary has the keys that DLIO always writes, and the size of a checkpoint."""
    missing = [key for key in _ALWAYS_WRITTEN if call.summary.get(key) in (None, [], "", {})]
    if call.size_gib is None:
        missing.append("metric.checkpoint_size_GB")
    if call.summary and missing:
        yield by_rule("checkpoint.differs", f"summary.json without {', '.join(missing)}")


def _model_is_known(result: CheckpointResult) -> Iterator[Finding]:
    if model_of(result) is None:
        seen = f"{os.path.basename(result.path)}, model {result.calls[0].section('model').get('name')}"
        yield by_rule_at(result.path, "checkpoint.model", seen, f"one of {', '.join(official.MODELS)}")


def _settings(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """The model's settings are official; in CLOSED, so are all others that the tool does not set itself."""
    model = model_of(result)
    if model is None:
        return
    if not call.workload:
        yield from unapplied("checkpoint.settings", {"configuration": None})
        return
    expected = dict(settings_of(dlio_workload(model.settings())))
    settings = dict(settings_of(call.workload))
    keys = sorted(key for key in {*expected, *settings} if is_checkpoint_core(key) and key not in _SET_BY_TOOL)
    changed = []
    for key in keys:
        is_judged = result.closed or key.startswith("model.")
        is_exempt = key in ("model.name", "checkpoint.fsync")  # dlemu names models otherwise; `_fsync` checks fsync
        # A setting that is missing, false, 0 or empty is off.
        is_same = (canonical(settings.get(key)) or False) == (canonical(expected.get(key)) or False)
        if is_judged and not is_exempt and not is_same:
            changed.append(f"{key}={settings.get(key)}, official: {expected.get(key)}")
    if result.closed:
        unknown = (key for key in settings if not key.startswith(core_config.CORE_SECTIONS) and not is_known(key))
        changed += [f"{key}={settings[key]}, which DLIO does not have" for key in islice(unknown, 4)]
    if changed:
        yield by_rule("checkpoint.settings", first_few(changed, limit=4), model.name)
    elif result.closed:
        yield from _core_config_hash(call, model, [key for key in keys if key not in expected])


def _core_config_hash(call: CheckpointCall, model: official.OfficialModel, added: Sequence[str]) -> Iterator[Finding]:
    """The hash of all core settings, with the official model name, is official; no workload file has `added` keys."""
    renamed = {**call.workload, "model": {**call.section("model"), "name": model.official_name}}
    core_hash = core_config.core_config_hash(renamed, checkpointing=True)
    if core_hash not in model.core_configs.values():
        yield unknown_hash(core_hash, model.core_configs.values(), added)


def _overrides_allowed(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """In CLOSED, only settings that the tool sets itself are overridden, and the folder (4.6.3)."""
    if not result.closed:
        return
    parameters = mapping(call.metadata.get("override_parameters"))
    if call.setup.overrides is None and not parameters:
        yield from unapplied("checkpoint.overrides", {"overrides": None})
        return
    forbidden = ", ".join(sorted({*parameters, *call.setup.overridden_keys} - _SET_BY_TOOL))
    if forbidden:
        yield by_rule("checkpoint.overrides", forbidden, fix=f"leave out {forbidden}")


def _fsync(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """Checkpoints are synced; the DLIO of v2.0 never does so, whatever the settings."""
    settings = call.section("checkpoint")
    if not settings:
        yield from unapplied("checkpoint.fsync", {"configuration": None})
    elif canonical(settings.get("fsync")) is not True:
        yield by_rule("checkpoint.fsync", f"checkpoint.fsync is {str(settings.get('fsync', 'missing')).lower()}")
    elif result.edition.name == "2.0" and call.checkpoints("save"):
        seen = "the DLIO of v2.0 reads checkpoint.fsync under another name and never calls fsync"
        yield by_rule("checkpoint.unsynced", seen)


def _processes(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """CLOSED: the model's number of processes (v2.0 also allows a subset of 8); OPEN: a multiple of TP x PP."""
    model = model_of(result)
    ranks = call.ranks
    if model is None or ranks is None:
        yield from unapplied("checkpoint.processes", {"number of processes": ranks})
        return
    if not result.closed:
        if ranks % model.model_ranks:
            wanted = f"a multiple of TP x PP, {model.model_ranks}"
            fix = f"--num-processes {max(1, ranks // model.model_ranks) * model.model_ranks}"
            yield by_rule("checkpoint.processes", f"{ranks} processes", wanted, fix)
        return
    if ranks == model.ranks:
        return
    fix = f"--num-processes {model.ranks}"
    if ranks != official.SUBSET_RANKS:
        yield by_rule("checkpoint.processes", f"{ranks} processes", f"{model.ranks}", fix)
    elif result.edition.name == "2.0":
        seen = f"{ranks} processes, a subset: the whole model takes {model.ranks}"
        yield by_rule("checkpoint.subset", seen, fix=fix, severity="info")
    else:
        wanted = f"{model.ranks}: a subset is defined for llama3-8b alone; such rows of v3.0 were withdrawn"
        yield by_rule("checkpoint.subset", f"{ranks} processes: a subset of {model.name}", wanted, fix)


def _ranks_per_host(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """In CLOSED, each host runs more than 4 processes (4.6.2)."""
    if not result.closed or call.ranks is None:
        return
    if call.hosts:
        yield from official.few_per_host(call.ranks, call.hosts)
    else:
        yield from unapplied("checkpoint.hosts", {"number of hosts": None})


def _counts(result: CheckpointResult) -> Iterator[Finding]:
    """All calls together save and load ten checkpoints; in CLOSED, they are one call, or a write and a read call."""
    counts = [(call.checkpoints("save"), call.checkpoints("load")) for call in result.calls]
    saved = sum(saves for saves, _ in counts)
    loaded = sum(loads for _, loads in counts)
    if not saved and not loaded:
        yield from with_path(result.path, unapplied("checkpoint.count", {"checkpoints of any rank": None}))
        return
    if saved != official.CHECKPOINTS or loaded != official.CHECKPOINTS:
        yield by_rule_at(result.path, "checkpoint.count", f"{saved} checkpoints saved, {loaded} loaded")
    phases = ", then ".join(f"{saves}/{loads}" for saves, loads in counts)
    if result.closed and phases not in ("10/10", "10/0, then 0/10"):
        yield by_rule_at(result.path, "checkpoint.calls", f"calls: {len(counts)}; saved/loaded: {phases}")


def _memory(result: CheckpointResult) -> Iterator[Finding]:
    """Warn if page caches could serve the reads: a host must write 3 times its memory (4.3.1 of v3.0's text)."""
    saves = sum(call.checkpoints("save") for call in result.calls)
    first = result.calls[0]
    if first.size_gib is None or first.memory_gib is None or not first.hosts or not saves:
        yield from with_path(first.path, unapplied("checkpoint.memory", {"size and memory": None}))
        return
    written_gib = saves * first.size_gib / first.hosts
    memory_gib = first.memory_gib / first.hosts
    if written_gib < official.MEMORY_FACTOR * memory_gib:
        seen = f"each host wrote {written_gib:,.0f} GiB, {written_gib / memory_gib:.2f} times its memory"
        yield by_rule_at(first.path, "checkpoint.memory", seen)


def _accelerators(call: CheckpointCall, result: CheckpointResult) -> Iterator[Finding]:
    """The memory of all accelerators holds the checkpoint (4.3.4), by the edition's table, or else with 80 GiB each."""
    size_gib, ranks, memory_gb = call.size_gib, call.ranks, result.edition.accelerator_gb
    if memory_gb:
        name = text(call.metadata.get("accelerator")) or text(call.args.get("accelerator_type"))
        if name is None or name not in memory_gb:
            seen = f"accelerator {name}" if name else "no accelerator named"
            yield by_rule("checkpoint.accelerator", seen, f"one of {', '.join(memory_gb)}")
        elif size_gib and ranks and ranks * memory_gb[name] < size_gib:
            seen = f"a checkpoint of {size_gib:,.0f} GiB, {ranks} x {name} with {memory_gb[name]:g} GB"
            yield by_rule("checkpoint.accelerator", seen)
    elif size_gib and ranks and ranks * official.ACCELERATOR_GIB < size_gib:
        seen = f"a checkpoint of {size_gib:,.0f} GiB, {ranks} accelerators"
        needed = f"at least {size_gib / ranks:,.0f} GiB of memory in each"
        wanted = f"{needed}; the checker assumes {official.ACCELERATOR_GIB}"
        yield by_rule("checkpoint.accelerator", seen, wanted, severity="warning")


def _same_in_all_calls(result: CheckpointResult) -> Iterator[Finding]:
    """All calls use the same accelerator, and the same numbers of processes and hosts."""
    compared: dict[str, list[object]] = {
        "processes": [call.ranks for call in result.calls],
        "hosts": [call.hosts for call in result.calls],
        "accelerator": [text(call.metadata.get("accelerator")) for call in result.calls],
    }
    if described_capabilities(result.path)[1].get("multi_host") is not True:  # else the host may change (4.7.1)
        compared["rank 0's host"] = [text(call.summary.get("hostname")) for call in result.calls if call.hosts == 1]
    yield from differing(result.path, "runs.differ", compared)


_CALL_RULES = (_summary_complete, _settings, _overrides_allowed, _fsync, _processes, _ranks_per_host, _accelerators)


def _single_calls(result: CheckpointResult) -> Iterator[Finding]:
    """Check the numbers of each call, and apply the rules on single calls."""
    for call in result.calls:
        yield from with_path(call.path, checkpoint_numbers(call))
        for rule in _CALL_RULES:
            yield from with_path(call.path, rule(call, result))


_RULES_ON_CALLS: Rules[CheckpointCall] = (_single_calls, _model_is_known, _counts, *CHECKPOINT_TIME_RULES)
CHECKPOINT_RULES: Rules[CheckpointCall] = (*_RULES_ON_CALLS, _capabilities, _memory, results_json, _same_in_all_calls)


def model_of(result: CheckpointResult) -> official.OfficialModel | None:
    """Return the official model that a result names; None if it names none."""
    first = result.calls[0]
    name = text(first.metadata.get("model")) or text(first.args.get("model"))
    return official.official_model(name or result.model_folder or text(first.section("model").get("name")))


def figures_of(result: CheckpointResult) -> Mapping[str, float]:
    """Return the published figures: `save` and `load` -> rank 0's mean GiB/s; without those that no call has."""
    figures: dict[str, float] = {}
    for call in result.calls:
        for kind in KINDS:
            rate = call.metric.get(f"{kind}_checkpoint_io_mean_GB_per_second")
            if isinstance(rate, int | float):
                figures[kind] = float(rate)
    return figures

"""Rules of v3.0 on kv_cache (Rules.md, section 6) that `audit.kv_numbers` lacks: settings, duration, copied runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlemu.contrib.mlperf.audit.kv_call import OPTIONS, KvCall, KvRank, kv_commands, ranks_with_copied_latencies
from dlemu.contrib.mlperf.audit.kv_numbers import kv_numbers
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, number, text, value_at
from dlemu.contrib.mlperf.check.submission_tree import KV_CACHE, KvResult, Result
from dlemu.contrib.mlperf.rules.core_config import WORKLOADS_YAML, canonical
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at, first_few, unapplied, with_path

_OFFICIAL_FLAGS: Mapping[int, Mapping[str, str]] = WORKLOADS_YAML["kv_options"]
"""Option -> flag of the benchmark (`num-users`) -> its value in Table KVCache-1, which CLOSED requires."""
_TOOL_FLAGS = frozenset({"rank-output-base", "rank-cache-base", "config", "seed", "output", "cache-dir"})
"""Flags that mlpstorage itself adds; CLOSED allows no others, such as --prefill-only."""
_SEQUENCE_ARGS = {"seed": 42, "trials": 3, "inter_option_delay": 90}
"""Required arguments of the sequence of options (6.3.2.1), by their names in the metadata's `args`."""
_SLACK_SECONDS = 5.0  # for the tool's start and end; smaller than the difference that another --duration makes


def kv_findings(result: KvResult) -> Iterator[Finding]:
    """Check the numbers, the duration and, in CLOSED, the settings of each run of a result."""
    for call in result.runs:
        yield from with_path(call.path, kv_numbers(call))
        yield from with_path(call.path, _kv_length(call))
        if result.closed:
            yield from with_path(call.path, _kv_settings(call))


def _kv_length(call: KvCall) -> Iterator[Finding]:
    """The tool's call lasted at least as long as the clocks of all its trials, which run one after another."""
    runtime = number(call.metadata.get("runtime"))
    trials = call.trial_seconds
    if runtime is not None and sum(trials) > runtime + _SLACK_SECONDS:
        seen = f"{len(trials)} trials of {sum(trials):.1f} s in all, the metadata's runtime is {runtime:.1f} s"
        yield by_rule("time.length", seen)


def _kv_settings(call: KvCall) -> Iterator[Finding]:
    """The flags of each option (Table KVCache-1), the seeds, the trials and the delay between options are official."""
    commands = kv_commands(call)
    differences: list[str] = []
    for option in OPTIONS:
        for flags in commands.get(option, []):
            differences += _flag_differences(option, flags)
        differences += _summary_differences(call, option)
        for rank in call.option_ranks(option):
            differences += _rank_differences(rank)
    for key, value in _SEQUENCE_ARGS.items():
        if number(call.args.get(key, value)) != value:
            differences.append(f"{key} {call.args[key]}")
    if text(call.args.get("config_file")):
        differences.append("a different --config")
    if differences:
        yield by_rule("kv.settings", first_few(list(dict.fromkeys(differences)), limit=4))
    elif call.metadata and not commands:
        yield from unapplied("kv.settings", {"commands of the options": None})


def _flag_differences(option: int, flags: Mapping[str, str]) -> Iterator[str]:
    """Yield the flags of a trial's command that differ from the option's official ones."""
    official = _OFFICIAL_FLAGS[option]
    for key, value in official.items():
        if key in flags and flags[key] != value:
            yield f"option {option}: {key} {flags[key]}"
    yield from (f"option {option}: no {key}" for key in official if key not in flags)
    yield from (f"option {option}: --{key}" for key in sorted(flags.keys() - official.keys() - _TOOL_FLAGS))


def _rank_differences(rank: KvRank) -> Iterator[str]:
    """Yield how a rank's duration differs from the official --duration, and its seed from --seed-base plus the rank."""
    flags = _OFFICIAL_FLAGS[rank.option]
    elapsed_seconds = rank.elapsed_seconds
    seed = integer(rank.content.get("seed"), minimum=0)
    if elapsed_seconds is not None and abs(elapsed_seconds - int(flags["duration"])) > _SLACK_SECONDS:
        yield f"{rank.where}: {elapsed_seconds:.1f} s"
    if seed is not None and seed != int(flags["seed-base"]) + rank.rank:
        yield f"{rank.where}: seed {seed}"


def _summary_differences(call: KvCall, option: int) -> Iterator[str]:
    """Yield the summary's settings, of all options or of this one, that are not official; few versions write any.

    The metadata's `args` are not compared: they have the command line's defaults, which the options override.
    """
    official = _OFFICIAL_FLAGS[option]
    for_all = {"seed": official["seed-base"], "gpu-mem-gb": official["gpu-mem-gb"]}
    summary_of_option = mapping(value_at(call.summary, f"options.{option}"))
    for settings, expected in ((call.summary, for_all), (summary_of_option, {**official, **for_all})):
        for key, value in expected.items():
            setting = canonical(settings.get(key.replace("-", "_")))
            if setting is not None and setting != canonical(value):
                yield f"option {option}: {key} {setting} (summary.json)"


def copied_kv(results: Sequence[Result[Any]]) -> Iterator[Finding]:
    """Report the runs in which a rank has exactly the latencies of a rank of another run."""
    calls = [call for result in results if result.benchmark == KV_CACHE for call in result.calls]
    copies: dict[str, str] = {}
    for original, copy in ranks_with_copied_latencies(rank for call in calls for rank in call.ranks):
        if copy.folder != original.folder:
            copies[copy.folder] = f"{copy.where} has the latencies of a rank of {original.folder}"
    for folder, seen in copies.items():
        yield by_rule_at(folder, "kv.copied", seen)

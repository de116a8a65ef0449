"""Rules of v3.0 on kv_cache (Rules.md, section 6): settings, counts and copied runs.

`kv_leaf` of `audit` checks whether a run's numbers agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlemu.contrib.mlperf.audit.kv_leaf import OPTIONS, KvLeaf, copied_latencies, kv_commands, kv_numbers
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, number, text, value_at
from dlemu.contrib.mlperf.check.submission_tree import KV_CACHE, KvResult, Result
from dlemu.contrib.mlperf.rules.core_config import STATED, canonical
from dlemu.contrib.mlperf.rules.known import Finding, at, by_rule, by_rule_at, few, unapplied

KV_OPTIONS: Mapping[int, Mapping[str, str]] = STATED["kv_options"]
_OF_THE_TOOL = frozenset({"rank-output-base", "rank-cache-base", "config", "seed", "output", "cache-dir"})
"""Options of the benchmark that mlpstorage itself adds; CLOSED allows no others, such as --prefill-only."""
_SEQUENCE = {"seed": 42, "trials": 3, "inter_option_delay": 90}
"""Required arguments of the sequence of options (6.3.2.1), under their names in the metadata's `args`."""
_DURATION_SLACK_SECONDS = 5.0  # room for the tool's own start and end; another --duration is farther off


def kv_findings(result: KvResult) -> Iterator[Finding]:
    """Yield contradictions in the numbers of a result's runs, and what the runs break of the benchmark's rules."""
    for leaf in result.runs:
        found = [*kv_numbers(leaf), *_kv_length(leaf), *(_kv_settings(leaf) if result.closed else ())]
        yield from at(leaf.path, found)


def _kv_settings(leaf: KvLeaf) -> Iterator[Finding]:
    """CLOSED fixes the flags of each option (Table KVCache-1), the seeds, the trials and the delay between options."""
    flags, differences = kv_commands(leaf), []
    for option in OPTIONS:
        fixed = KV_OPTIONS[option]
        for stated in flags.get(option, []):
            different = [key for key in fixed if stated.get(key, fixed[key]) != fixed[key]]
            differences += [f"option {option}: {key} {stated[key]}" for key in different]
            differences += [f"option {option}: no {key}" for key in fixed if key not in stated]
            others = stated.keys() - fixed.keys() - _OF_THE_TOOL
            differences += [f"option {option}: --{key}" for key in sorted(others)]
        differences += _kv_summary_settings(leaf, option, fixed)
        for rank in leaf.of_option(option):
            elapsed, seed = rank.elapsed_seconds, count(rank.content.get("seed"), 0)
            if elapsed is not None and abs(elapsed - 300) > _DURATION_SLACK_SECONDS:  # Table KVCache-1: --duration 300
                differences.append(f"{rank.where}: {elapsed:.1f} s")
            if seed is not None and seed != 42 + rank.rank:  # Table KVCache-1: --seed-base 42, plus the rank
                differences.append(f"{rank.where}: seed {seed}")
    args = mapping(leaf.metadata.get("args"))
    differences += [f"{key} {args[key]}" for key, value in _SEQUENCE.items() if number(args.get(key, value)) != value]
    differences += ["a different --config"] if text(args.get("config_file")) else []
    differences = list(dict.fromkeys(differences))
    if differences:
        yield by_rule("kv.settings", few(differences, most=4))
    elif leaf.metadata and not flags:
        yield from unapplied("kv.settings", commands_of_the_options=None)


def _kv_length(leaf: KvLeaf) -> Iterator[Finding]:
    """The call of the tool lasted at least as long as the clocks of all its trials, which run one after another."""
    runtime = number(leaf.metadata.get("runtime"))
    trials = [trial for option in OPTIONS for trial in leaf.trials(option)]
    clocks = sum(max((rank.elapsed_seconds or 0 for rank in trial), default=0) for trial in trials)
    if runtime is not None and clocks > runtime + _DURATION_SLACK_SECONDS:
        seen = f"{len(trials)} trials of {clocks:.1f} s in all, the metadata's runtime is {runtime:.1f} s"
        yield by_rule("time.length", seen)


def _kv_summary_settings(leaf: KvLeaf, option: int, fixed: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings in the summary, of an option or of all, that are not the option's: few versions write any.

    The metadata's `args` are no such settings: they keep the command line's defaults, which the options override.
    """
    of_all = {"seed": fixed["seed-base"], "gpu-mem-gb": fixed["gpu-mem-gb"]}
    of_option = mapping(value_at(leaf.summary, f"options.{option}"))
    for place, wanted in ((leaf.summary, of_all), (of_option, {**fixed, **of_all})):
        for key, value in wanted.items():
            stated = canonical(place.get(key.replace("-", "_")))
            if stated is not None and stated != canonical(value):
                yield f"option {option}: {key} {stated} (summary.json)"


def copied_kv(results: Sequence[Result[Any]]) -> Iterator[Finding]:
    """Yield kv_cache runs with exactly the latencies of another run."""
    leaves = [leaf for result in results if result.benchmark == KV_CACHE for leaf in result.leaves]
    copies = {
        leaf.path: f"{rank.where} has the latencies of a rank of {first.path}"
        for (first, _), (leaf, rank) in copied_latencies(leaves)
        if first is not leaf
    }
    for path, seen in copies.items():
        yield by_rule_at(path, "kv.copied", seen)

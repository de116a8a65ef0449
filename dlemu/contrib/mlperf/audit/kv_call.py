"""Reads one run of v3.0's kv_cache benchmark, and computes an upper bound of its storage's throughput.

A run is one call of the tool, which runs each of 3 options in several trials, by default 3. It leaves a folder:

    kv_cache/llama3.1-8b/run/20260712_180000/
        kv_cache_20260712_180000_metadata.json
        summary.json: the published numbers, `aggregated_*`
        option_1/trial_0/rank_0/kvcache_results_20260712_180012.json: what one rank measured

The tool stops its clock after the configured time, but lets requests in progress finish: it counts their bytes, but not
their extra time. The *window* in which all bytes moved is at least as long as the slowest request, so bytes over this
time are an upper bound of the storage's throughput:

    clock     |------- 300 s -------|              published rate = all bytes / 300 s
    requests  |-----| |-----| |--------------|     slowest request: 376 s
    window    |------------------------------|     highest possible rate = all bytes / 376 s

Formulas: Rules.md of v3.0, section 6, and kv_cache_benchmark, both in https://github.com/mlcommons/storage. The tool's
numbers that end in `_gb` or `_gbps` are GiB and GiB/s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from dlemu.contrib.mlperf.audit.call_records import PHASES, CallRecords, read_call_records
from dlemu.contrib.mlperf.audit.tolerant import all_known, integer, mapping, number, numbers, read_json, value_at
from dlemu.contrib.mlperf.rules.known import Finding

OPTIONS = (1, 2, 3)  # the benchmark's three configurations, each run in several trials; only option 2 has a memory tier
Direction = Literal["read", "written"]  # in the keys of the tool's byte counts
VERBS: Mapping[Direction, str] = {"read": "read", "written": "write"}  # in the keys of its rates and latencies
_OPTION_FOLDER = re.compile(r"^option_(\d+)$")
_RANK_FILE = re.compile(r"option_(\d+)/trial_(\d+)/rank_(\d+)/kvcache_results_.*\.json")


@dataclass(frozen=True, kw_only=True)
class KvRank:
    """Results of one rank in one trial of one option."""

    folder: str  # of the run
    option: int
    trial: int
    rank: int
    content: Mapping[str, Any]

    @property
    def where(self) -> str:
        return f"option {self.option}, trial {self.trial}, rank {self.rank}"

    def number_at(self, dotted: str) -> float | None:
        return number(value_at(self.content, dotted))

    def numbers_at(self, dotted: str) -> list[float]:
        """Return the list of numbers at a dotted key; empty if there is none."""
        return numbers(value_at(self.content, dotted)) or []

    @property
    def summary(self) -> Mapping[str, Any]:
        return mapping(self.content.get("summary"))

    def stat(self, name: str) -> float | None:
        """Return a number from the statistics of the rank's cache."""
        return self.number_at(f"summary.cache_stats.{name}")

    def gib(self, tier: str, direction: Direction) -> float | None:
        """Return the GiB read from, or written to, a tier (`storage`, `cpu` or `gpu`); None if unknown."""
        return self.stat(f"tier_{tier}_kv_bytes_{direction}_gb")

    @property
    def elapsed_seconds(self) -> float | None:
        """Time on the tool's clock when it was stopped."""
        return self.number_at("summary.elapsed_time")

    @cached_property
    def latencies_seconds(self) -> tuple[float, ...]:
        """Time of each request from its arrival to its end."""
        return tuple(self.numbers_at("end_to_end_latencies"))

    @cached_property
    def window_seconds(self) -> float | None:
        """Shortest time in which all bytes can have moved: the clock's, or the slowest request's if that is longer."""
        if self.elapsed_seconds is None:
            return None
        classes = mapping(self.summary.get("qos_metrics")).values()
        slowest_ms = [number(value_at(qos_class, "latency_ms.max")) or 0.0 for qos_class in classes]
        return max([self.elapsed_seconds, *self.latencies_seconds, *(slowest / 1e3 for slowest in slowest_ms)])

    @property
    def time_ratio(self) -> float:
        """The window divided by the time on the tool's clock; 0 if unknown."""
        return (self.window_seconds or 0.0) / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def max_gib_per_second(self, direction: Direction) -> float | None:
        """Return the highest possible throughput of the storage: bytes over the shortest window; None if unknown."""
        gib = self.gib("storage", direction)
        return gib / self.window_seconds if gib is not None and self.window_seconds else None


@dataclass(frozen=True, kw_only=True)
class KvCall(CallRecords):
    """One call of the benchmark: the results of every rank in every trial of the three options."""

    ranks: tuple[KvRank, ...] = ()

    @property
    def rank_count(self) -> int | None:
        return integer(self.summary.get("total_ranks")) or integer(self.metadata.get("num_processes"))

    @property
    def trial_count(self) -> int | None:
        return integer(self.summary.get("trials_per_option")) or integer(self.args.get("trials"))

    def option_ranks(self, option: int) -> list[KvRank]:
        """Return the ranks of all trials of an option."""
        return [rank for rank in self.ranks if rank.option == option]

    def trials(self, option: int) -> list[list[KvRank]]:
        """Return a list of ranks for each trial of an option."""
        ranks = self.option_ranks(option)
        return [[rank for rank in ranks if rank.trial == trial] for trial in sorted({rank.trial for rank in ranks})]

    @property
    def trial_seconds(self) -> list[float]:
        """Time of each trial on the tool's clock, by the slowest rank; the trials of all options run in turn."""
        trials = [trial for option in OPTIONS for trial in self.trials(option)]
        return [max(rank.elapsed_seconds or 0.0 for rank in trial) for trial in trials]

    def published(self, option: int, metric: str) -> float | None:
        """Return an aggregate metric of an option, by the summary."""
        return number(value_at(self.summary, f"options.{option}.aggregated_{metric}"))

    def max_gib_per_second(self, option: int, direction: Direction) -> float | None:
        """Return an option's highest possible throughput; None if a rank's is unknown."""
        return mean_of_sums([rank.max_gib_per_second(direction) for rank in trial] for trial in self.trials(option))


def mean_of_sums(trials: Iterable[Iterable[float | None]]) -> float | None:
    """Return the sum over ranks, averaged over trials (rule 6.3.4.1); None if any rank's number is unknown."""
    numbers_by_trial = [all_known(trial) for trial in trials]
    sums = all_known(None if trial is None else sum(trial) for trial in numbers_by_trial)
    return fmean(sums) if sums else None


def is_kv_call(subfolders: Sequence[str]) -> bool:
    """Return whether a folder with these subfolders holds a run of kv_cache."""
    return any(_OPTION_FOLDER.match(name) for name in subfolders)


def read_kv_call(folder: str) -> KvCall:
    """Read the folder of a call; `broken` has a finding for each file that can't be read."""
    parent = os.path.basename(os.path.dirname(folder))
    records = read_call_records(folder, phase=parent if parent in PHASES else "run")
    paths = glob("option_*/trial_*/rank_*/kvcache_results_*.json", root_dir=folder)
    matches = filter(None, map(_RANK_FILE.fullmatch, paths))
    ranks = []
    broken: list[Finding] = []
    for (option, trial, rank), path in sorted((tuple(map(int, match.groups())), match[0]) for match in matches):
        content = mapping(read_json(os.path.join(folder, path), broken))
        ranks.append(KvRank(folder=folder, option=option, trial=trial, rank=rank, content=content))
    return KvCall(**vars(records) | {"ranks": tuple(ranks), "broken": (*records.broken, *broken)})


def kv_commands(call: KvCall) -> dict[int, list[dict[str, str]]]:
    """Return option -> the flags (`num-users` -> `200`) of each of its trials' commands in the metadata."""
    commands: dict[int, list[dict[str, str]]] = {}
    for command in call.commands:
        flags = {flag[2:]: value for flag, value in pairwise(command.split()) if flag.startswith("--")}
        option = re.search(r"option_(\d+)", flags.get("rank-output-base", ""))
        if option:
            commands.setdefault(int(option[1]), []).append(flags)
    return commands


def ranks_with_copied_latencies(ranks: Iterable[KvRank]) -> Iterator[tuple[KvRank, KvRank]]:
    """Yield (original, copy) for every rank with exactly the latencies of an earlier rank."""
    originals: dict[tuple[float, ...], KvRank] = {}
    for rank in ranks:
        latencies = tuple(round(seconds, 6) for seconds in rank.latencies_seconds)
        original = originals.setdefault(latencies, rank)
        if latencies and original is not rank:
            yield original, rank

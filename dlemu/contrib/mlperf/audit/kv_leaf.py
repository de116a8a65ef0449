"""Reads one run of v3.0's kv_cache benchmark, finds contradictions in it, and bounds its true throughput.

The tool stops its clock after the configured time, but lets requests in progress finish: it counts their bytes, not
their extra time. The *window*, the time in which all bytes moved, is at least as long as the slowest request, so bytes
over that time are an upper bound of the storage's throughput (Rules.md of v3.0, section 6; formulas of
kv_cache_benchmark, both in https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlemu.contrib.mlperf.audit.papers import PHASES, Papers, read_papers
from dlemu.contrib.mlperf.audit.tolerant import (
    SUM_TOLERANCE,
    count,
    mapping,
    number,
    numbers,
    read_json,
    same_sum,
    text,
    value_at,
)
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, few, unapplied
from dlemu.contrib.mlperf.rules.training import GIB

SECTOR_BYTES = 512
"""Unit of /proc/diskstats, whatever sectors the device has."""
OPTIONS = (1, 2, 3)
"""The benchmark's three configurations, each run in several trials; only option 2 has a memory tier."""
_OPTION, _TRIAL, _RANK = (re.compile(rf"^{name}_(\d+)$") for name in ("option", "trial", "rank"))
_RESULT = re.compile(r"^kvcache_results_.*\.json$")
_PARTITION = re.compile(r"^(?:(?:nvme\d+n\d+|mmcblk\d+)p\d+|[shv]d[a-z]+\d+)$")
_STACKED = re.compile(r"^(?:loop|ram|zram|sr|dm-|md)\d*")
"""Devices that pass their requests on to other devices, which are counted themselves."""
_MAX_TIME_RATIO = 1.01
"""Windows and busy times of devices are reported if they exceed the time of the tool's clock by a larger factor."""
_TOKEN_BYTES = {
    "llama3.1-8b": 131_072,
    "mistral-7b": 131_072,
    "llama3.1-70b-instruct": 327_680,
    "llama2-7b": 524_288,
    "tiny-1b": 24_576,
}
"""Model -> bytes of a token: layers x KV heads x head dimension x 2 (K and V) x 2 bytes (fp16), as published."""
_TOKEN_TOLERANCE = 0.05  # relative; padding adds far less, a wrong model or wrong number of tokens changes more
_MIN_DEVICE_SHARE = 0.9
"""If devices read a smaller share of the bytes that ranks read, something else served the rest."""
_STORAGE = "summary.cache_stats.tier_storage"
AGGREGATES = {
    "read_bandwidth_gbps": f"{_STORAGE}_read_bandwidth_gbps",
    "write_bandwidth_gbps": f"{_STORAGE}_write_bandwidth_gbps",
    "avg_throughput_tokens_per_sec": "summary.avg_throughput_tokens_per_sec",
    "storage_throughput_tokens_per_sec": "summary.storage_throughput_tokens_per_sec",
}
"""Numbers of each option: name in the summary after `aggregated_` -> a rank's share of it."""
_P95 = "summary.storage_io_latency_ms.p95"
"""The 95th percentile of the storage's latency."""


@dataclass(frozen=True, kw_only=True)
class KvRank:
    """Results of one rank in one trial of one option."""

    option: int
    trial: int
    rank: int
    content: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Option, trial and rank, for messages."""
        return f"option {self.option}, trial {self.trial}, rank {self.rank}"

    def number_at(self, dotted: str) -> float | None:
        """Return the number at a dotted key; None without one."""
        return number(value_at(self.content, dotted))

    @property
    def summary(self) -> Mapping[str, Any]:
        """Summary of the rank."""
        return mapping(self.content.get("summary"))

    def stat(self, name: str) -> float | None:
        """Return a number from the statistics of the rank's cache."""
        return self.number_at(f"summary.cache_stats.{name}")

    def gib(self, tier: str, way: str) -> float:
        """Return the GiB `read` from or `written` to a tier (`storage`, `cpu` or `gpu`)."""
        return self.stat(f"tier_{tier}_kv_bytes_{way}_gb") or 0.0

    @property
    def elapsed_seconds(self) -> float | None:
        """Time on the tool's clock when it stopped."""
        return self.number_at("summary.elapsed_time")

    @cached_property
    def latencies_seconds(self) -> tuple[float, ...]:
        """Time of each request from its arrival to its end."""
        return tuple(numbers(self.content.get("end_to_end_latencies")) or ())

    @cached_property
    def window_seconds(self) -> float | None:
        """Shortest time in which all bytes can have moved: the clock's, or the slowest request's if that is longer."""
        classes = map(mapping, mapping(self.summary.get("qos_metrics")).values())
        stated = [number(mapping(each.get("latency_ms")).get("max")) for each in classes]
        known = [*self.latencies_seconds, *(value / 1e3 for value in stated if value is not None)]
        return None if self.elapsed_seconds is None else max([self.elapsed_seconds, *known])

    def max_gib_per_second(self, way: str) -> float | None:
        """Return the highest possible throughput of the storage: bytes over the shortest window."""
        return self.gib("storage", way) / self.window_seconds if self.window_seconds else None


@dataclass(frozen=True, kw_only=True)
class KvLeaf(Papers):
    """One run: three options, with three trials each, of every rank."""

    ranks: tuple[KvRank, ...] = ()

    @property
    def rank_count(self) -> int | None:
        """Number of ranks."""
        return count(self.summary.get("total_ranks")) or count(self.metadata.get("num_processes"))

    @property
    def trial_count(self) -> int | None:
        """Number of trials of each option."""
        return count(self.summary.get("trials_per_option")) or count(self.args.get("trials"))

    def trials(self, option: int) -> list[list[KvRank]]:
        """Return a list of ranks for each trial of an option."""
        trials = sorted({rank.trial for rank in self.ranks if rank.option == option})
        return [[rank for rank in self.ranks if (rank.option, rank.trial) == (option, trial)] for trial in trials]

    def published(self, option: int, name: str) -> float | None:
        """Return one of an option's numbers in the summary."""
        return number(value_at(self.summary, f"options.{option}.aggregated_{name}"))

    def of_option(self, option: int) -> list[KvRank]:
        """Return the ranks of all trials of an option."""
        return [rank for trial in self.trials(option) for rank in trial]

    def max_gib_per_second(self, option: int, way: str) -> float | None:
        """Return an option's highest possible throughput: sum of ranks, mean of trials, as in the rules (6.3.4.1)."""
        trials = [[rank.max_gib_per_second(way) for rank in trial] for trial in self.trials(option)]
        known = [[value for value in trial if value is not None] for trial in trials]
        return fmean(map(sum, known)) if trials and trials == known else None


def is_kv_leaf(below: Sequence[str]) -> bool:
    """Return whether a folder with these subfolders is a run of kv_cache."""
    return any(_OPTION.match(name) for name in below)


def read_kv_leaf(folder: str) -> KvLeaf:
    """Read the folder of a run; what can't be read becomes one of its findings (`broken`)."""
    above, ranks = os.path.basename(os.path.dirname(folder)), []
    papers = read_papers(folder, phase=above if above in PHASES else "run")
    broken: list[Finding] = []
    for inside, (option, trial, rank) in _rank_folders(folder):
        for name in sorted(os.listdir(inside)):
            if _RESULT.match(name):
                content = mapping(read_json(os.path.join(inside, name), broken))
                ranks.append(KvRank(option=option, trial=trial, rank=rank, content=content))
    return KvLeaf(**vars(papers) | {"ranks": tuple(ranks), "broken": (*papers.broken, *broken)})


def _rank_folders(folder: str, levels: Sequence[re.Pattern[str]] = (_OPTION, _TRIAL, _RANK)) -> Iterator[Any]:
    """Yield each folder option_O/trial_T/rank_R with (O, T, R)."""
    if not levels:
        yield folder, ()
        return
    found = [(int(match[1]), name) for name in os.listdir(folder) if (match := levels[0].match(name))]
    for place, name in sorted(found):
        if os.path.isdir(os.path.join(folder, name)):
            for inside, places in _rank_folders(os.path.join(folder, name), levels[1:]):
                yield inside, (place, *places)


def kv_numbers(leaf: KvLeaf) -> Iterator[Finding]:
    """Yield contradictions in a run's files, and how far its published numbers can be trusted."""
    yield from leaf.broken
    for rule in (_missing, _rank_numbers, _aggregates, _windows, _devices, _tiers, _tokens):
        yield from rule(leaf)
    for (_, first), (_, rank) in copied_latencies([leaf]):
        yield by_rule("kv.copied", f"{rank.where} has the latencies of {first.where}")


def _missing(leaf: KvLeaf) -> Iterator[Finding]:
    seen = [] if leaf.summary else ["no summary.json"]
    seen += [] if leaf.metadata else ["no *_metadata.json: the tool skips the run"]
    ranks, trials = leaf.rank_count or 1, leaf.trial_count or 1
    found = {(rank.option, rank.trial, rank.rank) for rank in leaf.ranks if rank.summary}
    expected = [(option, trial, rank) for option in OPTIONS for trial in range(trials) for rank in range(ranks)]
    missing = [place for place in expected if place not in found]
    if missing:
        first = "option_{}/trial_{}/rank_{}".format(*missing[0])
        seen.append(f"results of {len(missing)} of {len(expected)} ranks missing, the first {first}")
    stated = [name for name, value in leaf.summary.items() if name in ("partial_failure", "trial_failures") and value]
    parts = mapping(leaf.summary.get("options"))
    lost = sum(len(files) for each in parts.values() if isinstance(files := mapping(each).get("missing_files"), list))
    stated += [
        f"partial_failure of option {name}" for name, each in parts.items() if mapping(each).get("partial_failure")
    ]
    seen += _figures_missing(leaf)
    if stated or lost:
        flags = ", ".join(stated) or "no failure"
        seen.append(f"the tool itself reports {flags}, {lost} missing files: its means are of the other files")
    if seen:
        yield by_rule("kv.missing", "; ".join(seen))


_PUBLISHED = ("read_bandwidth_gbps", "write_bandwidth_gbps", "avg_throughput_tokens_per_sec")
"""Numbers of each option that the published tables have."""
_OF_A_RANK = (
    *AGGREGATES.values(),
    *("summary.elapsed_time", "summary.total_requests", _P95, f"{_STORAGE}_kv_bytes_read_gb"),
    *(f"{_STORAGE}_kv_bytes_written_gb", "summary.cache_stats.tier_cpu_kv_bytes_read_gb", "summary.total_tokens"),
    *("summary.total_storage_io_time", "end_to_end_latencies", "requests_completed", "seed"),
)
"""What a rank has if the others of its run have it: one version of the tool wrote all."""
_OF_SOME_VERSIONS = (AGGREGATES["storage_throughput_tokens_per_sec"], "requests_completed", "seed")
"""Of these, what not every version of the tool writes."""


def _figures_missing(leaf: KvLeaf) -> Iterator[str]:
    """Yield which published numbers the summary lacks, and which numbers some ranks of an option lack."""
    for option in OPTIONS:
        ranks = [rank for rank in leaf.of_option(option) if rank.summary]
        lacking = [name for name in _PUBLISHED if leaf.summary and leaf.published(option, name) is None]
        if ranks and lacking:
            yield f"option {option}: no {', '.join(f'aggregated_{name}' for name in lacking)}"
        for name in _OF_A_RANK:
            stated = {rank.where: value_at(rank.content, name) for rank in ranks}
            without = [where for where, value in stated.items() if number(value) is None and numbers(value) is None]
            if without and len(without) < len(ranks):
                yield f"{without[0]}: no {name}, which others have"
            elif without and name not in _OF_SOME_VERSIONS:
                yield f"option {option}: no {name} of any rank"


def _rank_numbers(leaf: KvLeaf) -> Iterator[Finding]:
    """Compare each rank's rates with its bytes, tokens and time, and its number of requests with its latencies."""
    problems = []
    for rank in leaf.ranks:
        took, requests = rank.elapsed_seconds, count(rank.summary.get("total_requests"), 0)
        for way, word in (("read", "read"), ("written", "write")):
            stated, moved = rank.stat(f"tier_storage_{word}_bandwidth_gbps"), rank.gib("storage", way)
            if took and stated is not None and not same_sum(stated, moved / took):
                problems.append(f"{rank.where}: {stated:.4g} GiB/s {way}, but bytes over time are {moved / took:.4g}")
        tokens, storage = rank.number_at("summary.total_tokens"), rank.number_at("summary.total_storage_io_time")
        for name, seconds in (("avg", took), ("storage", storage)):
            stated = rank.number_at(f"summary.{name}_throughput_tokens_per_sec")
            if tokens is not None and seconds and stated is not None and not same_sum(stated, tokens / seconds):
                tail = f"but tokens over time are {tokens / seconds:.6g}"
                problems.append(f"{rank.where}: {name}_throughput_tokens_per_sec is {stated:.6g}, {tail}")
        kept = len(rank.latencies_seconds)
        if requests is not None and kept and requests != kept:
            problems.append(f"{rank.where}: {requests} requests, but {kept} latencies")
        completed = count(rank.content.get("requests_completed"), 0)
        if requests is not None and completed is not None and requests != completed:
            problems.append(f"{rank.where}: {requests} requests, but {completed} completed")
        problems += [f"{rank.where}: {problem}" for problem in _latency_problems(rank)]
    if problems:
        yield by_rule("kv.differs", few(problems))


def _latency_problems(rank: KvRank) -> Iterator[str]:
    """Yield what a rank's latencies contradict: their sum, and their 95th percentile, which is published."""
    waits = sorted(numbers(rank.content.get("storage_latencies")) or ())
    total, p95 = rank.number_at("summary.total_storage_io_time"), rank.number_at(_P95)
    if waits and total is not None and not same_sum(total, math.fsum(waits)):
        yield f"total_storage_io_time is {total:.6g}, the sum of storage_latencies {math.fsum(waits):.6g}"
    if waits and p95 is not None:
        place = math.floor(0.95 * (len(waits) - 1))  # ways to interpolate differ by less than the neighbours
        low, high = (1e3 * waits[min(max(0, place + step), len(waits) - 1)] for step in (-1, 2))
        if not low * (1 - SUM_TOLERANCE) <= p95 <= high * (1 + SUM_TOLERANCE):
            yield f"storage_io_latency_ms.p95 is {p95:.6g}, storage_latencies give {low:.6g} to {high:.6g}"


_OLD_AGGREGATIONS: Mapping[str, Callable[[list[list[float]]], float]] = {
    "the mean over ranks and trials": lambda trials: fmean(value for trial in trials for value in trial),
    "the sum over ranks and trials": lambda trials: sum(value for trial in trials for value in trial),
}
"""How older versions of the tool aggregated ranks and trials."""


def _aggregates(leaf: KvLeaf) -> Iterator[Finding]:
    """Compare the summary with its ranks' numbers, summed over ranks and averaged over trials (6.3.4.1, 6.3.4.2)."""
    for option in OPTIONS:
        trials = leaf.trials(option)
        for name, part in AGGREGATES.items() if trials else ():
            printed = leaf.published(option, name)
            stated = [[rank.number_at(part) for rank in trial] for trial in trials]
            parts = [[value for value in trial if value is not None] for trial in stated]
            if printed is None or parts != stated:
                if leaf.summary:
                    lacking = printed if printed is None else None
                    yield from unapplied("kv.differs", **{f"{name}_of_option_{option}": lacking})
                continue
            recomputed = fmean(map(sum, parts))
            if same_sum(printed, recomputed):
                continue
            seen = f"option {option}: aggregated_{name} is {printed:.6g}, the ranks' sum, averaged over trials, is"
            how = next((way for way, value in _OLD_AGGREGATIONS.items() if same_sum(printed, value(parts))), None)
            if how:
                yield by_rule("kv.aggregate", f"{seen} {recomputed:.6g}; it is {how} instead")
            else:
                yield by_rule("kv.differs", f"{seen} {recomputed:.6g}")
        slowest = [rank.number_at(_P95) for rank in leaf.of_option(option)]
        known = [value for value in slowest if value is not None]
        printed = leaf.published(option, "p95_latency_ms")
        if leaf.summary and known:
            yield from unapplied("kv.differs", **{f"p95_latency_ms_of_option_{option}": printed})
        if printed is not None and known and not same_sum(printed, max(known)):
            seen = f"option {option}: aggregated_p95_latency_ms is {printed:.6g}, the ranks' largest {max(known):.6g}"
            yield by_rule("kv.differs", seen)
        wanted = {"option": option, "rank_count": leaf.rank_count, "trial_count": leaf.trial_count}
        for name, value in wanted.items():
            counted = count(value_at(leaf.summary, f"options.{option}.{name}"))
            if None not in (counted, value) and counted != value:
                yield by_rule("kv.differs", f"option {option}: {name} is {counted}, the run has {value}")


def _windows(leaf: KvLeaf) -> Iterator[Finding]:
    """List each option's published throughput beside the highest possible one."""
    for option in OPTIONS:
        ranks = leaf.of_option(option)
        windows = [
            rank.window_seconds / rank.elapsed_seconds for rank in ranks if rank.window_seconds and rank.elapsed_seconds
        ]
        shown = []
        for way, word in (("read", "read"), ("written", "write")):
            printed, most = leaf.published(option, f"{word}_bandwidth_gbps"), leaf.max_gib_per_second(option, way)
            shown.append(f"{word} {_rate(printed)} published, at most {_rate(most)} GiB/s")
        p95 = [(word, [rank.stat(f"storage_{word}_device_p95_ms") for rank in ranks]) for word in ("read", "write")]
        slow = [f"{word} {max(filter(None, values)):,.0f} ms" for word, values in p95 if any(values)]
        devices = f"; device p95 (6.3.4.3): {', '.join(slow)}" if slow else ""
        what = f"option {option}: {', '.join(shown)}{devices}"
        if windows and max(windows) > _MAX_TIME_RATIO:
            slowest = max(ranks, key=lambda rank: rank.window_seconds or 0)
            took = f"{slowest.window_seconds:.1f} s, the tool's clock ran for {slowest.elapsed_seconds:.1f} s"
            yield by_rule("kv.window", f"{what}; the slowest request took {took}")
        elif ranks:
            yield by_rule("kv.listed", what)


def _rate(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"


def _devices(leaf: KvLeaf) -> Iterator[Finding]:
    """Compare the run's bytes and time with the counters of its hosts' kernels (/proc/diskstats)."""
    moved = {way: sum(rank.gib("storage", way) for rank in leaf.ranks) for way in ("read", "written")}
    all_trials = [trial for option in OPTIONS for trial in leaf.trials(option)]
    clock = sum(max((rank.elapsed_seconds or 0 for rank in trial), default=0) for trial in all_trials)
    devices = device_work(leaf.metadata)
    busiest = max(devices, key=lambda name: sum(devices[name][:2]), default=None)
    # Devices that moved less than 1 % of the ranks' bytes did not hold the cache.
    if busiest is None or not clock or sum(devices[busiest][:2]) < 0.01 * sum(moved.values()):
        yield from unapplied("kv.device", counters_of_devices_that_held_the_cache=None)
        return
    read, written = (sum(each[index] for each in devices.values()) for index in (0, 1))
    busy = devices[busiest][2]
    seen = (
        f"devices read {read:,.1f} and wrote {written:,.1f} GiB, the ranks {moved['read']:,.1f} and"
        f" {moved['written']:,.1f}; {busiest} was busy for {busy:,.0f} s of {clock:,.0f} s of load"
    )
    if busy > clock * _MAX_TIME_RATIO:
        yield by_rule(
            "kv.device", f"{seen}: the published rates are {100 * (busy / clock - 1):.0f} % too high on average"
        )
    elif moved["read"] and read < _MIN_DEVICE_SHARE * moved["read"]:
        yield by_rule("kv.device", seen)
    else:
        yield by_rule("kv.device", seen, fix="nothing: device and benchmark agree", severity="info")


def device_work(metadata: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return `host:device` -> (GiB read, GiB written, busy seconds) between the snapshots at start and end.

    Partitions and stacked devices are left out: the devices below them count their requests.
    """
    before, after = (_counters(value_at(metadata, f"cluster_snapshots.{name}.hosts")) for name in ("start", "end"))
    work = {}
    for name in before.keys() & after.keys():
        read, written, busy = (last - first for first, last in zip(before[name], after[name], strict=True))
        work[name] = (read * SECTOR_BYTES / GIB, written * SECTOR_BYTES / GIB, busy / 1e3)
    return work


def _counters(hosts: object) -> dict[str, list[float]]:
    found = {}
    for host in map(mapping, hosts if isinstance(hosts, list) else ()):
        disks = host.get("disks")
        for disk in map(mapping, disks if isinstance(disks, list) else ()):
            name = text(disk.get("device_name"))
            stated = [number(disk.get(key)) for key in ("sectors_read", "sectors_written", "time_doing_ios_ms")]
            known = [value for value in stated if value is not None]
            if name and len(known) == len(stated) and not (_PARTITION.match(name) or _STACKED.match(name)):
                found[f"{host.get('hostname')}:{name}"] = known
    return found


def _tiers(leaf: KvLeaf) -> Iterator[Finding]:
    """Yield which share of the bytes read came from memory; in options 1 and 3 there must be none."""
    for option in OPTIONS:
        ranks = leaf.of_option(option)
        memory = sum(rank.gib(tier, "read") for rank in ranks for tier in ("cpu", "gpu"))
        storage = sum(rank.gib("storage", "read") for rank in ranks)
        if not memory:
            continue
        total = memory + storage
        seen = f"option {option}: {100 * memory / total:.1f} % of {total:,.0f} GiB read from memory"
        if option != 2:
            yield by_rule("kv.tiers", seen)
        elif not storage:
            yield by_rule("kv.tiers", f"{seen}, none from the storage", fix="submit the option as OPEN")
        else:
            fix = "take the option as one of memory: the faster the storage, the larger the memory's share"
            yield by_rule("kv.tiers", seen, fix=fix, severity="info")


def _tokens(leaf: KvLeaf) -> Iterator[Finding]:
    """Compare the bytes per token with the model's: if they differ, the tokens/s are wrong."""
    models = {option: stated[0].get("model") for option, stated in kv_commands(leaf).items()}
    for option in OPTIONS:
        ranks = leaf.of_option(option)
        tokens = sum(rank.stat("storage_tokens_processed") or 0 for rank in ranks)
        moved = sum(rank.gib("storage", way) for rank in ranks for way in ("read", "written")) * GIB
        wanted = _TOKEN_BYTES.get(models.get(option) or "")
        if not tokens or not wanted:
            yield from unapplied("kv.tokens", **{f"tokens_or_model_of_option_{option}": None}) if ranks else ()
        elif abs(moved / tokens / wanted - 1) > _TOKEN_TOLERANCE:
            seen = f"option {option}: {moved / tokens:,.0f} bytes per token, {models[option]} has {wanted:,}"
            yield by_rule("kv.tokens", seen)


def kv_commands(leaf: KvLeaf) -> dict[int, list[dict[str, str]]]:
    """Return option -> the command-line options (`num-users` -> `200`) of each of its trials that the metadata has."""
    found: dict[int, list[dict[str, str]]] = {}
    for command in leaf.commands:
        words = command.split()
        stated = {word[2:]: value for word, value in pairwise(words) if word.startswith("--")}
        option = re.search(r"option_(\d+)", stated.get("rank-output-base", ""))
        if option:
            found.setdefault(int(option[1]), []).append(stated)
    return found


def copied_latencies(leaves: Sequence[KvLeaf]) -> Iterator[tuple[tuple[KvLeaf, KvRank], tuple[KvLeaf, KvRank]]]:
    """Yield a run and rank of it, and another one after it with the same latencies."""
    known: dict[tuple[float, ...], tuple[KvLeaf, KvRank]] = {}
    for each in ((leaf, rank) for leaf in leaves for rank in leaf.ranks):
        key = tuple(round(value, 6) for value in each[1].latencies_seconds)
        if key and (first := known.setdefault(key, each)) is not each:
            yield first, each

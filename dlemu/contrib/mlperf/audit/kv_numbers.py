"""Finds contradictions in the numbers of a kv_cache run, and reports how far its published numbers can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean

from dlemu.contrib.mlperf.audit import kv_call
from dlemu.contrib.mlperf.audit.call_records import device_work
from dlemu.contrib.mlperf.audit.kv_call import OPTIONS, VERBS, KvCall, KvRank, kv_commands, ranks_with_copied_latencies
from dlemu.contrib.mlperf.audit.tolerant import SUM_TOLERANCE, all_known, integer, mapping, same_sum, sequence, value_at
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, first_few, unapplied
from dlemu.contrib.mlperf.rules.training import GIB

_MAX_TIME_RATIO = 1.01  # of a window, or a device's busy time, to the time on the tool's clock; more is reported
_TOKEN_BYTES = {
    "llama3.1-8b": 131_072,
    "mistral-7b": 131_072,
    "llama3.1-70b-instruct": 327_680,
    "llama2-7b": 524_288,
    "tiny-1b": 24_576,
}
"""Model -> bytes of a token: layers x KV heads x head dimension x 2 (K and V) x 2 bytes (fp16), as published."""
_TOKEN_TOLERANCE = 0.05  # relative; padding adds far less, a wrong model or number of tokens changes more
_MIN_DEVICE_SHARE = 0.9  # if devices read a smaller share of the ranks' bytes, something else served the rest
_MIN_CACHE_SHARE = 0.01  # a device that moved a smaller share of the ranks' bytes did not hold the cache
_STORAGE = "summary.cache_stats.tier_storage"
_AGGREGATES = {
    "read_bandwidth_gbps": f"{_STORAGE}_read_bandwidth_gbps",
    "write_bandwidth_gbps": f"{_STORAGE}_write_bandwidth_gbps",
    "avg_throughput_tokens_per_sec": "summary.avg_throughput_tokens_per_sec",
    "storage_throughput_tokens_per_sec": "summary.storage_throughput_tokens_per_sec",
}
"""Aggregate metric in summary.json (without its prefix `aggregated_`) -> the metric of each rank that it sums up."""
_OLD_AGGREGATIONS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "the mean over ranks and trials": fmean,
    "the sum over ranks and trials": sum,
}
"""How older versions of the tool aggregated wrongly -> the function of all ranks' values in all trials."""
_PUBLISHED = ("read_bandwidth_gbps", "write_bandwidth_gbps", "avg_throughput_tokens_per_sec")
"""Aggregate metrics of each option in the published tables."""
_P95_MS = "summary.storage_io_latency_ms.p95"
_IN_SOME_VERSIONS = (_AGGREGATES["storage_throughput_tokens_per_sec"], "requests_completed", "seed")
"""Metrics of a rank that only some versions of the tool write; in one run, all ranks have them or none."""
_IN_ALL_VERSIONS = (
    *(_AGGREGATES[metric] for metric in _PUBLISHED),
    "summary.elapsed_time", "summary.total_requests", _P95_MS, f"{_STORAGE}_kv_bytes_read_gb",
    f"{_STORAGE}_kv_bytes_written_gb", "summary.cache_stats.tier_cpu_kv_bytes_read_gb", "summary.total_tokens",
    "summary.total_storage_io_time", "end_to_end_latencies",
)  # fmt: skip
"""Metrics of a rank that every version of the tool writes."""


def kv_numbers(call: KvCall) -> Iterator[Finding]:
    """Report contradictions in a run's files, and how far its published numbers can be trusted."""
    yield from call.broken
    missing = [*_files_missing(call), *_metrics_missing(call), *_reported_failures(call)]
    if missing:
        yield by_rule("kv.missing", "; ".join(missing))
    problems = [f"{rank.where}: {problem}" for rank in call.ranks for problem in _rank_problems(rank)]
    if problems:
        yield by_rule("kv.differs", first_few(problems))
    for rule in (_aggregates, _windows, _devices, _tiers, _tokens):
        yield from rule(call)
    for original, copy in ranks_with_copied_latencies(call.ranks):
        yield by_rule("kv.copied", f"{copy.where} has the latencies of {original.where}")


def _files_missing(call: KvCall) -> Iterator[str]:
    if not call.summary:
        yield "no summary.json"
    if not call.metadata:
        yield "no *_metadata.json: the tool skips the run"
    trials, ranks = call.trial_count or 1, call.rank_count or 1
    present = {(rank.option, rank.trial, rank.rank) for rank in call.ranks if rank.summary}
    # A generator, as a damaged summary may name any number of ranks.
    expected = ((option, trial, rank) for option in OPTIONS for trial in range(trials) for rank in range(ranks))
    first_missing = next((key for key in expected if key not in present), None)
    if first_missing is not None:
        total = len(OPTIONS) * trials * ranks
        found = sum(option in OPTIONS and trial < trials and rank < ranks for option, trial, rank in present)
        first = "option_{}/trial_{}/rank_{}".format(*first_missing)
        yield f"results of {total - found} of {total} ranks missing, the first {first}"


def _metrics_missing(call: KvCall) -> Iterator[str]:
    """Yield phrases on published metrics that the summary lacks, and on metrics that ranks lack."""
    for option in OPTIONS:
        ranks = [rank for rank in call.option_ranks(option) if rank.summary]
        unpublished = [f"aggregated_{metric}" for metric in _PUBLISHED if call.published(option, metric) is None]
        if call.summary and ranks and unpublished:
            yield f"option {option}: no {', '.join(unpublished)}"
        for key in (*_IN_ALL_VERSIONS, *_IN_SOME_VERSIONS):
            without = [rank.where for rank in ranks if rank.number_at(key) is None and not rank.numbers_at(key)]
            if without and len(without) < len(ranks):
                yield f"{without[0]}: no {key}, which others have"
            elif without and key not in _IN_SOME_VERSIONS:
                yield f"option {option}: no {key} of any rank"


def _reported_failures(call: KvCall) -> Iterator[str]:
    """Yield a phrase on the failures that the tool itself reports in the summary."""
    options = {name: mapping(option) for name, option in mapping(call.summary.get("options")).items()}
    failures = [key for key in ("partial_failure", "trial_failures") if call.summary.get(key)]
    failures += [f"partial_failure of option {name}" for name in options if options[name].get("partial_failure")]
    missing = sum(len(sequence(option.get("missing_files"))) for option in options.values())
    if failures or missing:
        flags = ", ".join(failures) or "no failure"
        yield f"the tool itself reports {flags}, {missing} missing files: its means are of the other files"


def _rank_problems(rank: KvRank) -> Iterator[str]:
    """Yield contradictions between a rank's rates, bytes, tokens and times, and between its counts of requests."""
    elapsed_seconds = rank.elapsed_seconds
    for direction, verb in VERBS.items():
        rate = rank.stat(f"tier_storage_{verb}_bandwidth_gbps")
        gib = rank.gib("storage", direction)
        if rate is not None and gib is not None and elapsed_seconds and not same_sum(rate, gib / elapsed_seconds):
            yield f"{rate:.4g} GiB/s {direction}, but bytes over time are {gib / elapsed_seconds:.4g}"
    tokens = rank.number_at("summary.total_tokens")
    io_seconds = rank.number_at("summary.total_storage_io_time")
    for prefix, seconds in (("avg", elapsed_seconds), ("storage", io_seconds)):
        key = f"{prefix}_throughput_tokens_per_sec"
        rate = rank.number_at(f"summary.{key}")
        if rate is not None and tokens is not None and seconds and not same_sum(rate, tokens / seconds):
            yield f"{key} is {rate:.6g}, but tokens over time are {tokens / seconds:.6g}"
    requests = integer(rank.summary.get("total_requests"), minimum=0)
    latencies = len(rank.latencies_seconds)
    if requests is not None and latencies and requests != latencies:
        yield f"{requests} requests, but {latencies} latencies"
    completed = integer(rank.content.get("requests_completed"), minimum=0)
    if requests is not None and completed is not None and requests != completed:
        yield f"{requests} requests, but {completed} completed"
    yield from _latency_problems(rank, io_seconds)


def _latency_problems(rank: KvRank, io_seconds: float | None) -> Iterator[str]:
    """Yield contradictions of a rank's latencies with their sum, and with their published 95th percentile."""
    latencies = sorted(rank.numbers_at("storage_latencies"))
    if not latencies:
        return
    total = math.fsum(latencies)
    if io_seconds is not None and not same_sum(io_seconds, total):
        yield f"total_storage_io_time is {io_seconds:.6g}, the sum of storage_latencies {total:.6g}"
    p95_ms = rank.number_at(_P95_MS)
    if p95_ms is not None:
        # Methods of interpolating a percentile differ by less than one neighbour on either side.
        last = len(latencies) - 1
        index = math.floor(0.95 * last)
        low_ms, high_ms = 1e3 * latencies[max(0, index - 1)], 1e3 * latencies[min(index + 2, last)]
        if not low_ms * (1 - SUM_TOLERANCE) <= p95_ms <= high_ms * (1 + SUM_TOLERANCE):
            yield f"storage_io_latency_ms.p95 is {p95_ms:.6g}, storage_latencies give {low_ms:.6g} to {high_ms:.6g}"


def _aggregates(call: KvCall) -> Iterator[Finding]:
    """The summary's metrics of each option follow from those of its ranks (6.3.4.1, 6.3.4.2)."""
    for option in OPTIONS:
        if call.option_ranks(option):
            for metric, rank_metric in _AGGREGATES.items():
                yield from _aggregate(call, option, metric, rank_metric)
        yield from _aggregated_p95(call, option)
        expected = {"option": option, "rank_count": call.rank_count, "trial_count": call.trial_count}
        for key, counted in expected.items():
            published = integer(value_at(call.summary, f"options.{option}.{key}"))
            if published is not None and counted is not None and published != counted:
                yield by_rule("kv.differs", f"option {option}: {key} is {published}, the run has {counted}")


def _aggregate(call: KvCall, option: int, metric: str, rank_metric: str) -> Iterator[Finding]:
    """An aggregate metric of an option is the sum over ranks, averaged over trials."""
    published = call.published(option, metric)
    trials = [[rank.number_at(rank_metric) for rank in trial] for trial in call.trials(option)]
    recomputed = kv_call.mean_of_sums(trials)
    if published is None or recomputed is None:
        if call.summary:
            missing = metric if published is None else f"a rank's {metric}"
            yield from unapplied("kv.differs", {f"{missing} of option {option}": None})
        return
    if same_sum(published, recomputed):
        return
    seen = f"option {option}: aggregated_{metric} is {published:.6g}, the ranks' sum, averaged over trials, is"
    values = [value for trial in trials for value in trial if value is not None]
    for description, aggregate in _OLD_AGGREGATIONS.items():
        if same_sum(published, aggregate(values)):
            yield by_rule("kv.aggregate", f"{seen} {recomputed:.6g}; it is {description} instead")
            return
    yield by_rule("kv.differs", f"{seen} {recomputed:.6g}")


def _aggregated_p95(call: KvCall, option: int) -> Iterator[Finding]:
    """An option's 95th percentile of storage latency is the largest of its ranks' percentiles."""
    p95s_ms = [rank.number_at(_P95_MS) for rank in call.option_ranks(option)]
    largest_ms = max((p95_ms for p95_ms in p95s_ms if p95_ms is not None), default=None)
    if not call.summary or largest_ms is None:
        return
    published_ms = call.published(option, "p95_latency_ms")
    yield from unapplied("kv.differs", {f"p95_latency_ms of option {option}": published_ms})
    if published_ms is not None and not same_sum(published_ms, largest_ms):
        seen = f"option {option}: aggregated_p95_latency_ms is {published_ms:.6g}, the ranks' largest {largest_ms:.6g}"
        yield by_rule("kv.differs", seen)


def _windows(call: KvCall) -> Iterator[Finding]:
    """List each option's published throughput beside the highest possible one."""
    for option in OPTIONS:
        ranks = call.option_ranks(option)
        if not ranks:
            continue
        rates = []
        p95s = []
        for direction, verb in VERBS.items():
            published = _two_decimals(call.published(option, f"{verb}_bandwidth_gbps"))
            highest = _two_decimals(call.max_gib_per_second(option, direction))
            rates.append(f"{verb} {published} published, at most {highest} GiB/s")
            p95_ms = max(rank.stat(f"storage_{verb}_device_p95_ms") or 0.0 for rank in ranks)
            if p95_ms:
                p95s.append(f"{verb} {p95_ms:,.0f} ms")
        seen = f"option {option}: {', '.join(rates)}"
        if p95s:
            seen += f"; device p95 (6.3.4.3): {', '.join(p95s)}"
        if max(rank.time_ratio for rank in ranks) > _MAX_TIME_RATIO:
            slowest = max(ranks, key=lambda rank: rank.window_seconds or 0)
            took = f"{slowest.window_seconds:.1f} s, the tool's clock ran for {slowest.elapsed_seconds:.1f} s"
            yield by_rule("kv.window", f"{seen}; the slowest request took {took}")
        else:
            yield by_rule("kv.listed", seen)


def _two_decimals(gib_per_second: float | None) -> str:
    return "not known" if gib_per_second is None else f"{gib_per_second:.2f}"


def _devices(call: KvCall) -> Iterator[Finding]:
    """Compare the run's bytes and time with the counters of the hosts' devices (/proc/diskstats)."""
    read = all_known(rank.gib("storage", "read") for rank in call.ranks)
    written = all_known(rank.gib("storage", "written") for rank in call.ranks)
    if read is None or written is None:
        yield from unapplied("kv.device", {"bytes of every rank": None})
        return
    read_gib = sum(read)
    written_gib = sum(written)
    devices = device_work(call.metadata)
    clock_seconds = sum(call.trial_seconds)
    busiest = max(devices, key=lambda name: devices[name].moved_gib, default=None)
    if busiest is None or devices[busiest].moved_gib < _MIN_CACHE_SHARE * (read_gib + written_gib) or not clock_seconds:
        yield from unapplied("kv.device", {"counters of devices that held the cache": None})
        return
    device_read_gib = sum(work.read_gib for work in devices.values())
    device_written_gib = sum(work.written_gib for work in devices.values())
    busy_seconds = devices[busiest].busy_seconds
    seen = (
        f"devices read {device_read_gib:,.1f} and wrote {device_written_gib:,.1f} GiB, the ranks {read_gib:,.1f} and"
        f" {written_gib:,.1f}; {busiest} was busy for {busy_seconds:,.0f} s of {clock_seconds:,.0f} s of load"
    )
    if busy_seconds > clock_seconds * _MAX_TIME_RATIO:
        excess_percent = 100 * (busy_seconds / clock_seconds - 1)
        yield by_rule("kv.device", f"{seen}: the published rates are {excess_percent:.0f} % too high on average")
    elif read_gib and device_read_gib < _MIN_DEVICE_SHARE * read_gib:
        yield by_rule("kv.device", seen)
    else:
        yield by_rule("kv.device", seen, fix="nothing: device and benchmark agree", severity="info")


def _tiers(call: KvCall) -> Iterator[Finding]:
    """Report the share of the bytes read that came from memory; in options 1 and 3, it must be 0."""
    for option in OPTIONS:
        ranks = call.option_ranks(option)
        memory_gib = sum(rank.gib(tier, "read") or 0.0 for rank in ranks for tier in ("cpu", "gpu"))
        storage = all_known(rank.gib("storage", "read") for rank in ranks)
        if not memory_gib or storage is None:  # `kv.missing` names what is unknown.
            continue
        total_gib = memory_gib + sum(storage)
        seen = f"option {option}: {100 * memory_gib / total_gib:.1f} % of {total_gib:,.0f} GiB read from memory"
        if option != 2:
            yield by_rule("kv.tiers", seen)
        elif not sum(storage):
            yield by_rule("kv.tiers", f"{seen}, none from the storage", fix="submit the option as OPEN")
        else:
            fix = "take the option as one of memory: the faster the storage, the larger the memory's share"
            yield by_rule("kv.tiers", seen, fix=fix, severity="info")


def _tokens(call: KvCall) -> Iterator[Finding]:
    """The bytes per token are the model's; otherwise the tokens/s are wrong."""
    commands = kv_commands(call)
    for option in OPTIONS:
        ranks = call.option_ranks(option)
        if not ranks:
            continue
        model = commands[option][0].get("model") if option in commands else None
        model_token_bytes = _TOKEN_BYTES.get(model or "")
        tokens = sum(rank.stat("storage_tokens_processed") or 0 for rank in ranks)
        moved = all_known(rank.gib("storage", direction) for rank in ranks for direction in VERBS)
        if not tokens or not model_token_bytes or moved is None:
            yield from unapplied("kv.tokens", {f"tokens, bytes or model of option {option}": None})
            continue
        token_bytes = sum(moved) * GIB / tokens
        if abs(token_bytes / model_token_bytes - 1) > _TOKEN_TOLERANCE:
            seen = f"option {option}: {token_bytes:,.0f} bytes per token, {model} has {model_token_bytes:,}"
            yield by_rule("kv.tokens", seen)

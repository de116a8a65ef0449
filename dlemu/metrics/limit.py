"""Judges what limited a run: divides and explains the time lost to waiting for data (docs/metrics.md, section 6).

`judge_limit` tests for a used-up CPU limit, then for a slow emulator; otherwise it suspects the largest cause. This may
only be apparent: `_judge_suspect` looks at memory, `_judge_by_cores` at cores, `_judge_reads` at readers and requests.
"Readers" are the workers of all ranks that read; "blocked" means waiting in a read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from dlemu.metrics.findings import Code, Confidence, Finding, LimitedBy, Number
from dlemu.metrics.loss import Causes, Work

What = Literal["storage", "loader", "host CPU", "emulator", "nothing"]

MIN_LOSS_PERCENT = 2.0  # nothing limits a run, or a predicted one, that loses less of its time: short runs vary by more
STARVED_SHARE = 0.15  # no core is free if workers wait for a core for this share of their time
BUSY_PERCENT = 90.0  # from this utilisation on, a host, device, network or CPU limit (cgroup) has nothing to spare
OTHER_PROGRAMS_PERCENT = 50.0  # other programs are reported if they use this share of the cores, and more than the run
FEW_REQUESTS = 4.0  # with fewer concurrent requests, most drives and servers are partly idle
MAX_REQUEST_BYTES = 512 << 10  # the kernel splits a larger read call into requests of this size, sent at once
HELD_BACK_PERCENT = 10.0  # a CPU limit used up in this share of its periods is reported besides other programs
THROTTLED_PERCENT = 50.0  # a CPU limit used up in this share of its periods limits the run
MIN_SPEEDUP = 1.3  # a trial this many times faster shows the limit: by chance, trials of seconds differ by less


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Rates of trials right after the run: with its number of readers, with more, with fewer, and with larger requests.

    Values are 0 for trials that were not made; none are made if reads cost too little time.
    """

    readers: int = 0
    mb_per_second: float = 0.0
    more_readers: int = 0
    more_mb_per_second: float = 0.0
    again_mb_per_second: float = 0.0
    """Rate of `readers`, measured again after the other trials."""
    fewer_readers: int = 0
    fewer_mb_per_second: float = 0.0
    larger_request_bytes: int = 0
    """Bytes of a read call, with `readers` readers."""
    larger_mb_per_second: float = 0.0

    @property
    def same_mb_per_second(self) -> float:
        """The higher rate of `readers`: if storage became faster during the trials, another number is no better."""
        return max(self.mb_per_second, self.again_mb_per_second)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts about a run besides its steps. Facts about hosts are those of the busiest one, because all wait for it.

    Unknown values are NaN, or 0 for CPU limits, memory pressure and network, as if these had no effect.
    """

    host_busy_percent: float = math.nan
    """CPU use of all cores by all programs; without telemetry, by this run only."""
    own_busy_percent: float = math.nan
    """CPU use of these cores by this run."""
    cpu_limit_used_percent: float = 0.0
    """Share of the CPU limit (cgroup) that the run used, on the host with the highest share."""
    cpu_throttled_percent: float = 0.0
    """Share of the CPU limit's periods in which it was used up, so that the run had to wait for the next period."""
    memory_some_percent: float = 0.0
    """Share of the time in which some task waited for memory (`some` in /proc/pressure/memory)."""
    network_percent: float = 0.0
    """Received rate of the busiest network interface, in % of its speed; interfaces of unknown speed don't count."""
    device_depth: float = math.nan
    """Mean number of requests in all devices behind the dataset together, while accelerators waited."""
    device_busy_percent: float = math.nan
    """Utilisation of the busiest of these devices, while accelerators waited."""
    ceiling_au: float = math.nan
    """AU of the emulator alone, on null storage."""
    collates: bool = False
    """Workers hand batches over as in a training job (`reader.tensors`), so hand-over is no cost of the emulator."""
    scaling: Scaling = field(default_factory=Scaling)
    read_threads: int = 1
    from_storage_percent: float = math.nan
    """Percentage of the bytes that came from storage, not from the page cache."""
    other_program: Finding | None = None
    """OTHER_PROGRAM_ON_DRIVE, if other programs read from the dataset's devices."""
    io_depth: int = 0
    """Requests that a reader has in flight at an object store; 0 for other storage."""
    deeper_queue: Finding | None = None
    """PREFETCH_TOO_SHALLOW, if a deeper queue gains enough in the event model."""

    @property
    def is_out_of_cpu_time(self) -> bool:
        """Whether the run used up its CPU limit (cgroup); throttled workers may look blocked in reads."""
        return self.cpu_limit_used_percent >= BUSY_PERCENT or self.cpu_throttled_percent >= THROTTLED_PERCENT

    @property
    def others_use_the_cores(self) -> bool:
        return self.host_busy_percent - self.own_busy_percent >= max(self.own_busy_percent, OTHER_PROGRAMS_PERCENT)

    @property
    def device_is_saturated(self) -> bool:
        """Whether the device always has requests waiting; readers without a core could not send that many."""
        return self.device_busy_percent >= BUSY_PERCENT and self.device_depth >= FEW_REQUESTS


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The time lost to waiting for data by what explains it, %; they add up to 100, or are 0 where nothing limits."""

    storage: float = 0.0
    loader: float = 0.0
    """Readers, requests, queue and preprocessing."""
    host_cpu: float = 0.0
    """Cores, and memory."""
    emulator: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Limit(LimitedBy[What]):
    """What limited a run: how the time lost to waiting for data divides, and what explains it.

    `what` has the largest of the shares; it is `nothing` where less than 2 % of the time was lost.
    """

    shares: Shares = field(default_factory=Shares)
    numbers: dict[str, Number] = field(default_factory=dict)
    """The use of readers, devices and cores meanwhile, as far as known; units are in the names."""
    findings: tuple[Finding, ...] = ()
    """What explains the limit."""


def judge_limit(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    """Return what limited the steps from which `causes`, `work` and `au` (in percent) were computed."""
    numbers = _numbers(causes, work, context)
    if causes.total < MIN_LOSS_PERCENT:
        return Limit(what="nothing", confidence="high", numbers=numbers)
    lost_percent: dict[What, float] = {
        "storage": causes.storage,
        "host CPU": causes.computing + causes.starved,
        "loader": causes.queueing + causes.pause,
        "emulator": causes.hand_over,
    }
    suspect = max(lost_percent, key=lambda cause: lost_percent[cause])
    # Share of the loss that remains on null storage. A ceiling below the run's AU was measured at a worse moment.
    emulator_share = (100 - context.ceiling_au) / (100 - au) if au <= context.ceiling_au else 0.0
    if context.is_out_of_cpu_time and not context.device_is_saturated:
        limit = _core_limit("high" if causes.storage < causes.total / 2 else "medium", context)
    elif emulator_share >= 0.5:  # from 0.8 on, all other causes explain at most a fifth of the loss
        at_ceiling = Finding.of(Code.EMULATOR_CEILING, ceiling_au_percent=context.ceiling_au, au_percent=au)
        limit = _emulator_limit("high" if emulator_share >= 0.8 else "medium", context, at_ceiling)
        lost_percent = {cause: (1 - emulator_share) * percent for cause, percent in lost_percent.items()}
        lost_percent[limit.what] += emulator_share * causes.total
        suspect = limit.what  # so that `_shares` moves nothing
    else:
        limit = _judge_suspect(suspect, lost_percent[suspect] / causes.total, causes, work, context)
    return replace(limit, shares=_shares(lost_percent, suspect, limit.what, causes.total), numbers=numbers)


def _shares(lost_percent: dict[What, float], suspect: What, limit: What, total_percent: float) -> Shares:
    """Return the share of each cause in the total loss; what the suspect seemed to cause is due to the limit."""
    if limit != suspect:
        lost_percent = lost_percent | {limit: lost_percent[limit] + lost_percent[suspect], suspect: 0.0}
    shares = {cause.lower().replace(" ", "_"): 100 * percent / total_percent for cause, percent in lost_percent.items()}
    return Shares(**shares)


def _numbers(causes: Causes, work: Work, context: Context) -> dict[str, Number]:
    scaling = context.scaling
    figures: dict[str, float] = {
        "lost_percent": causes.total,
        "readers": work.readers,
        "app_mb_per_second": work.app_mb_per_second,
        "wanted_mb_per_second": work.wanted_mb_per_second,
        "call_ms": work.call_ms if work.call_bytes else math.nan,
        "call_bytes": work.call_bytes or math.nan,
        "device_busy_percent": context.device_busy_percent,
        "device_depth": context.device_depth,
        "cores_busy_percent": context.host_busy_percent,
        "own_cores_percent": context.own_busy_percent,
        "cpu_wait_percent": 100 * work.starved_share if work.cpu_known else math.nan,
    }
    if scaling.mb_per_second > 0 and scaling.more_readers:
        figures["more_readers_times"] = scaling.more_readers / scaling.readers
        figures["more_readers_rate_times"] = scaling.more_mb_per_second / scaling.same_mb_per_second
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _limit(what: What, confidence: Confidence, *findings: Finding) -> Limit:
    return Limit(what=what, confidence=confidence, findings=findings)


def _judge_suspect(suspect: What, share: float, causes: Causes, work: Work, context: Context) -> Limit:
    """Return what really limited the run. The suspect seems to cause the largest `share` (0 to 1) of the loss."""
    confidence: Confidence = "low"
    if share >= 0.75 and work.cpu_known:  # three times all other causes together
        confidence = "high"
    elif share >= 0.5:
        confidence = "medium"
    if context.memory_some_percent < 10:
        return _judge_by_cores(suspect, confidence, causes, work, context)
    pressure = Finding.of(Code.MEMORY_PRESSURE, percent=context.memory_some_percent)
    # Readers that wait for memory look blocked in reads. Only a busy device shows that the storage is slow, too.
    if suspect == "host CPU" or (suspect == "storage" and not context.device_busy_percent >= BUSY_PERCENT):
        return _limit("host CPU", confidence, pressure)
    limit = _judge_by_cores(suspect, _lowest(confidence, "medium"), causes, work, context)
    return replace(limit, findings=(pressure, *limit.findings))


def _judge_by_cores(suspect: What, confidence: Confidence, causes: Causes, work: Work, context: Context) -> Limit:
    """Return what really limited the run, if memory pressure does not explain it: first by whether cores were free."""
    cores_are_busy = work.starved_share >= STARVED_SHARE or context.host_busy_percent >= BUSY_PERCENT
    no_core_is_free = cores_are_busy or context.is_out_of_cpu_time
    if suspect == "storage":
        limit = _judge_reads(confidence, work, context)
        if context.device_is_saturated or not no_core_is_free:
            return limit
        # Without a free core, slow reads don't prove slow storage: readers wait for cores between reads, and so do the
        # kernel threads, or the mount's process, that serve the reads. Only preprocessing that sleeps needs no core.
        is_minor_cause = 2 * causes.storage < causes.total - causes.pause
        is_unsure = causes.storage / causes.total < 0.75 or limit.confidence == "low"
        is_doubtful = is_minor_cause or (is_unsure and context.others_use_the_cores)
        if not work.cpu_known or (limit.what == "storage" and is_doubtful):
            return _core_limit("low", context)
        return limit
    preprocesses = suspect == "loader" and causes.pause > causes.queueing
    if suspect == "host CPU" or preprocesses:  # if cores are free, more workers help
        lacks_cores = no_core_is_free or causes.starved > causes.computing
        if preprocesses:  # preprocessing that sleeps needs no core
            lacks_cores = no_core_is_free and work.burns
        return _core_limit(confidence, context) if lacks_cores else _too_few_readers_limit(confidence, context)
    if no_core_is_free:  # a worker without a core starts no batch
        return _core_limit(confidence, context)
    if suspect == "emulator":
        return _emulator_limit(confidence, context)
    if work.oversleep_share >= STARVED_SHARE:  # ranks wake late from emulated computation, and workers probably do, too
        return _emulator_limit(_lowest(confidence, "medium"), context)
    return _limit("loader", confidence, Finding.of(Code.PREFETCH_TOO_SHALLOW, pattern="not_begun"))


def _judge_reads(confidence: Confidence, work: Work, context: Context) -> Limit:
    """Return what limits workers blocked in reads: the storage, or the loader's readers, requests or queue."""
    if not work.cpu_known and context.from_storage_percent < 5:  # the page cache served more than 95 %
        return _too_few_readers_limit("low", context)
    if context.other_program is not None:
        # On a shared drive, more readers may gain only what the other programs lose: no proof of spare throughput.
        return _limit("storage", confidence, context.other_program)
    better = _better_trial(work, context)
    if better is not None:
        return _limit("loader", "high", better)
    are_too_few, certainty = _too_few_readers(work, context)
    if context.deeper_queue is not None and not (are_too_few and certainty == "high"):
        most_certain: Confidence = "high" if context.scaling.readers else "medium"
        return _limit("loader", _lowest(confidence, most_certain), context.deeper_queue)
    confidence = _lowest(confidence, certainty)
    if are_too_few:
        return _too_few_readers_limit(confidence, context)
    if context.io_depth and context.network_percent >= BUSY_PERCENT:
        return _limit("storage", confidence, Finding.of(Code.NETWORK_FULL, percent=context.network_percent))
    return _limit("storage", confidence)


def _better_trial(work: Work, context: Context) -> Finding | None:
    """Return a finding if a trial of fewer readers or larger requests was fastest, by MIN_SPEEDUP; else None."""
    scaling = context.scaling
    same_rate = scaling.same_mb_per_second
    best_rate = max(scaling.fewer_mb_per_second, scaling.larger_mb_per_second)
    min_rate = max(MIN_SPEEDUP * max(same_rate, work.app_mb_per_second), scaling.more_mb_per_second)
    # If the same readers were fast enough in the trial, the run was slow for another reason, such as one slow rank.
    if scaling.mb_per_second <= 0 or same_rate >= work.wanted_mb_per_second or best_rate < min_rate:
        return None
    rates = {"mb_per_second": same_rate, "better_mb_per_second": best_rate}
    numbers: dict[str, Number] = {"readers": scaling.readers, **rates}
    if scaling.larger_mb_per_second > scaling.fewer_mb_per_second:
        return Finding(Code.REQUESTS_TOO_SMALL, numbers=numbers | {"transfer_size": scaling.larger_request_bytes})
    threads = max(1, round(context.read_threads * scaling.fewer_readers / scaling.readers))
    fewer = {"fewer_readers": scaling.fewer_readers, "read_threads": threads, "now_read_threads": context.read_threads}
    return Finding(Code.TOO_MANY_READERS, numbers=numbers | fewer)


def _too_few_readers(work: Work, context: Context) -> tuple[bool, Confidence]:
    """Return whether there were too few readers, by a trial, the device's queue or the read calls; and how surely."""
    scaling, depth = context.scaling, context.device_depth
    if scaling.mb_per_second > 0 and scaling.more_readers:
        same_rate = max(scaling.same_mb_per_second, work.app_mb_per_second)
        return scaling.more_mb_per_second >= MIN_SPEEDUP * same_rate, "high"
    requests = work.readers * (context.io_depth or max(1.0, work.call_bytes / MAX_REQUEST_BYTES))  # concurrent ones
    if not math.isnan(depth):
        if depth >= FEW_REQUESTS:
            return False, "high"
        if depth < work.readers / 2:
            return False, "medium"  # most reads wait outside the device: a cgroup or the network limits them
        if requests >= FEW_REQUESTS or context.device_busy_percent < BUSY_PERCENT:
            return requests < FEW_REQUESTS, "medium"
        # The device is busy with few requests: it is slow, or could serve more readers. Small read calls suggest the
        # latter. Large ones suggest that it is slow, because each is sent as several requests at once.
        return work.call_bytes <= MAX_REQUEST_BYTES, "low"
    if not work.call_bytes:
        return False, "medium"
    if requests < FEW_REQUESTS and work.call_bytes <= MAX_REQUEST_BYTES:
        return True, "low"
    return False, "high" if requests >= 2 * FEW_REQUESTS else "medium"


def _too_few_readers_limit(confidence: Confidence, context: Context) -> Limit:
    """Return the loader as the limit, for too few readers; for an object store, too few requests."""
    numbers: dict[str, Number] = {"read_threads": context.read_threads}
    if context.io_depth:
        numbers["pattern"] = "requests"
    return _limit("loader", confidence, Finding(Code.TOO_FEW_READERS, numbers=numbers))


def _core_limit(confidence: Confidence, context: Context) -> Limit:
    """Return the lack of cores as the limit, with the findings that explain it: other programs, and a CPU limit."""
    findings = []
    if context.others_use_the_cores and not context.is_out_of_cpu_time:
        busy, own = context.host_busy_percent, context.own_busy_percent
        findings.append(Finding.of(Code.OTHER_PROGRAM_ON_CORES, busy_percent=busy, own_percent=own))
    used, throttled = context.cpu_limit_used_percent, context.cpu_throttled_percent
    if context.is_out_of_cpu_time or (findings and throttled >= HELD_BACK_PERCENT):
        findings.append(Finding.of(Code.CPU_QUOTA, used_percent=used, throttled_percent=throttled))
    return _limit("host CPU", confidence, *findings)


def _emulator_limit(confidence: Confidence, context: Context, *findings: Finding) -> Limit:
    """Return the emulator as the limit, or the host CPU if hand-over works as in a training job."""
    return _limit("host CPU" if context.collates else "emulator", confidence, *findings)


def _lowest(*confidences: Confidence) -> Confidence:
    order: tuple[Confidence, ...] = ("low", "medium", "high")
    return min(confidences, key=order.index)

"""What limited a run, with the evidence, how far to trust it, and what to do, as codes with their numbers.

The rules are in docs/metrics.md, section 6, with their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from dlemu.metrics.causes import Causes, Work
from dlemu.metrics.changes import SpeedChange, Stall
from dlemu.metrics.findings import Confidence, Finding, LimitedBy, Number
from dlemu.metrics.ran_out import FirstTouch, RanOut
from dlemu.metrics.slow_folders import SlowFolder

What = Literal["storage", "host CPU", "loader", "memory", "emulator", "nothing"]
Where = Literal["server", "network", "TLS", "prefetch", "readers", "requests"]

NOTHING_PERCENT = 2.0  # as in predictions (98 % AU); less is within the uncertainty of short runs
"""Loss to waiting for data below which nothing limits."""
EMULATOR_SHARE = 0.5
"""Share of the loss that the ceiling explains from which on it is the emulator's."""
STARVED_SHARE, BUSY_PERCENT = 0.15, 90.0
"""No core is free when workers want for one this share of their time, or the host is as busy as this."""
MOST_PERCENT = 50.0
"""Share of the cores' time that other programs must have, and more than the run, to be named as those who have it."""
MEMORY_PRESSURE_PERCENT = 10.0
"""Pressure (share of time in which some task waited for memory) from which on memory is the limit."""
TLS_TOLD_PERCENT, TLS_MOST_PERCENT = 10.0, 50.0
"""Share of the readers' CPU time from which on TLS is reported, and from which on a lack of CPU is named after it."""
FEW_REQUESTS = 4.0
"""Requests at a time that leave most drives and servers idle in part."""
PIECE_BYTES = 512 << 10
"""A read call of more bytes than this counts as several requests: the kernel cuts it up and sends them together."""
IN_DEVICE = 0.5
"""Share of the readers' requests that must be found in the device for its latency to be what they wait for."""
OTHERS_PERCENT = 20.0
"""Share of what the devices gave that others must have had to be named; less may be metadata, or a run's edges."""
HELD_BACK_PERCENT = 10.0
"""From here on a CPU limit costs time, whoever else has the cores."""
THROTTLED_PERCENT = 50.0
"""Share of a CPU limit's periods in which it was used up from which on it is what the run waits for."""
WRITTEN_SHARE = 0.05
"""Bytes written to the devices for each byte read from which on it is reported."""
SCALES = 1.3  # smaller: chance between two trials of seconds names too few readers; larger: it is overlooked
"""How many times the rate other readers must bring for their number, or size of request, to have been the limit."""
HELPS_PERCENT, HELPS_SHARE = 2.0, 0.5
"""Points of AU that a deeper queue must bring to be named as the limit, and share of all that is lost, where the AU
does not reach its threshold by it."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What telemetry saw of the devices behind the dataset together, while accelerators waited."""

    mean_depth: float
    busy_percent: float
    write_mb_per_second: float | None = None
    """What anybody wrote to them."""


@dataclass(frozen=True, kw_only=True)
class HotDrive:
    """A drive behind the dataset that was as hot as it warns of: it slows itself down."""

    name: str
    celsius: float
    """The most that was seen."""
    limit_celsius: float


@dataclass(frozen=True, kw_only=True)
class OtherReaders:
    """What programs other than the run read from the dataset's devices while it trained."""

    mb_per_second: float
    percent: float
    """Of all that the devices gave."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What the storage gave right after the run: to as many readers as the run had, to others, in other requests."""

    readers: int
    mb_per_second: float
    more_readers: int = 0
    """0: not tried, for enough were at work."""
    more_mb_per_second: float = 0.0
    again_mb_per_second: float | None = None
    """What as many readers as the run had got after that; None in results of older versions."""
    fewer_readers: int = 0
    """0: not tried; so the others."""
    fewer_mb_per_second: float = 0.0
    larger_request_bytes: int = 0
    """Of a read call by as many readers as the run had."""
    larger_mb_per_second: float = 0.0

    @property
    def same_mb_per_second(self) -> float:
        """The most that as many readers got: a storage that became faster meanwhile must not look like another."""
        return max(self.mb_per_second, self.again_mb_per_second or 0.0)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause of lost AU, and what removing it alone would bring. Causes overlap: their gains do not add up."""

    what: What
    where: Where | None = None
    au_percent: float
    """AU over whole epochs with this alone repaired: the run's own batches, played again in the event model."""
    setting: str | None = None
    """What to set for it, where a setting repairs it."""

    @property
    def name(self) -> str:
        """The cause in words of the field."""
        return named(self.what, self.where)


def named(what: str, where: str | None) -> str:
    """Return a cause with what of it, where that is known: the server, the network, TLS, the prefetch."""
    return what if where is None else f"{what}, {where}"


@dataclass(frozen=True, kw_only=True)
class DeeperQueue:
    """What more batches ahead would bring to a run whose batches come in order."""

    prefetch_size: int
    now_prefetch_size: int
    lay_ready: float
    """Batches of a rank that lay ready behind the missing one, at the end of a wait; mean."""


@dataclass(frozen=True, kw_only=True)
class ObjectRequests:
    """What an object store's server made of the run's requests."""

    requests: int
    slow_down: int
    """Answers that it gets too many requests (503, 429)."""
    retried: int
    first_byte_ms: float
    """Median time to the first byte of an answer."""
    last_byte_ms: float
    """Median time to the last."""
    tls_cpu_percent: float | None = None
    """Of the readers' CPU time, what TLS took (handshakes, decrypting, copies); None without it."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What else is known of a run. None where it is not."""

    ceiling_au: float | None = None
    host_busy_percent: float | None = None
    """CPU in use of the busiest host, all cores, by anyone; or by this run alone where nobody else was watched."""
    own_busy_percent: float | None = None
    """What this run used of the same cores."""
    cpu_limit_cores: float | None = None
    """As many cores' time as a container's limit (cgroup) lets the run use."""
    cpu_limit_used_percent: float | None = None
    """How much of that it used."""
    cpu_throttled_percent: float | None = None
    """Share of the limit's periods in which it was used up and the run had to wait for the next one."""
    memory_some_percent: float | None = None
    device: Device | None = None
    scaling: Scaling | None = None
    read_threads: int = 1
    from_storage_percent: float | None = None
    """Share of the bytes that the storage served, not the page cache."""
    others: OtherReaders | None = None
    """Those who read so much from the same devices that they must be named."""
    speed_changes: tuple[SpeedChange, ...] = ()
    stalls: tuple[Stall, ...] = ()
    ran_out: RanOut | None = None
    first_touch: FirstTouch | None = None
    slow_folders: tuple[SlowFolder, ...] = ()
    slow_hosts: tuple[str, ...] = ()
    """Hosts whose reads the others wait for."""
    hot_drive: HotDrive | None = None
    object_requests: ObjectRequests | None = None
    """Of an object store."""
    network_percent: float | None = None
    """What the busiest interface received of what it can."""
    au_whole_percent: float | None = None
    """Of all steps: what `causes` are held against."""
    threshold_percent: float = 90.0
    causes: tuple[Cause, ...] = ()
    """What repairing each cause alone would bring; empty where the event model does not come to what was measured."""
    deeper: DeeperQueue | None = None
    """Of the cause `loader, prefetch`."""


class Seen(StrEnum):
    """Codes of the evidence."""

    WAITED = "waited"
    MEMORY_PRESSURE = "memory_pressure"
    BLOCKED_IN_READS = "blocked_in_reads"
    COMPUTING = "computing"
    PREPROCESSING = "preprocessing"
    NOT_BEGUN = "not_begun"
    WOKE_LATE = "woke_late"
    LAY_READY = "lay_ready"
    CEILING = "ceiling"
    CORES_WERE_FREE = "cores_were_free"
    CACHE_SERVED = "cache_served"
    READS = "reads"
    RATES = "rates"
    DEVICE = "device"
    ANSWERS = "answers"
    SLOW_DOWN = "slow_down"
    RETRIED = "retried"
    NETWORK = "network"
    OTHER_READERS = "other_readers"
    SCALING = "scaling"
    FEWER_READERS = "fewer_readers"
    LARGER_REQUESTS = "larger_requests"
    OUT_OF_ORDER = "out_of_order"
    DEEPER_QUEUE = "deeper_queue"
    STUCK_BEFORE_DEVICE = "stuck_before_device"
    DEVICE_HAD_FEW = "device_had_few"
    DEVICE_NEVER_IDLE = "device_never_idle"
    FEW_SMALL_READS = "few_small_reads"
    STARVED = "starved"
    CORES = "cores"
    TLS = "tls"
    CPU_LIMIT = "cpu_limit"
    THROTTLED = "throttled"
    FIRST_STEPS_TOO = "first_steps_too"


class Advice(StrEnum):
    """Codes of what would help."""

    MORE_READERS = "more_readers"
    MORE_REQUESTS = "more_requests"
    FEWER_READERS = "fewer_readers"
    LARGER_REQUESTS = "larger_requests"
    DEEPER_QUEUE = "deeper_queue"
    TRY_MORE_READERS = "try_more_readers"
    MORE_WORKERS = "more_workers"
    READ_AHEAD = "read_ahead"
    FASTER_STORAGE = "faster_storage"
    FASTER_NETWORK = "faster_network"
    STOP_OTHER_READERS = "stop_other_readers"
    COOL_DRIVE = "cool_drive"
    SPEED_THAT_LASTS = "speed_that_lasts"
    BECAME_SLOWER = "became_slower"
    FIRST_TOUCH = "first_touch"
    SLOW_FOLDER = "slow_folder"
    SLOW_HOSTS = "slow_hosts"
    STOOD_STILL = "stood_still"
    MORE_CORES = "more_cores"
    RAISE_CPU_LIMIT = "raise_cpu_limit"
    RAISE_CPU_LIMIT_TOO = "raise_cpu_limit_too"
    STOP_OTHER_PROGRAMS = "stop_other_programs"
    LOOK_FOR_PROGRAMS = "look_for_programs"
    WITHOUT_TLS = "without_tls"
    RELIEVE_EMULATOR = "relieve_emulator"
    FREE_MEMORY = "free_memory"


@dataclass(frozen=True, kw_only=True)
class Limit(LimitedBy[What]):
    """What limited a run."""

    where: Where | None = None
    """Of an object store that is the limit: what of it; of the host's CPU: that reading over TLS takes most of it; of
    the loader: its `prefetch` is too shallow, its `readers` too few or too many, its `requests` too small."""
    causes: tuple[Cause, ...] = ()
    """Every cause that is known with the AU that repairing it alone would bring, the one named here first."""

    @property
    def name(self) -> str:
        """The limit in words of the field."""
        return named(self.what, self.where)


def judge_limit(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    """Return what limited the steps that the causes were found in, as codes; `au` is theirs, in percent."""
    limit = _judge(au, causes, work, context)
    if limit.what == "nothing":
        return limit

    def order(cause: Cause) -> tuple[bool, bool, float]:
        return cause.what != limit.what, limit.where is not None and cause.where != limit.where, -cause.au_percent

    return replace(limit, causes=tuple(sorted(context.causes, key=order)))


def _judge(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    waited = Finding(Seen.WAITED, numbers={"percent": causes.total})
    if causes.total < NOTHING_PERCENT:
        return Limit(what="nothing", confidence="high", seen=(waited,))
    if _is_out_of_cpu_time(context) and not _is_saturated(context.device):
        return _host_cpu(
            "high" if causes.storage < causes.total / 2 else "medium", (waited, *_cores(work, context)), context
        )
    ceiling = context.ceiling_au
    if ceiling is not None and 100 - ceiling >= EMULATOR_SHARE * (100 - au):
        reached = Finding(Seen.CEILING, numbers={"ceiling_au_percent": ceiling, "au_percent": au})
        sureness: Confidence = "high" if 100 - ceiling >= 0.8 * (100 - au) else "medium"  # a fifth is left to all else
        return _emulator(sureness, (waited, reached))
    groups = {
        "storage": causes.storage,
        "cpu": causes.computing + causes.starved,
        "loader": causes.queueing + causes.pause,
        "hand-over": causes.hand_over,
    }
    largest = max(groups, key=lambda name: groups[name])
    share = groups[largest] / causes.total  # 3/4: no other is more than a third of it; 1/2: it outweighs all others
    confidence: Confidence = "high" if share >= 0.75 and work.cpu_known else "medium" if share >= 0.5 else "low"
    seen = [waited]
    if context.memory_some_percent is not None and context.memory_some_percent >= MEMORY_PRESSURE_PERCENT:
        seen.append(Finding(Seen.MEMORY_PRESSURE, numbers={"percent": context.memory_some_percent}))
        busy = context.device is not None and context.device.busy_percent >= BUSY_PERCENT
        if largest == "cpu" or (largest == "storage" and not busy):
            to_do = (Finding(Advice.FREE_MEMORY),)
            return Limit(what="memory", confidence=confidence, seen=tuple(seen), to_do=to_do)
        confidence = _least(confidence, "medium")
    decide = {"storage": _reads, "cpu": _cpu, "loader": _loader, "hand-over": _hand_over}[largest]
    return decide(confidence, share, tuple(seen), causes, work, context)


def lost_to_reads(causes: Causes) -> bool:
    """Return whether more was lost to reads than to all else."""
    return causes.total >= NOTHING_PERCENT and causes.storage >= causes.total / 2


def reads_may_be_too_few(causes: Causes, work: Work, ranks: int, io_depth: int | None = None) -> bool:
    """Return whether more was lost to reads than to all else, with few enough under way that more might have helped.

    `causes` and `work` are of one of so many ranks that do alike. A reader of an object store has `io_depth` requests
    in flight; None where it reads files.
    """
    requests = ranks * work.readers * (io_depth or max(1.0, work.call_bytes / PIECE_BYTES))
    return lost_to_reads(causes) and requests < 2 * FEW_REQUESTS


def _of_that(code: Seen, share: float) -> Finding:
    """Return what accounts for most of the wait, and for how much of it."""
    return Finding(code, numbers={"percent": 100 * share})


def _reads(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Blocked in reads: the storage is slow, or too few reads are under way at a time."""
    if not work.cpu_known and _no_core_free(work, context) and not _is_saturated(context.device):
        return _host_cpu("low", (*waited, *_cores(work, context)), context)
    if not work.cpu_known and context.from_storage_percent is not None and context.from_storage_percent < 5:
        return _few_workers("low", (*waited, Finding(Seen.CACHE_SERVED)), context)  # 5 %: memory served the rest
    rates: dict[str, Number] = {
        "given_mb_per_second": work.app_mb_per_second,
        "wanted_mb_per_second": work.wanted_mb_per_second,
    }
    seen = [
        *waited,
        _of_that(Seen.BLOCKED_IN_READS, share),
        *_calls(work),
        Finding(Seen.RATES, numbers=rates),
        *_device(context.device, work.app_mb_per_second),
        *_answers(context),
    ]
    if context.others is not None:
        # The drive serves others too: that more readers would get more of it does not say that it had more to give.
        others: dict[str, Number] = {"mb_per_second": context.others.mb_per_second, "percent": context.others.percent}
        return Limit(
            what="storage",
            confidence=confidence,
            seen=(*seen, Finding(Seen.OTHER_READERS, numbers=others)),
            to_do=(Finding(Advice.STOP_OTHER_READERS), *_unsteady(context)),
        )
    if (tried := _other_readers(work, context)) is not None:
        code, of_loader, measured, to_set = tried
        seen.append(Finding(code, numbers=measured))
        advice = Finding(_ADVISES[code], numbers=to_set)
        return Limit(what="loader", where=of_loader, confidence="high", seen=tuple(seen), to_do=(advice,))
    few, certain, why = _too_few_readers(work, context)
    seen += [why] if why else []
    if not (few and certain == "high") and (shallow := _shallow_queue(work, context)) is not None:
        sure: Confidence = "high" if context.scaling is not None else "medium"
        return Limit(
            what="loader",
            where="prefetch",
            confidence=_least(confidence, sure),
            seen=(*seen, *shallow),
            to_do=(Finding(Advice.DEEPER_QUEUE, numbers=shallow[-1].numbers),),
        )
    confidence = _least(confidence, certain)
    threads: dict[str, Number] = {"read_threads": context.read_threads}
    if few:
        more = Finding(Advice.MORE_REQUESTS if context.object_requests else Advice.MORE_READERS, numbers=threads)
        return Limit(what="loader", where="readers", confidence=confidence, seen=tuple(seen), to_do=(more,))
    where: Where | None = None
    if context.object_requests is not None:
        where = "network" if (context.network_percent or 0) >= BUSY_PERCENT else "server"
    to_do = [Finding(Advice.FASTER_NETWORK if where == "network" else Advice.FASTER_STORAGE), *_unsteady(context)]
    if certain != "high" and work.readers < 2 * FEW_REQUESTS:
        to_do.append(Finding(Advice.TRY_MORE_READERS, numbers=threads))
    return Limit(what="storage", confidence=confidence, seen=tuple(seen), to_do=tuple(to_do), where=where)


def _answers(context: Context) -> Iterator[Finding]:
    """Yield what the requests to an object store say of server and network."""
    object_requests = context.object_requests
    if object_requests is None:
        return
    yield Finding(
        Seen.ANSWERS,
        numbers={"first_byte_ms": object_requests.first_byte_ms, "last_byte_ms": object_requests.last_byte_ms},
    )
    if object_requests.slow_down:
        percent = 100 * object_requests.slow_down / max(1, object_requests.requests)
        yield Finding(Seen.SLOW_DOWN, numbers={"answers": object_requests.slow_down, "percent": percent})
    if object_requests.retried:
        yield Finding(Seen.RETRIED, numbers={"retried": object_requests.retried, "requests": object_requests.requests})
    if context.network_percent is not None:
        yield Finding(Seen.NETWORK, numbers={"percent": context.network_percent})


def _unsteady(context: Context) -> Iterator[Finding]:
    """Yield what to look for where the storage's speed did not stay the same."""
    hot, out, touched = context.hot_drive, context.ran_out, context.first_touch
    if touched is not None:
        rates: dict[str, Number] = {
            "gb": touched.gb,
            "mb_per_second_first": touched.mb_per_second_first,
            "mb_per_second_after": touched.mb_per_second_after,
        }
        yield Finding(Advice.FIRST_TOUCH, numbers=rates)
    if hot is not None:
        drive: dict[str, Number] = {"drive": hot.name, "celsius": hot.celsius, "limit_celsius": hot.limit_celsius}
        yield Finding(Advice.COOL_DRIVE, numbers=drive)
    if out is not None and hot is None and context.others is None:
        yield Finding(
            Advice.SPEED_THAT_LASTS,
            numbers={"mb_per_second": out.mb_per_second_after, "gb": out.gb, "times": out.times},
        )
    elif context.speed_changes and context.speed_changes[-1].percent < 100:
        yield Finding(Advice.BECAME_SLOWER, numbers={"at_seconds": context.speed_changes[-1].at_seconds})
    if context.slow_folders:
        one = context.slow_folders[0]
        yield Finding(
            Advice.SLOW_FOLDER,
            numbers={
                "folder": one.name,
                "ms_per_sample": one.ms_per_sample,
                "others_ms_per_sample": one.others_ms_per_sample,
                "folders": len(context.slow_folders),
            },
        )
    if context.slow_hosts:
        yield Finding(Advice.SLOW_HOSTS, numbers={"hosts": ", ".join(context.slow_hosts)})
    if context.stalls:
        yield Finding(Advice.STOOD_STILL, numbers={"times": len(context.stalls)})


_ADVISES = {Seen.FEWER_READERS: Advice.FEWER_READERS, Seen.LARGER_REQUESTS: Advice.LARGER_REQUESTS}
_Tried = tuple[Seen, Where, dict[str, Number], dict[str, Number]]
"""What was tried, of which kind it is, what was measured, what to set."""


def _other_readers(work: Work, context: Context) -> _Tried | None:
    """Return which of fewer readers and larger requests got clearly more, and more than more readers; None if none."""
    scaling = context.scaling
    if scaling is None or scaling.mb_per_second <= 0:
        return None
    same = scaling.same_mb_per_second
    measured: dict[str, Number] = {"readers": scaling.readers, "mb_per_second": same}
    tried: list[tuple[float, _Tried]] = []
    if scaling.fewer_readers:
        threads = max(1, round(context.read_threads * scaling.fewer_readers / scaling.readers))
        numbers = measured | {
            "fewer_readers": scaling.fewer_readers,
            "fewer_mb_per_second": scaling.fewer_mb_per_second,
            "factor": scaling.fewer_mb_per_second / same,
        }
        to_set: dict[str, Number] = {"read_threads": threads, "now": context.read_threads}
        tried.append((scaling.fewer_mb_per_second, (Seen.FEWER_READERS, "readers", numbers, to_set)))
    if scaling.larger_request_bytes:
        numbers = measured | {
            "request_bytes": scaling.larger_request_bytes,
            "larger_mb_per_second": scaling.larger_mb_per_second,
            "factor": scaling.larger_mb_per_second / same,
        }
        to_set = {"transfer_size": scaling.larger_request_bytes}
        tried.append((scaling.larger_mb_per_second, (Seen.LARGER_REQUESTS, "requests", numbers, to_set)))
    given, best = max(tried, key=lambda one: one[0], default=(0.0, None))
    if given < SCALES * max(same, work.app_mb_per_second) or given < scaling.more_mb_per_second:
        return None
    return best


def _shallow_queue(work: Work, context: Context) -> tuple[Finding, ...] | None:
    """Return the evidence that batches in order wait for one slow read while others lie ready; None if it is not that.

    It is what limits when deeper queues alone bring the AU to its threshold, or bring back half of all that is lost; or
    some of it, when the same readers, who waited for nobody right after the run, got what the accelerators need.
    """
    deeper, now = context.deeper, context.au_whole_percent
    cause = next((one for one in context.causes if one.where == "prefetch"), None)
    if deeper is None or cause is None or now is None or deeper.lay_ready < 1:
        return None
    gained = cause.au_percent - now
    enough = gained >= HELPS_SHARE * (100 - now) or (cause.au_percent >= context.threshold_percent > now)
    tried = context.scaling
    needed = work.wanted_mb_per_second * context.threshold_percent / 100
    enough = enough or (tried is not None and min(tried.mb_per_second, tried.again_mb_per_second or 0.0) >= needed)
    if gained < HELPS_PERCENT or not enough:
        return None
    numbers: dict[str, Number] = {
        "prefetch_size": deeper.prefetch_size,
        "now": deeper.now_prefetch_size,
        "au_percent": cause.au_percent,
        "now_au_percent": now,
    }
    ready: dict[str, Number] = {"batches": deeper.lay_ready}
    return Finding(Seen.OUT_OF_ORDER, numbers=ready), Finding(Seen.DEEPER_QUEUE, numbers=numbers)


def _too_few_readers(work: Work, context: Context) -> tuple[bool, Confidence, Finding | None]:
    """Return whether the number of readers was the limit, how certain that is, and the evidence."""
    scaling, device = context.scaling, context.device
    if scaling is not None and scaling.mb_per_second > 0 and scaling.more_readers:
        same = scaling.same_mb_per_second
        factor = scaling.more_mb_per_second / same
        trial: dict[str, Number] = {
            "readers": scaling.readers,
            "mb_per_second": same,
            "more_readers": scaling.more_readers,
            "more_mb_per_second": scaling.more_mb_per_second,
            "factor": factor,
        }
        gained = min(factor, scaling.more_mb_per_second / max(same, work.app_mb_per_second))
        return gained >= SCALES, "high", Finding(Seen.SCALING, numbers=trial)
    requests = work.readers * max(1.0, work.call_bytes / PIECE_BYTES)
    if device is not None:
        if device.mean_depth >= FEW_REQUESTS:
            return False, "high", None
        if device.mean_depth < IN_DEVICE * work.readers:
            return False, "medium", Finding(Seen.STUCK_BEFORE_DEVICE)
        depth: dict[str, Number] = {"depth": device.mean_depth}
        if requests >= FEW_REQUESTS or device.busy_percent < BUSY_PERCENT:
            return requests < FEW_REQUESTS, "medium", Finding(Seen.DEVICE_HAD_FEW, numbers=depth)
        # Never idle with few requests: a drive that is slow and one that more readers could use look the same. What is
        # known is how drives are: large calls are cut up and sent together, small ones wait for each answer.
        return work.call_bytes <= PIECE_BYTES, "low", Finding(Seen.DEVICE_NEVER_IDLE, numbers=depth)
    if not work.call_bytes:
        return False, "medium", None
    if requests < FEW_REQUESTS and work.call_bytes <= PIECE_BYTES:
        return True, "low", Finding(Seen.FEW_SMALL_READS, numbers={"readers": work.readers})
    return False, "high" if requests >= 2 * FEW_REQUESTS else "medium", None


def _cpu(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Workers that compute or want to: no core is free, or there are too few workers for those that are."""
    seen = (*waited, _of_that(Seen.COMPUTING, share), *_cores(work, context))
    if _no_core_free(work, context) or causes.starved > causes.computing:
        return _host_cpu(confidence, seen, context)
    return _few_workers(confidence, (*seen, Finding(Seen.CORES_WERE_FREE)), context)


def _loader(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Batches that were not begun in time, or an emulated preprocessing."""
    if causes.pause > causes.queueing:
        if work.burns and _no_core_free(work, context):  # a sleep needs no core
            preprocessed = _of_that(Seen.PREPROCESSING, share)
            return _host_cpu(confidence, (*waited, preprocessed, *_cores(work, context)), context)
        return _few_workers(confidence, (*waited, _of_that(Seen.PREPROCESSING, share)), context)
    seen = (*waited, _of_that(Seen.NOT_BEGUN, share))
    if _no_core_free(work, context):  # a worker that has time and no core begins nothing either
        return _host_cpu(confidence, (*seen, *_cores(work, context)), context)
    if work.late_share >= STARVED_SHARE:  # where ranks wake late, so do workers that have begun nothing
        return _emulator(_least(confidence, "medium"), (*seen, _of_that(Seen.WOKE_LATE, work.late_share)))
    return Limit(what="loader", confidence=confidence, seen=seen, to_do=(Finding(Advice.READ_AHEAD),))


def _hand_over(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Batches that were ready before the trainer had them: the host is late, of its own or for want of a core."""
    seen = (*waited, _of_that(Seen.LAY_READY, share), *_cores(work, context))
    if _no_core_free(work, context):
        return _host_cpu(confidence, seen, context)
    return _emulator(confidence, seen)


def _host_cpu(confidence: Confidence, seen: tuple[Finding, ...], context: Context) -> Limit:
    busy, own = context.host_busy_percent or 0, context.own_busy_percent
    to_do = [Advice.MORE_CORES]
    if _is_out_of_cpu_time(context):
        to_do = [Advice.RAISE_CPU_LIMIT]
    elif own is not None and busy - own >= max(own, MOST_PERCENT):
        to_do = [Advice.STOP_OTHER_PROGRAMS]
        if (context.cpu_throttled_percent or 0) >= HELD_BACK_PERCENT:
            to_do.append(Advice.RAISE_CPU_LIMIT_TOO)
    elif own is None:
        to_do.append(Advice.LOOK_FOR_PROGRAMS)
    by_tls = _tls_percent(context) >= TLS_MOST_PERCENT
    if by_tls:
        to_do.append(Advice.WITHOUT_TLS)
    return Limit(
        what="host CPU",
        confidence=confidence,
        seen=seen,
        to_do=tuple(map(Finding, to_do)),
        where="TLS" if by_tls else None,
    )


def _tls_percent(context: Context) -> float:
    """Return what TLS took of the readers' CPU time; 0 where there is none."""
    return 0.0 if context.object_requests is None else context.object_requests.tls_cpu_percent or 0.0


def _few_workers(confidence: Confidence, seen: tuple[Finding, ...], context: Context) -> Limit:
    more = Finding(Advice.MORE_WORKERS, numbers={"read_threads": context.read_threads})
    return Limit(what="loader", confidence=confidence, seen=seen, to_do=(more,))


def _emulator(confidence: Confidence, seen: tuple[Finding, ...]) -> Limit:
    return Limit(what="emulator", confidence=confidence, seen=seen, to_do=(Finding(Advice.RELIEVE_EMULATOR),))


def _is_out_of_cpu_time(context: Context) -> bool:
    """Return whether the run used up what a control group lets it have: who is held back may look blocked in reads."""
    used, throttled = context.cpu_limit_used_percent or 0, context.cpu_throttled_percent or 0
    return used >= BUSY_PERCENT or throttled >= THROTTLED_PERCENT


def _no_core_free(work: Work, context: Context) -> bool:
    busy = (context.host_busy_percent or 0) >= BUSY_PERCENT or _is_out_of_cpu_time(context)
    return work.starved_share >= STARVED_SHARE or busy


def _is_saturated(device: Device | None) -> bool:
    """Return whether requests wait for the device all the time: nobody who lacks a core could keep it so."""
    return device is not None and device.busy_percent >= BUSY_PERCENT and device.mean_depth >= FEW_REQUESTS


def _cores(work: Work, context: Context) -> Iterator[Finding]:
    """Yield what is known of the cores."""
    if work.cpu_known:
        yield Finding(Seen.STARVED, numbers={"percent": 100 * work.starved_share})
    if context.host_busy_percent is not None:
        busy: dict[str, Number] = {"percent": context.host_busy_percent}
        if context.own_busy_percent is not None:
            busy["own_percent"] = context.own_busy_percent
        yield Finding(Seen.CORES, numbers=busy)
    tls = _tls_percent(context)
    if tls >= TLS_TOLD_PERCENT:
        yield Finding(Seen.TLS, numbers={"percent": tls})
    if context.cpu_limit_cores is not None and context.cpu_limit_used_percent is not None:
        used = context.cpu_limit_cores * context.cpu_limit_used_percent / 100
        yield Finding(Seen.CPU_LIMIT, numbers={"used_cores": used, "limit_cores": context.cpu_limit_cores})
    if context.cpu_throttled_percent is not None and context.cpu_throttled_percent >= 1:
        yield Finding(Seen.THROTTLED, numbers={"percent": context.cpu_throttled_percent})


def _calls(work: Work) -> Iterator[Finding]:
    if work.call_bytes:
        numbers: dict[str, Number] = {
            "readers": work.readers,
            "call_ms": work.call_ms,
            "call_bytes": work.call_bytes,
        }
        yield Finding(Seen.READS, numbers=numbers)


def _device(device: Device | None, app_mb_per_second: float) -> Iterator[Finding]:
    if device is None:
        return
    numbers: dict[str, Number] = {"busy_percent": device.busy_percent, "depth": device.mean_depth}
    written = device.write_mb_per_second or 0.0
    if written > WRITTEN_SHARE * app_mb_per_second:
        numbers["written_mb_per_second"] = written
    yield Finding(Seen.DEVICE, numbers=numbers)


def _least(*all_of: Confidence) -> Confidence:
    order: tuple[Confidence, ...] = ("low", "medium", "high")
    return min(all_of, key=order.index)

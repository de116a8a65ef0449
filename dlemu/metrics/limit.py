"""What limited a run, with confidence, evidence and advice, as codes with their numbers (docs/metrics.md, section 6).

"Readers" are the workers of all ranks that read; "blocked" means waiting in a read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from dlemu.metrics.causes import Causes, Work
from dlemu.metrics.changes import FirstTouch, RanOut, SpeedChange, Stall
from dlemu.metrics.findings import Confidence, Finding, LimitedBy, Number
from dlemu.metrics.slow_folders import SlowFolder

What = Literal["storage", "host CPU", "loader", "memory", "emulator", "nothing"]
Where = Literal["server", "network", "TLS", "prefetch", "readers", "requests"]

MIN_LOSS_PERCENT = 2.0  # as in predictions (98 % AU); less is within the uncertainty of short runs
"""With less loss to waiting for data, nothing limits."""
EMULATOR_SHARE = 0.5
"""The emulator is the limit if the loss of its ceiling run (null storage) is this share of the run's loss or more."""
STARVED_SHARE, BUSY_PERCENT = 0.15, 90.0
"""No core is free if workers wait for one for this share of their time, or if the host is this busy (%)."""
OTHER_PROGRAMS_PERCENT = 50.0
"""Other programs are reported if they use this share of the cores' time, and more than the run does."""
MEMORY_PRESSURE_PERCENT = 10.0
"""Memory may be the limit if some task waited for it for this share of the time (`some` in /proc/pressure/memory)."""
_TLS_REPORTED_PERCENT, _TLS_LIMIT_PERCENT = 10.0, 50.0
"""Share of the readers' CPU time from which TLS is reported, and from which it is the reason for a lack of CPU."""
FEW_REQUESTS = 4.0
"""Concurrent requests from which a drive or server counts as busy; with fewer, most are partly idle."""
PIECE_BYTES = 512 << 10
"""A read call counts as one request per so many bytes: the kernel splits it into requests and sends them together."""
MIN_DEVICE_SHARE = 0.5
"""If less than this share of the readers have a request in the device, most requests wait somewhere before it."""
OTHER_READERS_PERCENT = 20.0
"""Other readers are reported from this share of the devices' bytes; less may be metadata, or reads around the run."""
HELD_BACK_PERCENT = 10.0
"""A CPU limit that was used up in this share of its periods costs time even where other programs use the cores."""
THROTTLED_PERCENT = 50.0
"""A CPU limit that was used up in this share of its periods is what limits the run."""
WRITTEN_SHARE = 0.05
"""Writes to the devices are reported from this many bytes written per byte read."""
MIN_SPEEDUP = 1.3  # smaller: two trials of seconds differ as much by chance; larger: real limits are overlooked
"""The number of readers, or the size of requests, was the limit if changing it gives this many times the rate."""
MIN_GAIN_PERCENT, _MIN_GAIN_SHARE = 2.0, 0.5
"""A deeper queue must gain this many points of AU to be the limit, and this share of the loss where the AU stays below
its threshold."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Telemetry of the devices behind the dataset, all together, while accelerators waited."""

    mean_depth: float
    """Mean number of requests in the devices."""
    busy_percent: float
    write_mb_per_second: float | None = None
    """Written to them by any program."""


@dataclass(frozen=True, kw_only=True)
class HotDrive:
    """A drive behind the dataset that reached its warning temperature, from which it throttles itself."""

    name: str
    celsius: float
    """The highest temperature recorded."""
    limit_celsius: float


@dataclass(frozen=True, kw_only=True)
class OtherReaders:
    """What other programs read from the dataset's devices while the run trained."""

    mb_per_second: float
    percent: float
    """Share of the bytes that the devices delivered."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Rates measured right after the run: with its number of readers, with more and fewer, and with larger requests."""

    readers: int
    mb_per_second: float
    more_readers: int = 0
    """0: not tried, because there were enough readers."""
    more_mb_per_second: float = 0.0
    again_mb_per_second: float
    """Rate of `readers`, measured again after the other trials."""
    fewer_readers: int = 0
    """0: not tried; likewise the fields below."""
    fewer_mb_per_second: float = 0.0
    larger_request_bytes: int = 0
    """Bytes of a read call, with `readers` readers."""
    larger_mb_per_second: float = 0.0

    @property
    def same_mb_per_second(self) -> float:
        """The better rate of `readers`: storage that became faster during the trials is no effect of other readers."""
        return max(self.mb_per_second, self.again_mb_per_second)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause of lost AU, and the AU without it. Causes overlap: their gains do not add up."""

    what: What
    where: Where | None = None
    au_percent: float
    """AU over whole epochs with only this cause removed, by replaying the run's batches in the event model."""
    setting: str | None = None
    """The setting that removes it, as `key=value`; None where there is none."""

    @property
    def name(self) -> str:
        """The cause as text: `loader, prefetch`."""
        return named(self.what, self.where)


def named(what: str, where: str | None) -> str:
    """Return a cause as text, with its part where that is known: `storage`, `loader, prefetch`."""
    return what if where is None else f"{what}, {where}"


@dataclass(frozen=True, kw_only=True)
class DeeperQueue:
    """A deeper prefetch queue, for a run whose batches are delivered in order."""

    prefetch_size: int
    now_prefetch_size: int
    ready_behind: float
    """Later batches of a rank that were complete when its wait for a batch ended; mean."""


@dataclass(frozen=True, kw_only=True)
class ObjectRequests:
    """How an object store answered the run's requests."""

    requests: int
    slow_down: int
    """Answers that there are too many requests (503, 429)."""
    retried: int
    first_byte_ms: float
    """Median time to the first byte of an answer."""
    last_byte_ms: float
    """Median time to the last byte."""
    tls_cpu_percent: float | None = None
    """Share of the readers' CPU time that TLS took (handshakes, decryption, copies); None without TLS."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Activity during some steps, of the busiest host, as all wait for the slowest; None for what is unknown."""

    host_busy_percent: float | None = None
    """CPU use of all cores by all programs; by this run only, where no telemetry was recorded."""
    own_busy_percent: float | None = None
    """CPU use of these cores by this run."""
    cpu_limit_cores: float | None = None
    """CPU limit (cgroup) of the host that used the greatest share of its limit, in cores."""
    cpu_limit_used_percent: float | None = None
    """Share of this limit that the run used."""
    cpu_throttled_percent: float | None = None
    """Share of the limit's periods in which it was used up, so that the run had to wait for the next period."""
    memory_some_percent: float | None = None
    """Share of the time in which some task waited for memory (`some` in /proc/pressure/memory)."""
    device: Device | None = None
    hot_drive: HotDrive | None = None
    network_percent: float | None = None
    """Rate received by the busiest network interface, as a share of its speed; None if no speed is known."""


@dataclass(frozen=True, kw_only=True)
class Context(Activity):
    """What else is known of a run; None for what is unknown."""

    ceiling_au: float | None = None
    """AU of the emulator alone, on null storage."""
    collates: bool = False
    """Batches get from worker to trainer as a training job's do (`reader.tensors`): that time is not the emulator's."""
    scaling: Scaling | None = None
    read_threads: int = 1
    from_storage_percent: float | None = None
    """Percentage of the bytes that the storage served, not the page cache."""
    others: OtherReaders | None = None
    """Other programs that read OTHER_READERS_PERCENT or more of what the same devices delivered."""
    speed_changes: tuple[SpeedChange, ...] = ()
    stalls: tuple[Stall, ...] = ()
    ran_out: RanOut | None = None
    first_touch: FirstTouch | None = None
    slow_folders: tuple[SlowFolder, ...] = ()
    slow_hosts: tuple[str, ...] = ()
    """Hosts whose reads the other hosts wait for."""
    object_requests: ObjectRequests | None = None
    """Only for an object store."""
    au_whole_percent: float | None = None
    """AU of all steps, with which the AU of `causes` is compared."""
    threshold_percent: float = 90.0
    causes: tuple[Cause, ...] = ()
    """The AU without each cause; empty where the event model does not reproduce the measured AU."""
    deeper: DeeperQueue | None = None
    """Details of the cause `loader, prefetch`."""


class Seen(StrEnum):
    """Codes of the evidence; each kind of job words them."""

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
    """Codes of the advice."""

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
    CHEAPER_HAND_OVER = "cheaper_hand_over"
    FREE_MEMORY = "free_memory"


@dataclass(frozen=True, kw_only=True)
class Limit(LimitedBy[What]):
    """What limited a run."""

    where: Where | None = None
    """Which part: of an object store, its `server` or the `network`; of the host CPU, `TLS` if that took most of it; of
    the loader, too shallow a `prefetch`, too few or too many `readers`, or too small `requests`."""
    causes: tuple[Cause, ...] = ()
    """All causes known, each with the AU without it; the limit itself first."""

    @property
    def name(self) -> str:
        """The limit as text: `loader, prefetch`."""
        return named(self.what, self.where)


def judge_limit(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    """Return what limited the steps that `causes`, `work` and `au` (in percent) were computed from."""
    limit = _judge(au, causes, work, context)
    if limit.what == "nothing":
        return limit

    def order(cause: Cause) -> tuple[bool, bool, float]:
        return cause.what != limit.what, limit.where is not None and cause.where != limit.where, -cause.au_percent

    return replace(limit, causes=tuple(sorted(context.causes, key=order)))


def _judge(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    waited = Finding.of(Seen.WAITED, percent=causes.total)
    if causes.total < MIN_LOSS_PERCENT:
        return Limit(what="nothing", confidence="high", seen=(waited,))
    if _is_out_of_cpu_time(context) and not _is_saturated(context.device):
        return _host_cpu(
            "high" if causes.storage < causes.total / 2 else "medium", (waited, *_cores(work, context)), context
        )
    ceiling = context.ceiling_au
    # A ceiling below what the run reached was measured at a worse moment: it explains nothing.
    if ceiling is not None and ceiling >= au and 100 - ceiling >= EMULATOR_SHARE * (100 - au):
        reached = Finding.of(Seen.CEILING, ceiling_au_percent=ceiling, au_percent=au)
        # From 0.8 on, all other causes together explain a fifth of the loss at most.
        certain: Confidence = "high" if 100 - ceiling >= 0.8 * (100 - au) else "medium"
        return _emulator(certain, (waited, reached), context)
    groups = {
        "storage": causes.storage,
        "cpu": causes.computing + causes.starved,
        "loader": causes.queueing + causes.pause,
        "hand-over": causes.hand_over,
    }
    largest = max(groups, key=lambda name: groups[name])
    share = groups[largest] / causes.total  # 3/4: three times all others together; 1/2: as much as all others
    confidence: Confidence = "high" if share >= 0.75 and work.cpu_known else "medium" if share >= 0.5 else "low"
    seen = [waited]
    if context.memory_some_percent is not None and context.memory_some_percent >= MEMORY_PRESSURE_PERCENT:
        seen.append(Finding.of(Seen.MEMORY_PRESSURE, percent=context.memory_some_percent))
        busy = context.device is not None and context.device.busy_percent >= BUSY_PERCENT
        if largest == "cpu" or (largest == "storage" and not busy):
            to_do = (Finding(Advice.FREE_MEMORY),)
            return Limit(what="memory", confidence=confidence, seen=tuple(seen), to_do=to_do)
        confidence = _lowest(confidence, "medium")
    decide = {"storage": _reads, "cpu": _cpu, "loader": _loader, "hand-over": _hand_over}[largest]
    limit = decide(confidence, share, tuple(seen), causes, work, context)
    if largest != "storage" or _is_saturated(context.device) or not _no_core_free(work, context):
        return limit
    # Without a free core all but reads and the sleeps of preprocessing is due to that; and what serves the reads, such
    # as kernel threads or a mount's process, needs cores, too.
    outweighed, unsure = 2 * causes.storage < causes.total - causes.pause, share < 0.75 or limit.confidence == "low"
    in_doubt = outweighed or (unsure and _others_have_the_cores(context))
    if not work.cpu_known or (limit.what == "storage" and in_doubt):
        return _host_cpu("low", (*seen, *_cores(work, context)), context)
    return limit


def lost_to_reads(causes: Causes) -> bool:
    """Return whether at least half of the loss is due to reads."""
    return causes.total >= MIN_LOSS_PERCENT and causes.storage >= causes.total / 2


def reads_may_be_too_few(causes: Causes, work: Work, ranks: int, io_depth: int | None = None) -> bool:
    """Return whether the loss is due to reads, with so few in flight that more might have been faster.

    `causes` and `work` are those of one of `ranks` equal ranks; `io_depth` is None for files.
    """
    requests = ranks * work.readers * (io_depth or max(1.0, work.call_bytes / PIECE_BYTES))
    return lost_to_reads(causes) and requests < 2 * FEW_REQUESTS


def _share_of_wait(code: Seen, share: float) -> Finding:
    """Return a finding that explains this share (0 to 1) of the wait."""
    return Finding.of(code, percent=100 * share)


def _reads(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Return the limit where workers were blocked in reads: the storage, or the loader's readers, requests or queue."""
    if not work.cpu_known and context.from_storage_percent is not None and context.from_storage_percent < 5:
        return _few_workers(
            "low", (*waited, Finding(Seen.CACHE_SERVED)), context
        )  # the page cache served at least 95 %
    seen = [
        *waited,
        _share_of_wait(Seen.BLOCKED_IN_READS, share),
        *_calls(work),
        Finding.of(
            Seen.RATES, given_mb_per_second=work.app_mb_per_second, wanted_mb_per_second=work.wanted_mb_per_second
        ),
        *_device(context.device, work.app_mb_per_second),
        *_answers(context),
    ]
    if context.others is not None:
        # On a shared drive, more readers may get more only by taking it from the other programs: no proof of a reserve.
        return Limit(
            what="storage",
            confidence=confidence,
            seen=(
                *seen,
                Finding.of(
                    Seen.OTHER_READERS, mb_per_second=context.others.mb_per_second, percent=context.others.percent
                ),
            ),
            to_do=(Finding(Advice.STOP_OTHER_READERS), *_unsteady(context)),
        )
    if (better := _better_trial(work, context)) is not None:
        code, where_in_loader, measured, to_set = better
        seen.append(Finding(code, numbers=measured))
        advice = Finding(_ADVICE_FOR[code], numbers=to_set)
        return Limit(what="loader", where=where_in_loader, confidence="high", seen=tuple(seen), to_do=(advice,))
    few, certain, why = _too_few_readers(work, context)
    seen += [why] if why else []
    if not (few and certain == "high") and (shallow := _shallow_queue(work, context)) is not None:
        sure: Confidence = "high" if context.scaling is not None else "medium"
        return Limit(
            what="loader",
            where="prefetch",
            confidence=_lowest(confidence, sure),
            seen=(*seen, *shallow),
            to_do=(Finding(Advice.DEEPER_QUEUE, numbers=shallow[-1].numbers),),
        )
    confidence = _lowest(confidence, certain)
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
    """Yield the evidence from the requests to an object store."""
    answered = context.object_requests
    if answered is None:
        return
    yield Finding.of(Seen.ANSWERS, first_byte_ms=answered.first_byte_ms, last_byte_ms=answered.last_byte_ms)
    if answered.slow_down:
        percent = 100 * answered.slow_down / max(1, answered.requests)
        yield Finding.of(Seen.SLOW_DOWN, answers=answered.slow_down, percent=percent)
    if answered.retried:
        yield Finding.of(Seen.RETRIED, retried=answered.retried, requests=answered.requests)
    if context.network_percent is not None:
        yield Finding.of(Seen.NETWORK, percent=context.network_percent)


def _unsteady(context: Context) -> Iterator[Finding]:
    """Yield advice for storage whose speed was not constant: over time, between folders, or between hosts."""
    hot, out, touched = context.hot_drive, context.ran_out, context.first_touch
    if touched is not None:
        yield Finding.of(
            Advice.FIRST_TOUCH,
            gb=touched.gb,
            mb_per_second_first=touched.mb_per_second_first,
            mb_per_second_after=touched.mb_per_second_after,
        )
    if hot is not None:
        yield Finding.of(Advice.COOL_DRIVE, drive=hot.name, celsius=hot.celsius, limit_celsius=hot.limit_celsius)
    if out is not None and hot is None and context.others is None:
        yield Finding.of(Advice.SPEED_THAT_LASTS, mb_per_second=out.mb_per_second_after, gb=out.gb, times=out.times)
    elif context.speed_changes and context.speed_changes[-1].percent < 100:
        yield Finding.of(Advice.BECAME_SLOWER, at_seconds=context.speed_changes[-1].at_seconds)
    if context.slow_folders:
        slowest = context.slow_folders[0]
        yield Finding.of(
            Advice.SLOW_FOLDER,
            folder=slowest.name,
            ms_per_sample=slowest.ms_per_sample,
            others_ms_per_sample=slowest.others_ms_per_sample,
            folders=len(context.slow_folders),
        )
    if context.slow_hosts:
        yield Finding.of(Advice.SLOW_HOSTS, hosts=", ".join(context.slow_hosts))
    if context.stalls:
        yield Finding.of(Advice.STOOD_STILL, times=len(context.stalls))


_ADVICE_FOR = {Seen.FEWER_READERS: Advice.FEWER_READERS, Seen.LARGER_REQUESTS: Advice.LARGER_REQUESTS}
_Trial = tuple[Seen, Where, dict[str, Number], dict[str, Number]]
"""Evidence code, part of the loader, numbers measured, settings to advise."""


def _better_trial(work: Work, context: Context) -> _Trial | None:
    """Return the trial (fewer readers or larger requests) that is MIN_SPEEDUP faster, and the fastest; None if none."""
    scaling = context.scaling
    if scaling is None or scaling.mb_per_second <= 0:
        return None
    same = scaling.same_mb_per_second
    measured: dict[str, Number] = {"readers": scaling.readers, "mb_per_second": same}
    trials: list[tuple[float, _Trial]] = []
    if scaling.fewer_readers:
        threads = max(1, round(context.read_threads * scaling.fewer_readers / scaling.readers))
        numbers = measured | {
            "fewer_readers": scaling.fewer_readers,
            "fewer_mb_per_second": scaling.fewer_mb_per_second,
            "factor": scaling.fewer_mb_per_second / same,
        }
        to_set: dict[str, Number] = {"read_threads": threads, "now": context.read_threads}
        trials.append((scaling.fewer_mb_per_second, (Seen.FEWER_READERS, "readers", numbers, to_set)))
    if scaling.larger_request_bytes:
        numbers = measured | {
            "request_bytes": scaling.larger_request_bytes,
            "larger_mb_per_second": scaling.larger_mb_per_second,
            "factor": scaling.larger_mb_per_second / same,
        }
        to_set = {"transfer_size": scaling.larger_request_bytes}
        trials.append((scaling.larger_mb_per_second, (Seen.LARGER_REQUESTS, "requests", numbers, to_set)))
    rate, best = max(trials, key=lambda trial: trial[0], default=(0.0, None))
    if rate < MIN_SPEEDUP * max(same, work.app_mb_per_second) or rate < scaling.more_mb_per_second:
        return None
    return best


def _shallow_queue(work: Work, context: Context) -> tuple[Finding, ...] | None:
    """Return the evidence that in-order batches wait for one slow read while later ones are ready; None if they don't.

    A deeper queue must lift the AU to its threshold, or remove half of the loss, or gain MIN_GAIN_PERCENT in the trial.
    """
    deeper, now = context.deeper, context.au_whole_percent
    cause = next((cause for cause in context.causes if cause.where == "prefetch"), None)
    if deeper is None or cause is None or now is None or deeper.ready_behind < 1:
        return None
    gained = cause.au_percent - now
    enough = gained >= _MIN_GAIN_SHARE * (100 - now) or (cause.au_percent >= context.threshold_percent > now)
    scaling = context.scaling
    needed = work.wanted_mb_per_second * context.threshold_percent / 100
    enough = enough or (scaling is not None and min(scaling.mb_per_second, scaling.again_mb_per_second) >= needed)
    if gained < MIN_GAIN_PERCENT or not enough:
        return None
    return Finding.of(Seen.OUT_OF_ORDER, batches=deeper.ready_behind), Finding.of(
        Seen.DEEPER_QUEUE,
        prefetch_size=deeper.prefetch_size,
        now=deeper.now_prefetch_size,
        au_percent=cause.au_percent,
        now_au_percent=now,
    )


def _too_few_readers(work: Work, context: Context) -> tuple[bool, Confidence, Finding | None]:
    """Return whether the number of readers was the limit, how certain that is, and the evidence."""
    scaling, device = context.scaling, context.device
    if scaling is not None and scaling.mb_per_second > 0 and scaling.more_readers:
        same = scaling.same_mb_per_second
        factor = scaling.more_mb_per_second / same
        gained = min(factor, scaling.more_mb_per_second / max(same, work.app_mb_per_second))
        return (
            gained >= MIN_SPEEDUP,
            "high",
            Finding.of(
                Seen.SCALING,
                readers=scaling.readers,
                mb_per_second=same,
                more_readers=scaling.more_readers,
                more_mb_per_second=scaling.more_mb_per_second,
                factor=factor,
            ),
        )
    requests = work.readers * max(1.0, work.call_bytes / PIECE_BYTES)
    if device is not None:
        if device.mean_depth >= FEW_REQUESTS:
            return False, "high", None
        if device.mean_depth < MIN_DEVICE_SHARE * work.readers:
            return False, "medium", Finding(Seen.STUCK_BEFORE_DEVICE)
        depth: dict[str, Number] = {"depth": device.mean_depth}
        if requests >= FEW_REQUESTS or device.busy_percent < BUSY_PERCENT:
            return requests < FEW_REQUESTS, "medium", Finding(Seen.DEVICE_HAD_FEW, numbers=depth)
        # Never idle with few requests: a slow drive, or one that could serve more readers. The latter is likelier with
        # small calls; large ones are sent as several requests at once, which keep a drive busy.
        return work.call_bytes <= PIECE_BYTES, "low", Finding(Seen.DEVICE_NEVER_IDLE, numbers=depth)
    if not work.call_bytes:
        return False, "medium", None
    if requests < FEW_REQUESTS and work.call_bytes <= PIECE_BYTES:
        return True, "low", Finding.of(Seen.FEW_SMALL_READS, readers=work.readers)
    return False, "high" if requests >= 2 * FEW_REQUESTS else "medium", None


def _cpu(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Return the limit where workers computed or waited for a core: no core is free, or there are too few workers."""
    seen = (*waited, _share_of_wait(Seen.COMPUTING, share), *_cores(work, context))
    if _no_core_free(work, context) or causes.starved > causes.computing:
        return _host_cpu(confidence, seen, context)
    return _few_workers(confidence, (*seen, Finding(Seen.CORES_WERE_FREE)), context)


def _loader(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Return the limit where batches were not started in time, or workers were in emulated preprocessing."""
    if causes.pause > causes.queueing:
        if work.burns and _no_core_free(work, context):  # a sleep needs no core
            preprocessed = _share_of_wait(Seen.PREPROCESSING, share)
            return _host_cpu(confidence, (*waited, preprocessed, *_cores(work, context)), context)
        return _few_workers(confidence, (*waited, _share_of_wait(Seen.PREPROCESSING, share)), context)
    seen = (*waited, _share_of_wait(Seen.NOT_BEGUN, share))
    if _no_core_free(work, context):  # without a core, a free worker starts no batch
        return _host_cpu(confidence, (*seen, *_cores(work, context)), context)
    if work.late_share >= STARVED_SHARE:  # then workers wake late, too
        woke_late = _share_of_wait(Seen.WOKE_LATE, work.late_share)
        return _emulator(_lowest(confidence, "medium"), (*seen, woke_late), context)
    return Limit(what="loader", confidence=confidence, seen=seen, to_do=(Finding(Advice.READ_AHEAD),))


def _hand_over(
    confidence: Confidence, share: float, waited: tuple[Finding, ...], causes: Causes, work: Work, context: Context
) -> Limit:
    """Return the limit where complete batches were not taken at once: the emulator is late, or no core is free."""
    seen = (*waited, _share_of_wait(Seen.LAY_READY, share), *_cores(work, context))
    if _no_core_free(work, context):
        return _host_cpu(confidence, seen, context)
    return _emulator(confidence, seen, context)


def _host_cpu(confidence: Confidence, seen: tuple[Finding, ...], context: Context) -> Limit:
    to_do = [Advice.MORE_CORES]
    if _is_out_of_cpu_time(context):
        to_do = [Advice.RAISE_CPU_LIMIT]
    elif _others_have_the_cores(context):
        to_do = [Advice.STOP_OTHER_PROGRAMS]
        if (context.cpu_throttled_percent or 0) >= HELD_BACK_PERCENT:
            to_do.append(Advice.RAISE_CPU_LIMIT_TOO)
    elif context.own_busy_percent is None:
        to_do.append(Advice.LOOK_FOR_PROGRAMS)
    where: Where | None = "TLS" if _tls_percent(context) >= _TLS_LIMIT_PERCENT else None
    if where == "TLS":
        to_do.append(Advice.WITHOUT_TLS)
    return Limit(what="host CPU", confidence=confidence, seen=seen, to_do=tuple(map(Finding, to_do)), where=where)


def _tls_percent(context: Context) -> float:
    """Return the share of the readers' CPU time that TLS took; 0 without TLS."""
    return 0.0 if context.object_requests is None else context.object_requests.tls_cpu_percent or 0.0


def _few_workers(confidence: Confidence, seen: tuple[Finding, ...], context: Context) -> Limit:
    more = Finding.of(Advice.MORE_WORKERS, read_threads=context.read_threads)
    return Limit(what="loader", confidence=confidence, seen=seen, to_do=(more,))


def _emulator(confidence: Confidence, seen: tuple[Finding, ...], context: Context) -> Limit:
    if context.collates:
        return Limit(what="host CPU", confidence=confidence, seen=seen, to_do=(Finding(Advice.CHEAPER_HAND_OVER),))
    return Limit(what="emulator", confidence=confidence, seen=seen, to_do=(Finding(Advice.RELIEVE_EMULATOR),))


def _is_out_of_cpu_time(context: Context) -> bool:
    """Return whether the run used up its CPU limit (cgroup); a throttled worker may look blocked in reads."""
    used, throttled = context.cpu_limit_used_percent or 0, context.cpu_throttled_percent or 0
    return used >= BUSY_PERCENT or throttled >= THROTTLED_PERCENT


def _others_have_the_cores(context: Context) -> bool:
    own = context.own_busy_percent
    return own is not None and (context.host_busy_percent or 0) - own >= max(own, OTHER_PROGRAMS_PERCENT)


def _no_core_free(work: Work, context: Context) -> bool:
    busy = (context.host_busy_percent or 0) >= BUSY_PERCENT or _is_out_of_cpu_time(context)
    return work.starved_share >= STARVED_SHARE or busy


def _is_saturated(device: Device | None) -> bool:
    """Return whether requests always wait for the device; readers that lack a core could not keep it so busy."""
    return device is not None and device.busy_percent >= BUSY_PERCENT and device.mean_depth >= FEW_REQUESTS


def _cores(work: Work, context: Context) -> Iterator[Finding]:
    """Yield the evidence on the cores."""
    if work.cpu_known:
        yield Finding.of(Seen.STARVED, percent=100 * work.starved_share)
    if context.host_busy_percent is not None:
        busy: dict[str, Number] = {"percent": context.host_busy_percent}
        if context.own_busy_percent is not None:
            busy["own_percent"] = context.own_busy_percent
        yield Finding(Seen.CORES, numbers=busy)
    tls = _tls_percent(context)
    if tls >= _TLS_REPORTED_PERCENT:
        yield Finding.of(Seen.TLS, percent=tls)
    if context.cpu_limit_cores is not None and context.cpu_limit_used_percent is not None:
        used = context.cpu_limit_cores * context.cpu_limit_used_percent / 100
        yield Finding.of(Seen.CPU_LIMIT, used_cores=used, limit_cores=context.cpu_limit_cores)
    if context.cpu_throttled_percent is not None and context.cpu_throttled_percent >= 1:
        yield Finding.of(Seen.THROTTLED, percent=context.cpu_throttled_percent)


def _calls(work: Work) -> Iterator[Finding]:
    if work.call_bytes:
        yield Finding.of(Seen.READS, readers=work.readers, call_ms=work.call_ms, call_bytes=work.call_bytes)


def _device(device: Device | None, app_mb_per_second: float) -> Iterator[Finding]:
    if device is None:
        return
    numbers: dict[str, Number] = {"busy_percent": device.busy_percent, "depth": device.mean_depth}
    written = device.write_mb_per_second or 0.0
    if written > WRITTEN_SHARE * app_mb_per_second:
        numbers["written_mb_per_second"] = written
    yield Finding(Seen.DEVICE, numbers=numbers)


def _lowest(*confidences: Confidence) -> Confidence:
    order: tuple[Confidence, ...] = ("low", "medium", "high")
    return min(confidences, key=order.index)

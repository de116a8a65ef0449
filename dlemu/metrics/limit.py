"""What limited a run, with the evidence, how far to trust it, and what to do: one verdict from all that was measured.

The rules stand in docs/metrics.md, section 6, with their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.metrics.causes import Causes, Work
from dlemu.metrics.changes import SpeedChange, Stall, clock
from dlemu.metrics.ran_out import RanOut
from dlemu.metrics.slow_folders import SlowFolder

What = Literal["storage", "host CPU", "loader", "memory", "emulator", "nothing"]
Confidence = Literal["high", "medium", "low"]
Where = Literal["server", "network", "TLS"]

NOTHING_PERCENT = 2.0
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
"""Share of the readers' CPU time from which on TLS is told, and from which on a lack of CPU is named after it."""
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
"""Bytes written to the devices for each byte read from which on it is said."""
SCALES = 1.3
"""How many times the rate more readers must bring for their number to have been the limit."""


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
    """What the storage gave to as many readers as the run had, and to more, right after the run."""

    readers: int
    mb_per_second: float
    more_readers: int
    more_mb_per_second: float
    again_mb_per_second: float | None = None
    """What as many readers as the run had got after that; None in results of older versions."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an object store's server made of the run's requests."""

    requests: int
    slow_down: int
    """Answers that it is asked too much (503, 429)."""
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
    slow_folders: tuple[SlowFolder, ...] = ()
    slow_hosts: tuple[str, ...] = ()
    """Hosts whose reads the others wait for."""
    hot_drive: HotDrive | None = None
    asked: Asked | None = None
    """Of an object store."""
    network_percent: float | None = None
    """What the busiest interface received of what it can."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One verdict."""

    what: What
    confidence: Confidence
    evidence: tuple[str, ...]
    advice: tuple[str, ...] = ()
    where: Where | None = None
    """Of an object store that is the limit: what of it; of the host's CPU: that reading over TLS takes most of it."""


def judge_limit(au: float, causes: Causes, work: Work, context: Context) -> Limit:
    """Say what limited the steps that the causes were found in; `au` is theirs, in percent."""
    waited = f"the accelerators waited for data {causes.total:.1f} % of the time"
    if causes.total < NOTHING_PERCENT:
        return Limit(what="nothing", confidence="high", evidence=(waited,))
    if _is_out_of_cpu_time(context) and not _is_saturated(context.device):
        return _host_cpu(
            "high" if causes.storage < causes.total / 2 else "medium", (waited, *_cores(work, context)), context
        )
    ceiling = context.ceiling_au
    if ceiling is not None and 100 - ceiling >= EMULATOR_SHARE * (100 - au):
        evidence = f"on null storage the emulator reaches {ceiling:.1f} % on this host, and {au:.1f} % on the dataset"
        sureness: Confidence = "high" if 100 - ceiling >= 0.8 * (100 - au) else "medium"
        return _emulator(sureness, (waited, evidence))
    groups = {
        "storage": causes.storage,
        "cpu": causes.computing + causes.starved,
        "loader": causes.queueing + causes.pause,
        "hand-over": causes.hand_over,
    }
    largest = max(groups, key=lambda name: groups[name])
    share = groups[largest] / causes.total
    confidence: Confidence = "high" if share >= 0.75 and work.cpu_known else "medium" if share >= 0.5 else "low"
    if _is_short_of_memory(context):
        busy = context.device is not None and context.device.busy_percent >= BUSY_PERCENT
        if largest == "cpu" or (largest == "storage" and not busy):
            return _memory(confidence, waited, context)
        waited, confidence = f"{waited}; {_memory_pressure(context)}", _least(confidence, "medium")
    decide = {"storage": _reads, "cpu": _cpu, "loader": _loader, "hand-over": _hand_over}[largest]
    return decide(confidence, share, waited, causes, work, context)


def reads_may_be_too_few(causes: Causes, work: Work, ranks: int, io_depth: int | None = None) -> bool:
    """Say whether more was lost to reads than to all else, with few enough under way that more might have helped.

    `causes` and `work` are of one of so many ranks that do alike. A reader of an object store has `io_depth` requests
    in flight; None where it reads files.
    """
    requests = ranks * work.readers * (io_depth or max(1.0, work.call_bytes / PIECE_BYTES))
    most = causes.total >= NOTHING_PERCENT and causes.storage >= causes.total / 2
    return most and requests < 2 * FEW_REQUESTS


def _reads(confidence: Confidence, share: float, waited: str, causes: Causes, work: Work, context: Context) -> Limit:
    """Blocked in reads: the storage is slow, or too few reads are under way at a time."""
    if not work.cpu_known and _no_core_free(work, context) and not _is_saturated(context.device):
        return _host_cpu("low", (waited, *_cores(work, context)), context)
    if not work.cpu_known and context.from_storage_percent is not None and context.from_storage_percent < 5:
        return _few_workers("low", (waited, "the page cache served the bytes, and cores were free"), context)
    evidence = (
        f"{waited}; in {100 * share:.0f} % of that a worker was blocked in a read",
        *_calls(work),
        f"the storage gave {work.app_mb_per_second:,.1f} MB/s; the accelerators ask for "
        f"{work.wanted_mb_per_second:,.1f} MB/s",
        *_device(context.device, work.app_mb_per_second),
        *_answers(context),
    )
    if context.others is not None:
        return _shared(confidence, evidence, context, context.others)
    few, certain, why = _too_few_readers(work, context)
    if few:
        return Limit(
            what="loader",
            confidence=_least(confidence, certain),
            evidence=(*evidence, why),
            advice=(
                f"too few readers: more reader.read_threads (now {context.read_threads})"
                f"{' or a larger reader.io_depth' if context.asked else ''} would help",
            ),
        )
    advice = ["faster storage, or fewer accelerators on it", *_unsteady(context)]
    if certain != "high" and work.readers < 2 * FEW_REQUESTS:
        advice.append(f"to rule out too few readers, try more reader.read_threads (now {context.read_threads})")
    evidence = (*evidence, why) if why else evidence
    where: Where | None = None
    if context.asked is not None:
        where = "network" if _fills_network(context) else "server"
    if where == "network":
        advice[0] = "a faster network between host and server, or fewer accelerators on it"
    return Limit(
        what="storage",
        confidence=_least(confidence, certain),
        evidence=evidence,
        advice=tuple(advice),
        where=where,
    )


def _fills_network(context: Context) -> bool:
    return (context.network_percent or 0) >= BUSY_PERCENT


def _answers(context: Context) -> tuple[str, ...]:
    """Return what the requests to an object store say of server and network."""
    asked = context.asked
    if asked is None:
        return ()
    first, last = asked.first_byte_ms, asked.last_byte_ms
    facts = [f"the server's first byte came after {first:.3g} ms, the last after {last:.3g} ms (medians)"]
    if asked.slow_down:
        percent = 100 * asked.slow_down / max(1, asked.requests)
        facts.append(f"the server said {asked.slow_down:,} times that it is asked too much (503), {percent:.2g} %")
    if asked.retried:
        facts.append(f"{asked.retried:,} of {asked.requests:,} requests were asked again")
    if context.network_percent is not None:
        facts.append(f"the network interface received {context.network_percent:.0f} % of what it can")
    return tuple(facts)


def _shared(confidence: Confidence, evidence: tuple[str, ...], context: Context, others: OtherReaders) -> Limit:
    """The drive serves others too: that more readers would get more of it does not say that it had more to give."""
    named = (
        f"storage shared with others: others read {others.mb_per_second:,.1f} MB/s from the same device "
        f"({others.percent:.0f} % of what it gave)"
    )
    advice = "stop what else reads from the device (iotop), or count it in: it is not the storage's whole speed"
    return Limit(
        what="storage",
        confidence=confidence,
        evidence=(*evidence, named),
        advice=(advice, *_unsteady(context)),
    )


def _unsteady(context: Context) -> tuple[str, ...]:
    """Return what to look for where the storage's speed did not stay the same."""
    advice = []
    hot = context.hot_drive
    if hot is not None:
        advice.append(
            f"cool the drive: {hot.name} reached {hot.celsius:.0f} degrees Celsius, and from {hot.limit_celsius:.0f} "
            "on it slows itself down"
        )
    if context.ran_out is not None and hot is None and context.others is None:
        out = context.ran_out
        times = f", {out.times} times" if out.times > 1 else ""
        sure = "" if out.times > 1 else "; a second run after a pause would tell it from others on the drive"
        advice.append(
            f"count on {out.mb_per_second_after:,.0f} MB/s, the speed that lasts: the first {out.gb:.3g} GB came faster"
            f"{times}, as from a cache or a burst credit of that size that ran out{sure}"
        )
    elif context.speed_changes and context.speed_changes[-1].percent < 100:
        advice.append(
            f"see why the storage became slower at {clock(context.speed_changes[-1].at_seconds)} and stayed so: others "
            "on it, a drive that is too hot or busy with itself; the speed that lasts is the one to count on"
        )
    if context.slow_folders:
        one = context.slow_folders[0]
        more = f", and {len(context.slow_folders) - 1} more" if len(context.slow_folders) > 1 else ""
        advice.append(
            f"see where the folder {one.name} lies: a sample of it takes {one.ms_per_sample:.3g} ms, of the others "
            f"{one.others_ms_per_sample:.3g} ms{more}"
        )
    if context.slow_hosts:
        advice.append(
            f"see to host {', '.join(context.slow_hosts)}: all others wait for its reads (its mount, network or drive)"
        )
    if context.stalls:
        advice.append("see why the storage stood still: the drive's or the file system's own work, the network, others")
    return tuple(advice)


def _too_few_readers(work: Work, context: Context) -> tuple[bool, Confidence, str]:
    """Say whether the number of readers was the limit, how certain that is, and what tells."""
    scaling, device = context.scaling, context.device
    if scaling is not None and scaling.mb_per_second > 0:
        same = max(scaling.mb_per_second, scaling.again_mb_per_second or 0.0)
        factor = scaling.more_mb_per_second / same
        facts = (
            f"right after the run {scaling.readers} readers got {same:,.1f} MB/s and "
            f"{scaling.more_readers} got {scaling.more_mb_per_second:,.1f} MB/s, {factor:.2f} times as much"
        )
        gained = min(factor, scaling.more_mb_per_second / max(same, work.app_mb_per_second))
        return gained >= SCALES, "high", facts
    requests = work.readers * max(1.0, work.call_bytes / PIECE_BYTES)
    if device is not None:
        if device.mean_depth >= FEW_REQUESTS:
            return False, "high", ""
        if device.mean_depth < IN_DEVICE * work.readers:
            return (
                False,
                "medium",
                "most of the reads waited before the device: a limit on the way to it (cgroup, network)",
            )
        facts = f"the device had only {device.mean_depth:.1f} requests at a time"
        if requests >= FEW_REQUESTS or device.busy_percent < BUSY_PERCENT:
            return requests < FEW_REQUESTS, "medium", facts
        # Never idle with few requests: a drive that is slow and one that more readers could use look the same. What is
        # known is how drives are: large calls are cut up and sent together, small ones wait for each answer.
        return work.call_bytes <= PIECE_BYTES, "low", f"{facts} and was never idle; metric.scaling_seconds=1 would tell"
    if not work.call_bytes:
        return False, "medium", ""
    if requests < FEW_REQUESTS and work.call_bytes <= PIECE_BYTES:
        return True, "low", f"only {work.readers:.1f} small reads were under way at a time"
    return False, "high" if requests >= 2 * FEW_REQUESTS else "medium", ""


def _cpu(confidence: Confidence, share: float, waited: str, causes: Causes, work: Work, context: Context) -> Limit:
    """Workers that compute or want to: no core is free, or there are too few workers for those that are."""
    evidence = (
        f"{waited}; in {100 * share:.0f} % of that a worker was computing (decoding, copying) or wanted a core",
        *_cores(work, context),
    )
    if _no_core_free(work, context) or causes.starved > causes.computing:
        return _host_cpu(confidence, evidence, context)
    return _few_workers(confidence, (*evidence, "cores were free"), context)


def _loader(confidence: Confidence, share: float, waited: str, causes: Causes, work: Work, context: Context) -> Limit:
    """Batches that were not begun in time, or the sleep of an emulated preprocessing."""
    if causes.pause > causes.queueing:
        evidence = f"{waited}; in {100 * share:.0f} % of that a worker was in reader.preprocess_time"
        return _few_workers(confidence, (evidence,), context)
    evidence = f"{waited}; in {100 * share:.0f} % of that the batch was not begun though workers had time"
    advice = "more batches ahead: a larger reader.prefetch_size, or more reader.read_threads"
    return Limit(what="loader", confidence=confidence, evidence=(evidence,), advice=(advice,))


def _hand_over(
    confidence: Confidence, share: float, waited: str, causes: Causes, work: Work, context: Context
) -> Limit:
    """Batches that were ready before the trainer had them: the host is late, of its own or for want of a core."""
    evidence = (f"{waited}; in {100 * share:.0f} % of that the batch lay ready in its worker", *_cores(work, context))
    if _no_core_free(work, context):
        return _host_cpu(confidence, evidence, context)
    return _emulator(confidence, evidence)


def _host_cpu(confidence: Confidence, evidence: tuple[str, ...], context: Context) -> Limit:
    busy, own = context.host_busy_percent or 0, context.own_busy_percent
    advice = "more cores or fewer ranks on this host; look at reader.decode and verify"
    if _is_out_of_cpu_time(context):
        advice = "raise the CPU limit of this container or job (cgroup), or use fewer ranks; look at reader.decode"
    elif own is not None and busy - own >= max(own, MOST_PERCENT):
        advice = "other programs have most of the cores: stop them (top), or run where nothing else does"
        if (context.cpu_throttled_percent or 0) >= HELD_BACK_PERCENT:
            advice += "; raise the CPU limit of this container or job (cgroup), too"
    elif own is None:
        advice += "; look for other programs (top)"
    where: Where | None = None
    if _tls_percent(context) >= TLS_MOST_PERCENT:
        where = "TLS"
        advice += "; http:// instead of https:// saves what TLS takes, on a network that is trusted"
    return Limit(what="host CPU", confidence=confidence, evidence=evidence, advice=(advice,), where=where)


def _tls_percent(context: Context) -> float:
    """Return what TLS took of the readers' CPU time; 0 where there is none."""
    return 0.0 if context.asked is None else context.asked.tls_cpu_percent or 0.0


def _few_workers(confidence: Confidence, evidence: tuple[str, ...], context: Context) -> Limit:
    advice = f"more reader.read_threads (now {context.read_threads}) would help: the work of one batch is one worker's"
    return Limit(what="loader", confidence=confidence, evidence=evidence, advice=(advice,))


def _emulator(confidence: Confidence, evidence: tuple[str, ...]) -> Limit:
    advice = "the number says little about the storage: fewer ranks on this host, or a host with more cores"
    return Limit(what="emulator", confidence=confidence, evidence=evidence, advice=(advice,))


def _memory(confidence: Confidence, waited: str, context: Context) -> Limit:
    advice = "lower reader.read_threads, reader.prefetch_size or ranks, or stop what else fills the memory"
    return Limit(what="memory", confidence=confidence, evidence=(waited, _memory_pressure(context)), advice=(advice,))


def _is_short_of_memory(context: Context) -> bool:
    return (context.memory_some_percent or 0) >= MEMORY_PRESSURE_PERCENT


def _memory_pressure(context: Context) -> str:
    return f"some task of the host waited for memory {context.memory_some_percent:.0f} % of the time (pressure)"


def _is_out_of_cpu_time(context: Context) -> bool:
    """Say whether the run used up what a control group lets it have: who is held back may look blocked in reads."""
    used, throttled = context.cpu_limit_used_percent or 0, context.cpu_throttled_percent or 0
    return used >= BUSY_PERCENT or throttled >= THROTTLED_PERCENT


def _no_core_free(work: Work, context: Context) -> bool:
    busy = (context.host_busy_percent or 0) >= BUSY_PERCENT or _is_out_of_cpu_time(context)
    return work.starved_share >= STARVED_SHARE or busy


def _is_saturated(device: Device | None) -> bool:
    """Say whether requests wait for the device all the time: nobody who lacks a core could keep it so."""
    return device is not None and device.busy_percent >= BUSY_PERCENT and device.mean_depth >= FEW_REQUESTS


def _cores(work: Work, context: Context) -> tuple[str, ...]:
    facts = []
    if work.cpu_known:
        facts.append(f"workers wanted a core and had none in {100 * work.starved_share:.0f} % of their work")
    if context.host_busy_percent is not None:
        own = "" if context.own_busy_percent is None else f", {context.own_busy_percent:.0f} % by this run"
        facts.append(f"{context.host_busy_percent:.0f} % of the cores' time was in use{own}")
    tls = _tls_percent(context)
    if tls >= TLS_TOLD_PERCENT:
        facts.append(f"reading over TLS (decrypting, copying) took {tls:.0f} % of the readers' CPU time")
    if context.cpu_limit_cores is not None and context.cpu_limit_used_percent is not None:
        used = context.cpu_limit_cores * context.cpu_limit_used_percent / 100
        facts.append(f"the run used {used:.1f} of the {context.cpu_limit_cores:.1f} cores that its CPU limit allows")
    if (context.cpu_throttled_percent or 0) >= 1:
        facts.append(f"the limit held it back in {context.cpu_throttled_percent:.0f} % of its periods")
    return tuple(facts)


def _calls(work: Work) -> tuple[str, ...]:
    if not work.call_bytes:
        return ()
    return (
        f"{work.readers:.1f} of the workers were in a read at a time then, {work.call_ms:.3g} ms for each call of "
        f"{_kib(work.call_bytes)}",
    )


def _device(device: Device | None, app_mb_per_second: float) -> tuple[str, ...]:
    if device is None:
        return ()
    facts = f"the device was busy {device.busy_percent:.0f} % of the time, {device.mean_depth:.1f} requests at a time"
    written = device.write_mb_per_second or 0.0
    if written > WRITTEN_SHARE * app_mb_per_second:
        facts += f"; {written:,.1f} MB/s were written to it"
    return (facts,)


def _least(*all_of: Confidence) -> Confidence:
    order: tuple[Confidence, ...] = ("low", "medium", "high")
    return min(all_of, key=order.index)


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:,.1f} KiB"

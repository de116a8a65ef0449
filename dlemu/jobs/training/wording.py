"""The sentences of a training run: its verdict, what limited it, page cache and recording notes, and issues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dlemu.config.schema import Recorded
from dlemu.jobs.training.summary import Summary
from dlemu.metrics.cache import CacheProof
from dlemu.metrics.changes import SpeedChange, clock
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import Advice, Limit, Seen
from dlemu.metrics.stragglers import Straggler
from dlemu.metrics.t_interval import plus_minus
from dlemu.metrics.verdict import Verdict, VerdictCode
from dlemu.report.units import multiple_of, number
from dlemu.results.wording import Wording, count, sentence, sentences

_AU_NAMES: dict[Number, str] = {
    "sustained": "AU",
    "au": "AU of counted steps",
    "rules": "AU of whole epochs",
}
_HOST: dict[Number, str] = {"host CPU": "host's CPU", "memory": "host's memory", "emulator": "emulator on this host"}
_MAX_SHOWN_EPOCHS = 6
_SHOWN_CHANGES = 4

# The verdict

_NO_VERDICT = "NO VERDICT"
_NOT_ON_STORAGE = "NO VERDICT on the storage"
INCOMPLETE = "INCOMPLETE"
_VERDICT_WORDS: dict[str, str] = {
    VerdictCode.PASS: "PASS",
    VerdictCode.FAIL: "FAIL",
    VerdictCode.UNDECIDED: "UNDECIDED",
    VerdictCode.UNEVEN_COMPUTATION: _NOT_ON_STORAGE,
    VerdictCode.EMULATOR_TOO_SLOW: _NOT_ON_STORAGE,
    VerdictCode.HOST_LIMITED: _NOT_ON_STORAGE,
}
"""First words of the verdict by code; all other codes begin with NO VERDICT."""
_VERDICTS: dict[str, str] = {
    VerdictCode.PASS: "{value} is at least {threshold_percent:g} %{other}",
    VerdictCode.FAIL: "{value} is below {threshold_percent:g} %{other}",
    VerdictCode.UNDECIDED: "{value} is too close to {threshold_percent:g} % to call; run longer: train.epochs={epochs}",
    VerdictCode.INCOMPLETE: "the run did not complete",
    VerdictCode.NOTHING_COMPUTED: "no computation to judge (train.computation_time is 0, or every step was excluded)",
    VerdictCode.NOTHING_READ: "no byte was read; set metric.cached=true to judge it anyway",
    VerdictCode.UNEVEN_COMPUTATION: "{value} is below {threshold_percent:g} %, but random computation times allow only "
    "{au_without_waits_percent:.2f} % on any storage; use fewer ranks or a smaller stdev",
    VerdictCode.EMULATOR_TOO_SLOW: "{value} is below {threshold_percent:g} %, but even without storage the emulator "
    "reached only {ceiling_au_percent:.2f} % on this host; use {ranks:several fewer ranks or }a host with more cores",
    VerdictCode.CACHE_SERVED: "only {from_storage_percent:.0f} % of the bytes came from storage ({value}); bypass or "
    "empty the page cache, or set metric.cached=true to judge it anyway",
    VerdictCode.TOO_FEW_STEPS: "only {kept_steps} steps per epoch count, and {prefetched_steps} are read before them; "
    "use more files{ranks:several , or fewer ranks}",
    VerdictCode.SUPPLY_NOT_KNOWN: "all of an epoch is read at once, so {value} is a lower bound: use more files",
    VerdictCode.HOST_LIMITED: "{value} is below {threshold_percent:g} %, but the {host} is the limit, so the storage "
    "may be able to deliver more; relieve the host and run again",
}


def verdict_word(code: str) -> str:
    """Return the first words of a verdict's line."""
    return _VERDICT_WORDS.get(code, _NO_VERDICT)


def verdict_line(verdict: Verdict, ranks: int = 0) -> str:
    """Return a verdict as one line; `ranks` is 0 where their number is not known."""
    numbers: dict[str, Any] = {**verdict.numbers}
    more = {
        "value": _judged_au(**numbers) if numbers else "",
        "other": _disagreement(**numbers) if numbers else "",
        "host": _HOST.get(numbers.get("limited_by", ""), ""),
    }
    text = sentence(Finding(verdict.code, numbers=numbers | more), _VERDICTS, ranks)
    return f"{verdict_word(verdict.code)}: {text}"


def _judged_au(*, by: str, au_percent: float, uncertainty_percent: float = 0.0, **_: Number) -> str:
    interval = f" {plus_minus(au_percent, uncertainty_percent, 2)}" if uncertainty_percent >= 0.005 else ""
    return f"{_AU_NAMES[by]} {au_percent:.2f}{interval} %"


def _disagreement(
    *, by: str, headline_au_percent: float | None = None, sustained_au_percent: float = 0.0, **_: Number
) -> str:
    """Return the end of a verdict where only the headline AU reaches the threshold, not the sustained one; else ''."""
    if headline_au_percent is None:
        return ""
    credit = headline_au_percent - sustained_au_percent
    if by == "au":
        return f", thanks to {credit:.1f} points of prefetching: the storage sustains {sustained_au_percent:.1f} %"
    return (
        f"; the AU of the counted steps, {headline_au_percent:.2f} %, would pass, thanks to {credit:.1f} points of "
        "prefetching"
    )


# What limited the run


def _reads(*, readers: float, call_ms: float, call_bytes: float) -> str:
    size = f"{call_bytes / 2**20:,.1f} MiB" if call_bytes >= 2**20 else f"{call_bytes / 2**10:,.1f} KiB"
    return f"{readers:.1f} workers were reading at a time then, {call_ms:.3g} ms per call of {size}"


def _device(*, busy_percent: float, depth: float, written_mb_per_second: float | None = None) -> str:
    written = "" if written_mb_per_second is None else f"; {written_mb_per_second:,.1f} MB/s were written to it"
    return f"the device was busy {busy_percent:.0f} % of the time, with {depth:.1f} requests at a time{written}"


def _cores(*, percent: float, own_percent: float | None = None) -> str:
    own = "" if own_percent is None else f", {own_percent:.0f} % by this run"
    return f"the cores were {percent:.0f} % busy{own}"


_SEEN: Wording = {
    Seen.WAITED: "the accelerators waited for data {percent:.1f} % of the time",
    Seen.MEMORY_PRESSURE: "some task on the host was stalled on memory {percent:.0f} % of the time (memory pressure)",
    Seen.BLOCKED_IN_READS: "during {percent:.0f} % of that, a worker was blocked in a read",
    Seen.COMPUTING: "during {percent:.0f} % of that, a worker was computing (decoding, copying) or waiting for a core",
    Seen.PREPROCESSING: "during {percent:.0f} % of that, a worker was in reader.preprocess_time",
    Seen.NOT_BEGUN: "during {percent:.0f} % of that, no worker had started the batch although workers were free",
    Seen.WOKE_LATE: "the ranks themselves woke late, for {percent:.0f} % of the time",
    Seen.LAY_READY: "during {percent:.0f} % of that, the batch was ready in its worker",
    Seen.CEILING: "without storage the AU is {ceiling_au_percent:.1f} % on this host, with it {au_percent:.1f} %",
    Seen.CORES_WERE_FREE: "cores were idle",
    Seen.CACHE_SERVED: "the page cache served the data, and cores were idle",
    Seen.READS: _reads,
    Seen.RATES: "the storage delivered {given_mb_per_second:,.1f} of {wanted_mb_per_second:,.1f} MB/s that are needed",
    Seen.DEVICE: _device,
    Seen.ANSWERS: "median first byte after {first_byte_ms:.3g} ms, last byte after {last_byte_ms:.3g} ms",
    Seen.SLOW_DOWN: "the server throttled {answers:count request} (503 Slow Down), {percent:.2g} %",
    Seen.RETRIED: "{retried:,} of {requests:,} requests were retried",
    Seen.NETWORK: "the network interface received {percent:.0f} % of its capacity",
    Seen.OTHER_READERS: "others read {mb_per_second:,.1f} MB/s from the same device ({percent:.0f} % of all)",
    Seen.SCALING: "right after the run {readers:count reader} got {mb_per_second:,.1f} MB/s and {more_readers} got "
    "{more_mb_per_second:,.1f} MB/s, {factor:.2f} times as much",
    Seen.FEWER_READERS: "right after the run {readers:count reader} got {mb_per_second:,.1f} MB/s and {fewer_readers} "
    "got {fewer_mb_per_second:,.1f} MB/s, {factor:.2f} times as much",
    Seen.LARGER_REQUESTS: "right after the run {readers:count reader} got {mb_per_second:,.1f} MB/s, and with requests "
    "of {request_bytes:,} bytes {larger_mb_per_second:,.1f} MB/s, {factor:.2f} times as much",
    Seen.OUT_OF_ORDER: "when a wait ended, {batches:.1f} later batches were ready behind the slow one",
    Seen.DEEPER_QUEUE: "the same reads with {prefetch_size} batches ahead instead of {now} give {au_percent:.1f} % "
    "instead of {now_au_percent:.1f} % (AU over whole epochs, event model)",
    Seen.STUCK_BEFORE_DEVICE: "most reads waited before they reached the device: a cgroup or the network limits them",
    Seen.DEVICE_HAD_FEW: "the device had only {depth:.1f} requests at a time",
    Seen.DEVICE_NEVER_IDLE: "the device was never idle at {depth:.1f} requests at a time: try metric.scaling_seconds=1",
    Seen.FEW_SMALL_READS: "only {readers:.1f} small reads were in flight at a time",
    Seen.STARVED: "workers waited for a core in {percent:.0f} % of their work",
    Seen.CORES: _cores,
    Seen.TLS: "TLS (decrypting, copying) took {percent:.0f} % of the readers' CPU time",
    Seen.CPU_LIMIT: "the run used {used_cores:.1f} of the {limit_cores:.1f} cores that its CPU limit allows",
    Seen.THROTTLED: "the CPU limit throttled it in {percent:.0f} % of its periods",
    Seen.FIRST_STEPS_TOO: "judged with the first steps, during which batches of later steps were read ahead",
}
_CONTINUING = frozenset(
    {Seen.BLOCKED_IN_READS, Seen.COMPUTING, Seen.PREPROCESSING, Seen.NOT_BEGUN, Seen.LAY_READY, Seen.MEMORY_PRESSURE}
)
"""Codes whose text continues the sentence before, that on waiting for data (WAITED)."""


_ADVICE: Wording = {
    Advice.MORE_READERS: "too few readers: raise reader.read_threads (now {read_threads})",
    Advice.MORE_REQUESTS: "too few requests: raise reader.read_threads (now {read_threads}) or reader.io_depth",
    Advice.FEWER_READERS: "too many readers: set reader.read_threads={read_threads} (now {now})",
    Advice.LARGER_REQUESTS: "larger requests get more from this storage: reader.transfer_size={transfer_size}",
    Advice.DEEPER_QUEUE: "read further ahead: reader.prefetch_size={prefetch_size} (now {now})",
    Advice.TRY_MORE_READERS: "to rule out too few readers, try a higher reader.read_threads (now {read_threads})",
    Advice.MORE_WORKERS: "raise reader.read_threads (now {read_threads}): each batch is the work of one worker",
    Advice.READ_AHEAD: "read further ahead: raise reader.prefetch_size or reader.read_threads",
    Advice.FASTER_STORAGE: "faster storage, or fewer accelerators on it",
    Advice.FASTER_NETWORK: "a faster network between host and server, or fewer accelerators on it",
    Advice.STOP_OTHER_READERS: "stop other programs that read from the device (iotop), or allow for them",
    Advice.COOL_DRIVE: "cool {drive}: it reached {celsius:.0f} degrees Celsius and throttles from {limit_celsius:.0f}",
    Advice.SPEED_THAT_LASTS: "plan with {mb_per_second:,.0f} MB/s, the speed that lasts: {times:count time} the first "
    "{gb:.3g} GB came faster, as if from a cache or burst credit; a run after a pause shows if so",
    Advice.BECAME_SLOWER: "find out why the storage slowed down after {at_seconds:.0f} s; plan with the lower speed",
    Advice.FIRST_TOUCH: "read the dataset once before it counts: the first {gb:.3g} GB came at "
    "{mb_per_second_first:,.0f} MB/s, and later epochs at {mb_per_second_after:,.0f} MB/s",
    Advice.SLOW_FOLDER: "check where {folder} is stored ({folders:count slow folder} in all): a sample takes "
    "{ms_per_sample:.3g} ms there and {others_ms_per_sample:.3g} ms elsewhere",
    Advice.SLOW_HOSTS: "check host {hosts}: all others wait for its reads (its mount, network or drive)",
    Advice.STOOD_STILL: "find out why the storage stalled: its own background work, the network, other load",
    Advice.MORE_CORES: "more cores{ranks:several  or fewer ranks} on this host; consider reader.decode and verify",
    Advice.RAISE_CPU_LIMIT: "raise the CPU limit of this container or job (cgroup){ranks:several , or use fewer ranks}",
    Advice.RAISE_CPU_LIMIT_TOO: "raise the CPU limit of this container or job (cgroup) as well",
    Advice.STOP_OTHER_PROGRAMS: "other programs use most of the cores: stop them (top), or run on an idle host",
    Advice.LOOK_FOR_PROGRAMS: "look for other programs (top)",
    Advice.WITHOUT_TLS: "on a trusted network, http:// instead of https:// saves the CPU time of TLS",
    Advice.RELIEVE_EMULATOR: "this says little about the storage: use more cores{ranks:several  or fewer ranks}",
    Advice.CHEAPER_HAND_OVER: "fewer or smaller reader.tensors, or more cores, shorten the hand-over",
    Advice.FREE_MEMORY: "lower reader.read_threads or reader.prefetch_size, or stop other programs that use the memory",
}
_CONTINUING_ADVICE = frozenset({Advice.RAISE_CPU_LIMIT_TOO, Advice.LOOK_FOR_PROGRAMS, Advice.WITHOUT_TLS})
"""Advice that is appended to the sentence before."""


def in_words(limit: Limit, ranks: int = 0) -> Limit:
    """Return the limit with its evidence and advice as sentences, too; `ranks` is 0 where their number is not known."""
    continuing = _CONTINUING - ({Seen.MEMORY_PRESSURE} if limit.what == "memory" else set())
    return replace(
        limit,
        evidence=sentences(limit.seen, _SEEN, continuing),
        advice=sentences(limit.to_do, _ADVICE, _CONTINUING_ADVICE, ranks=ranks),
    )


# Page cache and recordings


def recording_notes(recorded: Recorded, ranks: int) -> Iterator[str]:
    """Yield caveats, as sentences, to a run of a recorded workload on `ranks` ranks; none if it was not recorded."""
    if not recorded.version:
        return
    if not recorded.replayable:
        state = "verified" if recorded.replayable is None else "replayable"
        yield f"the recording of this workload is not {state}: {recorded.reason or 'no replay matched it'}"
    if recorded.ranks and ranks != recorded.ranks:
        yield (
            f"the job was recorded with {count(recorded.ranks, 'rank')}: with {ranks}, its collectives, which are "
            "part of train.computation_time, would take a different time; they are not scaled"
        )


def cache_warning(proof: CacheProof) -> str | None:
    """Return a warning that the page cache may have served the bytes; None if the storage did."""
    found = proof.finding
    if found is None:
        return None
    if found.code == Code.NO_DATA_FROM_STORAGE:
        if "file_system" in found.numbers:
            return "MEASURED MEMORY, NOT STORAGE: the dataset is on {file_system}".format_map(found.numbers)
        return "MEASURED NO STORAGE: no byte was read"
    numbers: dict[str, Any] = {**found.numbers}
    text = _served_by_cache(proof.from_storage_percent.per_epoch, **numbers)
    return f"MEASURED MEMORY, NOT STORAGE: {text}" if found.severity == "loud" else text


_BYPASS, _EMPTY = "reader.odirect=true bypasses the page cache", "reader.evict_page_cache=epochs empties it"
_RELIEF = {
    "": "a dataset larger than every cache on the way is read from storage",
    "reader.odirect": _BYPASS,
    "reader.odirect, reader.evict_page_cache": f"{_BYPASS}, {_EMPTY}",
}
"""Advice by `would_help`, the settings that would make the storage serve the bytes."""


def _served_by_cache(
    per_epoch: Sequence[float | None],
    *,
    would_help: str,
    dataset_to_memory_ratio: float | None = None,
    wanted_ratio: float = 0.0,
    from_storage_percent: float | None = None,
    least_percent: float = 0.0,
    most_percent: float = 0.0,
) -> str:
    ratio = "an unknown share of" if dataset_to_memory_ratio is None else multiple_of(dataset_to_memory_ratio)
    size, relief = f"the dataset is {ratio} the hosts' memory", _RELIEF[would_help]
    if from_storage_percent is None:
        wanted = f"MLPerf Storage requires {wanted_ratio:g} times"
        return f"it is unknown whether the data came from storage: {size}, and {wanted}; {relief}"
    text = f"the page cache served {100 - min(100.0, from_storage_percent):.0f} % of the bytes"
    if most_percent - least_percent > 10:  # percentage points: more similar epochs need no list
        shares = [f"{share:.0f}" for share in per_epoch if share is not None]
        text += f" (from storage in each epoch: {', '.join(shares[:_MAX_SHOWN_EPOCHS])} %)"
    return f"{text}; {size}; {relief}"


# Issues


def _incomplete(
    *,
    host: str = "",
    ranks: str = "",
    telemetry_of: str = "",
    from_seconds: float | None = None,
    to_seconds: float = 0.0,
    end: str = "",
) -> str:
    if host:
        return f"the measurements of {ranks} on {host} are lost: set output.folder to one that all hosts see"
    if from_seconds is None:
        return f"telemetry of {telemetry_of} is missing: its recorder was killed or stopped, or had no space"
    return (
        f"telemetry of {telemetry_of} has a gap from {from_seconds:.1f} to {to_seconds:.1f} s of training: its "
        "recorder was killed or stopped, or had no core or no space"
    )


_ISSUES: Wording = {Code.MEASUREMENT_INCOMPLETE: _incomplete}


def issue_lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return each finding as a sentence."""
    return tuple(sentence(finding, _ISSUES) for finding in findings)


# Speed that varied, and stragglers


def unsteadiness(summary: Summary) -> Iterator[str]:
    """Yield sentences on changes of the storage's speed, on stalls, and on slow folders."""
    for change in summary.speed_changes[:_SHOWN_CHANGES]:
        yield (
            f"at {clock(change.at_seconds)} the storage's speed changed to {change.percent:.0f} %: from "
            f"{number(change.mb_per_second_before)} to {number(change.mb_per_second_after)} MB/s{_read_times(change)}"
        )
    if len(summary.speed_changes) > _SHOWN_CHANGES:
        yield f"its speed changed {len(summary.speed_changes)} times in total"
    if summary.stalls:
        longest = max(summary.stalls, key=lambda stall: stall.seconds)
        total = sum(stall.seconds for stall in summary.stalls)
        times = "once" if len(summary.stalls) == 1 else f"{len(summary.stalls)} times, {number(total)} s in total"
        yield f"the storage stalled {times}: for {number(longest.seconds)} s at {clock(longest.at_seconds)}"
    if (out := summary.ran_out) and out.times > 1:
        yield f"{out.times} times the first {number(out.gb)} GB came faster than the rest: a cache or burst credit"
    for folder in summary.slow_folders[:_SHOWN_CHANGES]:
        yield (
            f"folder {folder.name} is slow: {number(folder.ms_per_sample)} ms per sample, the others "
            f"{number(folder.others_ms_per_sample)} ms"
        )


def _read_times(change: SpeedChange) -> str:
    """Return how long a batch's reads took before and after a change; empty where the change was not found in these."""
    if change.read_ms_before is None or change.read_ms_after is None:
        return ""
    return f" (a batch's reads took {number(change.read_ms_before)} ms before, {number(change.read_ms_after)} ms after)"


def straggler(late: Straggler) -> str:
    who = f"host {late.host}" if late.rank is None else f"rank {late.rank} on {late.host}"
    return (
        f"{who} cost {late.loss_percent:.2f} points of AU: {count(late.steps, 'step')} late by "
        f"{number(late.mean_delay_ms)} ms on average, mainly due to {late.mainly.replace('_', '-')} ({late.where})"
    )

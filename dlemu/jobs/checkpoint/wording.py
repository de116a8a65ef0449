"""The sentences about a checkpoint run: its result, what limited it, and the warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dlemu.jobs.checkpoint.limits import Advice, CheckpointLimit, Seen
from dlemu.jobs.checkpoint.summary import Issue, Outcome, PartialCheckpoint, PhaseSummary
from dlemu.metrics.findings import Finding
from dlemu.results.wording import Wording, sentence, sentences

# The result

_WORDS: dict[str, str] = {Outcome.READ: "READ", Outcome.INCOMPLETE: "INCOMPLETE", Outcome.NOTHING: "NOTHING"}


def outcome_of(write: PhaseSummary | None, read: PhaseSummary | None, failure: str | None) -> Outcome:
    """Return the outcome of a run from the phases that it completed."""
    if failure is not None:
        return Outcome.INCOMPLETE
    return {
        (True, True): Outcome.WRITTEN_AND_READ,
        (True, False): Outcome.WRITTEN,
        (False, True): Outcome.READ,
        (False, False): Outcome.NOTHING,
    }[bool(_rate("WRITE", write)), bool(_rate("READ", read))]


def result_word(code: str) -> str:
    """Return the first word of the result line."""
    return _WORDS.get(code, "WRITE")


def result_line(write: PhaseSummary | None, read: PhaseSummary | None) -> str:
    """Return the result of a complete run as one line: the throughput of each phase."""
    rates = [*_rate("WRITE", write), *_rate("READ", read)]
    return "; ".join(rates) or "NOTHING: no checkpoint was requested"


def _rate(verb: str, phase: PhaseSummary | None) -> list[str]:
    if phase is None or phase.slowest_gib_per_second is None or phase.slowest_seconds is None:
        return []
    limit = f", limited by: {phase.limited_by.what}" if phase.limited_by else ""
    return [
        f"{verb}: {phase.slowest_gib_per_second.mean:.3f} GiB/s by the slowest rank, "
        f"{phase.slowest_seconds.mean:.2f} s per checkpoint{limit}"
    ]


def why_incomplete(failure: str, kept: Sequence[int] | None, partial: PartialCheckpoint | None) -> str:
    """Return why a run is incomplete, which checkpoints it left (None: it writes none), and which was in progress."""
    if kept is not None:
        numbers = f"checkpoint{'s' * (len(kept) != 1)} {', '.join(map(str, kept))}"
        whole = f"complete and kept: {numbers}" if kept else "no checkpoint is complete"
        failure = f"{failure}; {whole}"
    if partial is None:
        return failure
    verb = "written" if partial.phase == "write" else "read"
    files = f"{partial.files} of {partial.of_files} files"
    at = f"checkpoint {partial.checkpoint} was being {verb}: {files}, {partial.bytes / 2**30:.3f} GiB, were complete"
    return f"{failure}; {at}"


# What limited it


def _threads(
    *,
    phase: str,
    gb_per_second: float,
    call_percent: float,
    fsync_percent: float,
    cpu_percent: float,
    cpu_wait_percent: float,
) -> str:
    sync = f", {fsync_percent:.0f} % in fsync" if phase == "write" else ""
    return (
        f"{gb_per_second:,.2f} GB/s by all ranks; their threads spent {call_percent:.0f} % of the time in {phase} "
        f"calls{sync}, ran on a core for {cpu_percent:.0f} % of it and waited for one for {cpu_wait_percent:.0f} %"
    )


def _devices(*, mb_per_second: float, busy_percent: float | None = None, depth: float | None = None) -> str:
    busy = "" if busy_percent is None else f", busy {busy_percent:.0f} % of the time"
    queue = "" if depth is None else f", mean queue depth {depth:.1f}"
    return f"the devices: {mb_per_second:,.0f} MB/s{busy}{queue}"


_SEEN: Wording = {
    Seen.THREADS: _threads,
    Seen.CONTENT: "the emulator alone generates {gb_per_second:,.1f} GB/s; threads waited for it "
    "{starved_percent:.1f} % of the time",
    Seen.SERVED: "the storage served {percent:.0f} % of the bytes",
    Seen.DEVICES: _devices,
    Seen.CORES: "the cores of the busiest host were in use {percent:.0f} % of the time",
    Seen.LINK: "the busiest network link was {percent:.0f} % utilised",
}


def _setting(phase: str) -> str:
    return "checkpoint.writers" if phase == "write" else "checkpoint.readers"


def _more_threads(*, phase: str, threads: int) -> str:
    return f"each thread is busy copying: raise {_setting(phase)} (now {threads})"


def _more_threads_or_direct(*, phase: str, threads: int) -> str:
    return f"{_more_threads(phase=phase, threads=threads)}, or set checkpoint.odirect=true"


def _try_more_threads(*, phase: str, threads: int) -> str:
    return f"to rule out too few requests at a time, try more {_setting(phase)} (now {threads})"


_ADVICE: Wording = {
    Advice.EVICT: "set checkpoint.evict_page_cache=true, or bypass the page cache: checkpoint.odirect=true",
    Advice.GO_PAST_CACHE: "checkpoint.odirect=true bypasses the page cache",
    Advice.MORE_CORES_A_RANK: "this does not judge the storage: use more cores{ranks:several , fewer ranks} or hosts",
    Advice.RAISE_CPU_LIMIT: "raise the CPU limit of this container or job (cgroup); else more cores",
    Advice.SPARE_CACHE_COPY: "checkpoint.odirect=true avoids the copy into the page cache; else more cores",
    Advice.MORE_CORES: "more cores{ranks:several , or fewer ranks}",
    Advice.VERIFY_LESS: "checkpoint.verify=true takes CPU time for every byte: without it only the first are compared",
    Advice.FASTER_LINK: "a faster link, or more hosts",
    Advice.MORE_THREADS: _more_threads,
    Advice.MORE_THREADS_OR_DIRECT: _more_threads_or_direct,
    Advice.TRY_MORE_THREADS: _try_more_threads,
}


def in_words(limit: CheckpointLimit, ranks: int = 0) -> CheckpointLimit:
    """Return the limit with its evidence and advice as sentences; `ranks` is 0 where their number is not known."""
    return replace(limit, evidence=sentences(limit.seen, _SEEN), advice=sentences(limit.to_do, _ADVICE, ranks=ranks))


# Warnings

_ISSUES: Wording = {
    Issue.NOTE: "{text}",
    Issue.TELEMETRY_ENDS_EARLY: "telemetry of {host} ends early or is missing: its recorder was stopped",
    Issue.PARTIAL_LEFT: "{folder} holds an incomplete checkpoint: delete it, or let the next run replace it",
    Issue.IN_MEMORY: "MEASURED MEMORY, NOT STORAGE: the checkpoints are on {file_system}",
    Issue.NO_FSYNC: "checkpoint.fsync=false: writing ended when the page cache had the bytes, not the storage",
    Issue.NOT_STEADY: "the last five checkpoints had {first_gib_per_second:.2f} GiB/s, then {last_gib_per_second:.2f}: "
    "no steady state, so write more: checkpoint.num_checkpoints_write",
    Issue.NOT_READ: "MEASURED MEMORY, NOT STORAGE: the page cache served {cache_percent:.0f} % of the bytes; "
    "{would_help}=true reads from storage",
    Issue.CONTENT_CEILING: "these hosts generate content at {ceiling_gb_per_second:.1f} GB/s, and "
    "{gb_per_second:.1f} GB/s were written: whether the storage can take more is unknown",
}


def issue_lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the findings as sentences."""
    return tuple(sentence(finding, _ISSUES) for finding in findings)

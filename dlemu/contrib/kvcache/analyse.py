"""Computes the summary of a KV-cache run, with every published number, from its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.kvcache.official import GIB, official_result
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import RANK_ROW, KvSummary, Limit, Official, Spread
from dlemu.extend import cache as page_cache
from dlemu.extend import rows_job
from dlemu.results.wording import count

GROWS_SHARE = 0.05  # A load is not sustained if the work queued at its end takes more than this share of its duration.
MIN_LOADS = 20  # minimum for a verdict: with fewer loads, the p95 hardly differs from the maximum
MIN_CEILING = 2.0  # With a lower ceiling (a multiple of the load), the emulator was measured rather than the storage.
_MOMENTS = 100  # number of times in the last third of the load for which the backlog is computed
_LATE_SHARE = 0.1  # The emulator is the limit if its p95 delay of arrivals exceeds this share of the loads' p95.

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The work still queued at the end of the load; in a closed loop only writes, for which no user waits."""

    storage_seconds: float  # time for the queued reads and writes at the run's mean rate
    compute_seconds: float  # time to compute the loaded prompts that were not computed yet, by all copies of the model
    storage_grows: bool  # whether the queued reads and writes are more than a burst (`_grows`)
    compute_grows: bool  # the same for the computing
    unfinished: int  # prompts that were not finished at the timeout after the last arrival

    @property
    def sustained(self) -> bool:
        return not (self.storage_grows or self.compute_grows or self.unfinished)


def analyse(run: rows_job.RowsRun) -> KvSummary:
    """Return the summary of a run; if it failed, of the rows measured before that."""
    data = RunRows(run)
    settings = data.settings
    official = official_result(data.prompts, data.begins, settings) if settings.is_official else None
    backlog = data.backlog if data.is_complete and official is None else None
    computed, moved_bytes = data.computed, data.read_bytes + data.written_bytes
    busy = float(computed["compute_ns"].sum()) / 1e9  # seconds that the copies of the model computed
    waited = float(data.waits.sum())  # seconds that they waited for blocks
    saved = float((computed["without_ns"] - computed["compute_ns"]).sum()) / 1e9  # seconds of prefill avoided
    stored_blocks = int((computed["storage_blocks"] + computed["pending_blocks"]).sum())
    full_model_gb = stored_blocks * settings.block_tokens * settings.token_bytes / 1e9
    memory_blocks = int((computed["memory_blocks"] + computed["pending_blocks"]).sum())
    tokens_from_storage = int(computed["cached_tokens"].sum()) - settings.block_tokens * memory_blocks
    outcome, no_verdict_reason = _outcome(data)
    return KvSummary(
        **rows_job.common_fields(run.facts),
        verdict=_verdict(data, outcome, no_verdict_reason, official),
        outcome=outcome,
        arrivals=data.arrivals,
        prompts=len(data.prompts),
        prompts_per_second=data.rate,
        tokens_per_second=float(data.served["input_tokens"].sum()) / data.span_seconds if data.span_seconds else 0.0,
        sustained=None if backlog is None else backlog.sustained,
        backlog_seconds=None if backlog is None else backlog.storage_seconds,
        ttft_seconds=data.latencies.get("ttft"),
        load_times=data.latencies.get("load"),
        utilisation_percent=100 * busy / (busy + waited) if data.latencies and busy + waited else None,
        gpu_seconds_won=0.0 if settings.is_official else settings.tp * (saved - waited),
        break_even_gb_per_second=full_model_gb / (saved * settings.tp) if saved > 0 and stored_blocks else None,
        read_gb_per_second=data.read_bytes / 1e9 / data.window_seconds if data.window_seconds else 0.0,
        write_gb_per_second=data.written_bytes / 1e9 / data.window_seconds if data.window_seconds else 0.0,
        # The last token of a prompt is always computed.
        tokens_from_storage_percent=max(0.0, 100 * tokens_from_storage / max(1, int(computed["input_tokens"].sum()))),
        from_storage_percent=data.from_storage_percent,
        official=official,
        ceiling_times=data.ceiling_times,
        cpu_seconds_per_gb=float(data.ranks["cpu_ns"].sum()) / moved_bytes if moved_bytes and len(data.ranks) else None,
        limited_by=_limit(data) if data.is_complete else None,
        issues=tuple(_issues(data, official)),
    )


class RunRows:
    """The rows of a run, split by what happened to a prompt; times are seconds from the start of each rank's load."""

    def __init__(self, run: rows_job.RowsRun) -> None:
        self.run = run
        self.settings = run.facts.workload.section(KvSettings)
        self.is_closed = self.settings.loop == "closed"
        self.ranks = run.rows[run.rows["prompt"] == RANK_ROW]
        prompts = run.rows[run.rows["prompt"] != RANK_ROW]
        self.prompts = prompts[np.argsort(prompts["arrived_ns"], kind="stable")]
        self.is_complete = run.facts.failure is None and bool(len(self.ranks))
        self.begins = {int(row["rank"]): int(row["arrived_ns"]) for row in self.ranks}  # rank -> start, ns
        for rank in np.unique(self.prompts["rank"]).tolist():  # In a killed run, ranks may lack their RANK_ROW.
            self.begins.setdefault(rank, int(self.prompts["arrived_ns"][self.prompts["rank"] == rank].min()))
        self.reading = self.prompts[self.prompts["storage_blocks"] > 0]
        self.loaded = self.reading[self.reading["loaded_ns"] > 0]
        self.computed = self.prompts[self.prompts["computed_ns"] > 0]
        self.written = self.prompts[self.prompts["written_ns"] > 0]
        self.read_bytes = int(self.loaded["read_bytes"].sum())
        self.written_bytes = int(self.written["written_bytes"].sum())
        self.ttft: Floats = (self.computed["computed_ns"] - self.computed["arrived_ns"]) / 1e9
        self.load_seconds: Floats = (self.loaded["loaded_ns"] - self.loaded["arrived_ns"]) / 1e9
        # For each computed prompt, how long a copy of the model waited for its blocks.
        self.waits = np.maximum(0.0, (self.computed["loaded_ns"] - self.computed["start_ns"]) / 1e9)
        # Prompts whose first token came within the duration of the load.
        self.served = self.computed[self.at(self.computed, "computed_ns") <= self.span_seconds]

    def at(self, rows: rows_job.Rows, column: str) -> Floats:
        """Return a column of times in seconds; infinite where the event did not happen (0 ns)."""
        begins = np.array([self.begins[rank] for rank in rows["rank"].tolist()], np.int64)
        return np.where(rows[column] > 0, (rows[column] - begins) / 1e9, np.inf)

    @cached_property
    def span_seconds(self) -> float:
        """Duration of the load: `kv.seconds`; of a trace or an incomplete run, the time of the last arrival."""
        last_arrival = float(self.at(self.prompts, "arrived_ns").max(initial=0.0))
        if self.run.facts.failure is not None or self.settings.trace or not len(self.prompts):
            return last_arrival
        return max(last_arrival, self.settings.seconds)

    @cached_property
    def arrivals(self) -> str:
        """Description of the load, which every published number depends on."""
        kv, ranks = self.settings, self.run.facts.ranks
        if kv.is_official:
            return f"option {kv.option}, {count(kv.users * ranks, 'user')}"
        users = f"{count(kv.users_at_once * ranks, 'user')} in a closed loop"
        return f"{kv.trace or 'random'}, {users if self.is_closed else f'{self.rate:.3g} prompts/s'}"

    @property
    def rate(self) -> float:
        """Prompts per second that arrived (in a closed loop: that were served); 0 if all arrived at one time."""
        prompts = self.served if self.is_closed else self.prompts
        return len(prompts) / self.span_seconds if self.span_seconds else 0.0

    @cached_property
    def window_seconds(self) -> float:
        """Time from the first prompt to `end_seconds`."""
        return self.end_seconds - float(self.at(self.prompts, "arrived_ns").min(initial=self.end_seconds))

    @cached_property
    def end_seconds(self) -> float:
        """Time when the last byte was moved, at least `span_seconds` unless the load is the official one."""
        ends = np.concatenate([self.at(self.loaded, "loaded_ns"), self.at(self.written, "written_ns")])
        return float(ends.max(initial=0.0 if self.settings.is_official else self.span_seconds))

    @cached_property
    def latencies(self) -> dict[str, Spread]:
        """Percentiles by name (`ttft`, `load`); empty if not sustained, as they would only show the run's duration."""
        if not self.is_complete or self.settings.is_official or not self.backlog.sustained:
            return {}
        spreads = {}
        for name, seconds in (("ttft", self.ttft), ("load", self.load_seconds)):
            if len(seconds):
                p50, p95, p99 = np.percentile(seconds, (50, 95, 99)).tolist()
                spreads[name] = Spread(p50=p50, p95=p95, p99=p99)
        return spreads

    @cached_property
    def backlog(self) -> Backlog:
        end = self.span_seconds
        writing = self.computed[self.computed["written_bytes"] > 0]
        read_begins, read_ends = self.at(self.reading, "arrived_ns"), self.at(self.reading, "loaded_ns")
        write_begins, write_ends = self.at(writing, "computed_ns"), self.at(writing, "written_ns")
        ends = np.minimum(np.concatenate([read_ends, write_ends]), self.end_seconds)
        busy = busy_seconds(np.concatenate([read_begins, write_begins]), ends)
        seconds_per_byte = busy / max(1, self.read_bytes + self.written_bytes)
        moments = np.linspace(2 * end / 3, end, _MOMENTS)
        storage = _in_progress(moments, write_begins, write_ends, writing["written_bytes"] * seconds_per_byte)
        if not self.is_closed:
            storage += _in_progress(moments, read_begins, read_ends, self.reading["read_bytes"] * seconds_per_byte)
        copies = max(1, int(self.ranks["accelerators"].sum()) // self.settings.tp)  # of the model
        rows = self.prompts
        loaded, computed = self.at(rows, "loaded_ns"), self.at(rows, "computed_ns")
        computing = _in_progress(moments, loaded, computed, rows["compute_ns"] / 1e9 / copies)
        is_unfinished = (rows["computed_ns"] == 0) | ((rows["written_bytes"] > 0) & (rows["written_ns"] == 0))
        return Backlog(
            storage_seconds=float(storage[-1]),
            compute_seconds=float(computing[-1]),
            storage_grows=_grows(storage, end),
            compute_grows=not self.is_closed and _grows(computing, end),
            unfinished=int(is_unfinished.sum()),
        )

    @property
    def from_storage_percent(self) -> float | None:
        storage = self.run.facts.journal.storage
        is_counted = storage is not None and storage.file_system in page_cache.COUNTED
        if not is_counted or not self.read_bytes or not len(self.ranks):
            return None
        return min(100.0, 100 * int(self.ranks["storage_bytes"].sum()) / self.read_bytes)

    @property
    def waits_for_storage(self) -> bool:
        """Whether storage fell behind, or copies of the model waited for blocks longer than they computed."""
        # Waits for a copy that is busy do not count: both storage and computing cause them.
        return self.backlog.storage_grows or bool(self.waits.sum() > self.computed["compute_ns"].sum() / 1e9)

    @cached_property
    def ceiling_times(self) -> float | None:
        """The load that the emulator could have moved without storage, as a multiple of this load; None if unknown."""
        ceilings, rate = self.ranks["ceiling_per_hour"], self.rate
        if self.settings.is_official:  # Its users do not wait for answers, so compare with the requests served.
            rate = len(self.computed) / self.window_seconds if self.window_seconds else 0.0
        if not len(ceilings) or not ceilings.all() or not rate:
            return None
        return float(ceilings.sum()) / 3600 / rate


def _in_progress(moments: Floats, begins: Floats, ends: Floats, weights: Floats) -> Floats:
    """Return the work in progress at each moment: the sum of the weights of the intervals that contain it."""
    return np.array([weights[(begins <= moment) & (ends > moment)].sum() for moment in moments])


def _grows(last_third: Floats, span: float) -> bool:
    """Return whether a backlog (s of work, at moments of the last third) is large at the end and was never small."""
    return bool(last_third[-1] > GROWS_SHARE * span and last_third.min() > GROWS_SHARE * span / 2)


def busy_seconds(begins: Floats, ends: Floats) -> float:
    """Return the total time during which at least one of the intervals was in progress (their union)."""
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    earlier_ends = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
    return max(1e-9, float(np.clip(ends - np.maximum(begins, earlier_ends), 0, None).sum()))


def _limit(data: RunRows) -> Limit | None:
    """Return what limited a complete run; None if no prompt was computed."""
    if not len(data.computed):
        return None
    if data.from_storage_percent is not None and data.from_storage_percent < page_cache.NOT_READ_PERCENT:
        return "page cache"
    if data.settings.is_official:
        if data.ceiling_times is not None and data.ceiling_times < MIN_CEILING:
            return "emulator"
        return "storage" if len(data.prompts) > len(data.computed) else "arrivals"
    if data.backlog.compute_grows and not data.waits_for_storage:
        return "accelerators"  # Their time is emulated, so a late emulator can't be the reason.
    late = float(np.percentile(data.prompts["late_ns"], 95)) / 1e9
    load = float(np.percentile(data.load_seconds, 95)) if len(data.load_seconds) else math.inf
    if late > _LATE_SHARE * load:
        return "emulator"
    return "storage" if data.waits_for_storage else "accelerators"


def _outcome(data: RunRows) -> tuple[rows_job.Outcome | None, str]:
    """Return the outcome for the limits `kv.ttft` and `kv.load` (None without limits), and why there is no verdict."""
    limits = {"ttft": data.settings.ttft, "load": data.settings.load}
    limits = {name: limit for name, limit in limits.items() if limit}
    if not limits:
        return None, ""
    ceiling, share = data.ceiling_times, data.from_storage_percent
    measured = len(data.load_seconds) if data.settings.load else len(data.ttft)
    if not data.is_complete:
        return "no verdict", "it did not complete"
    if share is not None and share < page_cache.PARTLY_READ_PERCENT and not data.run.facts.workload.metric.cached:
        return "no verdict", "memory served"
    if measured < MIN_LOADS:
        return "no verdict", f"{measured} prompts are too few for a p95: wanted {MIN_LOADS}"
    if ceiling is not None and ceiling < MIN_CEILING:
        return "no verdict", f"the emulator itself can move only {ceiling:.1f} times this load"
    for name, limit in limits.items():
        if name not in data.latencies or data.latencies[name].p95 > limit:
            return "fail", ""
    return "pass", ""


def _verdict(data: RunRows, outcome: rows_job.Outcome | None, no_verdict_reason: str, official: Official | None) -> str:
    """Return one line: the outcome, then the load and its latencies (official load: the rates, true and published)."""
    if data.run.facts.failure is not None:
        return f"INCOMPLETE: {data.run.facts.failure}"
    prefix = ""
    if outcome is not None:
        prefix = f"{outcome.upper()} ({no_verdict_reason}): " if no_verdict_reason else f"{outcome.upper()}: "
    if not data.is_complete or (official is not None and not data.read_bytes + data.written_bytes):
        return f"{prefix}nothing was measured"
    if official is not None:
        seconds = max(data.window_seconds, 1e-9)
        read, written = data.read_bytes / GIB / seconds, data.written_bytes / GIB / seconds
        excess = 100 * ((official.read_gib_per_second + official.write_gib_per_second) / (read + written) - 1)
        published = f"read {official.read_gib_per_second:.3g} and write {official.write_gib_per_second:.3g}"
        tool = f"MLPerf Storage's tool would publish {published} ({excess:+.0f} %)"
        return f"option {data.settings.option}: read {read:.3g} and write {written:.3g} GiB/s; {tool}"
    rate = f"{data.rate:.3g} prompts/s"
    if data.is_closed:
        rate = f"{data.arrivals}: {rate}"
    if not data.latencies:
        slower = "storage" if data.waits_for_storage else "accelerators"
        why = f"the {slower} fell behind, so latencies would only reflect how long it ran"
        return f"{prefix}{rate} are NOT SUSTAINED: {why}"
    clauses = [f"{rate} sustained"]
    loads = len(data.load_seconds)
    few_loads = f" of {count(loads, 'prompt')}" if loads < MIN_LOADS else ""  # Sweeps show this line without issues.
    for name, title in (("ttft", "first token p95"), ("load", f"load p95{few_loads}")):
        if name in data.latencies:
            limit = getattr(data.settings, name)
            limit_text = f" (limit: {limit:g})" if limit else ""
            clauses.append(f"{title} {data.latencies[name].p95:.3g} s{limit_text}")
    return prefix + "; ".join(clauses)


def _issues(data: RunRows, official: Official | None) -> Iterator[str]:
    settings, share = data.settings, data.from_storage_percent
    if settings.shrink > 1:
        yield f"blocks have 1/{settings.shrink} of the model's bytes (kv.shrink): GB/s are those of the small blocks"
    if share is not None and share < page_cache.PARTLY_READ_PERCENT:
        yield f"the storage served {share:.0f} % of the bytes read, memory the rest: set kv.odirect=true, on a drive"
    if official is not None and official.late:
        yield (
            f"the tool stops its clock at {settings.seconds:g} s and lets {official.late:,} more requests "
            "finish: their bytes count, their time does not; the slower the storage, the more this flatters it"
        )
    if official is not None and official.served < len(data.prompts):
        served_share = f"{official.served:,} of {len(data.prompts):,} were served"
        yield f"requests wait in an unbounded queue, and {served_share}: latencies reflect how long it ran"
    if official is None and data.is_complete and not len(data.reading):
        yield "nothing was read: no prompt had a prefix on storage; use a longer load, or less kv.memory_gb"

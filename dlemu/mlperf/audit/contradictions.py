"""Contradictions as findings: between what was printed and what the kept files give, and with an edition's rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dlemu.mlperf.audit.audit_answer import FORMULAS
from dlemu.mlperf.audit.recompute import Formula, Recomputed, per_rank_blocks, planned_steps
from dlemu.mlperf.audit.run_settings import Printed, Setup
from dlemu.mlperf.audit.step_files import Logs
from dlemu.mlperf.audit.tolerant import mapping, stamp_us
from dlemu.mlperf.rules.core_config import core_config_hash, effective
from dlemu.mlperf.rules.editions import Reading, edition_read
from dlemu.mlperf.rules.training import Division, RunFacts, check_run, override_keys
from dlemu.results.finding import Finding, Severity

AU_TOLERANCE_POINTS = 0.02
"""Time stamps have microseconds; early DLIO took a rank's block time some milliseconds apart from its stamps."""
RATE_TOLERANCE_PERCENT = 0.05
"""The same, of samples/s."""
REST_SECONDS = 0.25
"""What of a step may be neither wait nor computation: a host under load wakes late."""
_MEMORY = 0.01
"""Relative: memory of the same host by two of its ranks."""
COPIED = 1e-9
"""Relative: nearer than that two measurements do not lie."""
_DIGITS = 6  # what is configured has fewer decimals; a measured double has about 15 digits
_OUTSIDE_US = 1_000_000
"""How far a stamp of a block is outside of the summary's at most."""
_SAME = 1e-4
"""Relative: numbers that must be equal but for rounding."""
_ASK = "ask for the files of the run as DLIO wrote them"


def closest_formula(printed: Printed, again: Recomputed) -> str | None:
    """Return the formula whose AU, or else samples/s, lie closest to what was printed."""
    names = [name for name in FORMULAS if name in again.formulas]
    gaps = {name: _gap(printed, again.formulas[name]) for name in names}
    best = min(gaps, key=lambda name: gaps[name], default=None)
    return best if best is not None and math.isfinite(gaps[best]) else None


def _gap(printed: Printed, formula: Formula) -> float:
    """Return the larger of both distances in tolerances; infinite when nothing can be compared."""
    gaps = []
    if printed.au_percent is not None and formula.au_percent is not None:
        gaps.append(abs(formula.au_percent - printed.au_percent) / AU_TOLERANCE_POINTS)
    if printed.samples_per_second and formula.samples_per_second is not None:
        gaps.append(abs(100 * (formula.samples_per_second / printed.samples_per_second - 1)) / RATE_TOLERANCE_PERCENT)
    return max(gaps, default=math.inf)


def contradictions(setup: Setup, printed: Printed, logs: Logs, again: Recomputed) -> list[Finding]:
    """Return every contradiction between what was printed and what was kept, and what can't be known."""
    formula = closest_formula(printed, again)
    return [
        *_unusable(printed),
        *_summary_with_itself(setup, printed),
        *_numbers(printed, again, formula),
        *_counts(setup, printed, again, by_dlemu=logs.by_dlemu),
        *_data_size(setup, printed),
        *_steps(setup, logs),
        *_ranks(setup, logs, formula),
        *_step_counts(setup, printed, logs),
        *_parts_of_steps(logs),
        *_hosts(printed, logs),
        *_off_the_summary(printed, logs),
        *_copies(printed, logs),
        *_verdict(setup, printed, again, since_v2=logs.measured_compute),
        *_unknown(printed, logs, again),
    ]


def _unusable(printed: Printed) -> Iterator[Finding]:
    """A summary without the numbers that a run is judged by says nothing, least of all that the run passed."""
    if printed.unusable:
        yield Finding("error", "summary.incomplete", "; ".join(printed.unusable), "numbers, as DLIO prints them", _ASK)


def _summary_with_itself(setup: Setup, printed: Printed) -> Iterator[Finding]:
    for name, mean, parts in (
        ("AU", printed.au_percent, printed.au_by_epoch),
        ("samples/s", printed.samples_per_second, printed.samples_per_second_by_epoch),
    ):
        if mean is not None and parts and not _close(mean, math.fsum(parts) / len(parts)):
            seen = f"the printed mean of {name} is {mean:.4f}, but {math.fsum(parts) / len(parts):.4f} of its epochs"
            yield Finding("error", "printed.mean", seen, "the mean of the epochs", _ASK)
    rate, mib = printed.samples_per_second, printed.mib_per_second
    nominal = rate * setup.record_bytes / 2**20 if rate and setup.record_bytes else None
    if mib and nominal and not _close(mib, nominal):
        seen = f"printed {mib:.2f} MiB/s, but {rate:.3f} samples/s of {setup.record_bytes:.0f} bytes are {nominal:.2f}"
        yield Finding("error", "printed.io", seen, "samples/s x record length", _ASK)
    if printed.verdict is not None and printed.au_percent is not None:
        reached = printed.au_percent >= setup.au_threshold_percent
        if printed.verdict != ("success" if reached else "fail"):
            seen = f"printed {printed.verdict!r} with an AU of {printed.au_percent:.2f} %"
            yield Finding("error", "printed.verdict", seen, f"success from {setup.au_threshold_percent:g} % on", _ASK)


def _numbers(printed: Printed, again: Recomputed, formula: str | None) -> Iterator[Finding]:
    if formula is None:
        return
    by, exact = again.formulas[formula], again.basis == "steps"
    basis = f"the {'steps' if exact else again.basis} kept give"
    au, rate = by.au_percent, by.samples_per_second
    if again.basis != "blocks" and printed.au_percent is not None and au is not None:
        apart = au - printed.au_percent
        if abs(apart) > AU_TOLERANCE_POINTS:
            seen = f"printed AU {printed.au_percent:.3f} %; {basis} {au:.3f} % by the closest formula ({formula})"
            yield _differs("au.differs", exact, seen, f"at most {AU_TOLERANCE_POINTS} points apart")
    if printed.samples_per_second and rate is not None:
        percent = 100 * (rate / printed.samples_per_second - 1)
        if abs(percent) > RATE_TOLERANCE_PERCENT:
            seen = f"printed {printed.samples_per_second:.3f} samples/s; {basis} {rate:.3f} ({percent:+.2f} %)"
            if again.rate_bounds is not None:
                seen += f"; the time stamps allow {again.rate_bounds[0]:.1f} to {again.rate_bounds[1]:.1f}"
            yield _differs("throughput.differs", exact, seen, f"at most {RATE_TOLERANCE_PERCENT} % apart")


def _differs(rule: str, exact: bool, seen: str, wanted: str) -> Finding:
    if exact:
        return Finding("error", rule, seen, wanted, _ASK)
    fix = "keep the files of all ranks; from rank 0's alone this may be how the other ranks differ"
    return Finding("info", rule, seen, wanted, fix)


def _data_size(setup: Setup, printed: Printed) -> Iterator[Finding]:
    """The summary's size of the data is what its files and samples make, for each host."""
    files, samples, length = printed.num_files, printed.samples_per_file, setup.record_bytes
    if printed.data_gib and files and samples and length and printed.hosts:
        size = files * samples * length / 2**30 / printed.hosts
        if not math.isclose(printed.data_gib, size, rel_tol=_SAME):
            seen = f"data_size_per_host_GB is {printed.data_gib:.2f}, files and record length give {size:.2f} (GiB)"
            yield Finding("error", "files.count", seen, "the size of the files that were read", _ASK)


def _counts(setup: Setup, printed: Printed, again: Recomputed, *, by_dlemu: bool) -> Iterator[Finding]:
    configured, steps = setup.epochs, planned_steps(setup, printed)
    if by_dlemu and configured and steps and setup.total_training_steps:
        # A search's trial ends after so many steps of all epochs together, in an early one.
        configured = min(configured, math.ceil(setup.total_training_steps / steps))
    wanted = configured or printed.epochs
    if again.epochs and wanted and again.epochs != wanted:
        seen = f"{again.epochs} epochs can be recomputed"
        yield Finding("warning", "epochs.count", seen, f"{wanted} epochs", "keep the files of the whole run")
    if configured and printed.epochs and configured != printed.epochs:
        seen = f"config.yaml says {configured} epochs, summary.json {printed.epochs}"
        yield Finding("warning", "epochs.count", seen, "the same run in both", _ASK)
    if printed.accelerators and again.ranks_kept > printed.accelerators:
        seen = f"files of {again.ranks_kept} ranks, but printed {printed.accelerators} accelerators"
        yield Finding("error", "ranks.count", seen, "one file per rank", "keep one run in one folder")
    if setup.config is not None and setup.num_files and printed.num_files and setup.num_files != printed.num_files:
        seen = f"config.yaml says {setup.num_files} files, summary.json {printed.num_files}"
        yield Finding("error", "files.count", seen, "the same run in both", _ASK)


def _steps(setup: Setup, logs: Logs) -> Iterator[Finding]:
    """Compare the time that steps took with the time they were configured to take."""
    wanted = setup.computation_seconds
    if wanted is None or setup.drawn or not logs.arrays or setup.config is None:
        return
    seconds = np.concatenate([arrays.compute for blocks in logs.arrays.values() for arrays in blocks.values()])
    short = float(np.median(seconds)) < wanted * (1 - _SAME)
    if short or (not logs.measured_compute and not np.allclose(seconds, wanted, rtol=_SAME)):
        seen = f"steps computed for {seconds.min():.6g} to {seconds.max():.6g} s (median {np.median(seconds):.6g})"
        if logs.by_dlemu:  # its accelerators keep a timeline of their own: a step that the host began late ends in time
            fix = "nothing: by the host's stamps a step that dlemu's host began late is shorter"
            yield Finding("info", "compute.time", seen, f"{wanted:g} s as config.yaml says", fix)
        else:
            yield Finding("error", "compute.time", seen, f"{wanted:g} s as config.yaml says", _ASK)


def _ranks(setup: Setup, logs: Logs, formula: str | None) -> Iterator[Finding]:
    """Compare each rank's own printed AU with its arrays: shows which rank's file was changed."""
    if formula is None:
        return
    wrong = []
    for rank, (epoch, number), arrays, rated in per_rank_blocks(setup, logs):
        au, printed = rated[formula].au_percent, arrays.printed_au_percent
        if printed is not None and math.isfinite(au) and abs(au - printed) > 10 * AU_TOLERANCE_POINTS:
            wrong.append(f"rank {rank} epoch {epoch} block{number} ({printed:.2f} %, its steps give {au:.2f} %)")
    if wrong:
        seen = f"{len(wrong)} blocks' own AU differ from their steps: {', '.join(wrong[:3])}"
        yield Finding("error", "rank.differs", seen, f"{10 * AU_TOLERANCE_POINTS:g} points at most", _ASK)


def _step_counts(setup: Setup, printed: Printed, logs: Logs) -> Iterator[Finding]:
    """All ranks take the same steps, and as many as the dataset has: DLIO drops what does not fill a step of all."""
    uneven = []
    for epoch, number in logs.blocks():
        steps = {rank: blocks[epoch, number].steps for rank, blocks in logs.arrays.items() if (epoch, number) in blocks}
        usual = Counter(steps.values()).most_common(1)
        uneven += [
            f"rank {rank} epoch {epoch} block{number}: {count} steps, the others {usual[0][0]}"
            for rank, count in steps.items()
            if count != usual[0][0]
        ]
    if uneven:
        seen = f"{uneven[0]}{f' and {len(uneven) - 1} more' if len(uneven) > 1 else ''}"
        yield Finding("error", "ranks.steps", seen, "the same number of steps on every rank", _ASK)
        return
    planned = planned_steps(setup, printed)
    whole = {rank: blocks for rank, blocks in logs.arrays.items() if blocks}
    if planned is None or not whole:
        return
    rank = min(whole)
    # In dlemu they are those of all epochs, and a search's trial that ends by them ends in the middle of one.
    left = setup.total_training_steps if logs.by_dlemu else None
    for epoch in sorted({epoch for epoch, _ in whole[rank]}):
        taken = sum(arrays.steps for (number, _), arrays in whole[rank].items() if number == epoch)
        planned = planned if left is None else min(planned, left)
        left = None if left is None else left - taken
        if taken != planned:
            seen = f"epoch {epoch}: {taken} steps of each rank"
            wanted = f"{planned}: floor(samples / (batch x accelerators)), or total_training_steps"
            yield Finding("warning", "steps.count", seen, wanted, _ASK)
            return


def _parts_of_steps(logs: Logs) -> Iterator[Finding]:
    """A step is its wait for the batch and its computation, and little else: at most 16 ms in published runs."""
    for rank, blocks in logs.arrays.items():
        for (epoch, number), arrays in blocks.items():
            rest = arrays.proc - arrays.load - arrays.compute
            if logs.by_dlemu:
                rest = np.maximum(rest, 0)  # its accelerators keep a timeline of their own: a late step ends in time
            if float(rest.min()) < -REST_SECONDS / 10 or float(rest.max()) > REST_SECONDS:
                step = int(np.argmax(np.abs(rest)))
                seen = (
                    f"rank {rank} epoch {epoch} block{number} step {step + 1}: {arrays.proc[step]:.4f} s,"
                    f" of which wait {arrays.load[step]:.4f} s and computation {arrays.compute[step]:.4f} s"
                )
                wanted = f"a step that is its wait and its computation, within {REST_SECONDS:g} s"
                yield Finding("error", "steps.parts", seen, wanted, _ASK)
                return


def _hosts(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """Compare hosts and memory of the summary with what each rank's file says of its host."""
    if printed.hosts and printed.memory_slots and printed.memory_slots != printed.hosts:
        seen = f"num_hosts is {printed.hosts}, host_memory_GB has {printed.memory_slots} entries"
        yield Finding("error", "hosts.differ", seen, "one entry for each host", _ASK)
    own, whole = printed.meminfo_gib, printed.memory_gib
    if own and whole and printed.hosts:
        alone = printed.hosts == 1 and whole > own * (1 + _MEMORY)
        if alone or whole < own * (1 - _MEMORY):
            seen = f"host_memory_GB gives {whole:.1f} GiB of {printed.hosts} hosts, host_meminfo {own:.1f} GiB of one"
            yield Finding("error", "hosts.memory", seen, "the memory that /proc/meminfo reports", _ASK)
    names = {host.name for host in logs.hosts.values() if host.name}
    ranks = printed.accelerators or len(logs.hosts)
    if (
        printed.hosts
        and names
        and (len(names) > printed.hosts or (len(logs.hosts) >= ranks and len(names) != printed.hosts))
    ):
        shown = ", ".join(sorted(names)[:3])
        seen = f"num_hosts is {printed.hosts}, the ranks' files are of {len(names)} hosts ({shown})"
        yield Finding("error", "hosts.differ", seen, "the hosts that the ranks ran on", _ASK)
    first = logs.hosts.get(0)
    if first is not None and first.name and printed.hostname and first.name != printed.hostname:
        seen = f"summary.json is of {printed.hostname}, rank 0's file of {first.name}"
        yield Finding("error", "hosts.differ", seen, "one host for rank 0", _ASK)
    memory = {host.name: host.memory_gib for host in logs.hosts.values() if host.name and host.memory_gib}
    total, least = printed.memory_gib, sum(memory.values())
    if total and memory and printed.hosts:
        # Of the slots only the sum is right: mlpstorage has put all hosts' memory into the first one.
        whole = len(memory) == printed.hosts
        if total < least * (1 - _MEMORY) or (whole and total > least * (1 + _MEMORY)):
            seen = f"summary.json reports {total:.1f} GiB on all hosts, ranks' files {least:.1f} GiB on {len(memory)}"
            yield Finding("error", "hosts.memory", seen, "the memory that the ranks' hosts have", _ASK)


def _off_the_summary(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """The blocks of the first rank, which writes the summary, lie between the summary's start and end."""
    begun, ended = stamp_us(printed.start), stamp_us(printed.end)
    for (epoch, block), span in logs.spans.get(min(logs.spans, default=0), {}).items():
        early = begun is not None and span.start_us < begun - _OUTSIDE_US
        late = ended is not None and span.end_us > ended + _OUTSIDE_US
        if early or late:
            seen = f"epoch {epoch} block{block} {'begins before' if early else 'ends after'} the run, by summary.json"
            yield Finding("error", "time.order", seen, "blocks within the run", _ASK)
            return


def _copies(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """No epoch has the figures of another, no rank the stamps of another: two measurements are never equal."""
    figures = list(zip(printed.au_by_epoch, printed.samples_per_second_by_epoch, strict=False))
    same = [
        (first, second)
        for (first, one), (second, two) in combinations(enumerate(figures, 1), 2)
        if all(
            is_measured(left) and math.isclose(left, right, rel_tol=COPIED)
            for left, right in zip(one, two, strict=True)
        )
    ]
    if same:
        seen = f"epochs {same[0][0]} and {same[0][1]} have the same AU and samples/s, to the last digit"
        yield Finding("error", "epochs.copied", seen, "different figures for each epoch", _ASK)
    stamped: dict[tuple[tuple[int, int], ...], int] = {}
    for rank, spans in logs.spans.items():
        key = tuple((span.start_us, span.end_us) for _, span in sorted(spans.items()))
        other = stamped.setdefault(key, rank)
        if other != rank:
            seen = f"ranks {other} and {rank} have the same time stamps, to the microsecond"
            severity: Severity = (
                "error" if len(key) > 1 else "warning"
            )  # dlemu's ranks begin together: one end alone may agree
            yield Finding(severity, "ranks.copied", seen, "different time stamps for each rank", _ASK)
            return


def is_measured(value: float) -> bool:
    """Return whether a number has the digits of a measurement: two of those are never equal."""
    return round(value, _DIGITS) != value


def _verdict(setup: Setup, printed: Printed, again: Recomputed, *, since_v2: bool) -> Iterator[Finding]:
    whole, bounds = again.au_whole_percent, again.au_bounds_percent
    if whole is not None and whole > 100 + _SAME:
        seen = f"the blocks are shorter than their computation: AU of whole epochs {whole:.2f} %"
        yield Finding("error", "blocks.short", seen, "at most 100 %", _ASK)
    if printed.au_percent is not None and bounds is not None:
        low, high = bounds
        if not low - AU_TOLERANCE_POINTS <= printed.au_percent <= high + AU_TOLERANCE_POINTS:
            seen = f"printed AU {printed.au_percent:.2f} %, but the block times allow {low:.2f} to {high:.2f} %"
            yield Finding("error", "au.impossible", seen, "an AU within these bounds", _ASK)
    if printed.samples_per_second and again.rate_bounds is not None:
        low, high = again.rate_bounds
        if not low * (1 - _SAME) <= printed.samples_per_second <= high * (1 + _SAME):
            seen = f"printed {printed.samples_per_second:.2f} samples/s, but time stamps allow {low:.2f} to {high:.2f}"
            yield Finding("error", "throughput.impossible", seen, "a rate within these bounds", _ASK)
    # Since v2.0 the text of the rules itself leaves the first step's I/O out; v1.0's does not.
    if not since_v2 and printed.verdict == "success" and whole is not None and whole < setup.au_threshold_percent:
        seen = f"AU of whole epochs, by v1.0's text, is {whole:.2f} %: it passes only because first steps are dropped"
        fix = "see how long the first step of each epoch takes (loss_first_step_percent)"
        yield Finding("warning", "au.rules", seen, f"{setup.au_threshold_percent:g} %", fix)


def _unknown(printed: Printed, logs: Logs, again: Recomputed) -> Iterator[Finding]:
    """Yield what the kept files can't show."""
    ranks = printed.accelerators or again.ranks_kept
    keep = "keep R_output.json and R_per_epoch_stats.json of every rank R"
    if again.basis == "nothing":
        seen = "no time stamps of blocks: nothing can be recomputed"
        yield Finding("warning", "unknown.all", seen, "per_epoch_stats.json at the least", keep)
    elif again.basis == "blocks":
        seen = "no rank's steps were kept: AU by DLIO's formulas, and loading apart from barriers, can't be known"
        yield Finding("info", "unknown.steps", seen, "the files of all ranks", keep)
    elif again.basis == "some ranks":
        seen = f"files of {again.ranks_kept} of {ranks} ranks: samples/s are scaled up, AU is these ranks' mean"
        yield Finding("info", "unknown.ranks", seen, "the files of all ranks", keep)
    elif not logs.measured_compute and ranks > 1:
        seen = "only rank 0 kept time stamps: the other ranks' block times come from their printed samples/s"
        yield Finding("info", "unknown.stamps", seen, "time stamps of every rank", "use DLIO 2.x: it keeps them")


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_SAME, abs_tol=1e-9)


@dataclass(frozen=True)
class Rulebook:
    """What runs are held against."""

    edition: str
    division: Division
    reading: Reading = "today"


def rule_findings(setup: Setup, printed: Printed, book: Rulebook, *, by_dlemu: bool = False) -> list[Finding]:
    """Return what the run breaks, as far as its files show; rules are named `rules.NAME`.

    A configuration that dlemu wrote has keys that DLIO's has not, so its hash is not compared.
    """
    config = mapping(setup.config)
    odirect = mapping(config.get("reader")).get("odirect")
    checkpoint = mapping(config.get("workflow")).get("checkpoint")
    facts = RunFacts(
        workload=setup.workload or printed.model or "a workload without a name",
        accelerator=setup.accelerator or "",
        accelerators=printed.accelerators,
        hosts=printed.hosts,
        memory_gib=printed.memory_gib,
        num_files=printed.num_files or setup.num_files,
        samples_per_file=printed.samples_per_file or setup.samples_per_file,
        record_bytes=setup.record_bytes,
        batch_size=setup.batch_size,
        computation_seconds=setup.computation_seconds,
        epochs=setup.epochs,
        au_threshold_percent=setup.au_threshold_percent if setup.config is not None else None,
        au_percent=printed.au_percent,
        checkpoint=checkpoint if isinstance(checkpoint, bool) else None,
        odirect=odirect if isinstance(odirect, bool) else None,
        overrides=None if setup.overrides is None else override_keys(setup.overrides),
        settings=effective(config) if config else None,
        core_config=core_config_hash(config) if config and not by_dlemu else None,
    )
    broken = check_run(edition_read(book.edition, book.reading), facts, book.division)
    return [
        Finding(finding.severity, f"rules.{finding.rule}", finding.seen, finding.wanted, finding.fix)
        for finding in broken
    ]

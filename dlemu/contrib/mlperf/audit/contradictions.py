"""Finds contradictions in one training run: within its summary, and between its summary and its other files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import pstdev

import numpy as np

from dlemu.contrib.mlperf.audit.recompute import Formula, Recomputed, planned_steps, rank_block
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.step_files import Logs
from dlemu.contrib.mlperf.audit.tolerant import SUM_TOLERANCE, stamp_us
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, first_few
from dlemu.results.wording import count

_AU_TOLERANCE_POINTS = 0.02  # between printed and recomputed AU: times and time stamps of early DLIO differ by a few ms
_RANK_AU_TOLERANCE_POINTS = 10 * _AU_TOLERANCE_POINTS  # the same for one rank's block, which is shorter than a run
_RATE_TOLERANCE_PERCENT = 0.05  # between printed and recomputed samples/s, for the same reason
_BLOCKS_RATE_TOLERANCE_PERCENT = 3.0  # the same, if recomputed from block times: 1.85 % or less in 650 runs of v1.0
_MAX_UNEXPLAINED_SECONDS = 0.25  # of a step, neither wait nor computation: a busy host wakes late (published: 16 ms)
_MAX_EXCESS_SECONDS = _MAX_UNEXPLAINED_SECONDS / 10  # of wait and computation together, over the time of their step
_MEMORY_TOLERANCE = 0.01  # relative; two ranks may report slightly different memory sizes of the same host
_MAX_COPY_DIFFERENCE = 1e-9  # relative; two independent measurements differ by more
_CONFIGURED_DECIMALS = 6  # configured values have no more decimals; a measured double has about 15 digits
_SUMMARY_TOLERANCE_US = 1_000_000  # how far a block may reach beyond the summary's start and end
_ROUNDING_TOLERANCE = 1e-4  # relative, between numbers that are equal before rounding
_BASIS = {"steps": "the steps give", "some ranks": "the steps of some ranks give", "blocks": "the block times give"}
"""`Recomputed.basis` -> a phrase for it in a finding."""


def closest_formula(printed: Printed, recomputed: Recomputed) -> str | None:
    """Return the name of the formula with the AU and samples/s closest to the printed ones; None if not comparable."""
    distances = {name: _distance(printed, formula) for name, formula in recomputed.formulas.items()}
    best = min(distances, key=lambda name: distances[name], default=None)
    return best if best is not None and math.isfinite(distances[best]) else None


def _distance(printed: Printed, formula: Formula) -> float:
    """Return the larger difference of AU and samples/s, in units of their tolerances; infinite if neither is known."""
    differences = []
    if printed.au_percent is not None and formula.au_percent is not None:
        differences.append(abs(formula.au_percent - printed.au_percent) / _AU_TOLERANCE_POINTS)
    if printed.samples_per_second and formula.samples_per_second is not None:
        percent = 100 * (formula.samples_per_second / printed.samples_per_second - 1)
        differences.append(abs(percent) / _RATE_TOLERANCE_PERCENT)
    return max(differences, default=math.inf)


def contradictions(setup: Setup, printed: Printed, logs: Logs, recomputed: Recomputed) -> list[Finding]:
    """Return all contradictions in a run's files, and findings on numbers that the kept files can't show."""
    formula = closest_formula(printed, recomputed)
    return [
        *_summary_consistency(setup, printed),
        *_au_and_rate(printed, recomputed, formula),
        *_counts(setup, printed, recomputed, by_dlemu=logs.by_dlemu),
        *_computation_time(setup, logs),
        *_au_of_ranks(setup, logs, formula),
        *_step_counts(setup, printed, logs),
        *_step_parts(logs),
        *_steps_beyond_blocks(logs),
        *_hosts(printed, logs),
        *_blocks_outside_run(printed, logs),
        *_copies(printed, logs),
        *_bounds(setup, printed, recomputed, since_v2=logs.measured_compute),
        *_unknowns(printed, logs, recomputed),
    ]


def _summary_consistency(setup: Setup, printed: Printed) -> Iterator[Finding]:
    """The summary has the numbers by which the run is judged, and they agree with each other and with the settings."""
    if printed.unusable:
        yield by_rule("summary.incomplete", "; ".join(printed.unusable))
    rate, rates = printed.samples_per_second, printed.samples_per_second_by_epoch
    yield from _mean_and_deviation("AU", printed.au_percent, printed.au_deviation, printed.au_by_epoch)
    yield from _mean_and_deviation("samples/s", rate, printed.samples_per_second_deviation, rates)
    if setup.record_bytes:
        mib_by_epoch = [epoch_rate * setup.record_bytes / 2**20 for epoch_rate in rates]
        yield from _mean_and_deviation("MiB/s", None, printed.mib_per_second_deviation, mib_by_epoch)
        nominal = (rate or 0) * setup.record_bytes / 2**20
        mib = printed.mib_per_second
        if mib and nominal and not math.isclose(mib, nominal, rel_tol=_ROUNDING_TOLERANCE):
            seen = f"{rate:.3f} samples/s of {setup.record_bytes:.0f} bytes are {nominal:.2f}"
            yield by_rule("printed.io", f"printed {mib:.2f} MiB/s, but {seen}")
    if printed.verdict is not None and printed.au_percent is not None:
        verdict = "success" if printed.au_percent >= setup.au_threshold_percent else "fail"
        if printed.verdict != verdict:
            seen = f"printed {printed.verdict!r} with an AU of {printed.au_percent:.2f} %"
            yield by_rule("printed.verdict", seen, f"success if AU >= {setup.au_threshold_percent:g} %")


def _mean_and_deviation(
    name: str, mean: float | None, deviation: float | None, by_epoch: Sequence[float]
) -> Iterator[Finding]:
    """A printed mean and standard deviation are those of the printed epochs."""
    if not by_epoch:
        return
    tolerance = SUM_TOLERANCE * max(by_epoch)
    recomputed = math.fsum(by_epoch) / len(by_epoch)
    sigma = pstdev(by_epoch)
    if mean is not None and abs(mean - recomputed) > tolerance:
        yield by_rule("printed.mean", f"printed mean {name} is {mean:.4f}, but its epochs' mean is {recomputed:.4f}")
    if deviation is not None and abs(deviation - sigma) > tolerance + _ROUNDING_TOLERANCE * sigma:
        yield by_rule("printed.mean", f"printed deviation of {name} is {deviation:.4f}, but its epochs' is {sigma:.4f}")


def _au_and_rate(printed: Printed, recomputed: Recomputed, formula: str | None) -> Iterator[Finding]:
    """Printed AU and samples/s are those recomputed by the closest formula."""
    if formula is None:
        return
    basis = _BASIS[recomputed.basis]
    # Unless all ranks kept their steps, the other ranks may account for the difference.
    severity: Severity = "error" if recomputed.basis == "steps" else "info"
    au, rate = recomputed.formulas[formula].au_percent, recomputed.formulas[formula].samples_per_second
    printed_au = None if recomputed.basis == "blocks" else printed.au_percent
    if printed_au is not None and au is not None and abs(au - printed_au) > _AU_TOLERANCE_POINTS:
        seen = f"printed AU {printed_au:.3f} %; {basis} {au:.3f} % by the closest formula ({formula})"
        yield by_rule("au.differs", seen, severity=severity)
    if not printed.samples_per_second or rate is None:
        return
    percent = 100 * (rate / printed.samples_per_second - 1)
    if abs(percent) > _RATE_TOLERANCE_PERCENT:
        seen = f"printed {printed.samples_per_second:.3f} samples/s; {basis} {rate:.3f} ({percent:+.2f} %)"
        if recomputed.bounds is not None:
            low, high = recomputed.bounds.samples_per_second_least, recomputed.bounds.samples_per_second_most
            seen += f"; the time stamps allow {low:.1f} to {high:.1f}"
        if recomputed.basis == "blocks" and abs(percent) > _BLOCKS_RATE_TOLERANCE_PERCENT:
            severity = "warning"
        yield by_rule("throughput.differs", seen, severity=severity)


def _counts(setup: Setup, printed: Printed, recomputed: Recomputed, *, by_dlemu: bool) -> Iterator[Finding]:
    """The numbers of epochs, ranks and files agree in all files."""
    configured = setup.epochs
    steps = planned_steps(setup, printed)
    if by_dlemu and configured and steps and setup.total_training_steps:
        # dlemu counts total_training_steps over all epochs, so a run may end in an early epoch.
        configured = min(configured, math.ceil(setup.total_training_steps / steps))
    epochs = configured or printed.epochs
    if recomputed.epochs and epochs and recomputed.epochs != epochs:
        yield by_rule("epochs.count", f"{recomputed.epochs} of {epochs} epochs can be recomputed", severity="warning")
    in_summary = {printed.epochs, len(printed.au_by_epoch), len(printed.samples_per_second_by_epoch)}
    different = in_summary - {None, 0, epochs}
    if epochs and different:
        file = "config.yaml" if configured else "summary.json"
        yield by_rule("epochs.count", f"{file} says {epochs} epochs, summary.json has {different.pop()}")
    if printed.accelerators and recomputed.ranks_kept > printed.accelerators:
        seen = f"files of {recomputed.ranks_kept} ranks, but the summary has {printed.accelerators} accelerators"
        yield by_rule("ranks.count", seen)
    if setup.config is not None and setup.num_files and printed.num_files and setup.num_files != printed.num_files:
        yield by_rule("files.count", f"config.yaml says {setup.num_files} files, summary.json {printed.num_files}")
    files, samples = printed.num_files, printed.samples_per_file
    if printed.data_gib and files and samples and setup.record_bytes and printed.hosts:
        gib = files * samples * setup.record_bytes / 2**30 / printed.hosts
        if not math.isclose(printed.data_gib, gib, rel_tol=_ROUNDING_TOLERANCE):
            seen = f"data_size_per_host_GB is {printed.data_gib:.2f}, files and record length give {gib:.2f} (GiB)"
            yield by_rule("files.count", seen)


def _computation_time(setup: Setup, logs: Logs) -> Iterator[Finding]:
    """Steps computed for the configured time."""
    configured = setup.computation_seconds
    if configured is None or setup.is_random or not logs.arrays or setup.config is None:
        return
    seconds = np.concatenate([arrays.compute for blocks in logs.arrays.values() for arrays in blocks.values()])
    too_short = float(np.median(seconds)) < configured * (1 - _ROUNDING_TOLERANCE)
    if too_short or (not logs.measured_compute and not np.allclose(seconds, configured, rtol=_ROUNDING_TOLERANCE)):
        seen = f"steps computed for {seconds.min():.6g} to {seconds.max():.6g} s (median {np.median(seconds):.6g})"
        # An emulated accelerator ends a step on schedule even if the host began it late.
        severity: Severity = "info" if logs.by_dlemu else "error"
        yield by_rule("compute.time", seen, f"{configured:g} s as config.yaml says", severity=severity)


def _au_of_ranks(setup: Setup, logs: Logs, formula: str | None) -> Iterator[Finding]:
    """The AU that each rank printed is that of its steps; a difference shows which rank's file was changed."""
    if formula is None:
        return
    wrong = []
    for rank, blocks in logs.arrays.items():
        for (epoch, block), arrays in blocks.items():
            printed = arrays.printed_au_percent
            if printed is None or logs.span(rank, (epoch, block)) is None:
                continue
            au = rank_block(setup, logs, rank, (epoch, block)).by_formula[formula].au_percent
            if math.isfinite(au) and abs(au - printed) > _RANK_AU_TOLERANCE_POINTS:
                wrong.append(f"rank {rank} epoch {epoch} block{block} ({printed:.2f} %, its steps give {au:.2f} %)")
    if wrong:
        yield by_rule("rank.differs", f"AU printed by ranks differs from their steps: {first_few(wrong, ', ')}")


def _step_counts(setup: Setup, printed: Printed, logs: Logs) -> Iterator[Finding]:
    """All ranks take the same number of steps, that of the dataset without an incomplete last step."""
    uneven = []
    for epoch, block in logs.blocks():
        steps = {rank: blocks[epoch, block].steps for rank, blocks in logs.arrays.items() if (epoch, block) in blocks}
        most_ranks_steps = Counter(steps.values()).most_common(1)[0][0] if steps else 0
        uneven += [
            f"rank {rank} epoch {epoch} block{block}: {rank_steps} steps, the others {most_ranks_steps}"
            for rank, rank_steps in steps.items()
            if rank_steps != most_ranks_steps
        ]
    if uneven:
        yield by_rule("ranks.steps", first_few(uneven, limit=1))
        return
    planned = planned_steps(setup, printed)
    if planned is None or not logs.arrays:
        return
    blocks = logs.arrays[min(logs.arrays)]
    # dlemu counts total_training_steps over all epochs, so a run may end within an epoch.
    remaining = setup.total_training_steps if logs.by_dlemu else None
    for epoch in sorted({epoch for epoch, _ in blocks}):
        epoch_steps = sum(arrays.steps for (number, _), arrays in blocks.items() if number == epoch)
        if remaining is not None:
            planned = min(planned, remaining)
            remaining -= epoch_steps
        if epoch_steps != planned:
            yield by_rule("steps.count", f"epoch {epoch}: {epoch_steps} steps on each rank, {planned} planned")
            return


def _step_parts(logs: Logs) -> Iterator[Finding]:
    """Wait and computation of a step add up to its time."""
    for rank, blocks in logs.arrays.items():
        for (epoch, block), arrays in blocks.items():
            unexplained = arrays.proc - arrays.load - arrays.compute
            if logs.by_dlemu:
                unexplained = np.maximum(unexplained, 0)  # negative where an emulated accelerator began a step late
            longest = float(unexplained.max())
            if float(unexplained.min()) < -_MAX_EXCESS_SECONDS or longest > _MAX_UNEXPLAINED_SECONDS:
                step = int(np.argmax(np.abs(unexplained)))
                seen = (
                    f"rank {rank} epoch {epoch} block{block} step {step + 1}: {arrays.proc[step]:.4f} s,"
                    f" of which wait {arrays.load[step]:.4f} s and computation {arrays.compute[step]:.4f} s"
                )
                yield by_rule("steps.parts", seen)
                return


def _steps_beyond_blocks(logs: Logs) -> Iterator[Finding]:
    """A block lasts at least as long as its steps, by the rank's own time stamps."""
    if logs.by_dlemu:
        return
    for rank, blocks in logs.arrays.items():
        for (epoch, block), arrays in blocks.items():
            span = logs.spans.get(rank, {}).get((epoch, block))
            if span is None:
                continue
            seconds = max(span.seconds, span.seconds_to_checkpoint or 0.0)
            steps_seconds = float(arrays.proc.sum())
            if steps_seconds > seconds + _MAX_UNEXPLAINED_SECONDS:
                seen = f"steps of {steps_seconds:.3f} s in a block of {seconds:.3f} s"
                yield by_rule("blocks.short", f"rank {rank} epoch {epoch} block{block}: {seen}")
                return


def _hosts(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """The summary and the ranks' files agree on the hosts and their memory."""
    hosts, total_gib, rank_0_gib = printed.hosts, printed.memory_gib, printed.meminfo_gib
    rank_0_host = logs.hosts[0].name if 0 in logs.hosts else None
    if rank_0_host and printed.hostname and rank_0_host != printed.hostname:
        yield by_rule("hosts.differ", f"summary.json names host {printed.hostname}, rank 0's file {rank_0_host}")
    if not hosts:
        return
    if printed.memory_slots and printed.memory_slots != hosts:
        yield by_rule("hosts.differ", f"num_hosts is {hosts}, host_memory_GB has {printed.memory_slots} entries")
    if rank_0_gib and total_gib and not _includes(total_gib, rank_0_gib, is_all=hosts == 1):
        seen = f"host_memory_GB gives {total_gib:.1f} GiB for {count(hosts, 'host')}"
        yield by_rule("hosts.memory", f"{seen}, host_meminfo {rank_0_gib:.1f} GiB for one")
    names = {host.name for host in logs.hosts.values() if host.name}
    all_ranks_kept = len(logs.hosts) >= (printed.accelerators or len(logs.hosts))
    if names and (len(names) > hosts or (all_ranks_kept and len(names) != hosts)):
        first_names = first_few(sorted(names), ", ")
        yield by_rule("hosts.differ", f"num_hosts is {hosts}, the ranks' files name {len(names)} hosts ({first_names})")
    memory = {host.name: host.memory_gib for host in logs.hosts.values() if host.name and host.memory_gib}
    ranks_gib = sum(memory.values())
    # Compare the sum of host_memory_GB only: mlpstorage has put all hosts' memory into its first entry.
    if total_gib and memory and not _includes(total_gib, ranks_gib, is_all=len(memory) == hosts):
        seen = f"summary.json reports {total_gib:.1f} GiB on all hosts"
        yield by_rule("hosts.memory", f"{seen}, ranks' files {ranks_gib:.1f} GiB on {len(memory)}")


def _includes(total_gib: float, part_gib: float, *, is_all: bool) -> bool:
    """Return whether a total is as large as the part, within the tolerance; it may be larger unless `is_all`."""
    min_gib, max_gib = part_gib * (1 - _MEMORY_TOLERANCE), part_gib * (1 + _MEMORY_TOLERANCE)
    return min_gib <= total_gib <= max_gib if is_all else min_gib <= total_gib


def _blocks_outside_run(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """The blocks of the lowest rank, which writes the summary, are between the summary's start and end."""
    run_start_us, run_end_us = stamp_us(printed.start), stamp_us(printed.end)
    for (epoch, block), span in logs.lowest_rank_spans.items():
        if run_start_us is not None and span.start_us < run_start_us - _SUMMARY_TOLERANCE_US:
            yield by_rule("time.order", f"epoch {epoch} block{block} begins before the run, by summary.json")
            return
        if run_end_us is not None and span.end_us > run_end_us + _SUMMARY_TOLERANCE_US:
            yield by_rule("time.order", f"epoch {epoch} block{block} ends after the run, by summary.json")
            return


def _copies(printed: Printed, logs: Logs) -> Iterator[Finding]:
    """No two epochs have the same figures, and no two ranks the same time stamps: measurements are never equal."""
    figures = list(zip(printed.au_by_epoch, printed.samples_per_second_by_epoch, strict=False))
    for (epoch, first), (later_epoch, second) in combinations(enumerate(figures, 1), 2):
        if all(map(_is_copy, first, second)):
            seen = f"epochs {epoch} and {later_epoch} have the same AU and samples/s, to the last digit"
            yield by_rule("epochs.copied", seen)
            break
    rank_of: dict[tuple[tuple[int, int], ...], int] = {}
    for rank, spans in logs.spans.items():
        stamps = tuple((span.start_us, span.end_us) for _, span in sorted(spans.items()))
        first_rank = rank_of.setdefault(stamps, rank)
        if first_rank != rank:
            seen = f"ranks {first_rank} and {rank} have the same time stamps, to the microsecond"
            # dlemu's ranks begin together, and by chance two may end their only block in the same microsecond.
            severity: Severity = "error" if len(stamps) > 1 else "warning"
            yield by_rule("ranks.copied", seen, severity=severity)
            return


def _is_copy(figure: float, other: float) -> bool:
    """Return whether two figures are equal, and measured: measured doubles have more decimals than configured ones."""
    is_measured = round(figure, _CONFIGURED_DECIMALS) != figure
    return is_measured and math.isclose(figure, other, rel_tol=_MAX_COPY_DIFFERENCE)


def _bounds(setup: Setup, printed: Printed, recomputed: Recomputed, *, since_v2: bool) -> Iterator[Finding]:
    """AU of whole epochs is possible, and printed AU and samples/s are within the bounds of the block times."""
    whole, bounds = recomputed.au_whole_percent, recomputed.bounds
    if whole is not None and whole > 100 + _ROUNDING_TOLERANCE:
        seen = f"the blocks are shorter than their computation: AU of whole epochs {whole:.2f} %"
        yield by_rule("blocks.short", seen)
    if printed.au_percent is not None and bounds is not None:
        low = bounds.au_least_percent
        if not low - _AU_TOLERANCE_POINTS <= printed.au_percent <= 100 + _AU_TOLERANCE_POINTS:
            seen = f"printed AU {printed.au_percent:.2f} %, but the block times allow {low:.2f} to 100 %"
            yield by_rule("au.impossible", seen)
    if printed.samples_per_second and bounds is not None:
        low, high = bounds.samples_per_second_least, bounds.samples_per_second_most
        if not low * (1 - _ROUNDING_TOLERANCE) <= printed.samples_per_second <= high * (1 + _ROUNDING_TOLERANCE):
            seen = f"printed {printed.samples_per_second:.2f} samples/s, but time stamps allow {low:.2f} to {high:.2f}"
            yield by_rule("throughput.impossible", seen)
    if printed.verdict == "success" and whole is not None and whole < setup.au_threshold_percent:
        # The text of v1.0's rules counts the first step's I/O; since v2.0 it excludes it, as DLIO always has.
        severity: Severity = "info" if since_v2 else "warning"
        seen = f"AU of whole epochs, by v1.0's text, is {whole:.2f} %: it passes only because first steps are dropped"
        yield by_rule("au.rules", seen, f"{setup.au_threshold_percent:g} %", severity=severity)


def _unknowns(printed: Printed, logs: Logs, recomputed: Recomputed) -> Iterator[Finding]:
    """Report which numbers the kept files can't show."""
    ranks = printed.accelerators or recomputed.ranks_kept
    if recomputed.basis == "nothing":
        yield by_rule("unknown.all", "no time stamps of blocks: nothing can be recomputed")
    elif recomputed.basis == "blocks":
        seen = "no rank's steps were kept: AU by DLIO's formulas, and the shares of loading and barriers, are unknown"
        yield by_rule("unknown.steps", seen)
    elif recomputed.basis == "some ranks":
        seen = f"files of {recomputed.ranks_kept} of {ranks} ranks: samples/s are scaled up, AU is these ranks' mean"
        yield by_rule("unknown.ranks", seen)
    elif not logs.measured_compute and ranks > 1:
        seen = "only rank 0 kept time stamps: the other ranks' block times come from their printed samples/s"
        yield by_rule("unknown.stamps", seen)

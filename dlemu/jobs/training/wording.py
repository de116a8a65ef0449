"""The texts on a training run: its verdict, findings and limit as sentences, and its first screen."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from dlemu.config.overrides import override
from dlemu.config.schema import Recorded
from dlemu.jobs.training.summary import LARGER_DATASET, MEMORY, Summary
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import MIN_LOSS_PERCENT, Limit
from dlemu.metrics.verdict import Verdict, VerdictCode
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Tone
from dlemu.report.units import duration, size, with_uncertainty
from dlemu.results import CONFIG
from dlemu.results.wording import Wording, at_scale, count, fill_in, text_of

_AU_NAMES: dict[Number, str] = {"sustained": "AU", "au": "AU of counted steps", "rules": "AU of whole epochs"}
_HOST_WORDS: dict[Number, str] = {"host CPU": "host", "emulator": "emulator on this host"}

# The verdict. {value} is the judged AU with its uncertainty, and {other} a clause about another AU, or nothing.
# `dlemu.results.wording.Wording` explains placeholders such as {ranks:several fewer ranks or }.

_VERDICTS: dict[str, str] = {
    VerdictCode.PASS: "PASS: {value} is at least {threshold_percent:g} %{other}",
    VerdictCode.FAIL: "FAIL: {value} is below {threshold_percent:g} %{other}",
    VerdictCode.UNDECIDED: "UNDECIDED: {value} is too close to {threshold_percent:g} % to call; run longer: {longer}",
    VerdictCode.INCOMPLETE: "NO VERDICT: the run did not complete",
    VerdictCode.NOTHING_COMPUTED: "NO VERDICT: no computation to judge (train.computation_time is 0, or every step was "
    "excluded)",
    VerdictCode.NOTHING_READ: "NO VERDICT: no byte was read; set metric.cached=true to judge it anyway",
    VerdictCode.UNEVEN_COMPUTATION: "NO VERDICT on the storage: {value} is below {threshold_percent:g} %, but random "
    "computation times allow only {au_without_waits_percent:.2f} % on any storage; use fewer ranks or a smaller stdev",
    VerdictCode.EMULATOR_TOO_SLOW: "NO VERDICT on the storage: {value} is below {threshold_percent:g} %, but even "
    "without storage the emulator reached only {ceiling_au_percent:.2f} % on this host; use "
    "{ranks:several fewer ranks or }a host with more cores",
    VerdictCode.CACHE_SERVED: "NO VERDICT: only {from_storage_percent:.0f} % of the bytes came from storage ({value}); "
    "bypass or empty the page cache, or set metric.cached=true to judge it anyway",
    VerdictCode.TOO_FEW_STEPS: "NO VERDICT: only {kept_steps} steps per epoch count, and {prefetched_steps} are read "
    "before them; use more files{ranks:several , or fewer ranks}",
    VerdictCode.SUPPLY_NOT_KNOWN: "NO VERDICT: all of an epoch is read at once, so {value} is a lower bound: use more "
    "files",
    VerdictCode.HOST_LIMITED: "NO VERDICT on the storage: {value} is below {threshold_percent:g} %, but the {host} is "
    "the limit, so the storage may be able to deliver more; relieve the host and run again",
}


def verdict_word(code: str) -> str:
    """Return the first words of a verdict: `PASS`, `NO VERDICT on the storage`, ..."""
    return _VERDICTS[code].partition(":")[0]


def verdict_line(verdict: Verdict, ranks: int = 0) -> str:
    """Return a verdict as one line; `ranks` is 0 if their number is unknown."""
    numbers: dict[str, Any] = {"ranks": ranks, **verdict.numbers}
    numbers |= {"host": _HOST_WORDS.get(numbers.get("limited_by", ""), ""), "other": ""}
    if "au_percent" in numbers:
        half_width, threshold = numbers.get("uncertainty_percent", 0.0), numbers["threshold_percent"]
        value = with_uncertainty(numbers["au_percent"], half_width, threshold).replace("±", "+-")
        numbers["value"] = f"{_AU_NAMES[numbers['by']]} {value}"
    if "headline_au_percent" in numbers:  # it reaches the threshold, and the sustained AU does not
        headline, sustained = numbers["headline_au_percent"], numbers["sustained_au_percent"]
        thanks_to = f"thanks to {headline - sustained:.1f} points of prefetching"
        numbers["other"] = f"; the AU of the counted steps, {headline:.2f} %, would pass, {thanks_to}"
        if numbers["by"] == "au":
            numbers["other"] = f", {thanks_to}: the storage sustains {sustained:.1f} %"
    return fill_in(_VERDICTS[verdict.code], numbers)


# Findings: code, or code and pattern -> a sentence, and advice; if that is '', `_DEFAULT_ADVICE` for the limit is given

_FINDINGS: Wording[tuple[str, str]] = {
    Code.PREFETCH_TOO_SHALLOW: (
        "when a wait ended, {batches_ready:.1f} later batches were ready behind the slow one: with {prefetch_size} "
        "batches ahead instead of {now_prefetch_size} the AU over whole epochs is {au_percent:.1f} % instead of "
        "{now_au_percent:.1f} % (event model)",
        "read further ahead: reader.prefetch_size={prefetch_size} (now {now_prefetch_size})",
    ),
    "prefetch_too_shallow.not_begun": (
        "no worker had started the late batches although workers were free",
        "read further ahead: raise reader.prefetch_size or reader.read_threads",
    ),
    Code.REQUESTS_TOO_SMALL: (
        "right after the run {readers:count reader} got {mb_per_second:,.1f} MB/s, and with requests of "
        "{transfer_size:,} bytes {better_mb_per_second:,.1f} MB/s",
        "larger requests get more from this storage: reader.transfer_size={transfer_size}",
    ),
    Code.TOO_FEW_READERS: (
        "with {read_threads:count reader} per rank, too few batches were in work at a time",
        "too few readers: raise reader.read_threads (now {read_threads})",
    ),
    "too_few_readers.requests": (
        "with {read_threads:count reader} per rank, too few requests were in flight at a time",
        "too few requests: raise reader.read_threads (now {read_threads}) or reader.io_depth",
    ),
    Code.TOO_MANY_READERS: (
        "right after the run {readers:count reader} got {mb_per_second:,.1f} MB/s, and {fewer_readers} got "
        "{better_mb_per_second:,.1f} MB/s",
        "too many readers: set reader.read_threads={read_threads} (now {now_read_threads})",
    ),
    Code.OTHER_PROGRAM_ON_DRIVE: (
        "others read {mb_per_second:,.1f} MB/s from the same device ({percent:.0f} % of all)",
        "stop other programs that read from the device (iotop), or allow for them",
    ),
    Code.NETWORK_FULL: (
        "the network interface received {percent:.0f} % of its capacity",
        "a faster network between host and server, or fewer accelerators on it",
    ),
    "storage_not_steady.speed_changed": (
        "at {at_seconds:clock} the storage's speed changed to {percent:.0f} %: from {mb_per_second_before:,.1f} to "
        "{mb_per_second_after:,.1f} MB/s",
        "find out why the storage's speed changed at {at_seconds:clock}; plan with the lower speed",
    ),
    "storage_not_steady.stalled": (
        "the storage stalled for {seconds:.1f} s at {at_seconds:clock}",
        "find out why the storage stalled: its own background work, the network, other load",
    ),
    "storage_not_steady.ran_out": (
        "{times:count time} the first {gb:.3g} GB came faster than the rest, as if from a cache or burst credit",
        "plan with {mb_per_second_after:,.0f} MB/s, the speed that lasts: the first {gb:.3g} GB came faster, as if "
        "from a cache or burst credit; a run after a pause shows if so",
    ),
    "storage_not_steady.first_touch": (
        "the first {gb:.3g} GB came at {mb_per_second_first:,.0f} MB/s, and later epochs at {mb_per_second_after:,.0f}",
        "read the dataset once before it counts: the first epoch was slow",
    ),
    "storage_not_steady.hot_drive": (
        "{drive} reached {celsius:.0f} degrees Celsius and throttles from {limit_celsius:.0f}",
        "cool {drive}",
    ),
    Code.SLOW_DRIVE: (
        "folder {folder} is slow: {ms_per_sample:.3g} ms per sample, the others {others_ms_per_sample:.3g} ms",
        "check where folder {folder} is stored",
    ),
    Code.SLOW_RANK: (
        "rank {rank} on {host} cost {loss_percent:.1f} points of AU: {steps:count step} late by {mean_delay_ms:.3g} ms "
        "on average, mainly due to {mainly}",
        "check {host}: the others wait for rank {rank} (its mount, network, drive and cores)",
    ),
    "slow_rank.host": (
        "host {host} cost {loss_percent:.1f} points of AU: {steps:count step} late by {mean_delay_ms:.3g} ms on "
        "average, mainly due to {mainly}",
        "check host {host}: all others wait for it (its mount, network, drive and cores)",
    ),
    Code.PAGE_CACHE: (
        "only {from_storage_percent:.0f} % of the bytes came from storage ({least_percent:.0f} to {most_percent:.0f} % "
        "in an epoch)",
        "measure with {would_help}",
    ),
    "page_cache.not_known": (
        "it is unknown whether the data came from storage: the dataset is smaller than {wanted_ratio:g} times the "
        "hosts' memory, which MLPerf Storage requires",
        "measure with {would_help}",
    ),
    Code.NO_DATA_FROM_STORAGE: ("no byte was read", ""),
    "no_data_from_storage.in_memory": (
        "the dataset is on {file_system}",
        "set dataset.data_folder to a folder on the storage",
    ),
    Code.MEMORY_PRESSURE: (
        "some task on the host was stalled on memory {percent:.0f} % of the time (memory pressure)",
        "lower reader.read_threads or reader.prefetch_size, or stop other programs that use the memory",
    ),
    Code.CPU_QUOTA: (
        "the run used {used_percent:.0f} % of its CPU limit, which throttled it in {throttled_percent:.0f} % of its "
        "periods",
        "raise the CPU limit of this container or job (cgroup){ranks:several , or use fewer ranks}",
    ),
    Code.OTHER_PROGRAM_ON_CORES: (
        "the cores were {busy_percent:.0f} % busy, {own_percent:.0f} % by this run",
        "other programs use most of the cores: stop them (top), or run on an idle host",
    ),
    Code.EMULATOR_CEILING: (
        "without storage the AU is {ceiling_au_percent:.1f} % on this host, with it {au_percent:.1f} %",
        "",
    ),
    "measurement_incomplete.steps": (
        "the measurements of {of_ranks} on {host} are lost",
        "set output.folder to one that all hosts see",
    ),
    "measurement_incomplete.telemetry": (
        "telemetry of {host} is not complete: its recorder was killed or stopped, or had no core or no space",
        "",
    ),
}


def sentence_and_advice(finding: Finding, ranks: int = 0) -> tuple[str, str]:
    """Return a finding as a sentence, and its advice ('' for none); `ranks` is 0 if their number is unknown."""
    sentence, advice = text_of(finding, _FINDINGS)
    numbers = {"ranks": ranks, "would_help": LARGER_DATASET} | finding.numbers
    return fill_in(sentence, numbers), fill_in(advice, numbers)


def memory_warning(finding: Finding | None) -> str | None:
    """Return the warning that memory may have served the bytes, or that none were read; None without a finding."""
    if finding is None:
        return None
    sentence, advice = sentence_and_advice(finding)
    if not advice:
        return f"MEASURED NO STORAGE: {sentence}"
    warning = f"{sentence}; {advice}"
    return f"MEASURED MEMORY, NOT STORAGE: {warning}" if finding.severity == "loud" else warning


def issue_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield findings as sentences, without those shown elsewhere: on memory, and on other programs that read."""
    for finding in findings:
        if finding.code not in (*MEMORY, Code.OTHER_PROGRAM_ON_DRIVE):
            yield sentence_and_advice(finding)[0]


# What limited the run

_SHARES = {"storage": "the storage", "loader": "the loader", "host_cpu": "the host's CPU", "emulator": "the emulator"}
# Limit -> advice if no finding has any
_DEFAULT_ADVICE: dict[str, str] = {
    "storage": "faster storage, or fewer accelerators on it",
    "host CPU": "more cores{ranks:several  or fewer ranks} on this host; consider reader.decode, verify and tensors",
    "emulator": "this says little about the storage: use more cores{ranks:several  or fewer ranks}",
}
# Name of a number -> sentence with it and others, for a limit that has that number
_USE_SENTENCES = {
    "wanted_mb_per_second": "the loaders read {app_mb_per_second:,.1f} MB/s in these steps; accelerators that never "
    "wait take {wanted_mb_per_second:,.1f} MB/s",
    "call_bytes": "{readers:.1f} workers were reading at a time then, {call_ms:.3g} ms per call of {call_bytes:,.0f} "
    "bytes",
    "more_readers_times": "right after the run, {more_readers_times:g} times the readers got "
    "{more_readers_rate_times:.2f} times as much",
    "device_depth": "the device was busy {device_busy_percent:.0f} % of the time, with {device_depth:.1f} requests at "
    "a time",
    "cores_busy_percent": "the cores were {cores_busy_percent:.0f} % busy",
}


def limit_in_words(limit: Limit, findings: Sequence[Finding] = (), ranks: int = 0) -> Limit:
    """Return the limit with evidence and advice as sentences; `findings` are the run's others, besides the limit's."""
    if limit.what == "nothing":
        return replace(limit, evidence=tuple(_evidence(limit)))
    explanations = [sentence_and_advice(finding, ranks) for finding in limit.findings]
    evidence = (*_evidence(limit), *(sentence for sentence, _ in explanations))
    advice = [finding_advice for _, finding_advice in explanations if finding_advice]
    only_memory = all(finding.code == Code.MEMORY_PRESSURE for finding in limit.findings)
    if not advice or (limit.what == "storage" and only_memory):
        advice.insert(0, fill_in(_DEFAULT_ADVICE[limit.what], {"ranks": ranks}))
    if limit.what == "storage":
        codes = (Code.STORAGE_NOT_STEADY, Code.SLOW_DRIVE, Code.SLOW_RANK)
        advice += [sentence_and_advice(finding)[1] for finding in findings if finding.code in codes]
    return replace(limit, evidence=evidence, advice=tuple(dict.fromkeys(advice)))


def _evidence(limit: Limit) -> Iterator[str]:
    """Yield sentences on the causes of the lost time, and on the use of readers, devices and cores as far as known."""
    numbers: dict[str, Any] = {**limit.numbers}
    percents = asdict(limit.shares).items()
    shares = [f"{percent:.0f} % to {_SHARES[name]}" for name, percent in percents if percent >= 0.5]
    if shares:
        yield f"the time lost is due {', '.join(shares)}"  # the AU shows how much was lost
    else:
        yield fill_in("the accelerators waited for data {lost_percent:.1f} % of the time", numbers)
    if limit.what != "nothing":
        yield from (fill_in(text, numbers) for name, text in _USE_SENTENCES.items() if name in numbers)


# Recordings


def recording_notes(recorded: Recorded, ranks: int) -> Iterator[str]:
    """Yield caveats about a run of a recorded workload on `ranks` ranks, as sentences; none for other workloads."""
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


# The first screen

VERDICT_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "open"}
_MEMORY_VERDICTS = (VerdictCode.CACHE_SERVED, VerdictCode.NOTHING_READ)


def screen(summary: Summary, folder: str) -> Screen:
    """Return the first screen of a run whose results are in a folder."""
    lines, notes, cache = [_verdict(summary)], list(summary.issues), summary.page_cache
    if not summary.passed_from_memory:
        lines += _delivered(summary)
    source = ""  # where the bytes came from, unless the verdict says it
    if not summary.passed_from_memory and summary.verdict_code not in _MEMORY_VERDICTS:
        percent = cache.from_storage_percent.mean if cache else None
        amount = "not known how many" if percent is None else with_uncertainty(min(percent, 100), None)
        source = f"{amount} of the bytes came from storage"
        if warning := memory_warning(summary.memory):
            notes.insert(0, warning)
    lines += [*_limit(summary), *_proof(summary, source), *_next_command(summary, folder)]
    return Screen(title=_title(summary), lines=lines, notes=notes, folder=folder)


def _title(summary: Summary) -> str:
    storage, hosts, metrics = summary.environment.storage, summary.environment.hosts, summary.metrics
    name = summary.workload if summary.workload != "default" else os.path.basename(os.path.abspath(summary.data_folder))
    ranks = f"{summary.ranks} x {summary.accelerator}" if summary.accelerator else count(summary.ranks, "rank")
    parts = [name, f"{ranks}{at_scale(summary.sample_divisor)} on {summary.data_folder}"]
    if summary.scale:
        parts[0] += f" at scale={summary.scale}"
    if storage and storage.device:
        parts[1] += f" ({storage.file_system} on {storage.device.rpartition('/')[2]})"
    if len(hosts) > 1:
        parts.append(f"{len(hosts)} hosts")
    parts.append(count(len(metrics.steps_per_epoch), "epoch"))
    if metrics.total_seconds is not None:
        parts.append(duration(metrics.total_seconds))
    return ", ".join(parts)


def _verdict(summary: Summary) -> Said:
    if not summary.complete:
        return Said("INCOMPLETE", f"{summary.failure}", tone="bad")
    if summary.passed_from_memory:
        return Said("memory", summary.headline, tone="strong")
    word, metrics, tone = verdict_word(summary.verdict_code), summary.metrics, VERDICT_TONES[summary.passed]
    said = summary.verdict.removeprefix(f"{word}: ").replace("+-", "±")
    # The text says what to do, or which other AU was judged
    if summary.outcome in ("no verdict", "undecided") or metrics.sustained_percent is None or said.startswith("AU of "):
        return Said(word, said, tone=tone)
    width = metrics.au_uncertainty.expanded_percent if metrics.au_uncertainty else None
    value = f"AU {with_uncertainty(metrics.sustained_percent, width, metrics.au_threshold_percent)}"
    needed = f"{metrics.au_threshold_percent:g} % needed"
    if metrics.ceiling_au_percent is not None:
        needed += f"; without storage this host reaches {with_uncertainty(metrics.ceiling_au_percent, None)}"
    return Said(word, value, needed, tone=tone)


def _delivered(summary: Summary) -> Iterator[Said]:
    """Yield the rate that the storage sustains, beside the rate that the accelerators need to pass."""
    read, au = summary.metrics.app_mb_per_second, summary.metrics.au_whole_percent
    if read is None or read.mean is None:
        return
    sustained, threshold = summary.metrics.sustained_percent, summary.metrics.au_threshold_percent
    amount = f"{count(summary.metrics.samples or 0, 'sample')}, {size(summary.metrics.app_bytes or 0)}"
    delivers = rate(read.mean)
    if au is not None and au.mean and sustained is not None:
        per_percent = read.mean / au.mean  # MB/s that one percent of AU takes
        divisor = summary.sample_divisor or 1.0
        if divisor > 1:
            amount += f"; samples of real size need {rate(per_percent * threshold * divisor)}"
        delivers = f"{rate(per_percent * sustained)}; AU {threshold:g} % needs {rate(per_percent * threshold)}"
        if 0 < sustained < 0.95 * threshold:  # else the two rates say enough, and "1 times as much" nothing
            delivers += f", {threshold / sustained:.2g} times as much"
    yield Said("delivers", delivers, amount)


def _limit(summary: Summary) -> Iterator[Said]:
    limit = summary.limited_by
    if limit is None:
        return
    text: str = limit.what
    if limit.what != "nothing":
        text = f"{limit.what}, confidence {limit.confidence}"
        if (summary.metrics.sustained_percent or 0.0) > 100 - MIN_LOSS_PERCENT:
            text = f"of first steps alone: {text}"
    if limit.evidence:
        text += f": {limit.evidence[0]}"
    yield Said("limit", text)
    if limit.advice:
        yield Said("to do", limit.advice[0], tone="strong")


def _proof(summary: Summary, source: str) -> Iterator[Said]:
    """Yield where the bytes came from (`source`; '' if the verdict says it), and whether each sample was read once."""
    once_by_epoch = summary.each_sample_once
    wrong_epochs = [str(epoch) for epoch, is_once in enumerate(once_by_epoch, start=1) if is_once is False]
    if wrong_epochs:
        yield Said("proof", f"NOT each sample was read once in epoch {', '.join(wrong_epochs)}", source, tone="bad")
    elif once_by_epoch and all(once_by_epoch):
        yield Said("proof", f"{source}, each once an epoch" if source else "each sample was read once an epoch")
    elif source:
        yield Said("proof", source)


def _next_command(summary: Summary, folder: str) -> Iterator[Said]:
    """Yield the next command: the same run with the last of the settings that `would_help`, else a search."""
    finding = summary.memory
    setting = str(finding.numbers.get("would_help", "")).rpartition(" or ")[2] if finding else ""
    same_workload = override(["workload"], os.path.join(folder, CONFIG))
    launch = ["mpirun", "-np", str(summary.ranks)] if len(summary.environment.hosts) > 1 else []
    if folder and "=" in setting:
        new_folder = override(["output", "folder"], f"{folder.rstrip('/')}-again")
        yield Said("again", shlex.join([*launch, "dlemu", "train", same_workload, setting, new_folder]), tone="strong")
    elif folder and summary.passed is not None and not launch:
        new_folder = override(["output", "folder"], f"{folder.rstrip('/')}-size")
        yield Said("next", shlex.join(["dlemu", "size", same_workload, new_folder]), "how many pass")

"""The answer of a search in sentences."""

from __future__ import annotations

from dataclasses import replace

from dlemu.metrics.t_interval import plus_minus
from dlemu.report.units import number
from dlemu.results.wording import Wording, count, sentences
from dlemu.studies.answers import CountResult, SizeAnswer
from dlemu.studies.size.size_verdict import Seen


def _ceiling(accelerators: int, au_percent: float) -> str:
    return (
        f"with {count(accelerators, 'accelerator')} this host reaches an AU of {au_percent:.1f} % without any storage: "
        "use a host with more cores, or several"
    )


_SEEN: Wording = {
    Seen.MOST_ASKED: "--most {most} was the limit",
    Seen.FEW_SAMPLES: "the dataset has too few files for more than {most}: to try {one_more} takes {files} "
    "(dataset.num_files_train={files})",
    Seen.FEW_OWN_FILES: "the folder has too few files for more than {most}: to try {one_more} takes {files}",
    Seen.REFUSED: "{message}",
    Seen.CEILING: _ceiling,
    Seen.NOT_KNOWN: "the trials' summaries do not record it",
}


def with_evidence(answer: SizeAnswer) -> SizeAnswer:
    """Return an answer with its evidence as sentences, unless it has those of a trial's limit."""
    limit = answer.limited_by
    return replace(answer, limited_by=replace(limit, evidence=limit.evidence or sentences(limit.seen, _SEEN)))


def sentence(answer: SizeAnswer) -> str:
    """Return the answer as a sentence: how many pass, the verdict of the next count, and what limits it."""
    name = answer.question.accelerator
    kind, scale = f"x {name}" if name else "accelerator", answer.question.scale
    at_scale = f" at scale={scale}" if scale else ""
    passing, failing = answer.edge.passing, answer.edge.failing
    if passing is None:
        parts = [f"not even 1 {kind}{at_scale} passes"]
    else:
        several = "s" * (not name and passing.accelerators > 1)
        parts = [f"{passing.accelerators} {kind}{several}{at_scale} {_verb(passing)} (au {_au(passing)})"]
    if failing:
        parts.append(f"{failing.accelerators} {_verb(failing)} ({_au(failing)})")
    parts += [
        f"{count.accelerators} {_verb(count)} ({_au(count)})"
        for count in answer.counts
        if count.accelerators in answer.too_close_to_tell and count != failing
    ]
    return f"{', '.join(parts)}: {_limit(answer)}{_rates(answer)}"


def contradiction(answer: SizeAnswer) -> str:
    """Return a sentence on the first count that passed but was predicted to fail, or vice versa; empty without one."""
    predicted, threshold = answer.predicted, answer.threshold_percent
    if predicted is None:
        return ""
    for tried in answer.counts:
        expected = predicted.au(tried.accelerators)
        if expected is None or tried.passed is None:
            continue
        low, high = expected.au_interval_percent
        if (high < threshold) if tried.passed else (low >= threshold):
            why = "part of the trials' reads came from memory, or the storage is faster with more readers"
            if not tried.passed:
                why = "this host, the loader or the storage's latency limits them, which no short read shows"
            return (
                f"prediction and measurement contradict each other: by the read probe of "
                f"{number(answer.probe_mb_per_second)} MB/s {predicted.max_accelerators} pass, but "
                f"{tried.accelerators} {_verb(tried)} (au {_au(tried)}, predicted {low:.1f} to {high:.1f} %): the "
                f"trials decide; {why}"
            )
    return ""


def _verb(count: CountResult) -> str:
    if count.passed is None:
        return "is too close to call"
    if count.accelerators == 1:
        return "passes" if count.passed else "fails"
    return "pass" if count.passed else "fail"


def _au(count: CountResult) -> str:
    return f"{count.au_sustained_percent:.1f} % {plus_minus(count.au_sustained_percent, count.half_width_percent, 1)}"


def _limit(answer: SizeAnswer) -> str:
    what = answer.limited_by.what
    if what == "count":
        return f"no more were tried: {answer.limited_by.evidence[0]}"
    if what == "host":
        limit = f"this host can't hold more: {answer.limited_by.evidence[0]}"
    elif what == "nothing":
        limit = "limited by computation times that differ between accelerators, not by data"
    else:
        limit = "what limits it is unknown" if what == "not known" else f"limited by {what}"
    if answer.host_only:
        could = answer.host_only.storage_could_feed
        return f"{limit}; at the rate it delivered, the storage could have fed about {could}"
    return limit


def _rates(answer: SizeAnswer) -> str:
    passing = answer.edge.passing
    if not passing:
        return ""
    rates = [trial.app_mb_per_second for trial in answer.trials_of(passing.accelerators)]
    return f"; {_gb(sum(rates) / len(rates))} of the {_gb(answer.storage_mb_per_second)} that the storage delivers"


def _gb(mb_per_second: float) -> str:
    if mb_per_second < 10:  # a small rate must not show as 0.0 MB/s
        return f"{number(mb_per_second)} MB/s"
    return f"{mb_per_second / 1e3:.2f} GB/s" if mb_per_second >= 1000 else f"{mb_per_second:.1f} MB/s"

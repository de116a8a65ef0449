"""Compares two storages: differences with their uncertainty, and their effect over a year. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from datagen.errors import UserError
from dlemu.metrics.catalogue import RUN, Catalogue
from dlemu.results.compared import difference, difference_in_time, differing_work, in_words
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import count
from dlemu.studies.answers import ComparedSide, Comparison, RunPair, YearPlan
from dlemu.studies.compare.sides import Settings, Side, issues_between

PLANNED_EPOCHS = 100
"""Epochs of training one model, as in KIOXIA's white paper on the CM7 and DLIO."""
_BOTH_IN_MEMORY = "memory served both, not storage"
YEAR_DAYS = 365.0


def compare(a: Side, b: Side) -> Comparison:
    """Compare A with B: each pair of runs with equal settings, and what each storage feeds.

    Raises UserError when no runs have equal settings or a phase in common.
    """
    pairs = _pairs(a, b)
    if not pairs and (a.runs or b.runs):
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings: {_listed(a)} against {_listed(b)}; compare two "
            "runs (a point of a sweep is one: SWEEP/point-01), two sweeps over the same values, or two searches"
        )
    # Where no folder of a run with settings of both is left, `about` is of the first run of each side.
    varied = {key.rpartition(".")[2] for settings, _, _ in pairs for key, _ in settings}
    work = differing_work(a.about, b.about, varied) if a.about and b.about else []
    runs = (
        replace(compare_runs(of_a, of_b, work, _from_memory(a, b, settings)), settings=dict(settings))
        for settings, of_a, of_b in pairs
    )
    cached = [f"metric.cached is {a.cached} for A and {b.cached} for B"] if a.cached != b.cached else []
    comparison = Comparison(
        kind=a.kind,
        a=a.name,
        b=b.name,
        verdict="",
        runs=tuple(runs),
        not_comparable=() if pairs else (*_in_memory(_from_memory(a, b, ())), *cached),
        sides=(a.shown, b.shown),
        issues=tuple(issues_between(a, b)),
    )
    return replace(comparison, verdict=sentence(comparison))


def _pairs(a: Side, b: Side) -> list[tuple[Settings, JobFigures, JobFigures]]:
    """Return the runs with equal settings; if each side is a single run, they are a pair whatever their settings."""
    if len(a.runs) == len(b.runs) == 1:
        return [((), of_a, of_b) for of_a, of_b in zip(a.runs.values(), b.runs.values(), strict=True)]
    return [(settings, a.runs[settings], b.runs[settings]) for settings in a.runs if settings in b.runs]


def _from_memory(a: Side, b: Side, settings: Settings) -> dict[str, tuple[bool, bool]]:
    """Return `RunPair.from_memory` of the runs with these settings."""
    known = (side.about_runs.get(settings, side.about) for side in (a, b))
    of_a, of_b = (about.from_memory if about else () for about in known)
    return {phase: (phase in of_a, phase in of_b) for phase in sorted({*of_a, *of_b})}


def _in_memory(served: dict[str, tuple[bool, bool]]) -> list[str]:
    """Return why runs can't be compared of which memory served one alone, as phrases; for jobs of a single phase."""
    of_a, of_b = served.get(RUN, (False, False))
    return [f"{'A' if of_a else 'B'}'s data came from memory"] if of_a != of_b else []


def _listed(side: Side) -> str:
    runs = [" ".join(f"{key}={value}" for key, value in settings) or "one run" for settings in side.runs]
    return "; ".join(runs) or "a search"


def compare_runs(
    a: JobFigures, b: JobFigures, work: Sequence[str] = (), from_memory: dict[str, tuple[bool, bool]] | None = None
) -> RunPair:
    """Return the differences between A and B, metric by metric, and what they mean over a year.

    `work` describes how the data that they read or wrote differs, `from_memory` is that of the RunPair. Where datasets,
    accelerators or their numbers differ, the runs did not do the same work: differences in time are not due to the
    storage, and there is no plan of a year. Raises UserError for runs that have no phase in common.
    """
    catalogue = catalogue_of(a.kind)
    names = [metric.name for metric in catalogue.compared if metric.name in a.metrics and metric.name in b.metrics]
    _check_phases(a, b)
    served = from_memory or {}
    differ = [*_in_memory(served), *(_other_work(a, b, work) if catalogue.feeds_accelerators else work)]
    return RunPair(
        settings={},
        ranks=(a.ranks, b.ranks),
        epochs=(a.epochs or 0, b.epochs or 0),
        passed=(a.passed, b.passed),
        limited_by={phase: (a.limited_by.get(phase), b.limited_by.get(phase)) for phase in catalogue.phases},
        metrics={name: difference(a.metrics[name], b.metrics[name]) for name in names},
        plan=None if differ else _plan(a, b),
        not_comparable=tuple(differ),
        from_memory=served,
    )


def _check_phases(a: JobFigures, b: JobFigures) -> None:
    times = [metric for metric in catalogue_of(a.kind).times if metric.phase != RUN]
    of_a, of_b = ([metric.phase for metric in times if metric.name in side.metrics] for side in (a, b))
    if times and not set(of_a) & set(of_b):
        of_each = " against ".join(" and ".join(phases) or "no complete one" for phases in (of_a, of_b))
        raise UserError(f"the runs have no phase in common ({of_each}): wanted two that did the same")


def _other_work(a: JobFigures, b: JobFigures, work: Sequence[str]) -> list[str]:
    differ = []
    if a.workload != b.workload:
        differ.append(f"A ran {a.workload}, B {b.workload}")
    if a.ranks != b.ranks:
        differ.append(f"A had {count(a.ranks, 'accelerator')}, B {b.ranks}")
    if a.accelerator and b.accelerator and a.accelerator != b.accelerator:
        differ.append(f"A's accelerators were {a.accelerator}, B's {b.accelerator}")
    of_a, of_b = a.computation_seconds, b.computation_seconds
    if of_a is not None and of_b is not None and not math.isclose(of_a, of_b, rel_tol=1e-6):
        differ.append(f"a step of A's computes for {of_a:.4g} s, of B's for {of_b:.4g} s")
    if a.cut_steps != b.cut_steps:
        cut = ["all" if one is None else ", ".join(map(str, one)) for one in (a.cut_steps, b.cut_steps)]
        differ.append(f"train.total_training_steps cut epochs short: A's had {cut[0]} steps, B's {cut[1]}")
    return [*differ, *work]


def _plan(a: JobFigures, b: JobFigures) -> YearPlan | None:
    if "no verdict" in (a.outcome, b.outcome):  # memory or the host was the limit, not the storage
        return None
    if a.cut_steps or b.cut_steps:  # the time of a part of an epoch is not an epoch's
        return None
    of_a, of_b = a.mean("total_seconds"), b.mean("total_seconds")
    if not (of_a and a.epochs and of_b and b.epochs):
        return None
    hours = PLANNED_EPOCHS * of_a / a.epochs / 3600, PLANNED_EPOCHS * of_b / b.epochs / 3600
    return YearPlan(
        epochs=PLANNED_EPOCHS,
        hours_per_model=hours,
        days_saved_per_year=YEAR_DAYS * (1 - hours[0] / hours[1]),
    )


def sentence(comparison: Comparison) -> str:
    """Return the verdict: the difference in time of the largest runs, and how many accelerators each side feeds."""
    parts = list(_times(comparison))
    if catalogue_of(comparison.kind).feeds_accelerators:
        if any(side.accelerators_fed for side in comparison.sides):
            parts.append(", ".join(f"{name} {_fed(side)}" for name, side in zip("AB", comparison.sides, strict=True)))
        elif comparison.runs and all(passed is False for pair in comparison.runs for passed in pair.passed):
            parts.append("neither passes")
    parts = parts or [f"{_unknown(comparison)} known for both"]
    cut = [name for name, side in zip("AB", comparison.sides, strict=False) if side.about and not side.about.complete]
    if cut:
        parts.append(f"{' and '.join(cut)} {'is an incomplete run' if len(cut) == 1 else 'are incomplete runs'}")
    return "; ".join([*parts, *scaled_sides(comparison)])


def scaled_sides(comparison: Comparison) -> Iterator[str]:
    """Yield a phrase for what a scale made of the samples, on both sides or on one."""
    a, b = (side.scaled for side in comparison.sides)
    if a == b:
        yield from [f"accelerators{a}"] * bool(a)
    else:
        yield from (f"{name}'s accelerators{small}" for name, small in zip("AB", (a, b), strict=True) if small)


def _unknown(comparison: Comparison) -> str:
    """Return what the verdict would be about, as a phrase: other figures may be known, as of incomplete runs."""
    if not any(pair.metrics for pair in comparison.runs):
        return "no figure is"
    titles = [metric.title for metric in catalogue_of(comparison.kind).headlines]
    return f"{' and '.join(titles)} {'is' if len(titles) == 1 else 'are'} not"


def _fed(side: ComparedSide) -> str:
    """Return how many accelerators a side feeds, as a phrase: a number, or a bound."""
    if side.is_unjudged:
        return "was not judged"
    if side.accelerators_fed:
        return f"feeds {'at least ' * side.may_feed_more}{count(side.accelerators_fed, 'accelerator')}"
    failed = side.fewest_failed or 1
    return f"feeds fewer than {failed}" if failed > 1 else "feeds none"


def _times(comparison: Comparison) -> Iterator[str]:
    """Yield, per phase, the difference in time of the main pair, and with several phases also what limited each."""
    catalogue = catalogue_of(comparison.kind)
    pair = comparison.main_pair or next(reversed(comparison.runs), None)  # also without headlines they may not compare
    if differ := comparison.not_comparable or (pair and pair.not_comparable):
        yield f"not comparable: {', '.join(differ)}"
        return
    if pair is None:
        if all(side.about and RUN in side.about.from_memory for side in comparison.sides):
            yield _BOTH_IN_MEMORY
        return
    a, b = pair.epochs
    each = "" if a == b else f"A ran {count(a, 'epoch')} and B {b}: per epoch, "
    settings = pair_settings(pair, catalogue)
    with_settings = f"with {settings} " if catalogue.feeds_accelerators or pair.settings else ""
    for metric in catalogue.times:
        time = pair.time(metric.name)
        if time is None:
            continue
        said = difference_in_time(time, repeated=f"{catalogue.repetition}s")
        phase = "" if metric.phase == RUN else f"{metric.phase}: "
        if not pair.compares_storage(metric.phase):
            yield f"{phase}not comparable: {'AB'[pair.from_memory[metric.phase][1]]}'s data came from memory"
            continue
        limits = pair.limited_by.get(metric.phase, (None, None)) if phase else (None, None)
        memory = f"{_BOTH_IN_MEMORY}: " * (metric.phase in pair.from_memory)
        yield f"{memory}{each}{with_settings}{phase}{said}{_limits(limits)}"

    if not catalogue.times:
        memory = f"{_BOTH_IN_MEMORY}: " * (RUN in pair.from_memory)
        yield from (
            f"{memory}{with_settings}{metric.title}: {in_words(pair.metrics[metric.name], better=metric.better)}"
            for metric in catalogue.headlines
            if metric.name in pair.metrics
        )


def _limits(limits: tuple[str | None, str | None]) -> str:
    if not any(limits):
        return ""
    a, b = (limit or "not known" for limit in limits)
    return f", both limited by {a}" if a == b else f", limited by {a} and {b}"


def pair_settings(pair: RunPair, catalogue: Catalogue) -> str:
    """Return the settings of a pair of runs in words, ranks first."""
    a, b = pair.ranks
    others = [f"{key}={value}" for key, value in pair.settings.items() if key != "ranks"]
    ranks = count(a, catalogue.rank) if a == b else f"{a} and {b} {catalogue.rank}s"
    return ", ".join([ranks, *others])

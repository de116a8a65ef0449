"""Compares two storages: differences with their uncertainty, and their effect over a year. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from datagen.errors import UserError
from dlemu.metrics.catalogue import RUN, Catalogue
from dlemu.report.units import plain
from dlemu.results import figures
from dlemu.results.figures import Conditions, JobFigures, difference
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import count
from dlemu.studies.answers import ComparedSide, Comparison, RunPair, SweepPoint
from dlemu.studies.compare.sides import Settings, Side, issues_between
from dlemu.studies.conditions import settings_of

_BOTH_IN_MEMORY = "memory served both, not storage"
_WORK = ("workload", "ranks", "accelerator", "computation_seconds")
"""Fields of figures: runs in which one differs did not do the same work."""
FromMemory = Mapping[str, tuple[bool, bool]]
"""As `RunPair.from_memory`."""


def compare(a: Side, b: Side) -> Comparison:
    """Compare A with B: each pair of runs with equal settings, and what each storage feeds.

    Raises UserError when no runs have equal settings.
    """
    pairs = _pairs(a, b)
    if not pairs and not a.is_search & b.is_search:
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings; compare two runs (a point of a sweep is one: "
            "SWEEP/point-01), two sweeps over the same values, or two searches"
        )
    # the first run of a side may be one that failed on the other
    common: Settings = next((settings for settings in a.conditions if settings in b.conditions), ())
    about = a.about_run(common), b.about_run(common)
    varied = {key.rpartition(".")[2] for settings, *_ in pairs for key, _ in settings}
    work = figures.differing_work(about[0], about[1], varied) if about[0] and about[1] else []
    runs = (
        compare_runs(of_a, of_b, work, _from_memory(a, b, settings), dict(settings)) for settings, of_a, of_b in pairs
    )
    cached = [f"metric.cached is {a.cached} for A and {b.cached} for B"] if a.cached != b.cached else []
    comparison = Comparison(
        kind=a.kind,
        verdict="",
        runs=tuple(runs),
        not_comparable=() if pairs else (*_in_memory(_from_memory(a, b, ())), *cached),
        sides=(_shown(a, pairs, about[0]), _shown(b, pairs, about[1])),
        issues=tuple(issues_between(a, b, about)),
    )
    return replace(comparison, verdict="; ".join(_said(comparison, a, b)))


Pair = tuple[Settings, JobFigures, JobFigures]


def _pairs(a: Side, b: Side) -> list[Pair]:
    """Return the runs with equal settings; if each side is a single run, they are a pair whatever their settings."""
    if a.is_search or b.is_search:
        return []
    if len(a.runs) == len(b.runs) == 1:
        return [((), of_a, of_b) for of_a, of_b in zip(a.runs.values(), b.runs.values(), strict=True)]
    return [(settings, a.runs[settings], b.runs[settings]) for settings in a.runs if settings in b.runs]


def _shown(side: Side, pairs: Sequence[Pair], about: Conditions | None) -> ComparedSide:
    paired = {settings for settings, *_ in pairs}
    alone = [] if paired == {()} else [(settings, run) for settings, run in side.runs.items() if settings not in paired]
    return ComparedSide(
        name=side.name,
        accelerators_fed=side.accelerators_fed,
        may_feed_more=side.may_feed_more,
        about={} if about is None else _facts(about),
        unpaired=tuple(SweepPoint(settings=dict(settings), figures=run) for settings, run in alone),
    )


def _facts(side: Conditions) -> dict[str, str]:
    """Return where, on what and how one side was measured."""
    storage = [f"{side.storage.file_system} on {side.storage.device}"] if side.storage else []
    devices = [
        f"{device.name} ({plain(device.model)}, {plain(device.size_bytes, 'size_bytes')})" for device in side.devices
    ]
    places = {"measured": side.started_at, "storage": ", ".join(storage), "devices": ", ".join(devices)}
    own = {key.replace("_", " "): value for key, value in side.facts.items()}
    return {key: value for key, value in places.items() if value} | settings_of(side) | own


def _from_memory(a: Side, b: Side, settings: Settings) -> FromMemory:
    of_a, of_b = (about.from_memory if (about := side.about_run(settings)) else () for side in (a, b))
    return {phase: (phase in of_a, phase in of_b) for phase in sorted({*of_a, *of_b})}


def _in_memory(served: FromMemory) -> list[str]:
    """Return why runs can't be compared of which memory served one alone, as phrases; for jobs of a single phase."""
    of_a, of_b = served.get(RUN, (False, False))
    return [f"{'A' if of_a else 'B'}'s data came from memory"] if of_a != of_b else []


def compare_runs(
    a: JobFigures, b: JobFigures, work: Sequence[str], served: FromMemory, settings: Mapping[str, str]
) -> RunPair:
    """Return the differences between A and B, metric by metric.

    `work` describes how the data that they read or wrote differs; `served` is the pair's `from_memory`. Where datasets,
    accelerators or their numbers differ, the runs did not do the same work: differences in time are not due to the
    storage, and there is no plan of a year.
    """
    catalogue = catalogue_of(a.kind)
    names = [metric.name for metric in catalogue.compared if metric.name in a.metrics and metric.name in b.metrics]
    differ = [*_in_memory(served), *(_other_work(a, b, work) if catalogue.feeds_accelerators else work)]
    return RunPair(
        settings=dict(settings),
        a=a,
        b=b,
        metrics={name: difference(a.metrics[name], b.metrics[name]) for name in names},
        not_comparable=tuple(differ),
        from_memory=dict(served),
    )


def _other_work(a: JobFigures, b: JobFigures, work: Sequence[str]) -> list[str]:
    """Return what makes the work of two runs different, as phrases; what is not known of both does not."""
    known = {name: (getattr(a, name), getattr(b, name)) for name in _WORK}
    told = {name: tuple(map(plain, both)) for name, both in known.items() if None not in both and "" not in both}
    differ = [f"{name} is {of_a} for A and {of_b} for B" for name, (of_a, of_b) in told.items() if of_a != of_b]
    if a.cut_steps != b.cut_steps:
        differ.append("train.total_training_steps cut epochs of A and B at different steps")
    return [*differ, *work]


def _said(comparison: Comparison, a: Side, b: Side) -> list[str]:
    """Return the verdict: the difference of the largest runs, and how many accelerators each side feeds."""
    parts = list(_differences(comparison, a, b))
    if catalogue_of(comparison.kind).feeds_accelerators:
        if a.accelerators_fed or b.accelerators_fed:
            parts.append(f"A {_fed(a)}, B {_fed(b)}")
        elif comparison.runs and all(of.passed is False for pair in comparison.runs for of in (pair.a, pair.b)):
            parts.append("neither passes")
    parts = parts or ["nothing that could be compared is known of both"]
    if a.scaled == b.scaled:
        return [*parts[:-1], parts[-1] + a.scaled]
    return [*parts, *(f"{name}'s accelerators{side.scaled}" for name, side in (("A", a), ("B", b)) if side.scaled)]


def _fed(side: Side) -> str:
    """Return how many accelerators a side feeds, as a phrase: a number, or a bound."""
    if side.runs and all(run.passed is None for run in side.runs.values()):
        return "was not judged"
    if side.accelerators_fed:
        return f"feeds {'at least ' * side.may_feed_more}{count(side.accelerators_fed, 'accelerator')}"
    failed = min((run.ranks for run in side.runs.values() if run.passed is False), default=1)
    return f"feeds fewer than {failed}" if failed > 1 else "feeds none"


def _differences(comparison: Comparison, a: Side, b: Side) -> Iterator[str]:
    """Yield, per phase, the difference in time of the main pair; of jobs without times, that of their main metrics."""
    catalogue, pair = catalogue_of(comparison.kind), comparison.main_pair
    if differ := comparison.not_comparable or (pair and pair.not_comparable):
        yield f"not comparable: {', '.join(differ)}"
        return
    if pair is None:
        if all((about := side.about_run()) and RUN in about.from_memory for side in (a, b)):
            yield _BOTH_IN_MEMORY
        return
    if catalogue.feeds_accelerators and pair.a.limited_by.get(RUN) == pair.b.limited_by.get(RUN) == "nothing":
        yield f"both kept {pair.a.ranks} accelerators busy: more ranks, or `dlemu size` of each, tell them apart"
        return
    epochs = pair.a.epochs, pair.b.epochs
    each = "" if epochs[0] == epochs[1] else f"A ran {count(epochs[0] or 0, 'epoch')} and B {epochs[1]}: per epoch, "
    where = f"with {pair_settings(pair, catalogue)} " if catalogue.feeds_accelerators or pair.settings else ""
    for metric in catalogue.times or catalogue.headlines:
        phase = metric.phase or RUN
        both = pair.time(metric.name)
        if both is None:
            continue
        named = "" if phase == RUN else f"{phase}: "
        if not pair.compares_storage(phase):
            yield f"{named}not comparable: {'AB'[pair.from_memory[phase][1]]}'s data came from memory"
            continue
        memory = f"{_BOTH_IN_MEMORY}: " * (phase in pair.from_memory)
        if metric.phase:
            said = figures.difference_in_time(both, repeated=f"{catalogue.repetition}s")
            yield f"{memory}{each}{where}{named}{said}"
        else:
            yield f"{memory}{where}{metric.title}: {figures.in_words(both, better=metric.better)}"


def pair_settings(pair: RunPair, catalogue: Catalogue) -> str:
    """Return the settings of a pair of runs in words, ranks first."""
    a, b = pair.a.ranks, pair.b.ranks
    others = [f"{key}={value}" for key, value in pair.settings.items() if key != "ranks"]
    ranks = count(a, catalogue.rank) if a == b else f"{a} and {b} {catalogue.rank}s"
    return ", ".join([ranks, *others])

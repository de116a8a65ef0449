"""Compares two storages, A and B: their differences with uncertainty, how many accelerators each feeds, the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from datagen.errors import UserError
from dlemu.metrics.catalogue import RUN, Catalogue
from dlemu.report.units import plain
from dlemu.results.figures import Conditions, JobFigures, difference, difference_in_words
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import count
from dlemu.studies.answers import ComparedSide, Comparison, RunPair, SweepPoint
from dlemu.studies.compare.sides import Settings, Side, issues_between
from dlemu.studies.conditions import settings_of

_BOTH_FROM_MEMORY = "memory served both, not storage"
_WORK_FIELDS = ("workload", "ranks", "accelerator", "computation_seconds", "epochs")  # must agree for equal work
FromMemory = dict[str, tuple[bool, bool]]  # phase -> whether memory served A and B


def compare(a: Side, b: Side) -> Comparison:
    """Return the comparison of A and B: each pair of runs with equal settings, and how many accelerators each feeds.

    Raises UserError if no runs have equal settings, except for two searches or two single runs.
    """
    paired: list[Settings] = []  # of the runs that both sides have
    if not (a.is_search or b.is_search):
        if len(a.runs) == len(b.runs) == 1:  # two single runs are a pair, whatever their settings
            a, b = (replace(side, runs={(): next(iter(side.runs.values()))}) for side in (a, b))
        paired = [settings for settings in a.runs if settings in b.runs]
    if not paired and not (a.is_search and b.is_search):
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings; compare two runs (a point of a sweep is one: "
            "SWEEP/point-01), two sweeps over the same values, or two searches"
        )
    # The conditions of one run stand for those of all: of the first run for which both sides have them.
    example: Settings = next((settings for settings in a.conditions if settings in b.conditions), ())
    conditions_a, conditions_b = a.conditions_of_run(example), b.conditions_of_run(example)
    varied_keys = {key.rpartition(".")[2] for settings in paired for key, _ in settings}  # equal in each pair
    unequal_data = [
        f"{key} is {value} for A and {conditions_b.work[key]} for B"
        for key, value in conditions_a.work.items()
        if key not in varied_keys and conditions_b.work.get(key, value) != value
    ]
    not_comparable = [] if paired else _memory_served_one(_from_memory(a, b))
    if not paired and a.cached != b.cached:
        not_comparable.append(f"metric.cached is {a.cached} for A and {b.cached} for B")
    comparison = Comparison(
        kind=a.kind,
        verdict="",
        runs=tuple(
            compare_runs(a.runs[settings], b.runs[settings], unequal_data, _from_memory(a, b, settings), dict(settings))
            for settings in paired
        ),
        not_comparable=tuple(not_comparable),
        sides=(_compared_side(a, paired, conditions_a), _compared_side(b, paired, conditions_b)),
        issues=tuple(issues_between(a, b, conditions_a, conditions_b)),
    )
    return replace(comparison, verdict="; ".join(_verdict_phrases(comparison, a, b)))


def _compared_side(side: Side, paired: Collection[Settings], conditions: Conditions) -> ComparedSide:
    unpaired = [settings for settings in side.runs if settings not in paired]
    about: dict[str, str] = {}
    if conditions.title:  # empty if the folders of all runs are gone
        storage = conditions.environment.storage
        location = f"{storage.file_system} on {storage.device}" if storage else ""
        about = {"measured": conditions.started_at, "storage": location, "devices": ", ".join(conditions.devices)}
        about = {key: text for key, text in about.items() if text} | settings_of(conditions)
        about |= {key.replace("_", " "): text for key, text in conditions.facts.items()}
    return ComparedSide(
        name=side.name,
        accelerators_fed=side.accelerators_fed,
        may_feed_more=side.may_feed_more,
        about=about,
        unpaired=tuple(SweepPoint(settings=dict(key), folder="", figures=side.runs[key]) for key in unpaired),
    )


def _from_memory(a: Side, b: Side, settings: Settings = ()) -> FromMemory:
    phases_a, phases_b = (side.conditions_of_run(settings).from_memory for side in (a, b))
    return {phase: (phase in phases_a, phase in phases_b) for phase in sorted({*phases_a, *phases_b})}


def _memory_served_one(from_memory: FromMemory, phase: str = RUN) -> list[str]:
    """Return a phrase if memory served only one of two runs in a phase, in which they are then not comparable."""
    served_a, served_b = from_memory.get(phase, (False, False))
    return [f"{'A' if served_a else 'B'}'s data came from memory"] if served_a != served_b else []


def compare_runs(
    a: JobFigures, b: JobFigures, unequal_data: Sequence[str], from_memory: FromMemory, settings: dict[str, str]
) -> RunPair:
    """Return the differences between two runs, metric by metric.

    `unequal_data`: phrases that name differences in the data read or written. Runs with unequal data, accelerators or
    numbers of accelerators are not comparable, as their difference in time is not due to the storage alone.
    """
    catalogue = catalogue_of(a.kind)
    names = [metric.name for metric in catalogue.compared if metric.name in a.metrics and metric.name in b.metrics]
    unequal_work = _unequal_work(a, b) if catalogue.feeds_accelerators else []
    return RunPair(
        settings=settings,
        a=a,
        b=b,
        metrics={name: difference(a.metrics[name], b.metrics[name]) for name in names},
        not_comparable=(*_memory_served_one(from_memory), *unequal_work, *unequal_data),
        from_memory=from_memory,
    )


def _unequal_work(a: JobFigures, b: JobFigures) -> list[str]:
    """Return phrases that name differences in the work of two runs, in the fields that both runs have."""
    phrases = []
    for name in _WORK_FIELDS:
        value_a, value_b = getattr(a, name), getattr(b, name)
        is_known = value_a not in (None, "") and value_b not in (None, "")
        if is_known and plain(value_a) != plain(value_b):
            phrases.append(f"{name} is {plain(value_a)} for A and {plain(value_b)} for B")
    if a.cut_steps != b.cut_steps:
        phrases.append("train.total_training_steps cut epochs of A and B at different steps")
    return phrases


def _verdict_phrases(comparison: Comparison, a: Side, b: Side) -> list[str]:
    """Return the verdict's phrases: differences, accelerators fed, and how small the samples are."""
    phrases = list(_differences(comparison, a, b))
    if catalogue_of(comparison.kind).feeds_accelerators:
        if a.accelerators_fed or b.accelerators_fed:
            phrases.append(f"A {_fed(a)}, B {_fed(b)}")
        elif comparison.runs and all(run.passed is False for pair in comparison.runs for run in (pair.a, pair.b)):
            threshold = comparison.runs[0].a.threshold_percent
            phrases.append(f"neither passes ({threshold:g} % needed)" if threshold else "neither passes")
    phrases = phrases or ["nothing that could be compared is known of both"]
    if a.scaled == b.scaled:
        phrases[-1] += a.scaled
    else:
        phrases += [f"{name}'s accelerators{side.scaled}" for name, side in (("A", a), ("B", b)) if side.scaled]
    return phrases


def _fed(side: Side) -> str:
    if side.runs and all(run.passed is None for run in side.runs.values()):
        return "was not judged"
    if side.accelerators_fed:
        bound = "at least " if side.may_feed_more else ""
        return f"feeds {bound}{count(side.accelerators_fed, 'accelerator')}"
    smallest_failed = min((run.ranks for run in side.runs.values() if run.passed is False), default=1)
    return f"feeds fewer than {smallest_failed}" if smallest_failed > 1 else "feeds none"


def _differences(comparison: Comparison, a: Side, b: Side) -> Iterator[str]:
    """Yield phrases on the main pair: the difference in time for each phase, else in each headline metric."""
    catalogue, pair = catalogue_of(comparison.kind), comparison.main_pair
    if comparison.reasons:
        yield f"not comparable: {', '.join(comparison.reasons)}"
        return
    if pair is None:
        if _from_memory(a, b).get(RUN) == (True, True):
            yield _BOTH_FROM_MEMORY
        return
    if catalogue.feeds_accelerators and pair.a.limited_by.get(RUN) == pair.b.limited_by.get(RUN) == "nothing":
        memory = f"{_BOTH_FROM_MEMORY}: " if RUN in pair.from_memory else ""
        yield f"{memory}both kept {pair.a.ranks} accelerators busy: more ranks or `dlemu size` of each tell them apart"
        return
    with_settings = f"with {pair_settings(pair, catalogue)} " if catalogue.feeds_accelerators or pair.settings else ""
    for metric in catalogue.times or catalogue.headlines:
        change = pair.metrics.get(metric.name)
        if change is None:
            continue
        phase = metric.phase or RUN
        in_phase = "" if phase == RUN else f"{phase}: "
        if reasons := _memory_served_one(pair.from_memory, phase):
            yield f"{in_phase}not comparable: {reasons[0]}"
            continue
        memory = f"{_BOTH_FROM_MEMORY}: " if phase in pair.from_memory else ""
        subject = in_phase if metric.phase else f"{metric.title}: "
        phrase = difference_in_words(change, metric, repetitions=f"{catalogue.repetition}s")
        yield f"{memory}{with_settings}{subject}{phrase}"


def pair_settings(pair: RunPair, catalogue: Catalogue) -> str:
    a, b = pair.a.ranks, pair.b.ranks
    ranks = count(a, catalogue.rank) if a == b else f"{a} and {b} {catalogue.rank}s"
    return ", ".join([ranks, *(f"{key}={value}" for key, value in pair.settings.items() if key != "ranks")])

"""Reads what can be compared - a run of any kind, a sweep or a search - from its folder into a `Side`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from datagen.errors import UserError
from dlemu.config.overrides import DATA_FOLDER, named
from dlemu.metrics.catalogue import RUN
from dlemu.results.figures import Conditions, JobFigures
from dlemu.results.kinds import kind_named, kind_of
from dlemu.results.wording import scaled
from dlemu.studies.answers import HOST_CAUSES, SIZE, SWEEP, ComparedSide, SizeAnswer, SweepAnswer, SweepPoint
from dlemu.studies.conditions import conditions_in, conditions_of, settings_of
from dlemu.studies.size.page import KIND_OF_TRIALS, figures_of_count

_INCOMPLETE = "the sweep is incomplete: finish it with its command"

Settings = tuple[tuple[str, str], ...]
"""(key, value) pairs, sorted by key, of the settings in which the runs of a side differ from each other."""
Runs = Mapping[Settings, JobFigures]
About = Mapping[Settings, Conditions]
Foreign = Callable[[str], tuple[Runs, About]]
"""Reads a folder of another benchmark's runs for `side_of_runs`; raises UserError for a folder unknown to it."""


@dataclass(frozen=True, kw_only=True)
class Side(ComparedSide):
    """One storage of a comparison, as its folder has it."""

    kind: str
    """Kind of its jobs."""
    runs: Runs
    """At least one, but for a search before its first trial."""
    conditions: About = field(default_factory=dict)
    """Where and how each run was measured, for those whose folders still exist."""
    is_search: bool = False
    """`runs` are the counts of a search, which need not be those of the other side."""
    cached: bool = False
    """It is a search that allowed reads from the page cache (`metric.cached`), and so sized memory."""
    warnings: tuple[str, ...] = ()

    def about_run(self, settings: Settings = ()) -> Conditions:
        """Return the conditions of a run, or else of the first; without a title when the folders of all are gone."""
        return self.conditions.get(settings) or next(iter(self.conditions.values()), Conditions(title=""))

    @property
    def workload(self) -> str:
        return next((figures.workload for figures in self.runs.values()), "")

    @property
    def scaled(self) -> str:
        """How small the samples of the accelerators that it feeds are, or else of those that were tried: a phrase."""
        shown = [run for run in self.runs.values() if run.ranks == (self.accelerators_fed or run.ranks)]
        return next(filter(None, (scaled(run.sample_divisor) for run in shown)), "")


def read_sides(folders: Sequence[str], foreign: Foreign | None = None) -> tuple[Side, Side]:
    """Return the two storages in the folders: one in each of two, or both in that of a sweep over two drives.

    Raises UserError when there are not exactly two, or when their jobs are of different kinds.
    """
    advice = "wanted two folders of runs, sweeps or searches, or the folder of one sweep over two drives"
    if not all(folders):
        raise UserError(f"a folder's name is empty, as of a variable of the shell that is not set: {advice}")
    if len(folders) > 2:
        raise UserError(f"{len(folders)} names are given, from {folders[0]} to {folders[-1]}: {advice}")
    sides = [side for folder in folders for side in read_side(folder, foreign)]
    if len(sides) != 2:
        names = ", ".join(side.name for side in sides)
        note = f" ({_INCOMPLETE})" if any(_INCOMPLETE in side.warnings for side in sides) else ""
        raise UserError(f"{' '.join(folders)}: storages found: {names}{note}; {advice}")
    a, b = sides
    if a.kind != b.kind:
        raise UserError(
            f"{a.name} is {kind_named(a.kind).noun}, {b.name} {kind_named(b.kind).noun}: wanted two of the same kind"
        )
    return a, b


def read_side(folder: str, foreign: Foreign | None = None) -> list[Side]:
    """Return the storages in a folder: one, or one for each drive of a sweep over drives.

    A folder that is not dlemu's is read by `foreign`. Raises UserError for a folder that can't be compared.
    """
    kind, advice = kind_of(folder), "wanted the folder of a run, sweep or size"
    if kind is None:
        if not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder: {advice}")
        if foreign is None:
            raise UserError(f"{folder} holds no summary.json written by dlemu, {SWEEP} or {SIZE}: {advice}")
        return [side_of_runs(folder, *foreign(folder))]
    if kind.is_job:
        parts, run = kind.load_job(), kind.read(folder)
        return [side_of_runs(folder, {(): parts.figures(run)}, {(): conditions_of(parts, run.summary, run.facts)})]
    match kind.read(folder):
        case SweepAnswer() as sweep:
            return _of_sweep(folder, sweep)
        case SizeAnswer() as search:
            return [_of_search(folder, search)]
    raise UserError(f"{folder} holds {kind.noun}: {advice}")


def side_of_runs(name: str, runs: Runs, conditions: About | None = None) -> Side:
    """Return a storage from the figures of its runs, and the conditions of those whose folders still exist.

    It may feed one accelerator more than the largest number that passes, unless the storage failed a run with one more
    and otherwise the same settings.
    """
    about = conditions or {}
    passing = {settings: run.ranks for settings, run in runs.items() if run.passed}
    most = max(passing.values(), default=0)
    # With `ranks=""`, settings are compared apart from their number of ranks.
    failed_settings = [
        dict(settings, ranks="")
        for settings, run in runs.items()
        if run.ranks == most + 1 and run.passed is False and run.limited_by.get(RUN) not in HOST_CAUSES
    ]
    largest = [dict(settings, ranks="") for settings, ranks in passing.items() if ranks == most]
    return Side(
        name=name,
        kind=next(iter(runs.values())).kind,
        runs=runs,
        conditions=about,
        accelerators_fed=most if passing else None,
        may_feed_more=any(settings not in failed_settings for settings in largest),
        warnings=tuple(dict.fromkeys(warning for each in about.values() for warning in each.warnings)),
    )


def _of_sweep(folder: str, sweep: SweepAnswer) -> list[Side]:
    points_by_drive: dict[str, list[SweepPoint]] = {}
    for point in sweep.points:
        points_by_drive.setdefault(point.settings.get(DATA_FOLDER, folder), []).append(point)
    if not points_by_drive:
        raise UserError(f"no point of the sweep in {folder} has completed: finish it with its command, then compare")
    sides = []
    for drive, points in points_by_drive.items():
        runs: dict[Settings, JobFigures] = {}
        about: dict[Settings, Conditions] = {}
        warnings = [] if sweep.complete else [_INCOMPLETE]
        for point in points:
            settings = tuple(sorted((key, value) for key, value in point.settings.items() if key != DATA_FOLDER))
            if point.figures is None:
                reason = (point.failure or "no reason is known").splitlines()[0]
                warnings.append(f"the run with {named(dict(settings)) or 'its settings'} failed: {reason}")
                continue
            runs[settings] = point.figures
            for conditions in conditions_in([os.path.join(folder, point.folder)]):
                about[settings] = conditions
        if not runs:
            which = "" if drive == folder else f" on {drive}"
            raise UserError(f"{folder}: no point{which} has completed: {warnings[-len(points)]}; run the sweep again")
        side = side_of_runs(drive, runs, about)
        sides.append(replace(side, warnings=(*warnings, *side.warnings)))
    return sides


def _of_search(folder: str, search: SizeAnswer) -> Side:
    conditions = next(conditions_in(os.path.join(folder, trial.folder) for trial in search.trials), None)
    failing, most = search.failing, search.max_accelerators
    incomplete = [] if search.complete else ["the search is incomplete: finish it with its command"]
    return Side(
        name=folder,
        kind=KIND_OF_TRIALS,
        runs={(("ranks", str(count.accelerators)),): figures_of_count(search, count) for count in search.counts},
        conditions={(): conditions} if conditions else {},
        accelerators_fed=most,
        may_feed_more=failing is None
        or failing.passed is None  # too close to call, or not tried often enough
        or failing.accelerators > most + 1  # a search that was interrupted
        or search.is_limited_by_host
        or search.limited_by.what in ("count", "nothing"),
        is_search=True,
        cached=search.question.cached,
        warnings=(*incomplete, *search.issues),
    )


def issues_between(a: Side, b: Side, about_a: Conditions, about_b: Conditions) -> Iterator[str]:
    """Yield a sentence for everything but the storage that differs, and the warnings of each side."""
    if os.path.realpath(a.name) == os.path.realpath(b.name):
        yield "A and B are the same folder: they do not differ"
    storages = [about.environment.storage for about in (about_a, about_b)]
    devices = [storage.device for storage in storages if storage and storage.device]
    if len(devices) > len(set(devices)):
        yield f"A and B are on the same device, {devices[0]}"
    titles = [side.about_run().title or side.workload for side in (a, b)]
    if titles[0] != titles[1]:
        yield f"A ran {titles[0]} and B {titles[1]}: the difference is not due to the storage alone"
    if about_a.how and about_b.how:  # other benchmarks do not record `how`
        settings_a, settings_b = settings_of(about_a), settings_of(about_b)
        for key, text in settings_a.items():
            if key in settings_b and text != settings_b[key]:
                yield f"{key}: {text} for A, {settings_b[key]} for B"
    if max(len(a.runs), len(b.runs)) > 1 and not (a.is_search or b.is_search):
        for (name, other_name), side, other in (("AB", a, b), ("BA", b, a)):
            only = [named(dict(settings)) for settings in side.runs if settings not in other.runs]
            if only:  # the number of accelerators that a side feeds may be of a run that the other side never made
                yield f"only {name} completed {', '.join(only)}: of {other_name} no figures are known there"
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)

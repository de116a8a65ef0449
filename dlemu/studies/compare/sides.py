"""Reads a run of any kind of job, a sweep or a search from its folder into a `Side` of a comparison."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from datagen.errors import UserError
from dlemu.config.overrides import DATA_FOLDER, named
from dlemu.metrics.catalogue import RUN
from dlemu.results.figures import Conditions, JobFigures
from dlemu.results.kinds import kind_named, kind_of
from dlemu.results.wording import at_scale
from dlemu.studies.answers import HOST_CAUSES, SIZE, SWEEP, ComparedSide, SizeAnswer, SweepAnswer, SweepPoint
from dlemu.studies.conditions import conditions_in, conditions_of, settings_of
from dlemu.studies.size.page import KIND_OF_TRIALS, figures_of_count

_INCOMPLETE = "the sweep is incomplete: finish it with its command"

# What identifies a run of a side: (key, value) of each setting that differs between its runs, sorted by key.
Settings = tuple[tuple[str, str], ...]
Runs = Mapping[Settings, JobFigures]
RunConditions = Mapping[Settings, Conditions]
# Returns the runs in a folder of another benchmark, for `side_of_runs`; raises UserError for any other folder.
ReadForeign = Callable[[str], tuple[Runs, RunConditions]]


@dataclass(frozen=True, kw_only=True)
class Side(ComparedSide):
    """One storage of a comparison, with its runs."""

    kind: str  # of the jobs
    runs: Runs  # at least one, except for a search before its first trial
    conditions: RunConditions = field(default_factory=dict)  # of the runs whose folders still exist
    is_search: bool = False  # `runs` are then the counts of a search; two searches need not have tried the same counts
    cached: bool = False  # whether a search allowed reads from the page cache (`metric.cached`), and so measured memory
    warnings: tuple[str, ...] = ()

    def conditions_of_run(self, settings: Settings = ()) -> Conditions:
        """Return the conditions of a run, else those of the first run; their title is empty if all folders are gone."""
        return self.conditions.get(settings) or next(iter(self.conditions.values()), Conditions(title=""))

    @property
    def scaled(self) -> str:
        """How small the samples are, as a phrase: in the largest run that passed, or in any run if none passed."""
        runs = [run for run in self.runs.values() if run.ranks == (self.accelerators_fed or run.ranks)]
        return next(filter(None, (at_scale(run.sample_divisor) for run in runs)), "")


def read_sides(folders: Sequence[str], read_foreign: ReadForeign | None = None) -> tuple[Side, Side]:
    """Return the storages of two folders, or of a sweep over two drives; UserError if not two, or of unlike kinds."""
    advice = "wanted two folders of runs, sweeps or searches, or the folder of one sweep over two drives"
    if not all(folders):
        raise UserError(f"a folder's name is empty, as of a variable of the shell that is not set: {advice}")
    if len(folders) > 2:
        raise UserError(f"{len(folders)} names are given, from {folders[0]} to {folders[-1]}: {advice}")
    sides = [side for folder in folders for side in read_side(folder, read_foreign)]
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


def read_side(folder: str, read_foreign: ReadForeign | None = None) -> list[Side]:
    """Return the storages in a folder: one, or one for each drive of a sweep over drives.

    `read_foreign` reads folders that are not dlemu's. Raises UserError for a folder that can't be compared.
    """
    kind, advice = kind_of(folder), "wanted the folder of a run, sweep or size"
    if kind is None:
        if not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder: {advice}")
        if read_foreign is None:
            raise UserError(f"{folder} holds no summary.json written by dlemu, {SWEEP} or {SIZE}: {advice}")
        return [side_of_runs(folder, *read_foreign(folder))]
    if kind.is_job:
        parts, run = kind.load_job(), kind.read(folder)
        return [side_of_runs(folder, {(): parts.figures(run)}, {(): conditions_of(parts, run.summary, run.facts)})]
    match kind.read(folder):
        case SweepAnswer() as sweep:
            return _sides_of_sweep(folder, sweep)
        case SizeAnswer() as search:
            return [_side_of_search(folder, search)]
    raise UserError(f"{folder} holds {kind.noun}: {advice}")


def side_of_runs(name: str, runs: Runs, conditions: RunConditions | None = None) -> Side:
    """Return a storage from the figures of its runs, and the conditions of those whose folders still exist.

    The storage may feed more accelerators than the largest passing run has, unless a run with one more accelerator and
    otherwise the same settings failed because of the storage.
    """
    known_conditions = conditions or {}
    passing = {settings: run.ranks for settings, run in runs.items() if run.passed}
    max_ranks = max(passing.values(), default=0)
    # Blank out the number of ranks to find the runs whose other settings are the same.
    failed_settings = [
        dict(settings, ranks="")
        for settings, run in runs.items()
        if run.ranks == max_ranks + 1 and run.passed is False and run.limited_by.get(RUN) not in HOST_CAUSES
    ]
    largest = [dict(settings, ranks="") for settings, ranks in passing.items() if ranks == max_ranks]
    return Side(
        name=name,
        kind=next(iter(runs.values())).kind,
        runs=runs,
        conditions=known_conditions,
        accelerators_fed=max_ranks if passing else None,
        may_feed_more=any(settings not in failed_settings for settings in largest),
        warnings=tuple(dict.fromkeys(warning for run in known_conditions.values() for warning in run.warnings)),
    )


def _sides_of_sweep(folder: str, sweep: SweepAnswer) -> list[Side]:
    """Return a side for each drive of a sweep; raises UserError if no run on a drive has completed."""
    points_by_drive: dict[str, list[SweepPoint]] = {}
    for point in sweep.points:
        points_by_drive.setdefault(point.settings.get(DATA_FOLDER, folder), []).append(point)
    if not points_by_drive:
        raise UserError(f"no point of the sweep in {folder} has completed: finish it with its command, then compare")
    sides = []
    for drive, points in points_by_drive.items():
        runs, conditions, failures = dict[Settings, JobFigures](), dict[Settings, Conditions](), list[str]()
        for point in points:
            settings = tuple(sorted((key, value) for key, value in point.settings.items() if key != DATA_FOLDER))
            if point.figures is None:
                reason = (point.failure or "no reason is known").splitlines()[0]
                failures.append(f"the run with {named(dict(settings)) or 'its settings'} failed: {reason}")
                continue
            runs[settings] = point.figures
            for run_conditions in conditions_in([os.path.join(folder, point.folder)]):  # none if the folder is gone
                conditions[settings] = run_conditions
        if not runs:
            which = "" if drive == folder else f" on {drive}"
            raise UserError(f"{folder}: no point{which} has completed: {failures[0]}; run the sweep again")
        side, incomplete = side_of_runs(drive, runs, conditions), [] if sweep.complete else [_INCOMPLETE]
        sides.append(replace(side, warnings=(*incomplete, *failures, *side.warnings)))
    return sides


def _side_of_search(folder: str, search: SizeAnswer) -> Side:
    conditions = next(conditions_in(os.path.join(folder, trial.folder) for trial in search.trials), None)
    failing, max_accelerators = search.failing, search.max_accelerators
    incomplete = [] if search.complete else ["the search is incomplete: finish it with its command"]
    return Side(
        name=folder,
        kind=KIND_OF_TRIALS,
        runs={(("ranks", str(count.accelerators)),): figures_of_count(search, count) for count in search.counts},
        conditions={(): conditions} if conditions else {},
        accelerators_fed=max_accelerators,
        may_feed_more=failing is None
        or failing.passed is None  # too close to call, or not tried often enough
        or failing.accelerators > max_accelerators + 1  # an interrupted search
        or search.is_limited_by_host
        or search.limited_by.what in ("count", "nothing"),
        is_search=True,
        cached=search.question.cached,
        warnings=(*incomplete, *search.issues),
    )


def issues_between(a: Side, b: Side, conditions_a: Conditions, conditions_b: Conditions) -> Iterator[str]:
    """Yield a sentence for each difference other than the storage, and the warnings of each side."""
    if os.path.realpath(a.name) == os.path.realpath(b.name):
        yield "A and B are the same folder: they do not differ"
    settings_a, settings_b = settings_of(conditions_a), settings_of(conditions_b)
    storages = [conditions.environment.storage for conditions in (conditions_a, conditions_b)]
    devices = [storage.device for storage in storages if storage and storage.device]
    # Other hosts have a device of their own with this name, unless it names the server: nas:/export.
    if len(devices) > len(set(devices)) and (":/" in devices[0] or settings_a["host"] == settings_b["host"]):
        yield f"A and B are on the same device, {devices[0]}"
    titles = [
        side.conditions_of_run().title or next((run.workload for run in side.runs.values()), "") for side in (a, b)
    ]
    if titles[0] != titles[1]:
        yield f"A ran {titles[0]} and B {titles[1]}: the difference is not due to the storage alone"
    if conditions_a.how and conditions_b.how:  # other benchmarks do not record `how`
        for key, text in settings_a.items():
            if settings_b.get(key, text) != text:
                yield f"{key}: {text} for A, {settings_b[key]} for B"
    if max(len(a.runs), len(b.runs)) > 1 and not (a.is_search or b.is_search):
        for name, side, other_name, other in (("A", a, "B", b), ("B", b, "A", a)):
            unpaired = [named(dict(settings)) for settings in side.runs if settings not in other.runs]
            if unpaired:  # a side's number of accelerators fed may come from such a run
                yield f"only {name} completed {', '.join(unpaired)}: of {other_name} no figures are known there"
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)

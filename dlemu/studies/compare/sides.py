"""Reads what can be compared - a run of any kind, a sweep or a search - from its folder into a `Side`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from datagen.errors import UserError
from dlemu.config.overrides import DATA_FOLDER
from dlemu.metrics.catalogue import RUN
from dlemu.results.compared import Conditions, differing
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import kind_named, kind_of
from dlemu.studies.answers import HOST, SIZE, SWEEP, ComparedRun, ComparedSide, SizeAnswer, SweepAnswer
from dlemu.studies.conditions import conditions_in, conditions_of
from dlemu.studies.size.page import KIND_OF_TRIALS, figures_of_count

_CUT = "the sweep is incomplete: finish it with its command"

Settings = tuple[tuple[str, str], ...]
"""(key, value) pairs, sorted by key, of the settings in which the runs of a side differ from each other."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One storage of a comparison, as its folder has it."""

    kind: str
    """Kind of its jobs."""
    shown: ComparedSide
    """What compare.json has of it."""
    is_search: bool = False
    """`shown.runs` are the counts of a search, which need not be those of the other side."""
    cached: bool = False
    """It is a search that allowed reads from the page cache (`metric.cached`), and so sized memory."""
    about_runs: Mapping[Settings, Conditions] = field(default_factory=dict)
    """`shown.about` of each of several runs whose folders still exist."""
    warnings: tuple[str, ...] = ()
    """What a reader of its numbers must know, as sentences."""

    @property
    def name(self) -> str:
        """Its folder, or its drive in a sweep over drives."""
        return self.shown.name

    @property
    def about(self) -> Conditions | None:
        """Where and how it was measured; None when the folders of its runs are gone."""
        return self.shown.about

    @property
    def title(self) -> str:
        """A short description of what ran."""
        return self.about.title if self.about else self.shown.workload

    @cached_property
    def runs(self) -> dict[Settings, JobFigures]:
        """The figures of its runs; none for a search."""
        runs = () if self.is_search else self.shown.runs
        return {tuple(sorted(run.settings.items())): run.figures for run in runs}


Foreign = Callable[[str], Side]
"""Reads the folder of another benchmark's run; raises UserError for a folder that it does not recognise."""


def read_sides(folders: Sequence[str], foreign: Foreign | None = None) -> tuple[Side, Side]:
    """Return the two storages in the folders: one in each of two, or both in that of a sweep over two drives.

    Raises UserError when there are not exactly two, or when their jobs are of different kinds.
    """
    if not all(folders):
        raise UserError(
            "a folder's name is empty, as of a variable of the shell that is not set: wanted the folders of two runs, "
            "sweeps or searches"
        )
    if len(folders) > 2:
        raise UserError(
            f"{len(folders)} names are given, from {folders[0]} to {folders[-1]}: wanted two folders of runs, sweeps "
            "or searches, or the folder of one sweep over two drives"
        )
    sides = [side for folder in folders for side in read_side(folder, foreign)]
    if len(sides) != 2:
        cut = "".join(sorted({f" ({_CUT})" for side in sides if _CUT in side.warnings}))
        raise UserError(
            f"{' '.join(folders)}: storages found: {', '.join(side.name for side in sides)}{cut}; wanted two folders "
            "of runs, sweeps or searches, or the folder of one sweep over two drives"
        )
    a, b = sides
    if a.kind != b.kind:
        raise UserError(
            f"{a.name} is {kind_named(a.kind).noun}, {b.name} {kind_named(b.kind).noun}: wanted two of the same kind"
        )
    for settings in a.about_runs:  # the first run of a side may be one that failed on the other
        if settings in b.about_runs:
            a, b = (replace(side, shown=replace(side.shown, about=side.about_runs[settings])) for side in (a, b))
            break
    return a, b


def read_side(folder: str, foreign: Foreign | None = None) -> list[Side]:
    """Return the storages in a folder: one, or one for each drive of a sweep over drives.

    A folder that is not dlemu's is read by `foreign`. Raises UserError for a folder that can't be compared.
    """
    kind = kind_of(folder)
    if kind is not None and kind.is_job:
        parts = kind.load_job()
        run = parts.read(folder)
        return [side_of_runs(folder, {(): parts.figures(run)}, [conditions_of(parts, run.summary)])]
    match kind.load().read(folder) if kind is not None else None:
        case SweepAnswer() as swept:
            return _of_sweep(folder, swept)
        case SizeAnswer() as sized:
            return [_of_size(folder, sized)]
    if kind is not None:
        raise UserError(f"{folder} holds {kind.noun}: wanted the folder of a run, sweep or size")
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder: wanted the folder of a run, sweep or size")
    if foreign is not None:
        return [foreign(folder)]
    raise UserError(
        f"{folder} holds no summary.json written by dlemu, {SWEEP} or {SIZE}: wanted the folder of a run, sweep or size"
    )


def side_of_runs(name: str, runs: Mapping[Settings, JobFigures], conditions: Sequence[Conditions] = ()) -> Side:
    """Return a storage from the figures of its runs; `conditions` are of the runs whose folders still exist."""
    accelerators = max((figures.ranks for figures in runs.values() if figures.passed), default=None)
    shown = [figures for figures in runs.values() if figures.ranks == (accelerators or figures.ranks)]
    first = next(iter(runs.values()))
    compared = ComparedSide(
        name=name,
        workload=first.workload,
        runs=tuple(ComparedRun(settings=dict(settings), figures=figures) for settings, figures in runs.items()),
        accelerators_fed=accelerators,
        may_feed_more=_may_feed_more(runs, accelerators),
        gb_per_second=_gb_per_second(figures.mean("app_mb_per_second") for figures in shown),
        about=conditions[0] if conditions else None,
    )
    return Side(kind=first.kind, shown=compared, warnings=_warnings(conditions))


def _may_feed_more(runs: Mapping[Settings, JobFigures], accelerators: int | None) -> bool:
    """Return whether a storage that feeds so many may feed one more: no run with the same settings shows otherwise."""
    if accelerators is None:
        return False
    failed = {
        _without_ranks(settings)
        for settings, figures in runs.items()
        if figures.ranks == accelerators + 1 and figures.passed is False and figures.limited_by.get(RUN) not in HOST
    }
    return any(
        figures.ranks == accelerators and figures.passed and _without_ranks(settings) not in failed
        for settings, figures in runs.items()
    )


def _without_ranks(settings: Settings) -> Settings:
    return tuple((key, value) for key, value in settings if key != "ranks")


def _of_sweep(folder: str, swept: SweepAnswer) -> list[Side]:
    drives: dict[str, dict[Settings, JobFigures]] = {}
    about: dict[str, dict[Settings, Conditions]] = {}
    failed: dict[str, list[str]] = {}
    for point in swept.points:
        settings = dict(point.settings)
        drive = settings.pop(DATA_FOLDER, folder)
        if point.figures is None:
            why = (point.failure or "no reason is known").splitlines()[0]
            failed.setdefault(drive, []).append(f"the run with {_named(settings.items())} failed: {why}")
            continue
        key = tuple(sorted(settings.items()))
        drives.setdefault(drive, {})[key] = point.figures
        about.setdefault(drive, {}).update((key, one) for one in conditions_in([os.path.join(folder, point.folder)]))
    if lost := [drive for drive in failed if drive not in drives]:
        which = "" if lost[0] == folder else f" on {lost[0]}"
        raise UserError(f"{folder}: no point{which} has completed: {failed[lost[0]][0]}; run the sweep again")
    if not drives:
        raise UserError(f"no point of the sweep in {folder} has completed: finish it with its command, then compare")
    cut = [] if swept.complete else [_CUT]
    sides = [side_of_runs(drive, runs, list(about[drive].values())) for drive, runs in drives.items()]
    return [
        replace(side, about_runs=about[side.name], warnings=(*cut, *failed.get(side.name, []), *side.warnings))
        for side in sides
    ]


def _named(settings: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings) or "its settings"


def _of_size(folder: str, sized: SizeAnswer) -> Side:
    conditions = list(conditions_in(os.path.join(folder, trial.folder) for trial in sized.trials))
    failing, most = sized.failing, sized.max_accelerators
    cut = [] if sized.complete else ["the search is incomplete: finish it with its command"]
    compared = ComparedSide(
        name=folder,
        workload=sized.question.workload,
        runs=tuple(ComparedRun(figures=figures_of_count(sized, count)) for count in sized.counts),
        accelerators_fed=most,
        may_feed_more=failing is None
        or failing.passed is None  # too close to call, or not tried often enough
        or failing.accelerators > most + 1  # a search that was interrupted
        or sized.limited_by.is_host
        or sized.limited_by.what in ("count", "nothing"),
        gb_per_second=_gb_per_second(trial.mb_per_second for trial in sized.trials_of(most)),
        about=conditions[0] if conditions else None,
    )
    return Side(
        kind=KIND_OF_TRIALS,
        shown=compared,
        is_search=True,
        cached=sized.question.cached,
        warnings=(*cut, *sized.issues),
    )


def _gb_per_second(mb_per_second: Iterable[float | None]) -> float | None:
    return max((rate / 1e3 for rate in mb_per_second if rate is not None), default=None)


def _warnings(conditions: Iterable[Conditions]) -> tuple[str, ...]:
    """Return the warnings of the runs, each once."""
    return tuple(dict.fromkeys(warning for each in conditions for warning in each.warnings))


def issues_between(a: Side, b: Side) -> Iterator[str]:
    """Yield a sentence for everything but the storage that differs, and the warnings of each side."""
    if os.path.realpath(a.name) == os.path.realpath(b.name):
        yield "A and B are the same folder: they do not differ"
    if a.title != b.title:
        yield f"A ran {a.title} and B {b.title}: the difference is not due to the storage alone"
    if a.about is not None and b.about is not None:
        yield from differing(a.about, b.about)
    if max(len(a.runs), len(b.runs)) > 1:  # two single runs are a pair whatever their settings
        yield from _only("A", a, "B", b)
        yield from _only("B", b, "A", a)
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)


def _only(name: str, side: Side, other_name: str, other: Side) -> Iterator[str]:
    """Yield which settings only one side ran with: what it feeds may be of a run that the other never made."""
    if lone := [_named(settings) for settings in side.runs if settings not in other.runs]:
        yield f"only {name} completed {', '.join(lone)}: of {other_name} no figures are known there"

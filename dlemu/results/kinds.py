"""The registry of kinds of results: which kinds exist, and which one a folder contains.

A kind is a package with a small module `kind`, whose KIND declares how its folders are recognised and imports its code
when that is used. Every package below PACKAGES that has one is a kind, as is every package that another distribution
installs as an entry point in the group `dlemu.jobs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError
from datagen.registry import import_by_name, installed
from dlemu.results import FACTS, LIVE, SUMMARY

if TYPE_CHECKING:  # every command imports this module
    from dlemu.config.schema import Workload
    from dlemu.metrics.catalogue import Catalogue
    from dlemu.results.exported import ExportedCheckpoints, ExportedSteps
    from dlemu.results.figures import Conditions, JobFigures

PACKAGES = ("dlemu.jobs", "dlemu.studies")
ENTRY_POINTS = "dlemu.jobs"
_DEFAULT = "training"  # for runs of no other kind


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The code of a kind of result. For what a kind leaves out, `dlemu.report.any_run` has a form for all kinds."""

    answer_type: type[Any]
    """The type of its `answer`, a dataclass, from which `dlemu schema` makes its schema."""
    screen: Callable[[Any, str], Any] | None = None
    """Returns the first screen of a result in a folder, a `dlemu.report.screen.Screen`; of a run, of its summary."""
    sections: Callable[[Any, str], Iterable[Any]] | None = None
    """Given the same, returns the `dlemu.report.table.Table`s that follow; without it, a job has one of its metrics."""
    charts: Callable[[Any, str], Iterable[tuple[str, Any]]] | None = None
    """Given what `read` returns and its folder, returns the page's figures (`dlemu.report.figure_base.Figure`) by name,
    first the one that answers the page's question."""
    rates: Callable[[str], Any] | None = None
    """Returns rates by size and depth of the result in a folder, `dlemu.results.drive.Rates`; raises UserError."""


@dataclass(frozen=True, kw_only=True)
class JobParts(Parts):
    """The code of a kind of job, whose results are runs with summaries."""

    job: Any
    """How ranks run it, and how its runs are read: a `dlemu.runner.job.JobKind`."""
    catalogue: Catalogue
    """What it measures."""
    figures: Callable[[Any], JobFigures]
    """Given a run, returns its figures for sweeps, comparisons and pages."""
    conditions: Callable[..., Conditions]
    """Given a run's summary and facts, returns its conditions."""
    predict: Callable[[Any, Any], tuple[Any, str, Workload]] | None = None
    """For `dlemu predict`: given overrides or a workload, and a `dlemu.runner.prediction_request.PredictionRequest`,
    returns the answer, its folder and the workload."""
    host_checks: Callable[[], Mapping[str, Any]] = dict
    """Returns the checks of `dlemu doctor` of this kind alone, by name, as `CHECKS` of a file of `dlemu.doctor`."""
    exported: Callable[[Any], ExportedSteps | ExportedCheckpoints] | None = None
    """Given a run, returns it in the terms of other benchmarks: DLIO's files are made from that."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of result: what every command may need to know of it, and a function that imports the rest."""

    name: str
    """Unique name; `kind` in the summary.json of a job."""
    noun: str
    """With its article, for messages: `a run of checkpoints`."""
    answer: str = SUMMARY
    """The file that its command writes last; unless it is a job's, a folder with this file is of this kind."""
    precedence: int = 0
    """If a folder has the answers of several kinds, the one with the highest precedence is chosen."""
    command: str = ""
    """The command that makes it, such as `train` in `dlemu train`."""
    help: str = ""
    """A sentence on the command."""
    usage: str = ""
    """Help text of a job's command, with examples, as click shows it."""
    load: Callable[[], Parts]
    """Imports and returns its code."""
    wants: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Returns whether `dlemu train` runs this kind of job for a workload."""
    is_all: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Returns whether a workload is only for this kind of job, even if its amount is not set yet; used by sweeps."""
    scaled_by: str = ""
    """The setting (`SECTION.KEY`) that scales the load of a job; `dlemu size` finds its largest passing value."""
    is_exported: bool = False
    """DLIO has such jobs as well: their settings can be written for it."""

    @property
    def is_job(self) -> bool:
        return self.answer == SUMMARY

    def load_job(self) -> JobParts:
        """Return the code of a kind of job; raises UserError for another kind."""
        parts = self.load()
        if not isinstance(parts, JobParts):
            raise UserError(f"{self.noun} is no run of a job: wanted one")
        return parts

    def read(self, folder: str) -> Any:
        """Return the typed result in a folder; raises UserError."""
        from dlemu.results.answer_files import decode_versioned

        if self.is_job:
            return self.load_job().job.read(folder)
        return decode_versioned(os.path.join(folder, self.answer), self.load().answer_type)

    def holds(self, folder: str) -> bool:
        return os.path.lexists(os.path.join(folder, self.answer))


@cache
def kinds() -> tuple[Kind, ...]:
    """Return all kinds, by descending precedence, then by name; raises UserError for one that can't be imported."""
    registered = list[Kind]()
    for parent in PACKAGES:
        root = Path(import_by_name(parent, "__path__")[0])
        for path in sorted(path.parent.relative_to(root) for path in root.rglob("kind.py")):
            registered += _kinds(".".join((parent, *path.parts)))
    for name, entry in installed(ENTRY_POINTS).items():
        try:
            registered += _kinds(entry.module)
        except Exception as error:
            raise UserError(
                f"the kind of job {name!r} ({entry.module}) can't be imported ({error}): install it again"
            ) from error
    return tuple(sorted(registered, key=lambda kind: (-kind.precedence, kind.name)))


def _kinds(package: str) -> list[Kind]:
    """Return the KIND of a package, and in ANSWERS further kinds of results that it makes."""
    module = import_by_name(f"{package}.kind")
    return [module.KIND, *getattr(module, "ANSWERS", ())]


def kind_named(name: str) -> Kind:
    """Return a kind by its name; raises UserError for one that is not installed."""
    by_name = {kind.name: kind for kind in kinds()}
    if name not in by_name:
        known = ", ".join(by_name)
        raise UserError(f"there is no kind of job {name!r} here: install the package that has it; known: {known}")
    return by_name[name]


def kind_of_command(name: str) -> Kind:
    return next(kind for kind in kinds() if kind.command == name)


def kind_of(folder: str) -> Kind | None:
    """Return the kind of the result in a folder, None where there is no result of dlemu's.

    A received result can't cause an import: its kind is only looked up by name among the installed kinds. Raises
    UserError for a kind that is not installed.
    """
    from dlemu.results.answer_files import SummaryHead, decode_untrusted

    for kind in kinds():  # the highest precedence first
        if not kind.is_job and kind.holds(folder):
            return kind
    for name in (SUMMARY, FACTS, os.path.join(LIVE, FACTS)):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        try:
            head = decode_untrusted(path, SummaryHead)
        except UserError:  # damaged: reading the result will report that
            head = SummaryHead()
        if name == SUMMARY and head.schema_version is None:
            continue  # DLIO wrote this summary.json
        return kind_named(head.kind or _DEFAULT)
    return None


def kind_or_training(folder: str) -> Kind:
    """Return the kind of the result in a folder; if it has none, training, whose reader says what is missing there."""
    return kind_of(folder) or kind_named(_DEFAULT)


def read_result(folder: str) -> Any:
    """Return the result in a folder, typed; raises UserError for a folder without a result, or a damaged one."""
    return kind_or_training(folder).read(folder)


def read_figures(folder: str) -> tuple[Any, JobFigures]:
    """Return the run in a folder, and its figures for sweeps, comparisons and pages; raises UserError."""
    kind = kind_or_training(folder)
    figures, run = kind.load_job().figures, kind.read(folder)
    return run, figures(run)


def catalogue_of(kind: str) -> Catalogue:
    """Return the metrics of a kind of job; raises UserError for one that is not installed."""
    return kind_named(kind).load_job().catalogue


def kind_needed(workload: Workload) -> Kind:
    """Return the kind of job that a workload is for, even if its amount is not set yet (see `Kind.is_all`)."""
    return next((kind for kind in kinds() if kind.is_all(workload)), None) or kind_to_run(workload)


def kind_to_run(workload: Workload) -> Kind:
    """Return the kind of job that `dlemu train` runs for a workload."""
    return next((kind for kind in kinds() if kind.wants(workload)), kind_named(_DEFAULT))

"""The registry of kinds of results: which kinds exist, and which one a folder contains.

A kind is a package with a small module `kind`, whose constant KIND declares how its result folders are recognised, and
imports its code on first use. Kinds are found in the packages below PACKAGES, and among the entry points that other
distributions install in the group ENTRY_POINTS.
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
_DEFAULT = "training"  # the kind of workloads that no other kind wants, and of folders that name none


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The code of a kind of result. `dlemu.report.any_run` makes a generic screen or section where none is given."""

    answer_type: type[Any]
    """The type of the result, a dataclass, from which `dlemu schema` makes its schema; of a job, its summary's type."""
    screen: Callable[[Any, str], Any] | None = None
    """Given a value of `answer_type` and its folder, returns its first screen, a `dlemu.report.screen.Screen`."""
    sections: Callable[[Any, str], Iterable[Any]] | None = None
    """Given the same, returns the `dlemu.report.table.Table`s below the screen; by default, of a job, its metrics."""
    charts: Callable[[Any, str], Iterable[tuple[str, Any]]] | None = None
    """Given the result of `Kind.read` and its folder, returns the page's figures (`dlemu.report.figure_base.Figure`) by
    name. The first one answers the page's question."""
    rates: Callable[[str], Any] | None = None
    """Given a folder, returns its rates by size and depth as `dlemu.results.drive.Rates`; raises UserError."""


@dataclass(frozen=True, kw_only=True)
class JobParts(Parts):
    """The code of a kind of job, whose results are runs with summaries."""

    job: Any
    """A `dlemu.runner.job.JobKind`: it runs the job on the ranks, and reads the runs."""
    catalogue: Catalogue
    """The metrics of a run."""
    figures: Callable[[Any], JobFigures]
    """Given a run, returns its figures for sweeps, comparisons and pages."""
    conditions: Callable[..., Conditions]
    """Given a run's summary and facts, returns its conditions."""
    predict: Callable[[Any, Any], tuple[Any, str, Workload]] | None = None
    """For `dlemu predict`: given overrides or a workload, and a `dlemu.runner.prediction_request.PredictionRequest`,
    returns the answer, its folder and the workload."""
    host_checks: Callable[[], Mapping[str, Any]] = dict
    """Returns further checks of `dlemu doctor` for this kind, by name, like `CHECKS` in the files of `dlemu.doctor`."""
    exported: Callable[[Any], ExportedSteps | ExportedCheckpoints] | None = None
    """Given a run, returns it in a form from which result files of other benchmarks (DLIO) can be made."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of result: the facts that any command may need, and a function that imports the code."""

    name: str
    """Unique name; the key `kind` in the summary.json of a job."""
    noun: str
    """A result of this kind in messages, with article: `a run of checkpoints`."""
    answer: str = SUMMARY
    """The file that its command writes last. A folder with this file is of this kind; only jobs share summary.json."""
    precedence: int = 0
    """If a folder has the answers of several kinds, the kind with the highest precedence is chosen."""
    command: str = ""
    """The command that makes such results: `train` for `dlemu train`."""
    help: str = ""
    """The command's one-line help."""
    usage: str = ""
    """Help text of a job's command, with examples, in click's markup."""
    load: Callable[[], Parts]
    """Imports and returns the code."""
    wants: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Returns whether `dlemu train` runs this kind of job for a workload."""
    is_all: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Returns whether a workload is for this kind of job alone, even before its amount is set; used by sweeps."""
    scaled_by: str = ""
    """The setting (`SECTION.KEY`) that scales the load of a job; `dlemu size` finds its largest passing value."""
    is_exported: bool = False
    """Whether DLIO has such jobs, so that their settings can be written as a DLIO configuration."""

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
        for folder in sorted(path.parent.relative_to(root) for path in root.rglob("kind.py")):
            registered += _declared_in(".".join((parent, *folder.parts)))
    for name, entry in installed(ENTRY_POINTS).items():
        try:
            registered += _declared_in(entry.module)
        except Exception as error:
            raise UserError(
                f"the kind of job {name!r} ({entry.module}) can't be imported ({error}): install it again"
            ) from error
    return tuple(sorted(registered, key=lambda kind: (-kind.precedence, kind.name)))


def _declared_in(package: str) -> list[Kind]:
    """Return the kinds that a package declares: KIND, and any further kinds of results in ANSWERS."""
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
    """Return the kind of the result in a folder; None if the folder holds no result of dlemu.

    A folder from another host can't cause an import: the kind that it names is only looked up among the installed
    kinds. Raises UserError for a kind that is not installed.
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
        except UserError:  # a damaged file, which reading the result will report
            head = SummaryHead()
        if name == SUMMARY and head.schema_version is None:
            continue  # DLIO wrote this summary.json
        return kind_named(head.kind or _DEFAULT)
    return None


def kind_or_training(folder: str) -> Kind:
    """Return the kind of the result in a folder; without one, training, whose reader reports the missing files."""
    return kind_of(folder) or kind_named(_DEFAULT)


def read_result(folder: str) -> Any:
    """Return the typed result in a folder; raises UserError if there is none, or if it is damaged."""
    return kind_or_training(folder).read(folder)


def read_figures(folder: str) -> tuple[Any, JobFigures]:
    """Return the run in a folder, and its figures for sweeps, comparisons and pages; raises UserError."""
    kind = kind_or_training(folder)
    figures, run = kind.load_job().figures, kind.read(folder)
    return run, figures(run)


def catalogue_of(kind: str) -> Catalogue:
    """Return the metrics of a kind of job, by its name; raises UserError for a kind that is not installed."""
    return kind_named(kind).load_job().catalogue


def kind_needed(workload: Workload) -> Kind:
    """Return the kind of job that a workload is for, even before its amount is set (see `Kind.is_all`)."""
    return next((kind for kind in kinds() if kind.is_all(workload)), None) or kind_to_run(workload)


def kind_to_run(workload: Workload) -> Kind:
    """Return the kind of job that `dlemu train` runs for a workload."""
    return next((kind for kind in kinds() if kind.wants(workload)), kind_named(_DEFAULT))

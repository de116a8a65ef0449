"""Kinds of results: which there are, and which of them lies in a folder.

A kind is a package with a light module `kind`, whose KIND says how its folders are known and where its parts are. The
folders are the registry: every package below PACKAGES is one, and so is one that another distribution installs as an
entry point of the group `dlemu.jobs`. Parts are imported when they are wanted.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError
from dlemu.results.file_names import FACTS, LIVE, SUMMARY

if TYPE_CHECKING:  # every command imports this module
    from dlemu.config.schema import Workload
    from dlemu.metrics.catalogue import Catalogue
    from dlemu.results.figures import JobFigures

PACKAGES = ("dlemu.jobs", "dlemu.studies", "dlemu.mlperf")
ENTRY_POINTS = "dlemu.jobs"


@dataclass(frozen=True)
class SummaryHead:
    """What a summary.json, or a facts.json, says of itself."""

    schema_version: int | None = None
    kind: str | None = None
    """Of the job; results of training of older versions say none."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What can lie in a folder. Parts are `module.attribute` below its package; an empty one is one it has not."""

    name: str
    """As in the summary.json of a job; the names of all kinds differ."""
    noun: str
    """With its article, for messages: `a run of checkpoints`."""
    marks: tuple[str, ...] = ()
    """Files any of which makes a folder one of this kind, whatever else it holds. A job needs none."""
    is_unnamed: bool = False
    """Results of older versions that name no kind are of this one."""
    precedence: int = 0
    """Of several kinds whose marks a folder holds it is the one with the highest."""
    command: str = ""
    """What makes it: `train` of `dlemu train`."""
    help: str = ""
    """That command in a sentence."""
    usage: str = ""
    """Examples and what else there is to say of a job's command, as click shows it."""
    read: str
    """Returns the typed result of a folder; raises UserError."""
    result: str = ""
    """The type of its `answer`, a dataclass; `dlemu schema` prints what it holds."""
    page: str = ""
    """Returns a folder's result with its page, `dlemu.report.page.Opened`; raises UserError."""
    points: str = ""
    """Returns the points of a folder's result on a page that several share, `dlemu.report.series.Point`."""
    job: str = ""
    """How ranks run it, a `dlemu.runner.job.JobKind`."""
    wants: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Says whether `dlemu train` is to run this kind of job for the workload."""
    is_all: Callable[[Workload], bool] = field(default=lambda workload: False)
    """Says whether a workload asks for nothing else, though it may not say for how much: a sweep runs it."""
    asks: str = ""
    """The setting of a number that says how much a job asks of the storage, `SECTION.KEY`: `dlemu size` finds the most
    that passes."""
    summary: str = ""
    """Returns the summary of a job's folder as it was saved, without computing it anew; raises UserError."""
    advise: str = ""
    """Returns what leads to a verdict, given a `NoVerdictError` and the user's command, overrides and config folder."""
    predicts: str = ""
    """Answers `dlemu predict` for overrides or a workload, and a `dlemu.runner.prediction_request.PredictionRequest`:
    returns the answer, the folder that holds it, and the settings."""
    live: str = ""
    """Follows a run that goes on, a `dlemu.results.progress.MakesFollower`; without it only its devices are seen."""
    host_checks: str = ""
    """Package of what `dlemu doctor` checks for it alone, in files as those of `dlemu.doctor`."""
    pattern: str = ""
    """Reads a workload's data as the job does, by rising numbers of readers."""
    rates: str = ""
    """Returns what a folder's result has of reads by size and depth, `dlemu.results.levels.Rates`; raises UserError."""
    about: str = ""
    """Returns where and on what a job's run was measured, `dlemu.report.page.About`, given the run."""
    metrics: str = ""
    """What it measures, a `dlemu.metrics.catalogue.Catalogue`."""
    figures: str = ""
    """Returns what sweeps, comparisons and pages of several keep of a run, `dlemu.results.figures.JobFigures`."""
    conditions: str = ""
    """Returns what a run was measured under, `dlemu.results.compared.Conditions`, given its summary."""
    show: str = ""
    """Prints a job's summary, given it, its folder and a rich console."""
    exported: str = ""
    """Returns a run as other programs know it, `dlemu.results.exported.ExportedRun`, given the run: DLIO's files are
    made of it, and its settings can be written for DLIO."""
    package: str = ""
    """Set by the registry."""

    def part(self, name: str) -> Any:
        """Return a part by the name of its field; raises UserError for one that the kind has not."""
        reference: str = getattr(self, name)
        if not reference:
            raise UserError(f"{self.noun} has no {name}")
        module, _, attribute = reference.rpartition(".")
        return getattr(importlib.import_module(f"{self.package}.{module}"), attribute)

    @property
    def answer(self) -> str:
        """The file that its command writes last."""
        return SUMMARY if self.job else self.marks[0]

    def holds(self, folder: str) -> bool:
        """Say whether a folder has one of the files by which this kind is known."""
        return any(os.path.lexists(os.path.join(folder, mark)) for mark in self.marks)


@cache
def kinds() -> tuple[Kind, ...]:
    """Return the kinds of this distribution, those that come first where a folder holds the marks of several."""
    found = [kind for parent in PACKAGES for package in _packages(parent) for kind in _kinds(package)]
    return tuple(sorted(found, key=lambda kind: (-kind.precedence, kind.name)))


def _packages(parent: str) -> list[str]:
    root = Path(importlib.import_module(parent).__path__[0])
    paths = sorted(path.parent.relative_to(root) for path in root.rglob("kind.py"))
    return [".".join((parent, *path.parts)) for path in paths]


def _kinds(package: str) -> list[Kind]:
    """Return the KIND of a package, and in ANSWERS what else it leaves in folders of their own."""
    module = importlib.import_module(f"{package}.kind")
    return [replace(kind, package=package) for kind in (module.KIND, *getattr(module, "ANSWERS", ()))]


@cache
def installed_kinds() -> tuple[Kind, ...]:
    """Return the kinds of other distributions, by name. Raises UserError for one that can't be imported."""
    found: list[Kind] = []
    for entry in sorted(entry_points(group=ENTRY_POINTS)):
        try:
            found += _kinds(entry.value)
        except Exception as error:
            raise UserError(
                f"the kind of job {entry.name!r} ({entry.value}) can't be imported ({error}): install it again"
            ) from error
    return tuple(found)


def kind_named(name: str) -> Kind:
    """Return a kind by its name; raises UserError for one that is not installed."""
    known = next((kind for kind in kinds() if kind.name == name), None)
    known = known or next((kind for kind in installed_kinds() if kind.name == name), None)
    if known is None:
        names = ", ".join(kind.name for kind in (*kinds(), *installed_kinds()))
        raise UserError(f"there is no kind of job {name!r} here: install the package that has it; known: {names}")
    return known


def kind_of_command(name: str) -> Kind:
    """Return the kind that a command makes; raises UserError for a command that makes none."""
    known = next((kind for kind in (*kinds(), *installed_kinds()) if kind.command == name), None)
    if known is None:
        raise UserError(f"`dlemu {name}` saves no result of any kind")
    return known


def kind_of(folder: str) -> Kind | None:
    """Return the kind of what a folder holds, None where it holds no result of dlemu's.

    Nothing that a result names is imported: its kind is looked up by name among those installed. Raises UserError for
    one that is not.
    """
    from dlemu.results.untrusted_files import decode_untrusted

    marked = next((kind for kind in kinds() if kind.holds(folder)), None)
    if marked is not None:
        return marked
    for name in (SUMMARY, FACTS, os.path.join(LIVE, FACTS)):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        try:
            head = decode_untrusted(path, SummaryHead)
        except UserError:  # damaged: whoever reads it says so
            head = SummaryHead()
        if name == SUMMARY and head.schema_version is None:
            continue  # DLIO's own
        return kind_named(head.kind) if head.kind else _unnamed()
    return None


def _unnamed() -> Kind:
    known = next((kind for kind in kinds() if kind.is_unnamed), None)
    if known is None:
        raise UserError("this result names no kind of job, and the kind that is assumed then is not installed here")
    return known


def read_result(folder: str) -> Any:
    """Return what a folder holds, typed; raises UserError for a folder without a result, or a damaged one."""
    kind = kind_of(folder) or _unnamed()  # whose reader says what is missing
    return kind.part("read")(folder)


def read_figures(folder: str) -> tuple[Any, JobFigures]:
    """Return the run that a folder holds, and what sweeps, comparisons and pages of several keep of it."""
    kind = kind_of(folder) or _unnamed()
    run = kind.part("read")(folder)
    return run, kind.part("figures")(run)


def kind_with(part: str) -> Kind:
    """Return the first kind that has a part; raises UserError where none has."""
    found = next((kind for kind in kinds() if getattr(kind, part)), None)
    if found is None:
        raise UserError(f"no kind of job here has a {part}")
    return found


def catalogue_of(kind: str) -> Catalogue:
    """Return the metrics of a kind of job; raises UserError for one that is not installed, or has none."""
    catalogue: Catalogue = kind_named(kind).part("metrics")
    return catalogue


def kind_requested(workload: Workload) -> Kind:
    """Return the kind of job that a workload asks for, also where it does not say for how much of it."""
    return next((kind for kind in kinds() if kind.is_all(workload)), None) or kind_wanted(workload)


def kind_wanted(workload: Workload) -> Kind:
    """Return the kind of job that `dlemu train` runs for a workload."""
    known = (*kinds(), *(installed_kinds() if workload.kinds else ()))  # others have a section of their own
    return next((kind for kind in known if kind.wants(workload)), _unnamed())

"""Finds the submissions, results and calls below a folder, whether or not it has mlpstorage's layout.

A *submission* is one organisation's folder in one division. A *result* is the calls of one workload or model on one
system. mlpstorage writes the files of each call into DIVISION/ORG/results/SYSTEM/training/MODEL/PHASE/TIME, a *leaf*
in its rules.

The calls in a tree vote for its edition (2.0 or 3.0): by the edition that their metadata name, and by files and keys
that only one edition's tool writes. So a call without metadata is judged by the same edition as the others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeVar

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_all, find_runs
from dlemu.contrib.mlperf.audit.call_records import PHASES, CallRecords, read_call_records, stamp_of
from dlemu.contrib.mlperf.audit.checkpoint_call import CheckpointCall, read_checkpoint_call
from dlemu.contrib.mlperf.audit.kv_call import KvCall, read_kv_call
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.contrib.mlperf.audit.tolerant import folders_in, integer, text
from dlemu.contrib.mlperf.rules.editions import EDITIONS, MEASURED_RUNS, Edition, Reading, edition_rules, newest_edition
from dlemu.contrib.mlperf.rules.known import Finding, by_rule_at
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError

DIVISIONS = ("closed", "open")
TRAINING = "training"
CHECKPOINTING = "checkpointing"
KV_CACHE = "kv_cache"
CATEGORIES = (CHECKPOINTING, "vector_database", KV_CACHE)
"""The benchmarks other than training, by the names of their folders; vector_database is not checked."""
_READERS: Mapping[str, Callable[[str], CallRecords]] = {CHECKPOINTING: read_checkpoint_call, KV_CACHE: read_kv_call}
REHEARSAL = "rehearsal.json"  # record of `dlemu mlperf run` in its folder
_EDITION_KEYS = {
    "3.0": ("invocation_start_time", "system_info", "data_access_protocol", "systemname", "provenance_file"),
    "2.0": ("run_result_output",),
}
"""Edition -> keys of the metadata, or of its `args`, that only this edition's tool writes."""
_V3_FILES = (".mlps-code-image", "fs_separation.json", "provenance.json")  # only v3.0's tool writes them into a call


@dataclass(frozen=True, kw_only=True)
class TrainingCall(CallRecords):
    """One training run, or one datasize or datagen call."""

    run: AuditedRun | None = None
    """The audited training run; None for a folder without one."""

    @property
    def printed(self) -> Printed:
        """The run's summary.json; empty without one."""
        return self.run.printed if self.run else Printed()

    @property
    def num_files(self) -> int | None:
        """Number of training files that the run read, datagen generated or datasize required."""
        files = self.section("dataset").get("num_files_train")  # metadata may have the user's argument, a string
        configured = int(files) if isinstance(files, str) and files.isdecimal() else integer(files)
        return self.printed.num_files or self.setup.num_files or configured

    @property
    def data_folder(self) -> str | None:
        """Folder of the dataset; None if unknown."""
        return text(self.section("dataset").get("data_folder")) or text(self.args.get("data_dir"))


AnyCall = TypeVar("AnyCall", bound=CallRecords, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Result(Generic[AnyCall]):
    """The calls of one workload or model on one system."""

    path: str  # the folder that holds the runs
    benchmark: str  # `training`, or one of CATEGORIES
    edition: Edition
    division: Division
    calls: tuple[AnyCall, ...]  # in order of their phases and names
    phased: bool = True
    """Whether it has mlpstorage's layout, `training/MODEL/{datasize,datagen,run}/TIME`; else it is a single run."""

    @property
    def closed(self) -> bool:
        return self.division == "closed"

    def in_phase(self, phase: str) -> tuple[AnyCall, ...]:
        return tuple(call for call in self.calls if call.phase == phase)

    @property
    def runs(self) -> tuple[AnyCall, ...]:
        """The calls that measured, not those that generated data."""
        return self.in_phase("run")

    @property
    def warm_up(self) -> AnyCall | None:
        """The first run, if there are more runs than a result measures; else None."""
        return self.runs[0] if len(self.runs) > MEASURED_RUNS else None

    @property
    def measured(self) -> tuple[AnyCall, ...]:
        """All runs except the warm-up."""
        return self.runs if self.warm_up is None else self.runs[1:]

    @property
    def workload_folder(self) -> str:
        """`training/MODEL` in mlpstorage's layout, else the folder of the runs."""
        return os.path.dirname(self.path) if self.phased and self.benchmark == TRAINING else self.path

    @property
    def model_folder(self) -> str:
        """Name of the model's folder; empty if none is named after the model, as in a copy of training/MODEL."""
        parent, name = os.path.split(self.workload_folder)
        is_named = self.benchmark != TRAINING or (self.phased and os.path.basename(parent) == TRAINING)
        return name if is_named else ""


TrainingResult = Result[TrainingCall]
CheckpointResult = Result[CheckpointCall]
KvResult = Result[KvCall]
Rules = tuple[Callable[[Result[AnyCall]], Iterator[Finding]], ...]
"""Functions that yield the findings of their rules on one result; a missing fact breaks no rule."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One organisation in one division: DIVISION/ORG."""

    path: str
    edition: Edition
    division: Division

    @property
    def organisation(self) -> str:
        return os.path.basename(self.path)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The results below a folder, in one or more trees."""

    results: tuple[Result[Any], ...]
    editions: Mapping[str, Edition]
    """Tree -> its edition, for each submission tree and each run outside of submissions."""
    findings: tuple[Finding, ...]
    """Findings on runs of benchmarks without rules, and on a folder without any run."""


def find_results(root: str, edition: str | None, division: Division | None, reading: Reading) -> Contents:
    """Return the results below a folder; `edition` and `division`, if given, replace those that the tree shows."""
    workloads, call_folders = _call_folders(root)
    findings = [
        by_rule_at(path, "run.other", f"a run of {benchmark}: not checked")
        for path, benchmark in call_folders
        if benchmark not in _READERS
    ]
    results = [*_training_results(root, workloads, findings), *_other_results(call_folders)]
    if division:
        results = [replace(result, division=division) for result in results]
    if not results and not call_folders:
        findings.append(by_rule_at(root, "tree.empty", "no run of any benchmark below"))
    by_tree: dict[str, list[Result[Any]]] = {}
    for result in results:
        by_tree.setdefault(_tree_of(result, root), []).append(result)
    editions = {tree: _edition_of(in_tree, edition, reading) for tree, in_tree in sorted(by_tree.items())}
    results = [replace(result, edition=editions[_tree_of(result, root)]) for result in results]
    return Contents(results=tuple(results), editions=editions, findings=tuple(findings))


def _call_folders(root: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the folders of training workloads, and (folder, benchmark) of each call of the other benchmarks.

    A workload's folder holds phases, even if none of these has a run that can be audited. The other calls are in
    CATEGORY/.../TIME: `checkpointing/MODEL/TIME`, `kv_cache/MODEL/run/TIME`.
    """
    workloads, call_folders = [], []
    for folder, subfolders, names in os.walk(root):
        if REHEARSAL in names:
            raise UserError(f"{folder} is a rehearsal of dlemu: check it by itself, `dlemu mlperf check {folder}`")
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            call_folders.append((folder, category))
            subfolders.clear()
        elif _holds_phases(folder):
            workloads.append(folder)
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "code")
    return workloads, call_folders


def _training_results(root: str, workloads: Sequence[str], findings: list[Finding]) -> Iterator[TrainingResult]:
    """Yield the results of training, sorted by path; append a finding for each run of an unknown benchmark."""
    paths = [os.path.join(workload, "run") for workload in workloads]
    # (path, phased) of a result -> folder -> audited run; a run that is in no phase is a result of its own.
    audited: dict[tuple[str, bool], dict[str, AuditedRun]] = {(path, True): {} for path in paths}
    for run in audit_all(find_runs([root])):
        if category_of(run.path) is not None:
            continue
        if any(finding.rule == "no.training" and finding.severity == "info" for finding in run.findings):
            findings.append(by_rule_at(run.path, "run.other", "a run of another benchmark: not checked"))
            continue
        parent = os.path.dirname(run.path)
        phased = run.path != root and os.path.basename(parent) == "run" and _holds_phases(os.path.dirname(parent))
        audited.setdefault((parent if phased else run.path, phased), {})[run.path] = run
    for (path, phased), runs in sorted(audited.items()):
        phase_folders = [("run", path)]
        if phased:
            workload = os.path.dirname(path)
            phase_folders = [
                (phase, os.path.join(workload, phase, name))
                for phase in PHASES
                for name in folders_in(os.path.join(workload, phase))
            ]
        calls = []
        for phase, folder in phase_folders:
            audited_run = runs.get(folder)
            setup = audited_run.setup if audited_run else None
            calls.append(TrainingCall(**vars(read_call_records(folder, setup, phase)), run=audited_run))
        yield _without_edition(path, TRAINING, tuple(calls), phased=phased)


def _other_results(call_folders: Sequence[tuple[str, str]]) -> Iterator[Result[Any]]:
    """Yield a result for each folder that holds calls of a benchmark other than training."""
    for benchmark, read in _READERS.items():
        calls_in: dict[str, list[CallRecords]] = {}
        for folder in sorted(folder for folder, category in call_folders if category == benchmark):
            path = os.path.dirname(folder)
            if benchmark == KV_CACHE and os.path.basename(path) in PHASES:
                path = os.path.dirname(path)
            calls_in.setdefault(path, []).append(read(folder))
        for path, calls in sorted(calls_in.items()):
            yield _without_edition(path, benchmark, tuple(calls))


def _without_edition(path: str, benchmark: str, calls: tuple[Any, ...], *, phased: bool = True) -> Result[Any]:
    """Return a result with a provisional edition; `find_results` replaces it, once all calls of its tree have voted."""
    edition = EDITIONS["3.0"]
    division = division_of(path, *(call.metadata.get("verification") for call in calls))
    return Result(path=path, benchmark=benchmark, edition=edition, division=division, calls=calls, phased=phased)


def _holds_phases(folder: str) -> bool:
    """Return whether a folder is training/MODEL, or a copy of one with two phases or more and a run/TIME."""
    phases = set(PHASES).intersection(folders_in(folder))
    if os.path.basename(os.path.dirname(folder)) == TRAINING:
        return bool(phases)
    if len(phases) < 2 or category_of(folder) is not None:
        return False
    return any(stamp_of(name) is not None for name in folders_in(os.path.join(folder, "run")))


def category_of(path: str) -> str | None:
    """Return which of CATEGORIES a path is in; None if it is in none, or in a folder `training` further down."""
    for name in reversed(os.path.abspath(path).split(os.sep)):
        if name == TRAINING:
            return None
        if name in CATEGORIES:
            return name
    return None


def division_index(folders: Sequence[str]) -> int | None:
    """Return the index of the folder that names the division, or None: the one above ORG/results, else the deepest.

    An organisation, or a folder above the tree, may be named closed or open, too.
    """
    indexes = [index for index, name in enumerate(folders) if name.lower() in DIVISIONS]
    above_results = [index for index in indexes if folders[index + 2 : index + 3] == ["results"]]
    return max(above_results or indexes, default=None)


def _tree_of(result: Result[Any], root: str) -> str:
    """Return the folder above a result's division; without one, `root`, or the result's own folder for a single run."""
    folders = os.path.relpath(result.path, root).split(os.sep)
    division = division_index(folders)
    if division is not None:
        return os.path.normpath(os.path.join(root, *folders[:division]))
    return root if result.phased else result.path


def _edition_of(results: Sequence[Result[Any]], requested: str | None, reading: Reading) -> Edition:
    """Return the edition of a tree with these results: the one requested, or else the one with most votes."""
    votes: Counter[str] = Counter()
    for call in chain.from_iterable(result.calls for result in results):
        for edition, weight in _votes(call):
            votes[edition] += weight
    default = "3.0" if any(result.phased for result in results) else "2.0"
    elected = max(votes, key=lambda edition: (votes[edition], edition), default=default)
    return edition_rules(requested or elected, reading)


def _votes(call: CallRecords) -> Iterator[tuple[str, int]]:
    """Yield (edition, weight): the edition named in the metadata weighs most, that of the workload least."""
    named = _named_edition(call)
    if named in EDITIONS:
        yield named, 3
    for edition, keys in _EDITION_KEYS.items():
        if any(key in call.metadata or key in call.args for key in keys):
            yield edition, 2
    for name in _V3_FILES:
        if name in call.files:
            yield "3.0", 2
    newest = newest_edition(call.setup.workload or "", call.setup.accelerator or "")
    if newest is not None:
        yield newest.name, 1


def _named_edition(call: CallRecords) -> str:
    """Return the edition that the metadata name; empty if they name none."""
    return text(call.metadata.get("rules_edition")) or text(call.metadata.get("edition")) or ""


def other_editions(result: Result[Any]) -> Iterator[Finding]:
    """Report the calls whose metadata name an edition other than their tree's."""
    for call in result.calls:
        named = _named_edition(call)
        if named and named != result.edition.name:
            seen = f"the metadata name edition {named}, the whole tree was judged to be {result.edition.name}"
            yield by_rule_at(call.path, "edition.differs", seen)


def submissions(root: str, edition: Edition, division: Division | None) -> list[Submission]:
    """Return every DIVISION/ORG in a tree; `root` may also be the folder of a division or of an organisation."""
    parent, name = os.path.split(root)
    if os.path.basename(parent).lower() in DIVISIONS and {"results", "systems"}.intersection(folders_in(root)):
        folders = [root]
    else:
        divisions = [root] if name.lower() in DIVISIONS else [os.path.join(root, name) for name in folders_in(root)]
        divisions = [folder for folder in divisions if os.path.basename(folder).lower() in DIVISIONS]
        folders = [os.path.join(folder, name) for folder in divisions for name in folders_in(folder)]
    return [
        Submission(path=folder, division=division or division_of(os.path.dirname(folder)), edition=edition)
        for folder in folders
    ]


def division_of(folder: str, *in_metadata: object) -> Division:
    """Return the division that the path names, or else the metadata; default: CLOSED, with the stricter rules."""
    folders = folder.split(os.sep)
    index = division_index(folders)
    names = in_metadata if index is None else (folders[index],)
    return "open" if any(str(name).lower().rpartition(".")[2] == "open" for name in names) else "closed"

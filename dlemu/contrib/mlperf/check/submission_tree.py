"""Finds the submissions, results and runs below a folder, in mlpstorage's layout or none.

A *result* is the runs of one workload on one system. A *submission* is one organisation's folder in one division. In
the layout of mlpstorage they are DIVISION/ORG/results/SYSTEM/training/MODEL/PHASE/TIME.

Every leaf (folder of one call) votes for the edition (2.0, 3.0) of its whole tree: by what its metadata name, and by
files and keys that only one edition's tool writes. So a leaf without metadata is judged like the rest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.checkpoint_leaf import CheckpointLeaf, read_checkpoint_leaf
from dlemu.contrib.mlperf.audit.kv_leaf import KvLeaf, read_kv_leaf
from dlemu.contrib.mlperf.audit.papers import Papers, read_papers, stamp_of
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.contrib.mlperf.audit.tolerant import count, moment, text
from dlemu.contrib.mlperf.rules.checkpoints import OfficialModel, official_model
from dlemu.contrib.mlperf.rules.editions import EDITIONS, MEASURED_RUNS, Edition, Reading, edition_read, newest_edition
from dlemu.contrib.mlperf.rules.known import Located, by_rule_at
from dlemu.contrib.mlperf.rules.training import Division

DIVISIONS = ("closed", "open")
_EDITION_KEYS = {
    "3.0": ("invocation_start_time", "system_info", "data_access_protocol", "systemname", "provenance_file"),
    "2.0": ("run_result_output",),
}
"""Edition -> keys of the metadata, or of its `args`, that only this edition's tool writes."""
_V3_FILES = (".mlps-code-image", "fs_separation.json", "provenance.json")
"""Files of a leaf that only v3.0's tool writes."""


def division_place(folders: Sequence[str]) -> int | None:
    """Return which folder of a path names the division: the one above ORG/results, else the deepest of such a name.

    Folders above the tree, and an organisation, may be called closed or open, too.
    """
    places = [index for index, name in enumerate(folders) if name.lower() in DIVISIONS]
    return max(places, key=lambda index: (folders[index + 2 : index + 3] == ["results"], index), default=None)


def scope_of(path: str, root: str, *, loose: bool) -> str:
    """Return the tree that a result belongs to: the folder above its division, or else `root`.

    A result outside any known layout (`loose`) and in no division is a tree of its own.
    """
    inside = os.path.relpath(path, root).split(os.sep)
    place = division_place(inside)
    if place is not None:
        return os.path.normpath(os.path.join(root, *inside[:place]))
    return path if loose else root


def tree_edition(leaves: Sequence[Papers], reading: Reading, *, named: str | None, phased: bool) -> Edition:
    """Return the edition of the tree with these leaves; `named`, the user's choice, overrides their votes."""
    votes: Counter[str] = Counter()
    for leaf in leaves:
        for edition, weight in _votes(leaf):
            votes[edition] += weight
    best = max(votes, key=lambda edition: (votes[edition], edition), default="3.0" if phased else "2.0")
    return edition_read(named or best, reading)


def _votes(leaf: Papers) -> Iterator[tuple[str, int]]:
    """Yield (edition, weight): most for the edition that is named, least for the newest with this workload."""
    stated = stated_edition(leaf.metadata)
    if stated in EDITIONS:
        yield stated, 3
    keys = {*leaf.metadata, *leaf.args}
    yield from ((edition, 2) for edition, signs in _EDITION_KEYS.items() if keys.intersection(signs))
    yield from (("3.0", 2) for name in _V3_FILES if name in leaf.files)
    newest = newest_edition(leaf.setup.workload or "", leaf.setup.accelerator or "")
    if newest is not None:
        yield newest.name, 1


def stated_edition(metadata: Mapping[str, Any]) -> str:
    """Return the edition that the metadata name; empty when they name none."""
    return text(metadata.get("rules_edition")) or text(metadata.get("edition")) or ""


def other_editions(leaves: Iterable[Papers], edition: Edition) -> Iterator[Located]:
    """Yield the leaves whose metadata name another edition than their tree's."""
    for leaf in leaves:
        stated = stated_edition(leaf.metadata)
        if stated and stated != edition.name:
            seen = f"the metadata name edition {stated}, the whole tree was judged to be {edition.name}"
            yield by_rule_at(leaf.path, "edition.differs", seen)


PHASES = ("datasize", "datagen", "run")
CATEGORIES = CHECKPOINTING, VECTOR_DATABASE, KV_CACHE = ("checkpointing", "vector_database", "kv_cache")
"""The benchmarks other than training, by the names of their folders; vector_database is not checked."""


@dataclass(frozen=True, kw_only=True)
class Leaf(Papers):
    """One training run, or one datasize or datagen call."""

    run: AuditedRun | None = None
    """The audited training run; None when the folder holds none."""

    @property
    def printed(self) -> Printed:
        """The run's summary.json; empty without one."""
        return self.run.printed if self.run else Printed()

    @property
    def began(self) -> datetime | None:
        """Start time by summary.json."""
        return moment(self.printed.start)

    @property
    def ended(self) -> datetime | None:
        """End time by summary.json."""
        return moment(self.printed.end)

    @property
    def num_files(self) -> int | None:
        """Number of training files that the run read, datagen generated or datasize required."""
        configured = self.section("dataset").get("num_files_train")
        return self.printed.num_files or self.setup.num_files or _whole_number(configured)

    @property
    def data_folder(self) -> str | None:
        """Folder of the dataset; None when unknown."""
        return text(self.section("dataset").get("data_folder")) or text(self.args.get("data_dir"))


def _whole_number(value: Any) -> int | None:
    """Return a whole number, also from text: the metadata keep overrides as they were typed."""
    return int(value) if isinstance(value, str) and value.isdecimal() else count(value)


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What all results and submissions have."""

    path: str
    edition: Edition
    division: Division

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"


@dataclass(frozen=True, kw_only=True)
class Result(_Judged):
    """The runs of one workload on one system; `path` is the folder that holds the runs."""

    phased: bool
    """Whether it has mlpstorage's layout, `training/MODEL/{datasize,datagen,run}/TIME`; else it is one run alone, and
    the other runs of its result are unknown."""
    runs: tuple[Leaf, ...]
    """Sorted by name."""
    datasize: tuple[Leaf, ...] = ()
    datagen: tuple[Leaf, ...] = ()

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Its runs, and the calls of its other phases."""
        return (*self.runs, *self.datagen, *self.datasize)

    @property
    def workload_folder(self) -> str:
        """`training/MODEL` in mlpstorage's layout, else the folder of the runs."""
        return os.path.dirname(self.path) if self.phased else self.path

    @property
    def warm_up(self) -> Leaf | None:
        """The first run, if there are more runs than the measured ones."""
        return self.runs[0] if len(self.runs) > MEASURED_RUNS else None

    @property
    def measured(self) -> tuple[Leaf, ...]:
        """All runs except the warm-up."""
        return self.runs if self.warm_up is None else self.runs[1:]


@dataclass(frozen=True, kw_only=True)
class CheckpointResult(_Judged):
    """The calls of one model on one system: usually one that writes and one that reads checkpoints."""

    leaves: tuple[CheckpointLeaf, ...]
    """Sorted by name, that is by time."""

    @property
    def runs(self) -> tuple[CheckpointLeaf, ...]:
        """The calls that measured: all."""
        return self.leaves

    @cached_property
    def model(self) -> OfficialModel | None:
        """The official model; None for any other."""
        first = self.leaves[0]
        stated = text(first.metadata.get("model")) or text(first.args.get("model"))
        return official_model(stated or os.path.basename(self.path) or text(first.section("model").get("name")))


@dataclass(frozen=True, kw_only=True)
class KvResult(_Judged):
    """The runs of one kv_cache model on one system."""

    leaves: tuple[KvLeaf, ...]
    """Sorted by name, that is by time."""

    @property
    def model(self) -> str:
        """The model, by the name of its folder."""
        return os.path.basename(self.path)

    @property
    def runs(self) -> list[KvLeaf]:
        """The calls that measured."""
        return [leaf for leaf in self.leaves if phase_of(leaf.path) == "run"]


AnyResult = Result | CheckpointResult | KvResult
"""A result of any benchmark."""


@dataclass(frozen=True, kw_only=True)
class Submission(_Judged):
    """One organisation in one division: DIVISION/ORG."""

    organisation: str


Rule = Callable[[Result], Iterator[Located]]
"""Yields what a result breaks. What is unknown breaks nothing."""


class Finder:
    """Groups the runs of a tree into results, for the edition and division that the user names."""

    def __init__(self, root: str, edition: str | None, division: Division | None) -> None:
        self._root, self._division = os.path.normpath(root), division
        self._edition = EDITIONS[edition or "3.0"]  # replaced once the edition of the whole tree is known
        self.others: list[Located] = []
        """Runs of benchmarks that have no rules here."""

    def results(self, runs: Sequence[AuditedRun]) -> list[Result]:
        """Return the results of training sorted by path, including those without any run that could be audited."""
        groups: dict[tuple[str, bool], dict[str, AuditedRun]] = {(folder, True): {} for folder in self._phase_folders()}
        for run in runs:
            if category_of(run.path) is not None:
                continue  # found by `other_leaves`
            if any(finding.rule == "no.training" and finding.severity == "info" for finding in run.findings):
                self.others.append(by_rule_at(run.path, "run.other", "a run of another benchmark: not checked"))
                continue
            parent = os.path.dirname(run.path)
            is_phased = (
                run.path != self._root and os.path.basename(parent) == "run" and _holds_phases(os.path.dirname(parent))
            )
            groups.setdefault((parent if is_phased else run.path, is_phased), {})[run.path] = run
        return [self._result(folder, phased, below) for (folder, phased), below in sorted(groups.items())]

    def checkpoints(self, paths: Sequence[str]) -> list[CheckpointResult]:
        """Group checkpointing calls into results, one for each folder that holds calls."""
        groups: dict[str, list[CheckpointLeaf]] = {}
        for path in sorted(paths):
            groups.setdefault(os.path.dirname(path), []).append(read_checkpoint_leaf(path))
        return [
            CheckpointResult(
                path=path,
                edition=self._edition,
                division=self._division or division_of(path, *(leaf.metadata.get("verification") for leaf in calls)),
                leaves=tuple(calls),
            )
            for path, calls in sorted(groups.items())
        ]

    def kv_results(self, paths: Sequence[str]) -> list[KvResult]:
        """Group the calls of kv_cache into results."""
        groups: dict[str, list[str]] = {}
        for path in sorted(paths):
            parent = os.path.dirname(path)
            groups.setdefault(os.path.dirname(parent) if os.path.basename(parent) in PHASES else parent, []).append(
                path
            )
        return [
            KvResult(
                path=folder,
                edition=self._edition,
                division=self._division or division_of(folder),
                leaves=tuple(map(read_kv_leaf, below)),
            )
            for folder, below in sorted(groups.items())
        ]

    def _phase_folders(self) -> list[str]:
        """Return every folder training/MODEL/run, whether or not it holds a run that can be audited."""
        folders = []
        for folder, below, _ in os.walk(self._root):
            below[:] = [name for name in below if not name.startswith(".") and name != "code"]
            if _holds_phases(folder):
                folders.append(os.path.join(folder, "run"))
                below[:] = []
        return folders

    def _result(self, folder: str, phased: bool, audited: Mapping[str, AuditedRun]) -> Result:
        def leaves(parent: str) -> tuple[Leaf, ...]:
            return tuple(_leaf(os.path.join(parent, name), audited) for name in folders_in(parent))

        phases = os.path.dirname(folder)
        return Result(
            path=folder,
            edition=self._edition,
            division=self._division or division_of(folder),
            phased=phased,
            runs=leaves(folder) if phased else (_leaf(folder, audited),),
            datasize=leaves(os.path.join(phases, "datasize")) if phased else (),
            datagen=leaves(os.path.join(phases, "datagen")) if phased else (),
        )


def _leaf(path: str, audited: Mapping[str, AuditedRun]) -> Leaf:
    run = audited.get(path)
    return Leaf(**vars(read_papers(path, run.setup if run else None)), run=run)


def _holds_phases(folder: str) -> bool:
    """Return whether a folder is training/MODEL, or a copy of one outside `training` that has kept its phases."""
    phases = set(PHASES).intersection(folders_in(folder))
    if os.path.basename(os.path.dirname(folder)) == "training":
        return bool(phases)
    runs = folders_in(os.path.join(folder, "run")) if len(phases) > 1 and category_of(folder) is None else ()
    return any(stamp_of(name) is not None for name in runs)


def category_of(path: str) -> str | None:
    """Return the benchmark that the deepest matching folder of a path names; None for training, and without any."""
    names = reversed(os.path.abspath(path).split(os.sep))
    category = next((name for name in names if name in (*CATEGORIES, "training")), "training")
    return category if category in CATEGORIES else None


def entries_of(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sorted names of a folder's files and of its subfolders; nothing if it can't be listed."""
    try:
        with os.scandir(path) as entries:
            listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError:
        return (), ()
    return tuple(name for name, folder in listed if not folder), tuple(name for name, folder in listed if folder)


def folders_in(folder: str) -> list[str]:
    """Return the sorted names of a folder's subfolders, except hidden ones."""
    return [name for name in entries_of(folder)[1] if not name.startswith(".")]


def other_leaves(root: str) -> dict[str, list[str]]:
    """Return benchmark -> the folders of its calls, for those other than training.

    A call is found by its folder `CATEGORY/.../TIME`: `checkpointing/MODEL/TIME`, `kv_cache/MODEL/run/TIME`.
    """
    leaves: dict[str, list[str]] = {}
    for folder, below, _ in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            leaves.setdefault(category, []).append(folder)
            below[:] = []
    return leaves


def phase_of(path: str) -> str:
    """Return the phase by the folder above a call's folder; `run` where that names none."""
    above = os.path.basename(os.path.dirname(path))
    return above if above in PHASES else "run"


def submissions(root: str, edition: Edition, division: Division | None) -> list[Submission]:
    """Return every DIVISION/ORG of a tree; the root may itself be a division's or an organisation's folder."""
    known, above = os.path.basename(root).lower(), os.path.basename(os.path.dirname(root)).lower()
    if above in DIVISIONS and {"results", "systems"}.intersection(entries_of(root)[1]):
        folders = [root]
    else:
        divisions = [root] if known in DIVISIONS else [os.path.join(root, name) for name in folders_in(root)]
        folders = [
            os.path.join(folder, name)
            for folder in divisions
            if os.path.basename(folder).lower() in DIVISIONS
            for name in folders_in(folder)
        ]
    return [
        Submission(
            path=folder,
            division=division or division_of(os.path.dirname(folder)),
            organisation=os.path.basename(folder),
            edition=edition,
        )
        for folder in folders
    ]


def division_of(folder: str, *stated: object) -> Division:
    """Return the division named by the path, or else by the metadata; else CLOSED, which has the stricter rules."""
    folders = folder.split(os.sep)
    place = division_place(folders)
    named = stated if place is None else (folders[place],)
    return "open" if any(str(each).lower() == "open" for each in named) else "closed"


def runs_differ(path: str, rule: str, compared: Mapping[str, Iterable[object]]) -> Iterator[Located]:
    """Report each value that differs between the runs or calls of a result; None is unknown."""
    for what, values in compared.items():
        different = sorted({str(value) for value in values if value is not None})
        if len(different) > 1:
            yield by_rule_at(path, rule, f"{what}: {' and '.join(different[:3])}")

"""Finds the submissions, results and runs below a folder, in mlpstorage's layout or none.

A *leaf* is the folder of one run, or of one call of another phase (datasize, datagen). A *result* is the runs of one
workload on one system. A *submission* is one organisation's folder in one division. In the layout of mlpstorage they
are DIVISION/ORG/results/SYSTEM/training/MODEL/PHASE/TIME.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.checkpoint_leaf import CheckpointLeaf, read_checkpoint_leaf
from dlemu.contrib.mlperf.audit.kv_leaf import KvLeaf, read_kv_leaf
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup, read_setup
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, moment, read_json, text
from dlemu.contrib.mlperf.audit.vector_leaf import VectorLeaf, read_vector_leaf
from dlemu.contrib.mlperf.check.tree_edition import DIVISIONS, division_place
from dlemu.contrib.mlperf.rules.checkpoints import OfficialModel, official_model
from dlemu.contrib.mlperf.rules.editions import EDITIONS, MEASURED_RUNS, Edition
from dlemu.contrib.mlperf.rules.known import by_rule_at
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.results.finding import Finding, Located

METADATA = "_metadata.json"
SEPARATION = "fs_separation.json"
"""mlpstorage v3.0's record of whether data and results share a file system."""
STAMP_FORMAT = "%Y%m%d_%H%M%S"
"""How mlpstorage names the folder of a call: the time when it began."""
PHASES = ("datasize", "datagen", "run")
CATEGORIES = CHECKPOINTING, VECTOR_DATABASE, KV_CACHE = ("checkpointing", "vector_database", "kv_cache")
"""The benchmarks other than training, by the names of their folders."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """The folder of one training run, or of one datasize or datagen call."""

    path: str
    name: str
    """Name of the folder: a time stamp such as `20251121_134501`."""
    stamp: datetime | None
    """The time in `name`; None when that is not a time stamp."""
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    """Content of mlpstorage's `*_metadata.json`; None when it is missing or can't be read."""
    setup: Setup = field(default_factory=Setup)
    """Its configuration; empty without one."""
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

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the workload from config.yaml, or else from the metadata."""
        config = mapping(mapping(self.setup.config).get(name))
        return config or mapping(mapping(mapping(self.metadata).get("parameters")).get(name))

    @property
    def num_files(self) -> int | None:
        """Number of training files that the run read, datagen generated or datasize required."""
        configured = self.section("dataset").get("num_files_train")
        return self.printed.num_files or self.setup.num_files or _whole_number(configured)

    @property
    def data_folder(self) -> str | None:
        """Folder of the dataset; None when unknown."""
        return text(self.section("dataset").get("data_folder")) or text(self.argument("data_dir"))

    def argument(self, name: str) -> Any:
        """Return an argument of mlpstorage's command line from the metadata; None when it isn't there."""
        return mapping(mapping(self.metadata).get("args")).get(name)


def _whole_number(value: Any) -> int | None:
    """Return a whole number, also from text: the metadata keep overrides as they were typed."""
    return int(value) if isinstance(value, str) and value.isdecimal() else count(value)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The runs of one workload on one system."""

    path: str
    """The folder that holds the runs."""
    edition: Edition
    division: Division
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


@dataclass(frozen=True)
class CheckpointResult:
    """The calls of one model on one system: usually one that writes and one that reads checkpoints."""

    path: str
    edition: Edition
    division: Division
    leaves: tuple[CheckpointLeaf, ...]
    """Sorted by name, that is by time."""

    @cached_property
    def model(self) -> OfficialModel | None:
        """The official model; None for any other."""
        first = self.leaves[0]
        stated = text(first.metadata.get("model")) or text(mapping(first.metadata.get("args")).get("model"))
        return official_model(stated or os.path.basename(self.path) or text(first.settings("model").get("name")))

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"

    @property
    def strict(self) -> bool:
        """Whether the edition's own checker checks the tree's layout and files."""
        return self.edition.checks_tree


@dataclass(frozen=True, kw_only=True)
class OtherResult:
    """The runs of one kv_cache model, or of one index of a vector database, on one system."""

    path: str
    category: str
    edition: Edition
    division: Division
    leaves: tuple[KvLeaf | VectorLeaf, ...]
    """Sorted by name, that is by time."""

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"

    @property
    def model(self) -> str:
        """The model (kv_cache) or index (vector_database), by the name of its folder."""
        return os.path.basename(self.path)

    def phase(self, name: str) -> list[KvLeaf | VectorLeaf]:
        """Return the calls of a phase."""
        return [leaf for leaf in self.leaves if phase_of(leaf.path) == name]


AnyResult = Result | CheckpointResult | OtherResult
"""A result of any benchmark."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One organisation in one division: DIVISION/ORG."""

    path: str
    division: Division
    organisation: str
    edition: Edition


Rule = Callable[[Result], Iterator[Located]]
"""Yields what a result breaks. What is unknown breaks nothing."""


class Finder:
    """Groups the audited runs of a tree into results. Files that can't be read become findings."""

    def __init__(self, root: str, edition: str | None, division: Division | None) -> None:
        self._root, self._edition, self._division = os.path.normpath(root), edition, division
        self.findings: list[Located] = []

    def results(self, runs: Sequence[AuditedRun]) -> list[Result]:
        """Return the results sorted by path, including those without any run that could be audited."""
        groups: dict[tuple[str, bool], dict[str, AuditedRun]] = {(folder, True): {} for folder in self._phase_folders()}
        for run in runs:
            if self._is_covered(run):
                parent = os.path.dirname(run.path)
                is_phased = (
                    run.path != self._root
                    and os.path.basename(parent) == "run"
                    and _holds_phases(os.path.dirname(parent))
                )
                groups.setdefault((parent if is_phased else run.path, is_phased), {})[run.path] = run
        return [self._result(folder, phased, below) for (folder, phased), below in sorted(groups.items())]

    def _is_covered(self, run: AuditedRun) -> bool:
        """Return whether it is a training run; runs of benchmarks without rules here become a finding."""
        if category_of(run.path) is not None:
            return False  # found by `other_leaves`
        other = any(finding.rule == "no.training" and finding.severity == "info" for finding in run.findings)
        if other:
            self.findings.append(by_rule_at(run.path, "run.other", "a run of another benchmark: not checked"))
        return not other

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
        paths = [os.path.join(folder, name) for name in folders_in(folder)] if phased else [folder]
        phases = os.path.dirname(folder)
        return Result(
            path=folder,
            edition=EDITIONS[self._edition or "3.0"],  # replaced once the edition of the whole tree is known
            division=self._division or division_of(folder),
            phased=phased,
            runs=tuple(self._leaf(path, audited.get(path)) for path in paths),
            datasize=self._phase(phases, "datasize") if phased else (),
            datagen=self._phase(phases, "datagen") if phased else (),
        )

    def _phase(self, workload: str, name: str) -> tuple[Leaf, ...]:
        folder = os.path.join(workload, name)
        return tuple(self._leaf(os.path.join(folder, below), None) for below in folders_in(folder))

    def _leaf(self, path: str, run: AuditedRun | None) -> Leaf:
        files, folders = entries_of(path)
        name = os.path.basename(path)
        return Leaf(
            path=path,
            name=name,
            stamp=stamp_of(name),
            files=files,
            folders=folders,
            metadata=self._metadata(path, files),
            setup=run.setup if run else self._setup(path),
            run=run,
        )

    def _setup(self, path: str) -> Setup:
        """Return the settings of a folder without a run, such as a datagen call's."""
        broken: list[Finding] = []
        setup = read_setup(path, {}, broken)
        self.findings += [Located(path, finding) for finding in broken]
        return setup

    def _metadata(self, path: str, files: Sequence[str]) -> Mapping[str, Any] | None:
        for name in files:
            if name.endswith(METADATA):
                broken: list[Finding] = []
                content = read_json(os.path.join(path, name), broken)
                self.findings += [Located(path, finding) for finding in broken]
                return content if isinstance(content, Mapping) else None
        return None


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


def stamp_of(name: str) -> datetime | None:
    """Return the time in the name of one of mlpstorage's folders; None for any other name."""
    try:
        return datetime.strptime(name, STAMP_FORMAT)
    except ValueError:
        return None


def other_leaves(root: str) -> dict[str, list[str]]:
    """Return benchmark -> the folders of its calls, for those other than training.

    A call is found by its folder `CATEGORY/.../TIME`: `checkpointing/MODEL/TIME`, `kv_cache/MODEL/run/TIME`,
    `vector_database/ENGINE/INDEX/{datasize,datagen,run}/TIME`.
    """
    leaves: dict[str, list[str]] = {}
    for folder, below, _ in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            leaves.setdefault(category, []).append(folder)
            below[:] = []
    return leaves


def checkpoint_results(paths: Sequence[str], edition: str | None, division: Division | None) -> list[CheckpointResult]:
    """Group the checkpointing calls below a tree into results, one for each folder that holds calls."""
    groups: dict[str, list[CheckpointLeaf]] = {}
    for path in paths:
        groups.setdefault(os.path.dirname(path), []).append(read_checkpoint_leaf(path))
    return [
        CheckpointResult(
            path=path,
            edition=EDITIONS[edition or "3.0"],  # replaced once the edition of the whole tree is known
            division=division or division_of(path, *(leaf.metadata.get("verification") for leaf in calls)),
            leaves=tuple(sorted(calls, key=lambda leaf: leaf.name)),
        )
        for path, calls in sorted(groups.items())
    ]


def phase_of(path: str) -> str:
    """Return the phase by the folder above a call's folder; `run` where that names none."""
    above = os.path.basename(os.path.dirname(path))
    return above if above in PHASES else "run"


def other_results(
    found: Mapping[str, Sequence[str]], edition: str | None, division: Division | None
) -> list[OtherResult]:
    """Group the calls of kv_cache and vector_database into results."""
    groups: dict[tuple[str, str], list[str]] = {}
    for category in (KV_CACHE, VECTOR_DATABASE):
        for path in found.get(category, ()):
            parent = os.path.dirname(path)
            folder = os.path.dirname(parent) if os.path.basename(parent) in PHASES else parent
            groups.setdefault((folder, category), []).append(path)
    return [
        OtherResult(
            path=folder,
            category=category,
            edition=EDITIONS[edition or "3.0"],  # replaced once the edition of the whole tree is known
            division=division or division_of(folder),
            leaves=tuple((read_kv_leaf if category == KV_CACHE else read_vector_leaf)(path) for path in paths),
        )
        for (folder, category), paths in sorted(groups.items())
    ]


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

"""Finds the submissions, results and runs below a folder, in mlpstorage's layout or none.

A *result* is the calls of one workload or model on one system. A *submission* is one organisation's folder in one
division. In the layout of mlpstorage they are DIVISION/ORG/results/SYSTEM/training/MODEL/PHASE/TIME.

Every leaf (folder of one call) votes for the edition (2.0, 3.0) of its whole tree: by what its metadata name, and by
files and keys that only one edition's tool writes. So a leaf without metadata is judged like the rest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_all, find_runs
from dlemu.contrib.mlperf.audit.checkpoint_leaf import CheckpointLeaf, read_checkpoint_leaf
from dlemu.contrib.mlperf.audit.kv_leaf import KvLeaf, read_kv_leaf
from dlemu.contrib.mlperf.audit.papers import PHASES, Papers, read_papers, stamp_of
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.contrib.mlperf.audit.tolerant import folders_in, integer, text
from dlemu.contrib.mlperf.rules.editions import EDITIONS, MEASURED_RUNS, Edition, Reading, edition_read, newest_edition
from dlemu.contrib.mlperf.rules.known import Finding, by_rule_at
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError

DIVISIONS = ("closed", "open")
TRAINING, CHECKPOINTING, KV_CACHE = "training", "checkpointing", "kv_cache"
CATEGORIES = (CHECKPOINTING, "vector_database", KV_CACHE)
"""The benchmarks other than training, by the names of their folders; vector_database is not checked."""
REHEARSAL = "rehearsal.json"
_EDITION_KEYS = {
    "3.0": ("invocation_start_time", "system_info", "data_access_protocol", "systemname", "provenance_file"),
    "2.0": ("run_result_output",),
}
"""Edition -> keys of the metadata, or of its `args`, that only this edition's tool writes."""
_V3_FILES = (".mlps-code-image", "fs_separation.json", "provenance.json")
"""Files of a leaf that only v3.0's tool writes."""


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
    def num_files(self) -> int | None:
        """Number of training files that the run read, datagen generated or datasize required."""
        files = self.section("dataset").get("num_files_train")
        configured = int(files) if isinstance(files, str) and files.isdecimal() else integer(files)  # text: as typed
        return self.printed.num_files or self.setup.num_files or configured

    @property
    def data_folder(self) -> str | None:
        """Folder of the dataset; None when unknown."""
        return text(self.section("dataset").get("data_folder")) or text(self.args.get("data_dir"))


AnyLeaf = TypeVar("AnyLeaf", bound=Papers, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Result(Generic[AnyLeaf]):
    """The calls of one workload or model on one system; `path` is the folder that holds its runs."""

    path: str
    benchmark: str
    """`training`, or one of CATEGORIES."""
    edition: Edition
    division: Division
    leaves: tuple[AnyLeaf, ...]
    """In the order of their phases, and of their names."""
    phased: bool = True
    """Whether it has mlpstorage's layout, `training/MODEL/{datasize,datagen,run}/TIME`; else it is one run alone."""

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"

    def of(self, phase: str) -> tuple[AnyLeaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.phase == phase)

    @property
    def runs(self) -> tuple[AnyLeaf, ...]:
        """The calls that measured."""
        return self.of("run")

    @property
    def warm_up(self) -> AnyLeaf | None:
        """The first run of training, if there are more runs than the measured ones."""
        return self.runs[0] if len(self.runs) > MEASURED_RUNS else None

    @property
    def measured(self) -> tuple[AnyLeaf, ...]:
        """All runs except the warm-up."""
        return self.runs if self.warm_up is None else self.runs[1:]

    @property
    def workload_folder(self) -> str:
        """`training/MODEL` in mlpstorage's layout, else the folder of the runs."""
        return os.path.dirname(self.path) if self.phased and self.benchmark == TRAINING else self.path

    @property
    def model_folder(self) -> str:
        """The model, by the name of its folder; empty where the layout has none, as in a copy of any name."""
        above, name = os.path.split(self.workload_folder)
        is_named = self.benchmark != TRAINING or (self.phased and os.path.basename(above) == TRAINING)
        return name if is_named else ""


CheckpointResult = Result[CheckpointLeaf]
KvResult = Result[KvLeaf]
Rule = Callable[[Result[Leaf]], Iterator[Finding]]
"""Yields what a result of training breaks. What is unknown breaks nothing."""


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
class Found:
    results: tuple[Result[Any], ...]
    editions: Mapping[str, Edition]
    """Tree -> its edition: of each submission tree, and of runs outside any submission."""
    others: tuple[Finding, ...]
    """Runs that there are no rules for, and trees without any run."""


def find_results(root: str, edition: str | None, division: Division | None, reading: Reading) -> Found:
    """Group the calls below a folder into results, for the edition and division that the user names, if any."""
    workloads, calls = _call_folders(root)
    others = [
        by_rule_at(path, "run.other", f"a run of {benchmark}: not checked")
        for path, benchmark in calls
        if benchmark not in _READ
    ]
    drafts = [*_training_results(root, workloads, others), *_other_results(calls)]
    if division:
        drafts = [replace(draft, division=division) for draft in drafts]
    if not drafts and not calls:
        others.append(by_rule_at(root, "tree.empty", "no run of any benchmark below"))
    trees: dict[str, list[Result[Any]]] = {}
    for draft in drafts:
        trees.setdefault(_tree_of(draft, root), []).append(draft)
    editions = {tree: _edition_of(of_tree, edition, reading) for tree, of_tree in sorted(trees.items())}
    results = tuple(replace(draft, edition=editions[_tree_of(draft, root)]) for draft in drafts)
    return Found(results=results, editions=editions, others=tuple(others))


def _call_folders(root: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return every folder of a workload of training, and (folder, benchmark) of each call of another benchmark.

    The former hold phases, whether or not these hold a run that can be audited. The latter are CATEGORY/.../TIME:
    `checkpointing/MODEL/TIME`, `kv_cache/MODEL/run/TIME`.
    """
    workloads, calls = [], []
    for folder, subfolders, names in os.walk(root):
        if REHEARSAL in names:
            raise UserError(f"{folder} is a rehearsal of dlemu: check it by itself, `dlemu mlperf check {folder}`")
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            calls.append((folder, category))
            subfolders.clear()
        elif _holds_phases(folder):
            workloads.append(folder)
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "code")
    return workloads, calls


def _training_results(root: str, workloads: Sequence[str], others: list[Finding]) -> Iterator[Result[Leaf]]:
    """Yield the results of training by path; a run of a benchmark that no folder names goes to `others`."""
    paths = [os.path.join(workload, "run") for workload in workloads]
    audited: dict[tuple[str, bool], dict[str, AuditedRun]] = {(path, True): {} for path in paths}
    for run in audit_all(find_runs([root])):
        if category_of(run.path) is not None:
            continue
        if any(finding.rule == "no.training" and finding.severity == "info" for finding in run.findings):
            others.append(by_rule_at(run.path, "run.other", "a run of another benchmark: not checked"))
            continue
        parent = os.path.dirname(run.path)
        phased = run.path != root and os.path.basename(parent) == "run" and _holds_phases(os.path.dirname(parent))
        audited.setdefault((parent if phased else run.path, phased), {})[run.path] = run
    for (path, phased), runs in sorted(audited.items()):
        calls = [("run", path)]
        if phased:
            workload = os.path.dirname(path)
            names = [(phase, name) for phase in PHASES for name in folders_in(os.path.join(workload, phase))]
            calls = [(phase, os.path.join(workload, phase, name)) for phase, name in names]
        leaves = []
        for phase, folder in calls:
            found = runs.get(folder)
            leaves.append(Leaf(**vars(read_papers(folder, found.setup if found else None, phase)), run=found))
        yield _draft(path, TRAINING, tuple(leaves), phased=phased)


_READ: Mapping[str, Callable[[str], Papers]] = {CHECKPOINTING: read_checkpoint_leaf, KV_CACHE: read_kv_leaf}


def _other_results(calls: Sequence[tuple[str, str]]) -> Iterator[Result[Any]]:
    """Yield a result for each folder that holds calls of a benchmark other than training."""
    for benchmark, read in _READ.items():
        leaves_in: dict[str, list[Papers]] = {}
        for folder in sorted(folder for folder, category in calls if category == benchmark):
            path = os.path.dirname(folder)
            if benchmark == KV_CACHE and os.path.basename(path) in PHASES:
                path = os.path.dirname(path)
            leaves_in.setdefault(path, []).append(read(folder))
        for path, leaves in sorted(leaves_in.items()):
            divisions = [leaf.metadata.get("verification") for leaf in leaves] if benchmark == CHECKPOINTING else []
            yield _draft(path, benchmark, tuple(leaves), divisions)


def _draft(
    path: str, benchmark: str, leaves: tuple[Any, ...], divisions: Sequence[object] = (), phased: bool = True
) -> Result[Any]:
    """Return a result of an edition that is replaced once all leaves of its tree are known."""
    division, edition = division_of(path, *divisions), EDITIONS["3.0"]
    return Result(path=path, benchmark=benchmark, edition=edition, division=division, leaves=leaves, phased=phased)


def _holds_phases(folder: str) -> bool:
    """Return whether a folder is training/MODEL, or a copy of one outside `training` that has kept its phases."""
    phases = set(PHASES).intersection(folders_in(folder))
    if os.path.basename(os.path.dirname(folder)) == TRAINING:
        return bool(phases)
    if len(phases) < 2 or category_of(folder) is not None:
        return False
    return any(stamp_of(name) is not None for name in folders_in(os.path.join(folder, "run")))


def category_of(path: str) -> str | None:
    """Return the benchmark that the deepest matching folder of a path names; None for training, and without any."""
    for name in reversed(os.path.abspath(path).split(os.sep)):
        if name == TRAINING:
            return None
        if name in CATEGORIES:
            return name
    return None


def division_place(folders: Sequence[str]) -> int | None:
    """Return which folder of a path names the division: the one above ORG/results, else the deepest of such a name.

    Folders above the tree, and an organisation, may be called closed or open, too.
    """
    places = [index for index, name in enumerate(folders) if name.lower() in DIVISIONS]
    return max(places, key=lambda index: (folders[index + 2 : index + 3] == ["results"], index), default=None)


def _tree_of(result: Result[Any], root: str) -> str:
    """Return the tree that a result belongs to: the folder above its division, or else `root`.

    A run outside any known layout and in no division is a tree of its own.
    """
    folders = os.path.relpath(result.path, root).split(os.sep)
    division = division_place(folders)
    if division is not None:
        return os.path.normpath(os.path.join(root, *folders[:division]))
    return root if result.phased else result.path


def _edition_of(results: Sequence[Result[Any]], chosen: str | None, reading: Reading) -> Edition:
    """Return the edition of the tree with these results: the user's choice, or else what its leaves vote for."""
    votes: Counter[str] = Counter()
    for leaf in (leaf for result in results for leaf in result.leaves):
        for edition, weight in _votes(leaf):
            votes[edition] += weight
    without_votes = "3.0" if any(result.phased for result in results) else "2.0"
    best = max(votes, key=lambda edition: (votes[edition], edition), default=without_votes)
    return edition_read(chosen or best, reading)


def _votes(leaf: Papers) -> Iterator[tuple[str, int]]:
    """Yield (edition, weight): most for the edition that is named, least for the newest with this workload."""
    named = _named_edition(leaf)
    if named in EDITIONS:
        yield named, 3
    for edition, keys in _EDITION_KEYS.items():
        if any(key in leaf.metadata or key in leaf.args for key in keys):
            yield edition, 2
    yield from (("3.0", 2) for name in _V3_FILES if name in leaf.files)
    newest = newest_edition(leaf.setup.workload or "", leaf.setup.accelerator or "")
    if newest is not None:
        yield newest.name, 1


def _named_edition(leaf: Papers) -> str:
    """Return the edition that the metadata name; empty when they name none."""
    return text(leaf.metadata.get("rules_edition")) or text(leaf.metadata.get("edition")) or ""


def other_editions(result: Result[Any]) -> Iterator[Finding]:
    """Yield the leaves whose metadata name another edition than their tree's."""
    for leaf in result.leaves:
        named = _named_edition(leaf)
        if named and named != result.edition.name:
            seen = f"the metadata name edition {named}, the whole tree was judged to be {result.edition.name}"
            yield by_rule_at(leaf.path, "edition.differs", seen)


def submissions(root: str, edition: Edition, division: Division | None) -> list[Submission]:
    """Return every DIVISION/ORG of a tree; the root may itself be a division's or an organisation's folder."""
    above, name = os.path.split(root)
    if os.path.basename(above).lower() in DIVISIONS and {"results", "systems"}.intersection(folders_in(root)):
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
    """Return the division named by the path, or else by the metadata; else CLOSED, which has the stricter rules."""
    folders = folder.split(os.sep)
    place = division_place(folders)
    names = in_metadata if place is None else (folders[place],)
    return "open" if any(str(name).lower() == "open" for name in names) else "closed"


def runs_differ(path: str, rule: str, compared: Mapping[str, Iterable[object]]) -> Iterator[Finding]:
    """Report each value that differs between the runs or calls of a result; None is unknown."""
    for what, values in compared.items():
        different = sorted({str(value) for value in values if value is not None})
        if len(different) > 1:
            yield by_rule_at(path, rule, f"{what}: {' and '.join(different[:3])}")

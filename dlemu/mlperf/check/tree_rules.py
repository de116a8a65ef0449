"""Rules on folders and files: what each edition's tool leaves of a run, and how a submission's tree is laid out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from dlemu.mlperf.audit.checkpoint_leaf import CheckpointLeaf
from dlemu.mlperf.audit.run_settings import CONFIG_FOLDERS
from dlemu.mlperf.check.submission_tree import CATEGORIES, METADATA, PHASES, Leaf, Result, Rule, Submission
from dlemu.results.finding import Finding, Located, Severity

CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
RUN_FILES = ("training_run.stdout.log", "training_run.stderr.log", "dlio.log")
DATAGEN_FILES = ("training_datagen.stdout.log", "training_datagen.stderr.log", "dlio.log")
"""v3.0, 2.1.14 and 2.1.19, beside the ranks' files, summary.json and the metadata."""
V1_REPORT = "mlperf_storage_report.json"
"""What v1.0's report.py makes of the five runs."""
CONFIG_FOLDER = "dlio_config"
_KEEP = "keep the folder as the tool left it, or repeat the run"
RANK_FILE = re.compile(r"^\d+_output\.json$")
RANK_STATS = re.compile(r"^\d+_per_epoch_stats\.json$")
_STATS_FILE = re.compile(r"^(\d+_)?per_epoch_stats\.json$")
_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_CODE = re.compile(r"^code(-[0-9a-f]+)?$")
_CODE_FOLDERS = frozenset({"dlio_benchmark", "mlpstorage", "mlpstorage_py", "storage-conf"})
_CODE_FILES = frozenset({"benchmark.sh", ".code-hash.json"})
_ARCHIVES = (".tgz", ".tar.gz", ".zip", ".tar")
_CODE_LEVELS = 3
"""What the official code is known by, and how deep below a submission's folder it is at most."""
_TOP = ("closed", "open", "code-images")
"""mlpstorage puts images of its code there, or beside the divisions in ORG/code-HASH."""
_BENCHMARKS = ("training", *CATEGORIES)
_WORKLOADS = ("unet3d", "retinanet")
"""Of v3.0: 2.1.10 and 2.1.11."""


def phase_folders(result: Result) -> Iterator[Located]:
    """`training/MODEL` has a folder for each phase and no other (2.1.12 of v3.0)."""
    if not (result.phased and result.edition.checks_tree):
        return
    workload = result.workload_folder
    there = [entry.name for entry in os.scandir(workload) if entry.is_dir() and not entry.name.startswith(".")]
    for name in PHASES:
        if name not in there:
            rule = "files.datasize" if name == "datasize" else "files.phases"
            fix = f"keep the folder of `mlpstorage training {name}`"
            yield Located(workload, Finding("error", rule, f"no folder {name}", ", ".join(PHASES), fix))
    if "datasize" in there and not result.datasize:
        fix = "keep the folder of `mlpstorage training datasize`"
        seen = "datasize holds no call"
        yield Located(workload, Finding("error", "files.datasize", seen, "the call that computed the size", fix))
    for name in sorted(set(there) - set(PHASES)):
        fix = f"move {name} out of the tree"
        yield Located(workload, Finding("error", "files.phases", f"a folder {name}", ", ".join(PHASES), fix))


def datagen_files(result: Result) -> Iterator[Located]:
    """One call of datagen, named by its time, with its files (2.1.13 to 2.1.15 of v3.0)."""
    if not (result.phased and result.edition.checks_tree):
        return
    folder = os.path.join(result.workload_folder, "datagen")
    if os.path.isdir(folder) and len(result.datagen) != 1:
        names = ", ".join(leaf.name for leaf in result.datagen) or "none"
        fix = "keep the one call that made the dataset of these runs"
        finding = Finding("error", "files.datagen_count", f"{len(result.datagen)} calls: {names}", "one call", fix)
        yield Located(folder, finding)
    for leaf in result.datagen:
        if leaf.stamp is None:
            fix = "leave the folder's name as the tool made it"
            seen = f"a folder is named {leaf.name!r}"
            yield Located(leaf.path, Finding("error", "files.datagen_stamp", seen, "YYYYMMDD_HHMMSS", fix))
        yield from missing(leaf, "files.datagen", [*DATAGEN_FILES, METADATA])
        yield from config_files(leaf, "files.datagen_config")


def results_json(result: Result) -> Iterator[Located]:
    """The sums over all runs lie beside them, or beside the folder `runs` that holds them."""
    name, severity = _sums(result)
    if name and sums_of(result) is None:
        fix = "aggregate the runs with the tool"
        yield Located(result.path, Finding(severity, "files.results", f"no {name}", name, fix))


def sums_of(result: Result) -> str | None:
    """Return the file of the sums over all runs, None where there is none."""
    name, _ = _sums(result)
    above = [] if result.phased else [os.path.dirname(result.path)]
    paths = [os.path.join(folder, name) for folder in (result.path, *above)] if name else []
    return next((path for path in paths if os.path.isfile(path)), None)


def _sums(result: Result) -> tuple[str, Severity]:
    """Return the file of the sums, empty where the edition has none, and how much it matters."""
    if result.phased and result.edition.checks_tree and os.path.isdir(result.path):
        return "results.json", "error"
    numbered = not result.phased and not result.single
    return (V1_REPORT if numbered and result.edition.name == "1.0" else ""), "warning"


def run_files(result: Result) -> Iterator[Located]:
    """Each run has what its edition's tool wants to read again."""
    edition = result.edition
    for leaf in result.runs:
        if result.phased and edition.checks_tree:
            yield from missing(leaf, "files.run", [*RUN_FILES, METADATA])
            yield from _missing_kind(leaf, RANK_FILE, "R_output.json", "error")
            yield from _missing_kind(leaf, _STATS_FILE, "R_per_epoch_stats.json", "error")
            yield from config_files(leaf, "files.run_config")
        elif result.phased:
            yield from _listed_by_v2(leaf)
        elif not result.single:
            yield from _kept_by_v1(leaf)
        severity: Severity = "error" if edition.checks_tree else "warning"
        yield from ranks_kept(leaf, leaf.printed.accelerators, severity)
        yield from empty_files(leaf) if result.phased else ()


def _listed_by_v2(leaf: Leaf) -> Iterator[Located]:
    """mlpstorage v2.0 lists a run by one metadata file, and reads its configuration from dlio_config."""
    count = sum(name.endswith(METADATA) for name in leaf.files)
    if count != 1:
        wanted = "one, else mlpstorage silently skips the run"
        yield _located(leaf, "error", "files.metadata", f"{count} files *{METADATA}", wanted)
    for name in ("config.yaml", "overrides.yaml"):
        if not os.path.isfile(os.path.join(leaf.path, CONFIG_FOLDER, name)):
            yield _located(leaf, "error", "files.run_config", f"no {CONFIG_FOLDER}/{name}", name)


def _kept_by_v1(leaf: Leaf) -> Iterator[Located]:
    if not any(os.path.isfile(os.path.join(leaf.path, below, "overrides.yaml")) for below in CONFIG_FOLDERS):
        wanted = "the overrides: report.py takes workload and accelerator from them"
        yield _located(leaf, "error", "files.run_config", "no configs/overrides.yaml", wanted)
    if not any(_STATS_FILE.match(name) for name in leaf.files):
        yield _located(leaf, "warning", "files.run", "no per_epoch_stats.json", "the times of epochs and blocks")


def ranks_kept(leaf: Leaf | CheckpointLeaf, ranks: int | None, severity: Severity) -> Iterator[Located]:
    """Some ranks' files without the others: what is published can't be recomputed whole."""
    for kind, name in ((RANK_FILE, "R_output.json"), (RANK_STATS, "R_per_epoch_stats.json")):
        kept = sum(bool(kind.match(there)) for there in leaf.files)
        if ranks and 0 < kept < ranks:
            finding = Finding(severity, "files.ranks", f"{name} of {kept} ranks", f"those of all {ranks} ranks", _KEEP)
            yield Located(leaf.path, finding)


def empty_files(leaf: Leaf | CheckpointLeaf) -> Iterator[Located]:
    """A log that every call writes to is not empty; of metadata and results the rules on what they hold report it."""
    for name in leaf.files:
        if name.endswith((".stdout.log", "dlio.log")) and not os.path.getsize(os.path.join(leaf.path, name)):
            finding = Finding("warning", "files.empty", f"{name} has 0 bytes", "what the call wrote", _KEEP)
            yield Located(leaf.path, finding)


def missing(
    leaf: Leaf | CheckpointLeaf, rule: str, wanted: Sequence[str], others: Sequence[str] = ()
) -> Iterator[Located]:
    """Yield the files that a call lacks, by their names or how these end (`_metadata.json`), and `others` beside."""
    lacking = [f"*{name}" if name.startswith("_") else name for name in wanted if not _has(leaf, name)]
    if lacking or others:
        seen = f"no {', '.join([*lacking, *others])}"
        yield _located(leaf, "error", rule, seen, "all files that the edition's checker requires")


def _has(leaf: Leaf | CheckpointLeaf, name: str) -> bool:
    return any(there.endswith(name) if name.startswith("_") else there == name for there in leaf.files)


def _missing_kind(leaf: Leaf, kind: re.Pattern[str], name: str, severity: Severity) -> Iterator[Located]:
    if not any(kind.match(there) for there in leaf.files):
        yield _located(leaf, severity, "files.run", f"no {name}", "that of every rank R")


def config_files(leaf: Leaf | CheckpointLeaf, rule: str) -> Iterator[Located]:
    """Hydra's folder of a call holds its three files and no other."""
    folder = os.path.join(leaf.path, CONFIG_FOLDER)
    there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if there != list(CONFIG_FILES):
        seen = f"{CONFIG_FOLDER} holds {', '.join(there) or 'nothing'}"
        yield _located(leaf, "error", rule, seen, f"exactly {', '.join(CONFIG_FILES)}")


def _located(leaf: Leaf | CheckpointLeaf, severity: Severity, rule: str, seen: str, wanted: str) -> Located:
    return Located(leaf.path, Finding(severity, rule, seen, wanted, _KEEP))


def top_folders(root: str, submissions: list[Submission]) -> Iterator[Located]:
    """The root holds divisions alone (2.1.2 of v3.0)."""
    if not any(submission.edition.checks_tree for submission in submissions):
        return
    for name in _folders(root):
        if name not in _TOP and not _holds_code(os.path.join(root, name)):
            fix = f"move {name} out of the tree, or write the division in lower case"
            finding = Finding("error", "submission.top", f"a folder {name}", "closed, open or both", fix)
            yield Located(os.path.join(root, name), finding)


def submission_folders(submission: Submission) -> Iterator[Located]:
    """DIVISION/ORG holds results and systems, and the code."""
    there = _folders(submission.path)
    if not _NAME.match(submission.organisation):
        fix = "name the folder with letters, digits, dot, dash and underscore"
        seen = f"the organisation's folder is named {submission.organisation!r}"
        yield Located(submission.path, Finding("error", "submission.name", seen, "[A-Za-z0-9._-]+", fix))
    for name in ("results", "systems"):
        if name not in there:
            fix = f"add the folder {name}"
            yield Located(submission.path, Finding("error", "submission.folders", f"no folder {name}", name, fix))
    if submission.edition.checks_tree:
        for name in there:
            known = name in ("results", "systems") or _CODE.match(name)
            if not known and not holds_code(os.path.join(submission.path, name)):
                fix = f"move {name} out of the tree"
                wanted = "results, systems and code"
                finding = Finding("error", "submission.folders", f"a folder {name}", wanted, fix)
                yield Located(os.path.join(submission.path, name), finding)


def submission_code(submission: Submission) -> Iterator[Located]:
    """The code that ran is part of a CLOSED submission (2.1.6 of v3.0)."""
    if submission.division == "closed":
        root = os.path.dirname(os.path.dirname(submission.path))
        places = (submission.path, os.path.join(root, submission.organisation), os.path.join(root, "code-images"))
        folders = [os.path.join(place, name) for place in places for name in _folders(place)]
        if not any(holds_code(folder) for folder in folders if os.path.basename(folder) not in ("results", "systems")):
            fix = "mlpstorage puts it there; v1.0: copy its folder"
            finding = Finding("error", "submission.code", "no copy of the code", "the code of the official tool", fix)
            yield Located(submission.path, finding)


def submission_categories(submission: Submission) -> Iterator[Located]:
    """results/SYSTEM holds benchmarks of the edition, training its workloads (2.1.10 and 2.1.11 of v3.0)."""
    if not submission.edition.checks_tree:
        return
    results = os.path.join(submission.path, "results")
    for system in _folders(results):
        path = os.path.join(results, system)
        for name in _folders(path):
            if name not in _BENCHMARKS:
                fix = f"move {name} out of the tree"
                finding = Finding("error", "submission.category", f"a folder {name}", ", ".join(_BENCHMARKS), fix)
                yield Located(os.path.join(path, name), finding)
        for name in _folders(os.path.join(path, "training")):
            if name not in _WORKLOADS:
                fix = "submit workloads of this edition only"
                finding = Finding("error", "submission.workload", f"a folder {name}", ", ".join(_WORKLOADS), fix)
                yield Located(os.path.join(path, "training", name), finding)


def _holds_code(path: str) -> bool:
    """Whether a folder holds images of code and no other folder."""
    names = _folders(path)
    return bool(names) and all(_CODE.match(name) or holds_code(os.path.join(path, name)) for name in names)


def holds_code(path: str, levels: int = _CODE_LEVELS) -> bool:
    """Whether a folder holds the official code, whatever it is called, or an archive that may be it."""
    folders, files = _folders(path), _files(path)
    if _CODE_FOLDERS.intersection(folders) or _CODE_FILES.intersection(files):
        return True
    if any(name.endswith(_ARCHIVES) for name in files):
        return True
    return levels > 1 and any(holds_code(os.path.join(path, name), levels - 1) for name in folders)


def _files(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]
    except OSError:
        return []


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


FILE_RULES: tuple[Rule, ...] = (phase_folders, datagen_files, results_json, run_files)
SUBMISSION_RULES = (submission_folders, submission_code, submission_categories)

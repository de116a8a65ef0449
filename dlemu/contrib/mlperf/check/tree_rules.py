"""Rules on folders and files: which files each call must have, and how a submission's tree is laid out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from dlemu.contrib.mlperf.audit.papers import METADATA, Papers
from dlemu.contrib.mlperf.check.submission_tree import (
    CATEGORIES,
    PHASES,
    Leaf,
    Result,
    Rule,
    Submission,
    entries_of,
    folders_in,
)
from dlemu.contrib.mlperf.rules.known import by_rule_at
from dlemu.results.finding import Located

CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
RUN_FILES = ("training_run.stdout.log", "training_run.stderr.log", "dlio.log")
DATAGEN_FILES = ("training_datagen.stdout.log", "training_datagen.stderr.log", "dlio.log")
"""Files of a run and of datagen (2.1.14, 2.1.19 of v3.0), besides the ranks' files, summary.json and metadata."""
RESULTS = "results.json"
"""File of the sums over all runs or calls of a result, beside them (2.1.16, 2.1.22 of v3.0)."""
CONFIG_FOLDER = "dlio_config"
_KEEP = "keep the folder as the tool left it, or repeat the run"
_RANK_OUTPUT = re.compile(r"^\d+_output\.json$")
RANK_FILES = ((_RANK_OUTPUT, "R_output.json"), (re.compile(r"^\d+_per_epoch_stats\.json$"), "R_per_epoch_stats.json"))
"""(pattern, name to show) of the files that every rank R writes."""
_STATS_FILE = re.compile(r"^(\d+_)?per_epoch_stats\.json$")
_ORGANISATION_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_CODE_FOLDER = re.compile(r"^code(-[0-9a-f]+)?$")
_FOLDERS_IN_CODE = frozenset({"dlio_benchmark", "mlpstorage", "mlpstorage_py", "storage-conf"})
_FILES_IN_CODE = frozenset({"benchmark.sh", ".code-hash.json"})
_ARCHIVES = (".tgz", ".tar.gz", ".zip", ".tar")
_CODE_LEVELS = 3
"""How official code is recognised: by its folders, its files or an archive, at most this many levels down."""
_TOP_FOLDERS = ("closed", "open", "code-images")
"""Folders at the root of a tree. mlpstorage puts images of its code into code-images, or into ORG/code-HASH."""
_BENCHMARK_FOLDERS = ("training", *CATEGORIES)
_WORKLOADS_V3 = ("unet3d", "retinanet")
"""Training workloads of v3.0 (2.1.11)."""


def linked_folders(root: str) -> Iterator[Located]:
    """Nothing is read behind a link to a folder, nor copied with the tree behind one that leads out of it."""
    inside = os.path.join(os.path.realpath(root), "")
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".") and not _CODE_FOLDER.match(name)]
        for path in sorted(os.path.join(folder, name) for name in below):
            if os.path.islink(path):
                yield by_rule_at(path, "tree.link", f"a link to {os.readlink(path)}, which is not read")
        for path in sorted(os.path.join(folder, name) for name in names):
            if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                seen, fix = f"a link to {os.readlink(path)}, outside of the tree", "copy the file to its place"
                yield by_rule_at(path, "tree.link", seen, "a file", fix, "warning")


def phase_folders(result: Result) -> Iterator[Located]:
    """`training/MODEL` has one folder for each phase and no others (2.1.12 of v3.0)."""
    if not result.phased:
        return
    workload = result.workload_folder
    present = folders_in(workload)
    for name in PHASES:
        if name not in present:
            rule = "files.datasize" if name == "datasize" else "files.phases"
            fix = f"keep the folder of `mlpstorage training {name}`"
            yield by_rule_at(workload, rule, f"no folder {name}", ", ".join(PHASES), fix)
    if "datasize" in present and not result.datasize:
        yield by_rule_at(workload, "files.datasize", "the folder datasize holds no call")
    for name in sorted(set(present) - set(PHASES)):
        fix = f"move {name} out of the tree"
        yield by_rule_at(workload, "files.phases", f"a folder {name}", ", ".join(PHASES), fix)


def datagen_files(result: Result) -> Iterator[Located]:
    """There is one call of datagen, its folder named by its time and complete (2.1.13 to 2.1.15 of v3.0)."""
    folder = os.path.join(result.workload_folder, "datagen")
    if result.phased and os.path.isdir(folder) and len(result.datagen) != 1:
        names = ", ".join(leaf.name for leaf in result.datagen) or "none"
        yield by_rule_at(folder, "files.datagen_count", f"{len(result.datagen)} calls: {names}")
    for leaf in result.datagen:
        if leaf.stamp is None:
            yield by_rule_at(leaf.path, "files.datagen_stamp", f"a folder is named {leaf.name!r}")
        yield from missing(leaf, "files.datagen", [*DATAGEN_FILES, METADATA])
        yield from config_files(leaf, "files.datagen_config")


def results_json(result: Result) -> Iterator[Located]:
    """The file of the sums over all runs is beside the runs."""
    if result.phased and os.path.isdir(result.path) and not os.path.isfile(os.path.join(result.path, RESULTS)):
        yield by_rule_at(result.path, "files.results", f"no {RESULTS}")


def run_files(result: Result) -> Iterator[Located]:
    """Each run has the files that its edition's tool needs to report or check it."""
    edition = result.edition
    for leaf in result.runs:
        if result.phased and edition.checks_tree:
            yield from missing(leaf, "files.run", [*RUN_FILES, METADATA])
            yield from _missing_pattern(leaf, _RANK_OUTPUT, "R_output.json")
            yield from _missing_pattern(leaf, _STATS_FILE, "R_per_epoch_stats.json")
            yield from config_files(leaf, "files.run_config")
        elif result.phased:
            yield from _required_by_v2(leaf)
        yield from ranks_kept(leaf, leaf.printed.accelerators)
        yield from empty_files(leaf) if result.phased else ()


def _required_by_v2(leaf: Leaf) -> Iterator[Located]:
    """mlpstorage v2.0 finds a run by its one metadata file, and reads its configuration from dlio_config."""
    count = sum(name.endswith(METADATA) for name in leaf.files)
    if count != 1:
        yield by_rule_at(leaf.path, "files.metadata", f"{count} files *{METADATA}")
    for name in ("config.yaml", "overrides.yaml"):
        if not os.path.isfile(os.path.join(leaf.path, CONFIG_FOLDER, name)):
            yield by_rule_at(leaf.path, "files.run_config", f"no {CONFIG_FOLDER}/{name}", name)


def ranks_kept(leaf: Papers, ranks: int | None) -> Iterator[Located]:
    """If any rank's file is kept, every rank's is: otherwise the published figures can't be recomputed."""
    for pattern, name in RANK_FILES:
        kept = sum(bool(pattern.match(file)) for file in leaf.files)
        if ranks and 0 < kept < ranks:
            wanted = f"the files of all {ranks} ranks"
            yield by_rule_at(leaf.path, "files.ranks", f"{name} of {kept} ranks", wanted)


def empty_files(leaf: Papers) -> Iterator[Located]:
    """Logs are not empty; empty metadata and results are found by the rules on their content."""
    for name in leaf.files:
        if name.endswith((".stdout.log", "dlio.log")) and not os.path.getsize(os.path.join(leaf.path, name)):
            yield by_rule_at(
                leaf.path, "files.empty", f"{name} has 0 bytes", "the output of the call", _KEEP, "warning"
            )


def missing(leaf: Papers, rule: str, wanted: Sequence[str], others: Sequence[str] = ()) -> Iterator[Located]:
    """Yield one finding on all missing files: those of `wanted` (names, or suffixes that begin with _) and `others`."""
    lacking = [f"*{name}" if name.startswith("_") else name for name in wanted if not _has(leaf, name)]
    if lacking or others:
        seen = f"no {', '.join([*lacking, *others])}"
        yield by_rule_at(leaf.path, rule, seen, "all files that the edition's checker requires", _KEEP)


def _has(leaf: Papers, name: str) -> bool:
    return any(file.endswith(name) if name.startswith("_") else file == name for file in leaf.files)


def _missing_pattern(leaf: Leaf, pattern: re.Pattern[str], name: str) -> Iterator[Located]:
    if not any(map(pattern.match, leaf.files)):
        yield by_rule_at(leaf.path, "files.run", f"no {name}")


def config_files(leaf: Papers, rule: str) -> Iterator[Located]:
    """The folder dlio_config holds hydra's three files and no others."""
    folder = os.path.join(leaf.path, CONFIG_FOLDER)
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if files != list(CONFIG_FILES):
        seen = f"{CONFIG_FOLDER} holds {', '.join(files) or 'nothing'}"
        yield by_rule_at(leaf.path, rule, seen, f"exactly {', '.join(CONFIG_FILES)}", _KEEP)


def top_folders(root: str) -> Iterator[Located]:
    """The root holds only the divisions and code (2.1.2 of v3.0); `submission_folders` checks the divisions' case."""
    for name in folders_in(root):
        if name.lower() not in _TOP_FOLDERS and not _only_holds_code(os.path.join(root, name)):
            fix = f"move {name} out of the tree; if it is a division, name it in lower case"
            yield by_rule_at(os.path.join(root, name), "submission.top", f"a folder {name}", fix=fix)


def submission_folders(submission: Submission) -> Iterator[Located]:
    """DIVISION/ORG holds the folders results and systems, and the code, and is named as allowed."""
    present = folders_in(submission.path)
    if not _ORGANISATION_NAME.match(submission.organisation):
        seen = f"the organisation's folder is named {submission.organisation!r}"
        yield by_rule_at(submission.path, "submission.name", seen)
    for name in ("results", "systems"):
        if name not in present:
            yield by_rule_at(submission.path, "submission.folders", f"no folder {name}", name, f"add the folder {name}")
    if submission.edition.checks_tree:
        division = os.path.basename(os.path.dirname(submission.path))
        if division != division.lower():  # told of each submission: the folder checked may be the division's own
            seen, fix = f"the division's folder is named {division}", f"name it {division.lower()}"
            yield by_rule_at(submission.path, "submission.top", seen, fix=fix)
        for name in present:
            known = name in ("results", "systems") or _CODE_FOLDER.match(name)
            if not known and not holds_code(os.path.join(submission.path, name)):
                fix = f"move {name} out of the tree"
                yield by_rule_at(os.path.join(submission.path, name), "submission.folders", f"a folder {name}", fix=fix)


def submission_code(submission: Submission) -> Iterator[Located]:
    """A CLOSED submission includes the code that ran (2.1.6 of v3.0)."""
    if submission.division == "closed":
        root = os.path.dirname(os.path.dirname(submission.path))
        parents = (submission.path, os.path.join(root, submission.organisation), os.path.join(root, "code-images"))
        folders = [os.path.join(parent, name) for parent in parents for name in folders_in(parent)]
        if not any(holds_code(folder) for folder in folders if os.path.basename(folder) not in ("results", "systems")):
            yield by_rule_at(submission.path, "submission.code", "no copy of the code")


def submission_categories(submission: Submission) -> Iterator[Located]:
    """results/SYSTEM holds only the edition's benchmarks, and training only its workloads (2.1.10, 2.1.11 of v3.0)."""
    results = os.path.join(submission.path, "results")
    for system in folders_in(results):
        path = os.path.join(results, system)
        for name in folders_in(path):
            if name not in _BENCHMARK_FOLDERS:
                fix = f"move {name} out of the tree"
                wanted = ", ".join(_BENCHMARK_FOLDERS)
                yield by_rule_at(os.path.join(path, name), "submission.category", f"a folder {name}", wanted, fix)
        for name in folders_in(os.path.join(path, "training")):
            if name not in _WORKLOADS_V3:
                folder, wanted = os.path.join(path, "training", name), ", ".join(_WORKLOADS_V3)
                yield by_rule_at(folder, "submission.workload", f"a folder {name}", wanted)


def _only_holds_code(path: str) -> bool:
    """Return whether a folder holds code images and no other folders."""
    names = folders_in(path)
    return bool(names) and all(_CODE_FOLDER.match(name) or holds_code(os.path.join(path, name)) for name in names)


def holds_code(path: str, levels: int = _CODE_LEVELS) -> bool:
    """Return whether a folder of any name seems to hold the official code, or an archive of it."""
    folders, files = folders_in(path), entries_of(path)[0]
    if _FOLDERS_IN_CODE.intersection(folders) or _FILES_IN_CODE.intersection(files):
        return True
    if any(name.endswith(_ARCHIVES) for name in files):
        return True
    return levels > 1 and any(holds_code(os.path.join(path, name), levels - 1) for name in folders)


FILE_RULES: tuple[Rule, ...] = (phase_folders, datagen_files, results_json, run_files)
SUBMISSION_RULES = (submission_folders, submission_code, submission_categories)

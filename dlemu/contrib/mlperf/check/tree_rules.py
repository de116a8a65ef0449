"""Rules on folders and files: the files that each call must have, and the layout of a submission's tree."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from dlemu.contrib.mlperf.audit.call_records import METADATA, PHASES, CallRecords, stamp_of
from dlemu.contrib.mlperf.audit.tolerant import entries_of, folders_in, integer
from dlemu.contrib.mlperf.check.submission_tree import CATEGORIES, TRAINING, Result, Rules, Submission, TrainingResult
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at

CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
RESULTS = "results.json"  # sums over the runs or calls of a result, in the folder above them (2.1.16, 2.1.22 of v3.0)
CONFIG_FOLDER = "dlio_config"
_RANK_FILES = ("R_output.json", "R_per_epoch_stats.json")  # files that every rank R writes, such as 0_output.json
_DATAGEN_LOGS = ("training_datagen.stdout.log", "training_datagen.stderr.log")
_RUN_LOGS = ("training_run.stdout.log", "training_run.stderr.log")
_CHECKPOINT_LOGS = ("checkpointing_run.stdout.log", "checkpointing_run.stderr.log")
_REQUIRED_FILES = {
    ("training", "datagen"): (*_DATAGEN_LOGS, "dlio.log", f"*{METADATA}"),
    ("training", "run"): (*_RUN_LOGS, "dlio.log", f"*{METADATA}", *_RANK_FILES),
    ("checkpointing", "run"): (*_CHECKPOINT_LOGS, "dlio.log", "summary.json", f"*{METADATA}", *_RANK_FILES),
}
"""(benchmark, phase) -> the files that a call needs beside dlio_config (2.1.14, 2.1.19, 2.1.25 of v3.0)."""
ORGANISATION_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_CODE_FOLDER = re.compile(r"^code(-[0-9a-f]+)?$")  # a copy of the code that ran, as mlpstorage names it
_FOLDERS_IN_CODE = frozenset({"dlio_benchmark", "mlpstorage", "mlpstorage_py", "storage-conf"})
_FILES_IN_CODE = frozenset({"benchmark.sh", ".code-hash.json"})
_ARCHIVES = (".tgz", ".tar.gz", ".zip", ".tar")
_CODE_LEVELS = 3  # levels of folders at which official code is recognised by a folder, a file or an archive
_TOP_FOLDERS = ("closed", "open", "code-images")
"""Folders at the root of a tree; mlpstorage puts images of its code into code-images, or into ORG/code-HASH."""
_BENCHMARK_FOLDERS = ("training", *CATEGORIES)
_WORKLOADS_V3 = ("unet3d", "retinanet")  # training workloads of v3.0 (2.1.11)


def linked_folders(root: str) -> Iterator[Finding]:
    """No folder is a link, which is not followed, or can't be listed; no file is a link that leads out of the tree."""
    inside = os.path.join(os.path.realpath(root), "")
    unlisted: list[OSError] = []
    for folder, subfolders, names in os.walk(root, onerror=unlisted.append):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and not _CODE_FOLDER.match(name)]
        for path in sorted(os.path.join(folder, name) for name in subfolders):
            if os.path.islink(path):
                yield by_rule_at(path, "tree.link", f"a link to {os.readlink(path)}, which is not read")
        for path in sorted(os.path.join(folder, name) for name in names):
            if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                seen = f"a link to {os.readlink(path)}, outside of the tree"
                yield by_rule_at(path, "tree.link", seen, severity="warning")
    for error in unlisted:
        yield by_rule_at(str(error.filename), "file.broken", f"the folder can't be listed: {error.strerror}")


def phase_folders(result: TrainingResult) -> Iterator[Finding]:
    """training/MODEL has one folder for each phase and no others (2.1.12 of v3.0)."""
    if not result.phased:
        return
    workload = result.workload_folder
    present = folders_in(workload)
    for name in PHASES:
        if name not in present:
            rule = "files.datasize" if name == "datasize" else "files.phases"
            yield by_rule_at(workload, rule, f"no folder {name}")
    if "datasize" in present and not result.in_phase("datasize"):
        yield by_rule_at(workload, "files.datasize", "the folder datasize holds no call")
    for name in sorted(set(present) - set(PHASES)):
        yield by_rule_at(workload, "files.phases", f"a folder {name}")


def datagen_calls(result: TrainingResult) -> Iterator[Finding]:
    """Datagen was called once, in a folder named by its time (2.1.13 of v3.0)."""
    folder = os.path.join(result.workload_folder, "datagen")
    calls = result.in_phase("datagen")
    if result.phased and os.path.isdir(folder) and len(calls) != 1:
        names = ", ".join(call.name for call in calls) or "none"
        yield by_rule_at(folder, "files.datagen_count", f"{len(calls)} calls: {names}")
    for call in calls:
        if call.stamp is None:
            yield by_rule_at(call.path, "files.datagen_stamp", f"a folder is named {call.name!r}")


def results_json(result: Result[Any]) -> Iterator[Finding]:
    """The file with the sums over all runs is in the folder above the runs."""
    if result.phased and os.path.isdir(result.path) and not os.path.isfile(os.path.join(result.path, RESULTS)):
        rule = "files.results" if result.benchmark == TRAINING else "files.checkpoint_results"
        yield by_rule_at(result.path, rule, f"no {RESULTS}")


def call_files(call: CallRecords, result: Result[Any]) -> Iterator[Finding]:
    """A call has the files that its edition's tool needs, none of them empty, and the files of all ranks."""
    required = _REQUIRED_FILES.get((result.benchmark, call.phase))
    if required is None:
        return
    if result.phased:
        if result.edition.checks_tree:
            rule = "files.checkpoint" if result.benchmark == "checkpointing" else f"files.{call.phase}"
            yield from _required_by_v3(call, rule, required)
        elif (result.benchmark, call.phase) == ("training", "run"):
            yield from _required_by_v2(call)
        for name in call.files:
            if name.endswith((".stdout.log", "dlio.log")) and not os.path.getsize(os.path.join(call.path, name)):
                yield by_rule("files.empty", f"{name} has 0 bytes", severity="warning")
    ranks = integer(call.summary.get("num_accelerators"))
    if call.phase == "run" and ranks:
        for name in _RANK_FILES:
            ranks_with_file = sum(_is_rank_file(file, name) for file in call.files)
            if 0 < ranks_with_file < ranks:  # published numbers can't be recomputed from the files of some ranks
                yield by_rule("files.ranks", f"{name} of {ranks_with_file} of {ranks} ranks")


def _is_rank_file(file: str, name: str) -> bool:
    """Return whether a file such as 3_output.json is a rank's `name`, such as R_output.json."""
    rank, _, suffix = file.partition("_")
    return rank.isdigit() and f"R_{suffix}" == name


def _required_by_v3(call: CallRecords, rule: str, required: Sequence[str]) -> Iterator[Finding]:
    missing = [
        name for name in required if not any(fnmatch(file, name) or _is_rank_file(file, name) for file in call.files)
    ]
    if missing:
        yield by_rule(rule, f"no {', '.join(missing)}")
    files, folders = entries_of(os.path.join(call.path, CONFIG_FOLDER))
    if files != CONFIG_FILES or folders:
        yield by_rule(f"{rule}_config", f"{CONFIG_FOLDER} holds {', '.join(files + folders) or 'nothing'}")


def _required_by_v2(call: CallRecords) -> Iterator[Finding]:
    """A run has one metadata file, by which mlpstorage v2.0 finds it, and its configuration in dlio_config."""
    metadata_files = sum(name.endswith(METADATA) for name in call.files)
    if metadata_files != 1:
        yield by_rule("files.metadata", f"{metadata_files} files *{METADATA}")
    for name in ("config.yaml", "overrides.yaml"):
        if not os.path.isfile(os.path.join(call.path, CONFIG_FOLDER, name)):
            yield by_rule("files.run_config", f"no {CONFIG_FOLDER}/{name}")


def top_folders(root: str) -> Iterator[Finding]:
    """The root holds only divisions and code (2.1.2 of v3.0); `submission_folders` checks their names' case."""
    for name in folders_in(root):
        if name.lower() in _TOP_FOLDERS:
            continue
        path = os.path.join(root, name)
        names = folders_in(path)
        if not names or not all(_CODE_FOLDER.match(each) or holds_code(os.path.join(path, each)) for each in names):
            yield by_rule_at(path, "submission.top", f"a folder {name}")


def submission_folders(submission: Submission) -> Iterator[Finding]:
    """DIVISION/ORG has an allowed name, holds the folders results and systems, and no others but code."""
    present = folders_in(submission.path)
    if not ORGANISATION_NAME.match(submission.organisation):
        seen = f"the organisation's folder is named {submission.organisation!r}"
        yield by_rule_at(submission.path, "submission.name", seen)
    for name in ("results", "systems"):
        if name not in present:
            yield by_rule_at(submission.path, "submission.folders", f"no folder {name}")
    if submission.edition.checks_tree:
        division = os.path.basename(os.path.dirname(submission.path))
        if division != division.lower():  # not in `top_folders`, as the folder checked may be the division's own
            yield by_rule_at(submission.path, "submission.top", f"the division's folder is named {division}")
        for name in present:
            path = os.path.join(submission.path, name)
            if name not in ("results", "systems") and not _CODE_FOLDER.match(name) and not holds_code(path):
                yield by_rule_at(path, "submission.folders", f"a folder {name}")


def submission_code(submission: Submission) -> Iterator[Finding]:
    """A CLOSED submission includes the code that ran (2.1.6 of v3.0)."""
    if submission.division == "closed":
        root = os.path.dirname(os.path.dirname(submission.path))
        parents = (submission.path, os.path.join(root, submission.organisation), os.path.join(root, "code-images"))
        folders = [os.path.join(parent, name) for parent in parents for name in folders_in(parent)]
        if not any(holds_code(folder) for folder in folders if os.path.basename(folder) not in ("results", "systems")):
            yield by_rule_at(submission.path, "submission.code", "no copy of the code")


def submission_categories(submission: Submission) -> Iterator[Finding]:
    """results/SYSTEM holds only the edition's benchmarks, and training only its workloads (2.1.10, 2.1.11 of v3.0)."""
    results = os.path.join(submission.path, "results")
    for system in folders_in(results):
        path = os.path.join(results, system)
        for name in folders_in(path):
            if name not in _BENCHMARK_FOLDERS:
                yield by_rule_at(os.path.join(path, name), "submission.category", f"a folder {name}")
        for name in folders_in(os.path.join(path, "training")):
            if name not in _WORKLOADS_V3:
                yield by_rule_at(os.path.join(path, "training", name), "submission.workload", f"a folder {name}")


def hidden_runs(submission: Submission) -> Iterator[Finding]:
    """No run is in a hidden folder, or among the calls of a result in a folder that is not named by a time.

    The calls are two levels below their category: results/SYSTEM/checkpointing/MODEL/20260712_180000.
    """
    for folder, subfolders, names in os.walk(os.path.join(submission.path, "results")):
        path = os.path.relpath(folder, submission.path).split(os.sep)
        category = next((name for name in CATEGORIES if name in path), None)
        is_among_calls = category is not None and len(path) - 1 - path.index(category) == 2
        is_renamed = is_among_calls and path[-1] not in PHASES and stamp_of(path[-1]) is None
        is_hidden = any(name.startswith(".") for name in path)
        if (is_renamed or is_hidden) and ("summary.json" in names or any(name.endswith(METADATA) for name in names)):
            yield by_rule_at(folder, "runs.hidden", f"a run in {path[-1]}")
        subfolders.sort()


def holds_code(path: str, levels: int = _CODE_LEVELS) -> bool:
    """Return whether a folder, or one at most `levels` - 1 levels below, seems to hold official code or its archive."""
    folders, files = folders_in(path), entries_of(path)[0]
    has_archive = any(name.endswith(_ARCHIVES) for name in files)
    if has_archive or _FOLDERS_IN_CODE.intersection(folders) or _FILES_IN_CODE.intersection(files):
        return True
    return levels > 1 and any(holds_code(os.path.join(path, name), levels - 1) for name in folders)


FILE_RULES: Rules[Any] = (phase_folders, datagen_calls, results_json)
SUBMISSION_RULES = (submission_folders, submission_code, submission_categories, hidden_runs)

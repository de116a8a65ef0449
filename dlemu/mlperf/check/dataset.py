"""Rules on the dataset beyond its size: the same for all runs, made large enough, apart from the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dlemu.mlperf.audit.tolerant import mapping, read_json
from dlemu.mlperf.check.model import Leaf, Located, Result, Rule
from dlemu.mlperf.finding import Finding, Severity

SEPARATION = "fs_separation.json"
"""mlpstorage v3.0's record of whether data and results share a file system."""


def same_dataset(result: Result) -> Iterator[Located]:
    """All runs read one dataset."""
    for what, values in (
        ("dataset.num_files_train", [leaf.num_files for leaf in result.runs]),
        ("dataset.num_samples_per_file", [leaf.printed.samples_per_file for leaf in result.runs]),
        ("dataset.data_folder", [leaf.data_folder for leaf in result.runs]),
    ):
        seen = sorted({str(value) for value in values if value is not None})
        if len(seen) > 1:
            fix = "run all of them on the same dataset"
            told = f"{what} is {' and '.join(seen[:3])} in runs of one result"
            yield Located(result.path, Finding("error", "dataset.differs", told, "one dataset for all runs", fix))


def phases(result: Result) -> Iterator[Located]:
    """The runs read at least what datasize asked for and at most what datagen made."""
    asked = [leaf.num_files for leaf in result.datasize if leaf.num_files]
    made = [leaf.num_files for leaf in result.datagen if leaf.num_files]
    read = [(leaf, leaf.num_files) for leaf in result.runs if leaf.num_files]
    severity: Severity = "warning" if result.edition.checks_tree else "error"
    for leaf, files in read:
        if made and files > max(made):
            fix = "make the dataset that the runs read, or run on the one that was made"
            seen = f"the run read {files:,} files, datagen made {max(made):,}"
            yield _located(leaf, severity, "dataset.phases", seen, "no more than datagen made", fix)
        if asked and files < min(asked):
            seen = f"the run read {files:,} files, datasize asked for {min(asked):,}"
            fix = f"run with dataset.num_files_train={min(asked)} or more"
            yield _located(leaf, severity, "dataset.phases", seen, "no fewer than datasize asks for", fix)
    if asked and made and max(made) < min(asked):
        seen = f"datagen made {max(made):,} files, datasize asked for {min(asked):,}"
        fix = f"make it again with dataset.num_files_train={min(asked)}"
        wanted = "at least what datasize asks for"
        yield _located(result.datagen[0], "error", "dataset.made", seen, wanted, fix)


def told(result: Result) -> Iterator[Located]:
    """The runs' metadata have the dataset's settings (3.1.1 of v3.0)."""
    if not (result.phased and result.edition.checks_tree):
        return
    for leaf in result.runs:
        if leaf.metadata is not None and not mapping(mapping(leaf.metadata.get("parameters")).get("dataset")):
            seen, fix = "metadata without parameters.dataset", "keep the metadata as the tool wrote it"
            yield _located(leaf, "error", "dataset.told", seen, "the dataset's settings in the metadata", fix)


def apart(result: Result) -> Iterator[Located]:
    """Data and results lie in different folders, on different file systems."""
    for leaf in result.runs:
        data, results = leaf.data_folder, leaf.argument("results_dir")
        strict = result.phased and result.edition.checks_tree and leaf.metadata is not None
        if strict and (not data or not results):
            missing = "data_dir" if not data else "results_dir"
            fix = "keep the metadata as the tool wrote it"
            seen = f"metadata without args.{missing}"
            yield _located(leaf, "error", "dataset.folder", seen, "both folders in the metadata", fix)
        if data and results and os.path.normpath(data) == os.path.normpath(str(results)):
            fix = "put the results elsewhere"
            yield _located(leaf, "error", "dataset.folder", f"both are {data}", "data and results in two folders", fix)
        yield from _file_systems(leaf, strict)


def _file_systems(leaf: Leaf, strict: bool) -> Iterator[Located]:
    wanted = "results on another file system than the data, so that logs do not disturb the reads"
    if SEPARATION not in leaf.files:
        local = leaf.section("storage").get("storage_type") in (None, "local_fs")
        if strict and local and not _has_df(leaf):
            seen, fix = f"no {SEPARATION}, and no output of df", f"keep {SEPARATION} as the tool wrote it"
            yield _located(leaf, "warning", "dataset.filesystem", seen, wanted, fix)
        return
    broken: list[Finding] = []
    content: Any = read_json(os.path.join(leaf.path, SEPARATION), broken)
    yield from (Located(leaf.path, one) for one in broken)
    if mapping(content).get("same_filesystem") is True:
        seen = f"data and results lie on one file system ({SEPARATION})"
        fix = "set output.folder to a folder on another file system"
        yield _located(leaf, "error", "dataset.filesystem", seen, wanted, fix)


def _has_df(leaf: Leaf) -> bool:
    try:
        with open(os.path.join(leaf.path, "training_run.stdout.log"), errors="replace") as log:
            return any(line.startswith("Filesystem") and "Mounted on" in line for line in log)
    except OSError:
        return False


def _located(leaf: Leaf, severity: Severity, rule: str, seen: str, wanted: str, fix: str) -> Located:
    return Located(leaf.path, Finding(severity, rule, seen, wanted, fix))


RULES: tuple[Rule, ...] = (same_dataset, phases, told, apart)

"""Rules on where runs come from: code images, provenance.json of each run, and submission.yaml of each organisation.

Sources: PROV-01, PROV-02, LEAF-01 and the code pool of mlpstorage's submission checker
(https://github.com/mlcommons/storage). Trees from before these files draw no finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dlemu.mlperf.audit.tolerant import mapping, read_json, read_text, read_yaml, text
from dlemu.mlperf.check.submission_tree import CATEGORIES, Leaf, Result, Rule, Submission, stamp_of
from dlemu.mlperf.core_config import core_config_hash
from dlemu.results.finding import Finding, Located

PROVENANCE, MANIFEST, POINTER, HASH_FILE = "provenance.json", "submission.yaml", ".mlps-code-image", ".code-hash.json"
_KEEP = "keep the folder as mlpstorage left it"
_EDITION = "rules_edition"


def code_images(result: Result) -> Iterator[Located]:
    """The image of the code that a run names is in the tree."""
    known = _images(result.path)
    for leaf in (*result.runs, *result.datagen, *result.datasize):
        named = _pointer(leaf)
        if named is not None and known is not None and named not in known:
            seen = f"{POINTER} names {named}, which is in no folder of code"
            yield _located(leaf.path, "code.image", seen, "the image of the code that ran")


def _pointer(leaf: Leaf) -> str | None:
    if POINTER not in leaf.files:
        return None
    words = (read_text(os.path.join(leaf.path, POINTER), []) or "").strip()
    return words.rpartition(":")[2] or None


def _images(path: str) -> set[str] | None:
    """Return the hashes of all images of code in the tree that a path is of; None when it is of no submission."""
    folders = path.split(os.sep)
    place = next((index for index, name in enumerate(folders) if name in ("closed", "open")), None)
    if place is None or len(folders) <= place + 1:
        return None
    root, organisation = os.sep.join(folders[:place]) or os.curdir, folders[place + 1]
    pools = [os.path.join(root, organisation), os.path.join(root, "code-images"), os.sep.join(folders[: place + 2])]
    found = set()
    for pool in pools:
        for name in os.listdir(pool) if os.path.isdir(pool) else ():
            file = os.path.join(pool, name, HASH_FILE)
            if os.path.isfile(file):
                told = text(mapping(read_json(file, [])).get("hash"))
                found |= {told} if told else set()
    return found


def provenance(result: Result) -> Iterator[Located]:
    """A run's provenance.json is there when its metadata say so, and names its code, edition and workload (PROV-01)."""
    for leaf in result.runs:
        if PROVENANCE not in leaf.files:
            if mapping(leaf.metadata).get("provenance_file"):
                seen = f"the metadata name {PROVENANCE}, which is not there"
                yield _located(leaf.path, "provenance.broken", seen, "the file beside the metadata")
            continue
        broken: list[Finding] = []
        stamp = mapping(read_json(os.path.join(leaf.path, PROVENANCE), broken))
        yield from (Located(leaf.path, finding) for finding in broken)
        yield from _stamp(leaf, result, stamp)


def _stamp(leaf: Leaf, result: Result, stamp: Any) -> Iterator[Located]:
    lacking = [key for key in (_EDITION, "tool", "dlio", "core_config") if not stamp.get(key)]
    if lacking:
        yield _located(leaf.path, "provenance.broken", f"{PROVENANCE} without {', '.join(lacking)}", "a whole stamp")
    image, named = text(mapping(stamp.get("tool")).get("code_image")), _pointer(leaf)
    if image is not None and named is not None and image.rpartition(":")[2] != named:
        seen = f"{PROVENANCE} names the code {image}, {POINTER} {named}"
        yield _located(leaf.path, "provenance.differs", seen, "one image of the code")
    edition = text(stamp.get(_EDITION))
    if edition is not None and edition != result.edition.name:
        seen = f"{PROVENANCE} is of edition {edition}, the run is judged by {result.edition.name}"
        yield _located(leaf.path, "provenance.differs", seen, "one edition")
    stamped, config = text(mapping(stamp.get("core_config")).get("hash")), leaf.setup.config
    if config and stamped not in (None, "unknown"):
        again = core_config_hash(config)
        if again != stamped:
            seen = f"{PROVENANCE} has the core-config-v1 hash {stamped}, config.yaml gives {again}"
            yield _located(leaf.path, "provenance.differs", seen, "the workload that ran")


def manifest(submission: Submission) -> Iterator[Located]:
    """submission.yaml lists exactly the runs of the tree, and their edition (PROV-02)."""
    path = os.path.join(submission.path, MANIFEST)
    if not os.path.isfile(path):
        return
    broken: list[Finding] = []
    content = mapping(read_yaml(path, broken))
    yield from (Located(path, finding) for finding in broken)
    if broken:
        return
    runs = content.get("runs")
    listed = {text(mapping(run).get("leaf")) for run in runs} if isinstance(runs, list) else set()
    there = set(_leaves(submission.path))
    if listed != there:
        missing, gone = sorted(there - listed), sorted(str(leaf) for leaf in listed - there)
        seen = f"not listed: {', '.join(missing[:2]) or 'none'}; listed and not there: {', '.join(gone[:2]) or 'none'}"
        yield _located(path, "submission.manifest", seen, "exactly the runs of the tree")
    edition = content.get(_EDITION)
    if edition is not None and str(edition) != submission.edition.name:
        seen = f"{_EDITION} is {edition}, the runs are judged by {submission.edition.name}"
        yield _located(path, "submission.manifest", seen, "one edition")


def _leaves(organisation: str) -> Iterator[str]:
    """Yield the folders of runs, from the organisation's folder on."""
    for folder, below, _ in os.walk(os.path.join(organisation, "results")):
        below[:] = sorted(name for name in below if not name.startswith("."))
        inside = os.path.relpath(folder, organisation)
        if stamp_of(os.path.basename(folder)) is not None:
            below[:] = []
            if any(name in (*CATEGORIES, "training") for name in inside.split(os.sep)):
                yield inside


def _located(path: str, rule: str, seen: str, wanted: str) -> Located:
    return Located(path, Finding("error", rule, seen, wanted, _KEEP))


PROVENANCE_RULES: tuple[Rule, ...] = (code_images, provenance)

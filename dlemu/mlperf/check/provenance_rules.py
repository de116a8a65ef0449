"""Rules on where runs come from: code images, provenance.json of each run, and submission.yaml of each organisation.

Sources: PROV-01, PROV-02, LEAF-01 and the code pool of mlpstorage's submission checker
(https://github.com/mlcommons/storage). Trees from before these files draw no finding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from datagen.errors import UserError
from dlemu.mlperf.audit.tolerant import LARGEST_BYTES, mapping, read_json, read_text, read_yaml, text
from dlemu.mlperf.check.papers import RunPapers
from dlemu.mlperf.check.submission_tree import CATEGORIES, Submission, stamp_of
from dlemu.mlperf.check.tree_edition import DIVISIONS
from dlemu.mlperf.rules.core_config import core_config_hash
from dlemu.results.finding import Finding, Located
from dlemu.results.untrusted_files import read_untrusted

PROVENANCE, MANIFEST, POINTER, HASH_FILE = "provenance.json", "submission.yaml", ".mlps-code-image", ".code-hash.json"
_KEEP = "keep the folder as mlpstorage left it"
_EDITION = "rules_edition"


def code_images(group: Sequence[RunPapers]) -> Iterator[Located]:
    """Every call of a result names the image of the code that ran, one that is in the tree, and all name the same."""
    if not group[0].edition.checks_tree:
        return
    known = _images(group[0].path)
    named = {papers.path: _pointer(papers) for papers in group}
    for path, image in named.items():
        if known and image is None:
            seen = f"no {POINTER}, or nothing in it"
            yield _located(path, "code.image", seen, "the image of the code that ran")
        elif known is not None and image is not None and image not in known:
            seen = f"{POINTER} names {image}, which is in no folder of code"
            yield _located(path, "code.image", seen, "the image of the code that ran")
    images = sorted({image for image in named.values() if image is not None})
    if len(images) > 1:
        seen = f"{len(images)} images of the code in one result: {', '.join(image[:8] for image in images)}"
        yield _located(os.path.dirname(group[0].path), "code.mixed", seen, "one image of the code for one result")


def _pointer(papers: RunPapers) -> str | None:
    if POINTER not in papers.files:
        return None
    words = (read_text(os.path.join(papers.path, POINTER), []) or "").strip()
    return words.rpartition(":")[2] or None


def changed_images(submission: Submission) -> Iterator[Located]:
    """The images of the code are what was captured: their files give the hash noted with them (2.1.6, 3.6.1)."""
    if not submission.edition.checks_tree:
        return
    for folder, noted in _noted(submission.path).items():
        try:
            hashes = tree_hashes(folder)
        except UserError as error:
            yield _located(folder, "file.broken", str(error), "the code as it was captured")
            continue
        if noted and noted not in hashes:
            seen = f"{HASH_FILE} has {noted}, the files give {min(hashes)}"
            yield _located(folder, "code.changed", seen, "the code as it was captured")
        if noted and os.path.basename(folder).startswith("code-") and os.path.basename(folder) != f"code-{noted[:8]}":
            yield _located(folder, "code.changed", f"{HASH_FILE} has {noted}", "the hash in the folder's name")


def tree_hashes(folder: str) -> set[str]:
    """Return the md5-tree hashes of a folder: with what the text leaves out, and with what the tool's code does.

    The text (2.1.6 of v3.0) leaves out every name that begins with a dot, the code only some folders at the top.
    """
    texts, codes = hashlib.md5(usedforsecurity=False), hashlib.md5(usedforsecurity=False)
    for name in sorted(_code_files(folder), key=os.fsencode):
        content = read_untrusted(os.path.join(folder, name), LARGEST_BYTES)
        parts = name.split("/")
        if not any(part.startswith(".") or part in ("test", "tests", "__pycache__") for part in parts):
            texts.update(os.fsencode(name) + content)
        if parts[0] not in _LEFT_OUT or len(parts) == 1:
            codes.update(os.fsencode(name) + content)
    return {texts.hexdigest(), codes.hexdigest()}


_LEFT_OUT = frozenset(
    {
        *(".git", ".idea", ".vscode", ".claude", ".agent", ".agents", ".roo", ".planning", ".gsd-tmp"),
        *("__pycache__", ".pytest_cache", ".venv", "node_modules", "build", "dist", ".tox", "test", "tests"),
    }
)
"""Folders at the top of the code that its hash does not count."""
_NOT_CODE = (".pyc", ".pyo")
_NOT_CODE_NAMES = frozenset({HASH_FILE, ".DS_Store", "Thumbs.db"})


def _code_files(folder: str) -> Iterator[str]:
    for path, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.endswith(".egg-info") and name != ".git"]
        for name in names:
            whole = os.path.join(path, name)
            if not (name.endswith(_NOT_CODE) or name in _NOT_CODE_NAMES or os.path.islink(whole)):
                yield os.path.relpath(whole, folder).replace(os.sep, "/")


def _images(path: str) -> set[str] | None:
    """Return the hashes of all images of code in the tree that a path is of; None when it is of no submission."""
    folders = path.split(os.sep)
    place = next((index for index, name in enumerate(folders) if name in DIVISIONS), None)
    if place is None or len(folders) <= place + 1:
        return None
    return {noted for noted in _noted(os.sep.join(folders[: place + 2])).values() if noted}


def _noted(submission: str) -> dict[str, str | None]:
    """Return the folders of code that a submission's runs may name, with the hash noted in each."""
    root, organisation = os.path.dirname(os.path.dirname(submission)), os.path.basename(submission)
    found = {}
    for pool in (os.path.join(root, organisation), os.path.join(root, "code-images"), submission):
        for name in sorted(os.listdir(pool)) if os.path.isdir(pool) else ():
            file = os.path.join(pool, name, HASH_FILE)
            if os.path.isfile(file):
                found[os.path.join(pool, name)] = text(mapping(read_json(file, [])).get("hash"))
    return found


def provenance(group: Sequence[RunPapers]) -> Iterator[Located]:
    """A call's provenance.json is there when its metadata say so, and names its code and workload (PROV-01)."""
    for papers in group:
        if PROVENANCE not in papers.files:
            if mapping(papers.metadata).get("provenance_file"):
                seen = f"the metadata name {PROVENANCE}, which is missing"
                yield _located(papers.path, "provenance.broken", seen, "the file next to the metadata")
            continue
        broken: list[Finding] = []
        stamp = mapping(read_json(os.path.join(papers.path, PROVENANCE), broken))
        yield from (Located(papers.path, finding) for finding in broken)
        yield from _stamp(papers, stamp)


def _stamp(leaf: RunPapers, stamp: Any) -> Iterator[Located]:
    lacking = [key for key in (_EDITION, "tool", "dlio", "core_config") if not stamp.get(key)]
    if lacking:
        yield _located(leaf.path, "provenance.broken", f"{PROVENANCE} without {', '.join(lacking)}", "a whole stamp")
    image, named = text(mapping(stamp.get("tool")).get("code_image")), _pointer(leaf)
    if image is not None and named is not None and image.rpartition(":")[2] != named:
        seen = f"{PROVENANCE} names the code {image}, {POINTER} {named}"
        yield _located(leaf.path, "provenance.differs", seen, "one image of the code")
    edition = text(stamp.get(_EDITION))
    if edition is not None and edition != leaf.edition.name:
        seen = f"{PROVENANCE} is of edition {edition}, the run is judged by {leaf.edition.name}"
        yield _located(leaf.path, "provenance.differs", seen, "one edition")
    stamped, config = text(mapping(stamp.get("core_config")).get("hash")), leaf.setup.config
    if config and stamped not in (None, "unknown"):
        again = core_config_hash(config, checkpointing=leaf.benchmark == "checkpointing")
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
        seen = f"not listed: {', '.join(missing[:2]) or 'none'}; listed but missing: {', '.join(gone[:2]) or 'none'}"
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


PROVENANCE_RULES = (code_images, provenance)
ORIGIN_RULES = (changed_images, manifest)

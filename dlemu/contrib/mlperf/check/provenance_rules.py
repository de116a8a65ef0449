"""Rules on the code that ran: its images and commands, provenance.json of each call, submission.yaml of organisations.

A code image is a copy of mlpstorage's code with its hash in `.code-hash.json`; each call names its image in
`.mlps-code-image`. A tree by an older tool, without these files, breaks no rule. Sources: PROV-01, PROV-02, LEAF-01 and
the code pool of mlpstorage's submission checker (https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.contrib.mlperf.audit import tolerant
from dlemu.contrib.mlperf.audit.call_records import CallRecords, stamp_of
from dlemu.contrib.mlperf.audit.step_files import LOG, names_dlemu
from dlemu.contrib.mlperf.audit.tolerant import LARGEST_BYTES, mapping, read_json, read_text, read_yaml, text, value_at
from dlemu.contrib.mlperf.check.submission_tree import CATEGORIES, Result, Rules, Submission, division_index
from dlemu.contrib.mlperf.rules.core_config import core_config_hash
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, by_rule_at, with_path
from dlemu.extend import UserError
from dlemu.results.answer_files import read_untrusted

PROVENANCE = "provenance.json"
MANIFEST = "submission.yaml"
POINTER = ".mlps-code-image"
HASH_FILE = ".code-hash.json"
_EDITION = "rules_edition"  # key of the edition in provenance.json and submission.yaml
_UNHASHED_FOLDERS = (  # at the top of an image; the tool leaves them out of its hash
    ".git", ".idea", ".vscode", ".claude", ".agent", ".agents", ".roo", ".planning", ".gsd-tmp",
    "__pycache__", ".pytest_cache", ".venv", "node_modules", "build", "dist", ".tox", "test", "tests",
)  # fmt: skip
_UNHASHED_SUFFIXES = (".pyc", ".pyo")
_UNHASHED_NAMES = (HASH_FILE, ".DS_Store", "Thumbs.db")
_PRELOADED = re.compile(r"\b(?:LD_PRELOAD|LD_AUDIT|PYTHONPATH)\b|(?<![^\s/])(?:eatmydata|nocache)(?!\S)")
"""Variables and programs that run code other than the image's in the benchmark's processes."""


def code_images(result: Result[Any]) -> Iterator[Finding]:
    """Every call of a result names its code image, which is in the tree and the same for all calls."""
    in_tree = _image_hashes(result.path)
    named = {call.path: _image_named(call) for call in result.calls}
    for path, image in named.items():
        if in_tree and image is None:
            yield by_rule_at(path, "code.image", f"no {POINTER}, or an empty one")
        elif in_tree is not None and image is not None and image not in in_tree:
            yield by_rule_at(path, "code.image", f"{POINTER} names {image}, but no such code image is in the tree")
    images = sorted({image for image in named.values() if image is not None})
    if len(images) > 1:
        seen = f"{len(images)} images of the code in one result: {', '.join(image[:8] for image in images)}"
        yield by_rule_at(os.path.dirname(result.calls[0].path), "code.mixed", seen)


def _image_named(call: CallRecords) -> str | None:
    """Return the hash of the code image that a call names as `md5:HASH` or HASH; None if it names none."""
    if POINTER not in call.files:
        return None
    pointer = (read_text(os.path.join(call.path, POINTER), []) or "").strip()
    return pointer.rpartition(":")[2] or None


def changed_images(submission: Submission, hashed: set[str]) -> Iterator[Finding]:
    """The files of a code image give the hash recorded in it, which is also in its name code-HASH (2.1.6, 3.6.1)."""
    images = _recorded_hashes(submission.path)
    for folder in images.keys() - hashed:
        hashed.add(folder)
        recorded = images[folder]
        try:
            hashes = tree_hashes(folder)
        except UserError as error:
            yield by_rule_at(folder, "file.broken", str(error))
            continue
        if recorded and recorded not in hashes:
            yield by_rule_at(folder, "code.changed", f"{HASH_FILE} has {recorded}, the files give {min(hashes)}")
        name = os.path.basename(folder)
        if recorded and name.startswith("code-") and name != f"code-{recorded[:8]}":
            yield by_rule_at(folder, "code.changed", f"{HASH_FILE} has {recorded}")


def tree_hashes(folder: str) -> set[str]:
    """Return the md5-tree hashes of a folder: by the text of v3.0's rules (2.1.6), and by v3.0's tool."""
    by_text = hashlib.md5(usedforsecurity=False)
    by_tool = hashlib.md5(usedforsecurity=False)
    for name in sorted(_hashed_files(folder), key=os.fsencode):
        content = read_untrusted(os.path.join(folder, name), LARGEST_BYTES)
        parts = name.split("/")
        if not any(part.startswith(".") or part in ("test", "tests", "__pycache__") for part in parts):
            by_text.update(os.fsencode(name) + content)
        if parts[0] not in _UNHASHED_FOLDERS or len(parts) == 1:
            by_tool.update(os.fsencode(name) + content)
    return {by_text.hexdigest(), by_tool.hexdigest()}


def _hashed_files(folder: str) -> Iterator[str]:
    for path, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.endswith(".egg-info") and name != ".git"]
        for name in names:
            file = os.path.join(path, name)
            if not (name.endswith(_UNHASHED_SUFFIXES) or name in _UNHASHED_NAMES or os.path.islink(file)):
                yield os.path.relpath(file, folder).replace(os.sep, "/")


def _image_hashes(path: str) -> set[str] | None:
    """Return the hashes of all code images in the tree of a path; None outside of submissions."""
    folders = path.split(os.sep)
    division = division_index(folders)
    if division is None or len(folders) <= division + 1:
        return None
    return {recorded for recorded in _recorded_hashes(os.sep.join(folders[: division + 2])).values() if recorded}


def _recorded_hashes(submission: str) -> dict[str, str | None]:
    """Return folder -> recorded hash, for all code images that a submission's runs may name."""
    root = os.path.dirname(os.path.dirname(submission))
    organisation = os.path.basename(submission)
    hashes = {}
    for pool in (os.path.join(root, organisation), os.path.join(root, "code-images"), submission):
        for image in tolerant.entries_of(pool)[1]:
            file = os.path.join(pool, image, HASH_FILE)
            if os.path.isfile(file):
                hashes[os.path.join(pool, image)] = text(value_at(read_json(file, []), "hash"))
    return hashes


def provenance(result: Result[Any]) -> Iterator[Finding]:
    """A call has the provenance.json that its metadata mention; it names the code and workload that ran (PROV-01)."""
    for call in result.calls:
        if PROVENANCE not in call.files:
            if call.metadata.get("provenance_file"):
                yield by_rule_at(call.path, "provenance.broken", f"the metadata mention {PROVENANCE}, which is missing")
            continue
        broken: list[Finding] = []
        content = mapping(read_json(os.path.join(call.path, PROVENANCE), broken))
        yield from with_path(call.path, broken)
        yield from _provenance_matches(call, result, content)


def _provenance_matches(call: CallRecords, result: Result[Any], provenance: Mapping[str, Any]) -> Iterator[Finding]:
    missing = [key for key in (_EDITION, "tool", "dlio", "core_config") if not provenance.get(key)]
    if missing:
        yield by_rule_at(call.path, "provenance.broken", f"{PROVENANCE} without {', '.join(missing)}")
    image = text(value_at(provenance, "tool.code_image"))
    pointer = _image_named(call)
    if image is not None and pointer is not None and image.rpartition(":")[2] != pointer:
        yield by_rule_at(call.path, "provenance.differs", f"{PROVENANCE} names the code {image}, {POINTER} {pointer}")
    edition = text(provenance.get(_EDITION))
    if edition is not None and edition != result.edition.name:
        seen = f"{PROVENANCE} names edition {edition}, the run is judged by {result.edition.name}"
        yield by_rule_at(call.path, "provenance.differs", seen)
    recorded = text(value_at(provenance, "core_config.hash"))
    config = call.setup.config
    if config and recorded not in (None, "unknown"):
        computed = core_config_hash(config, checkpointing=result.benchmark == "checkpointing")
        if computed != recorded:
            seen = f"{PROVENANCE} has the core-config-v1 hash {recorded}, config.yaml gives {computed}"
            yield by_rule_at(call.path, "provenance.differs", seen)


def manifest(submission: Submission) -> Iterator[Finding]:
    """submission.yaml lists exactly the runs in the tree, and their edition (PROV-02)."""
    path = os.path.join(submission.path, MANIFEST)
    if not os.path.isfile(path):
        return
    broken: list[Finding] = []
    content = mapping(read_yaml(path, broken))
    yield from with_path(path, broken)
    if broken:
        return
    runs = content.get("runs")
    listed = {text(value_at(run, "leaf")) for run in runs} if isinstance(runs, list) else set()
    in_tree = set(_run_folders(submission.path))
    if listed != in_tree:
        unlisted = ", ".join(sorted(in_tree - listed)[:2]) or "none"
        missing = ", ".join(sorted(str(folder) for folder in listed - in_tree)[:2]) or "none"
        yield by_rule_at(path, "submission.manifest", f"not listed: {unlisted}; listed but missing: {missing}")
    edition = content.get(_EDITION)
    if edition is not None and str(edition) != submission.edition.name:
        seen = f"{_EDITION} is {edition}, the runs are judged by {submission.edition.name}"
        yield by_rule_at(path, "submission.manifest", seen)


def _run_folders(organisation: str) -> Iterator[str]:
    """Yield the run folders, as paths relative to the organisation's folder."""
    for folder, subfolders, _ in os.walk(os.path.join(organisation, "results")):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        path = os.path.relpath(folder, organisation)
        if stamp_of(os.path.basename(folder)) is not None:
            subfolders.clear()
            if not {*CATEGORIES, "training"}.isdisjoint(path.split(os.sep)):
                yield path


def no_other_code(call: CallRecords, result: Result[Any]) -> Iterator[Finding]:
    """No command loads code before the benchmark's: it could switch off syncing, or serve reads from memory."""
    preloaded = {match[0] for command in call.all_commands for match in _PRELOADED.finditer(command)}
    if preloaded:
        # PYTHONPATH can name another DLIO, but usually a cluster's launcher only passes it on.
        severity: Severity = "warning" if not result.closed or preloaded == {"PYTHONPATH"} else "error"
        yield by_rule("command.preload", f"{', '.join(sorted(preloaded))} in the executed commands", severity=severity)


def own_dlio(call: CallRecords, result: Result[Any]) -> Iterator[Finding]:
    """CLOSED runs the DLIO that comes with the tool: neither dlemu instead, nor a DLIO from the submitter's path."""
    if not result.closed:
        return
    if call.phase == "run" and LOG in call.files and names_dlemu(os.path.join(call.path, LOG)):
        yield by_rule("tool.other", "dlio.log says that dlemu ran as a drop-in replacement for DLIO")
    if path := text(call.args.get("dlio_bin_path")):
        yield by_rule("tool.path", f"args.dlio_bin_path is {path}")


PROVENANCE_RULES: Rules[Any] = (code_images, provenance)  # on results
CODE_RULES = (no_other_code, own_dlio)  # on single calls

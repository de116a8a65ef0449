"""Rules on a submission's upper folders: DIVISION/ORG/{results,systems} and the code that ran."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from dlemu.mlperf.check.model import Located, Submission
from dlemu.mlperf.finding import Finding

_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_CODE = re.compile(r"^code(-[0-9a-f]+)?$")
_TOP = ("closed", "open", "code-images")
"""mlpstorage puts images of its code there, or beside the divisions in ORG/code-HASH."""
_CATEGORIES = ("training", "checkpointing", "vector_database", "kv_cache")
_WORKLOADS = ("unet3d", "retinanet")
"""Of v3.0: 2.1.10 and 2.1.11."""


def top(root: str, submissions: list[Submission]) -> Iterator[Located]:
    """The root holds divisions alone (2.1.2 of v3.0)."""
    if not any(one.edition.checks_tree for one in submissions):
        return
    for name in _folders(root):
        if name not in _TOP and not _holds_code(os.path.join(root, name)):
            fix = f"move {name} out of the tree, or spell the division in small letters"
            found = Finding("error", "submission.top", f"a folder {name}", "closed, open or both", fix)
            yield Located(os.path.join(root, name), found)


def folders(one: Submission) -> Iterator[Located]:
    """DIVISION/ORG holds results and systems, and the code."""
    there = _folders(one.path)
    if not _NAME.match(one.organisation):
        fix = "call the folder by letters, digits, dot, dash and underscore"
        seen = f"the organisation's folder is called {one.organisation!r}"
        yield Located(one.path, Finding("error", "submission.name", seen, "[A-Za-z0-9._-]+", fix))
    for name in ("results", "systems"):
        if name not in there:
            fix = f"add the folder {name}"
            yield Located(one.path, Finding("error", "submission.folders", f"no folder {name}", name, fix))
    if one.edition.checks_tree:
        for name in there:
            if name not in ("results", "systems") and not _CODE.match(name):
                fix = f"move {name} out of the tree"
                wanted = "results, systems and code"
                found = Finding("error", "submission.folders", f"a folder {name}", wanted, fix)
                yield Located(os.path.join(one.path, name), found)


def code(one: Submission) -> Iterator[Located]:
    """The code that ran is part of a CLOSED submission (2.1.6 of v3.0)."""
    if one.division == "closed":
        root = os.path.dirname(os.path.dirname(one.path))
        images = os.path.isdir(os.path.join(root, "code-images"))
        places = (one.path, os.path.join(root, one.organisation))
        if not images and not any(_CODE.match(name) for place in places for name in _folders(place)):
            fix = "mlpstorage puts it there; v1.0: copy its folder"
            found = Finding("error", "submission.code", "no copy of the code", "the code of the official tool", fix)
            yield Located(one.path, found)


def categories(one: Submission) -> Iterator[Located]:
    """results/SYSTEM holds benchmarks of the edition, training its workloads (2.1.10 and 2.1.11 of v3.0)."""
    if not one.edition.checks_tree:
        return
    results = os.path.join(one.path, "results")
    for system in _folders(results):
        path = os.path.join(results, system)
        for name in _folders(path):
            if name not in _CATEGORIES:
                fix = f"move {name} out of the tree"
                found = Finding("error", "submission.category", f"a folder {name}", ", ".join(_CATEGORIES), fix)
                yield Located(os.path.join(path, name), found)
        for name in _folders(os.path.join(path, "training")):
            if name not in _WORKLOADS:
                fix = "hand in workloads of this edition alone"
                found = Finding("error", "submission.workload", f"a folder {name}", ", ".join(_WORKLOADS), fix)
                yield Located(os.path.join(path, "training", name), found)


def _holds_code(path: str) -> bool:
    """Whether a folder holds images of code and no other folder."""
    names = _folders(path)
    return bool(names) and all(_CODE.match(name) for name in names)


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


RULES = (folders, code, categories)

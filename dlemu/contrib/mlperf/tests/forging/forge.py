"""Trees to forge, and what `dlemu mlperf check` says of each forgery."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlemu.contrib.mlperf.audit.audited_run import audit_trees
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.tests.changes import Inapplicable
from dlemu.contrib.mlperf.tests.forging.kinds import KINDS, Forgery, single_facts
from dlemu.contrib.mlperf.tests.golden import make_result, make_tree
from dlemu.contrib.mlperf.tests.published_tree import make_published

BASES = ("2.0", "3.0", "checkpoints", "both", "published")
OTHER_BASES = ("published", "2.0")
"""Beside `both`, on which each kind of forgery is tried first: of these two the first that has anything of it."""
_HARMLESS = {
    "checkpoints": ("the log printed another AU",),
    "published": (
        *("few files on unknown memory", "data beside results", "one rank's steps are gone"),
        *("checkpoints: half a minute between the calls", "checkpoints: remapping that is not needed"),
        *("checkpoints: no remapping though it is needed", "checkpoints: writing alone", "checkpoints: no accelerator"),
    ),
}
"""Base -> forgeries of which its honest tree has the same, or nothing that they could contradict."""
Said = frozenset[tuple[str, str, str]]


@dataclass(frozen=True)
class Outcome:
    base: str
    name: str
    wanted: frozenset[str]
    new: frozenset[str]
    """Rules that are broken now and were not in the honest tree; of infos those that are wanted."""
    missed: bool
    """Whether nothing was said that tells of it."""


def make_base(name: str, folder: Path) -> Path:
    if name == "checkpoints":
        make_result(folder)
        return folder
    if name == "published":
        return make_published(folder)
    make_tree(folder, "3.0" if name == "both" else name)
    if name == "both":
        make_result(folder, system="drive")
    return folder


def forgeries(base: str, tree: Path) -> Iterator[Forgery]:
    """Yield what is tried on a tree: all kinds, and each single fact."""
    yield from (kind for kind in KINDS if kind.fits(base) and kind.name not in _HARMLESS.get(base, ()))
    if base in ("both", "checkpoints"):
        yield from single_facts(tree)


def said(checked: Checked) -> Said:
    """Return everything that was found, by rule, severity and what was seen."""
    return frozenset((one.rule, one.severity, one.seen) for one in checked.findings)


def _audited(root: Path) -> Said:
    findings = [one for run in audit_trees([str(root)]) for one in run.findings]
    return frozenset((one.rule, one.severity, one.seen) for one in findings if one.rule in _OF_THE_AUDIT)


_OF_THE_AUDIT = frozenset({"au.rules"})
"""Rules that no edition has: `check` does not tell of them."""


class Workshop:
    """A copy of an honest tree that is forged again and again: what a forgery changed is put back from the original."""

    def __init__(self, tree: Path, folder: str) -> None:
        self._tree, self.copy = tree, Path(folder) / "tree"  # a copy: beside its record it is a rehearsal's
        shutil.copytree(tree, self.copy)
        self._honest_files = self._files()
        self.honest = said(check_folder(str(self.copy)))

    def forged(self, forgery: Forgery) -> Said | None:
        """Return what is said anew of a forgery, None where the tree has nothing of its kind."""
        try:
            forgery.change(self.copy)
            with forgery.around():
                found = said(check_folder(str(self.copy))) - self.honest
            if forgery.rules & _OF_THE_AUDIT:
                found |= _audited(self.copy)
            return frozenset(
                (rule, severity, seen)
                for rule, severity, seen in found
                if severity != "info" or forgery.names(rule) or rule == "unapplied"
            )
        except (Inapplicable, StopIteration, KeyError, FileNotFoundError, IndexError, ValueError):
            return None
        finally:
            self._restore()

    def _files(self) -> dict[Path, tuple[int, int, int]]:
        found = (path for path in self.copy.rglob("*") if path.is_file() or path.is_symlink())
        stats = ((path.relative_to(self.copy), path.lstat()) for path in found)
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats}

    def _restore(self) -> None:
        now = self._files()
        for path in now.keys() - self._honest_files.keys():
            (self.copy / path).unlink()
        for path in sorted(self.copy.rglob("*"), reverse=True):
            if path.is_dir() and not (self._tree / path.relative_to(self.copy)).is_dir():
                path.rmdir()
        for path, stamp in self._honest_files.items():
            if now.get(path) != stamp:
                (self.copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._tree / path, self.copy / path)
        self._honest_files = self._files()


def forge(base: str, tree: Path, which: str = "") -> Iterator[Outcome]:
    """Yield what is said of each forgery of a tree whose name contains `which`."""
    with tempfile.TemporaryDirectory(prefix="dlemu-forge-") as folder:
        workshop = Workshop(tree, folder)
        for forgery in forgeries(base, tree):
            found = workshop.forged(forgery) if which in forgery.name else None
            if found is not None:
                missed = not (forgery.told_by(found) if forgery.rules else found)
                yield Outcome(base, forgery.name, forgery.rules, frozenset(rule for rule, _, _ in found), missed)

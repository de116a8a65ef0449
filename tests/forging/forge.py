"""Trees to forge, and what `dlemu mlperf check` says of each forgery."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dlemu.mlperf.check.judge import Checked, check_folder
from tests.forging.kinds import KINDS, Forgery, Inapplicable, single_facts
from tests.mlperf.checkpoint_leaves import make_result
from tests.mlperf.golden import edit, make_tree
from tests.mlperf.test_check import MUTATIONS
from tests.mlperf.test_check_checkpoints import BROKEN

BASES = ("1.0", "2.0", "3.0", "checkpoints", "both")
Said = frozenset[tuple[str, str, str]]


@dataclass(frozen=True)
class Outcome:
    """What was said of one forgery."""

    base: str
    name: str
    wanted: frozenset[str]
    new: frozenset[str]
    """Rules of errors and warnings that the honest tree has not."""

    @property
    def missed(self) -> bool:
        """Whether nothing was said that tells of it."""
        return not (self.new & self.wanted if self.wanted else self.new)


def make_base(name: str, folder: Path) -> Path:
    """Write an honest tree."""
    if name == "checkpoints":
        make_result(folder)
        return folder
    make_tree(folder, "3.0" if name == "both" else name)
    if name == "both":
        with tempfile.TemporaryDirectory(prefix="dlemu-forge-") as other:
            make_result(Path(other))
            organisation = Path(other) / "closed/acme"
            (organisation / "results/box").rename(organisation / "results/drive")
            for path in list((organisation / "systems").iterdir()):
                path.rename(path.with_stem("drive"))
            described = organisation / "systems/drive.yaml"
            edit(described, lambda told: told["system_under_test"]["solution"].update(submission_name="drive"))
            shutil.copytree(organisation, folder / "closed/acme", dirs_exist_ok=True)
    return folder


def forgeries(base: str, tree: Path) -> Iterator[Forgery]:
    """Yield what is tried on a tree: all kinds, the tests' own mutations of its rules, and each single fact."""
    yield from (kind for kind in KINDS if base not in ("1.0", "2.0") or not kind.of_v3)
    if base in ("1.0", "2.0", "3.0"):
        for number, (editions, _, rule, change) in enumerate(MUTATIONS):
            if base in editions.split():
                yield Forgery(f"test {number} of {rule}", frozenset({rule}), change)
    if base == "checkpoints":
        for number, (_, rule, _, alter) in enumerate(BROKEN):
            result = next(tree.rglob("checkpointing/*")).relative_to(tree)
            yield Forgery(f"test {number} of {rule}", frozenset({rule}), partial(_within, result, alter))
    if base in ("both", "checkpoints"):
        yield from single_facts(tree)


def _within(place: Path, alter: Callable[[Path], None], root: Path) -> None:
    alter(root / place)


def said(checked: Checked) -> Said:
    """Return errors and warnings, each with the file or folder that it is of."""
    return frozenset(
        (one.finding.rule, one.finding.severity, one.finding.seen)
        for one in checked.findings
        if one.finding.severity != "info" or one.finding.rule == "unapplied"
    )


def forge(base: str, tree: Path, which: str = "") -> Iterator[Outcome]:
    """Yield what is said of each forgery of a tree whose name contains `which`."""
    with tempfile.TemporaryDirectory(prefix="dlemu-forge-") as folder:  # a copy: beside its record it is a rehearsal's
        honest = said(check_folder(str(shutil.copytree(tree, Path(folder) / "tree"))))
    for forgery in forgeries(base, tree):
        if which not in forgery.name:
            continue
        with tempfile.TemporaryDirectory(prefix="dlemu-forge-") as folder:
            copy = Path(folder) / "tree"
            shutil.copytree(tree, copy)
            try:
                forgery.change(copy)
            except (Inapplicable, StopIteration, KeyError, FileNotFoundError, IndexError, ValueError):
                continue
            new = frozenset(rule for rule, _, _ in said(check_folder(str(copy))) - honest)
            yield Outcome(base, forgery.name, forgery.rules, new)

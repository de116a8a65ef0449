"""What `dlemu mlperf check` says of trees that break a rule or are forged: broken_rules.json, word for word, and where.

A change that is meant is written by `python -m dlemu.contrib.mlperf.tests.broken_rules`; the diff is of that commit.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from dlemu.contrib.mlperf.check.judge import Checked, check_folder

Case = TypeVar("Case")
EXPECTED = Path(__file__).with_name("broken_rules.json")


def numbered(cases: Iterable[tuple[str, Case]]) -> dict[str, Case]:
    """Return cases by their names, and by a number behind it where a name is there already."""
    named: dict[str, Case] = {}
    for name, case in cases:
        same = sum(other.partition(" #")[0] == name for other in named)
        named[f"{name} #{same + 1}" if same else name] = case
    return named


def sentences(checked: Checked, root: Path) -> list[str]:
    """Return what was found below a folder, a line each with the first place and the number of others."""
    places: dict[str, list[str]] = {}
    for one in checked.findings:
        found = one.finding
        if found.severity != "info" or found.rule == "unapplied":
            by = f" ({one.official})" if one.official else ""
            said = f"{found.severity} {found.rule}{by}: {found.seen}; wanted: {found.wanted}; to do: {found.fix}"
            places.setdefault(said.replace(str(root), "TREE"), []).append(str(Path(one.path).relative_to(root)))
    return sorted(
        f"{min(where)}{f' and {len(where) - 1} more' if where[1:] else ''}: {said}" for said, where in places.items()
    )


def expected(case: str) -> list[str]:
    """Return what a case is to say; nothing of one that was never written."""
    kept: dict[str, list[str]] = json.loads(EXPECTED.read_text())
    return kept.get(case, [])


def write() -> None:
    """Break each rule, and keep what is said."""
    from dlemu.contrib.mlperf.tests import test_check, test_check_checkpoints
    from dlemu.contrib.mlperf.tests.checkpoint_leaves import make_result
    from dlemu.contrib.mlperf.tests.golden import make_tree

    said: dict[str, list[str]] = {}

    def keep(case: str, root: Path) -> None:
        said[case] = sentences(check_folder(str(root)), root)
        shutil.rmtree(root)

    with tempfile.TemporaryDirectory() as folder:
        golden = {edition: make_tree(Path(folder, edition), edition) for edition in test_check.EDITIONS}
        root = Path(folder, "tree")
        for case, (edition, _, _, change) in test_check.CASES.items():
            change(shutil.copytree(golden[edition], root))
            keep(case, root)
        for case, (_, _, _, change) in test_check_checkpoints.CASES.items():
            change(make_result(root))
            keep(case, root)
        said |= dict(_forged(Path(folder)))
    EXPECTED.write_text(json.dumps(said, indent=1) + "\n")


def _forged(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each kind of forgery with what is said of it."""
    from dlemu.contrib.mlperf.tests.forging import forge
    from dlemu.contrib.mlperf.tests.forging.kinds import KINDS

    made = {name: forge.make_base(name, folder / f"base-{name}") for name in ("both", *forge.OTHER_BASES)}
    workshops = {name: forge.Workshop(tree, tempfile.mkdtemp(dir=folder)) for name, tree in made.items()}
    for forgery in KINDS:
        told = (
            workshop.sentences
            for base, workshop in workshops.items()
            if forgery.fits(base) and workshop.forged(forgery) is not None
        )
        yield forgery.name, next(told, [])


if __name__ == "__main__":
    write()

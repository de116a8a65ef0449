"""The program does not grow: budget.toml says how large each package, the whole, its tests and its pages may be."""

from __future__ import annotations

from tests import budget
from tests.parts import needs_all_parts

pytestmark = needs_all_parts


def test_no_package_grows() -> None:
    limits, sizes = budget.read_budget()["packages"], budget.packages()
    assert sizes.keys() <= limits.keys(), "a new package: take its room from another in tests/budget.toml"
    over = [
        f"{name}: {size} {what}, {limits[name][what]} in tests/budget.toml"
        for name, measured in sizes.items()
        for what, size in measured.items()
        if size > limits[name][what]
    ]
    assert not over


def test_the_whole_does_not_grow() -> None:
    limits = budget.read_budget()["whole"]
    assert not {name: (size, limits[name]) for name, size in budget.whole().items() if size > limits[name]}


def test_what_grows_is_noticed() -> None:
    inner, public = ("datagen.errors", "dlemu.jobs"), ("dlemu.extend", "dlemu.results", "dlemu.contrib.pack")
    assert [bool(budget.INNER.match(module)) for module in (*inner, *public)] == [True] * 2 + [False] * 3
    assert sum(size["files"] for size in budget.packages().values()) == len(list(budget.product()))

"""What holds for each check of the folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.doctor import host, outcomes, storage
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training import host_checks
from tests.datasets import make_dataset
from tests.doctor.workloads import small

MODULES = (host, storage, host_checks)
CHECKS = [each for module in MODULES for each in module.CHECKS.items()]
QUICK = ("train.computation_time=0.01", "reader.data_loader=threads", "metric.ceiling_seconds=0.1")


@pytest.fixture(scope="module", params=["there", "absent"])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A host with the dataset and one without it."""
    folder = tmp_path_factory.mktemp("dataset")
    if request.param == "there":
        make_dataset(folder)
    return Facts(small(folder if request.param == "there" else folder / "absent", *QUICK))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "look"), CHECKS, ids=[name for name, _ in CHECKS])
def test_a_check_is_well_formed(name: str, look: Callable[[Facts], Check | None], facts: Facts) -> None:
    assert 0 < len(name) <= 13, "the width of its column"
    check = look(facts)
    if check is None:
        return
    assert check.level in ("ok", "skip", "warn", "fail")
    assert check.observed
    assert check.level == "ok" or check.wanted or check.advice or check.observed.count(" ") > 3


def test_no_two_checks_have_one_name() -> None:
    assert len({name for name, _ in CHECKS}) == len(CHECKS)


def test_a_check_that_raises_ends_no_other() -> None:
    def refuses(_: Facts) -> Check:
        raise UserError("no room: make some")

    def breaks(_: Facts) -> Check:
        raise KeyError("key")

    checks = {
        "refuses": refuses,
        "breaks": breaks,
        "silent": lambda _: None,
        "last": lambda facts: Check(observed=str(facts.workload.ranks)),
    }
    seen = [(check.name, check.level, check.observed) for check in outcomes(checks, Facts(Workload(ranks=3)))]
    assert seen == [
        ("refuses", "fail", "no room: make some"),
        ("breaks", "fail", "KeyError: 'key'"),
        ("last", "ok", "3"),
    ]

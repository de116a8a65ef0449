"""What holds for each check of the folder."""

from __future__ import annotations

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.doctor import host, outcomes, storage
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training import host_checks

MODULES = (host, storage, host_checks)
CHECKS = [each for module in MODULES for each in module.CHECKS.items()]


def test_no_two_checks_have_one_name_and_each_fits_its_column() -> None:
    names = [name for name, _ in CHECKS]
    assert len(set(names)) == len(CHECKS)
    assert all(0 < len(name) <= 13 for name in names)


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

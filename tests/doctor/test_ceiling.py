"""The ceiling of a workload on this host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.config import load
from dlemu.doctor.check_base import Facts
from dlemu.jobs.training import host_checks, trainer
from tests.doctor.workloads import small


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["threads", "none"])
def test_the_ceiling_is_measured_without_a_dataset(loader: str, tmp_path: Path) -> None:
    words = ("ranks=2", "train.computation_time=0.01", f"reader.data_loader={loader}", "metric.ceiling_seconds=0.1")
    check = host_checks.check_ceiling(Facts(small(tmp_path / "none", *words)))
    assert check.level in ("ok", "fail"), "a busy machine may be below the threshold"
    assert "% AU for 2 x accelerator" in check.observed
    assert "MB/s" in check.observed


def test_a_ceiling_below_the_threshold_fails() -> None:
    facts = Facts(load(["workload=unet3d", "accelerator=h100", "ranks=18"]))
    check = host_checks.judge_ceiling(facts.demand, 18, 75.0)
    assert (check.level, check.wanted) == ("fail", "90 % or more")
    assert "18 x h100" in check.observed
    assert check.advice.startswith("fewer ranks on this host, or a host with more cores")
    assert host_checks.judge_ceiling(facts.demand, 1, 75.0).advice.startswith("a host with more cores")
    assert host_checks.judge_ceiling(facts.demand, 18, 99.0).level == "ok"


def test_ranks_that_can_not_run_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("rank 3 of 4 could not be started")

    monkeypatch.setattr(host_checks, "run_ranks", refuse)
    words = ("train.computation_time=0.01", "reader.data_loader=none")
    with pytest.raises(UserError, match="rank 3 of 4 could not be started"):
        host_checks.check_ceiling(Facts(small(tmp_path / "none", *words)))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("train.computation_time=0", "no computation is emulated"),
        ("metric.ceiling_seconds=0", "metric.ceiling_seconds is 0"),
    ],
)
def test_what_is_not_measured_is_not_called_ok(words: str, why: str, tmp_path: Path) -> None:
    check = host_checks.check_ceiling(Facts(small(tmp_path, words)))
    assert (check.level, check.observed) == ("skip", f"not measured: {why}")


def test_ranks_that_do_not_get_on_are_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_checks, "measure_ceiling", lambda *_: time.sleep(3600))
    monkeypatch.setattr(host_checks, "BUDGET_SECONDS", 0.3)
    check = host_checks.check_ceiling(Facts(small(tmp_path / "none", "ranks=2", "train.computation_time=0.01")))
    assert check.level == "warn"
    assert "within 0.3 s" in check.observed
    assert check.advice


@pytest.mark.slow
def test_steps_that_take_too_long_are_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the steps up to then the ceiling is computed; one alone does not count."""
    monkeypatch.setattr(trainer, "CEILING_PATIENCE_SECONDS", -1.0)
    words = ("ranks=2", "train.computation_time=0.01", "reader.data_loader=none", "metric.ceiling_seconds=3600")
    assert host_checks.check_ceiling(Facts(small(tmp_path / "none", *words))).level == "warn"
    monkeypatch.setattr(trainer, "CEILING_PATIENCE_SECONDS", 0.5)
    assert "% AU for 2 x accelerator" in host_checks.check_ceiling(Facts(small(tmp_path / "none", *words))).observed

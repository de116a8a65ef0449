"""Every accelerator keeps the loop's contract, and one of the user's own is one file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.registry import find, names
from dlemu.accelerators.accelerator_base import Accelerator, AcceleratorSpec, Phase
from dlemu.accelerators.sleep import Accelerator as Sleep
from dlemu.config.duration import Duration
from dlemu.jobs.training.result import read_run
from dlemu.machine.clock import FakeClock
from tests.e2e.harness import Ended, dlemu, small_run

SPEC = AcceleratorSpec(
    rank=3, seed=11, computation_time=Duration(type="normal", mean=0.05, stdev=0.01), eval_time=Duration(mean=0.02)
)


def make(name: str, clock: FakeClock) -> Accelerator:
    accelerator: type[Accelerator] = find("dlemu.accelerators", name, "Accelerator")
    accelerator.check_host(SPEC)
    return accelerator(SPEC, clock)


@pytest.mark.parametrize("name", names("dlemu.accelerators"))
def test_durations_depend_on_seed_rank_and_epoch_alone(name: str) -> None:
    one, other = make(name, FakeClock()), make(name, FakeClock(99))
    times = one.draw_compute_ns("train", 2, 50)
    assert times.dtype == np.int64
    assert times.tolist() == other.draw_compute_ns("train", 2, 50).tolist()
    assert times.tolist() != one.draw_compute_ns("train", 3, 50).tolist()
    assert one.draw_compute_ns("valid", 2, 3).tolist() == [20_000_000] * 3


@pytest.mark.parametrize("name", names("dlemu.accelerators"))
def test_draws_of_ranks_seeds_and_phases_are_streams_of_their_own(name: str) -> None:
    def drawn(phase: Phase = "train", epoch: int = 1, **changes: Any) -> tuple[int, ...]:
        spec = replace(SPEC, eval_time=SPEC.computation_time, **changes)
        accelerator = find("dlemu.accelerators", name, "Accelerator")(spec, FakeClock())
        return tuple(accelerator.draw_compute_ns(phase, epoch, 4).tolist())

    streams = [drawn(rank=rank) for rank in range(5)]
    streams += [drawn(epoch=epoch) for epoch in range(2, 10)]
    streams += [drawn("valid", epoch) for epoch in range(1, 10)]
    streams += [drawn(seed=seed) for seed in (0, 1, 2**63, 2**63 + 1, -1, -2)]
    assert len(set(streams)) == len(streams)
    assert drawn(rank=3) == drawn() == drawn(seed=11)
    assert drawn("ceiling", 0) == drawn("train", 0)


def test_a_draw_is_rounded_to_the_nanosecond() -> None:
    spec = replace(SPEC, computation_time=Duration(mean=1234.5678901235))
    times = Sleep(spec, FakeClock()).draw_compute_ns("train", 1, 2)
    assert times.tolist() == [1_234_567_890_124] * 2


def test_draws_stay_what_they_were() -> None:
    """Computation times of a run of an older version are drawn again from its seed."""
    assert Sleep(SPEC, FakeClock()).draw_compute_ns("train", 2, 3).tolist() == [62939828, 55391934, 55570824]


@pytest.mark.parametrize("name", names("dlemu.accelerators"))
def test_a_late_host_makes_no_step_longer(name: str) -> None:
    clock = FakeClock(0, oversleep_ns=500)
    accelerator = make(name, clock)
    assert accelerator.finish(accelerator.start(None, 1_000, 2_000)) == 3_000
    assert clock.now_ns() == 3_500


OWN = '''
"""An accelerator that takes twice its nominal time, and refuses hosts when told to."""
import os
import sys

from datagen.errors import UserError
from dlemu.accelerators.sleep import Accelerator as Sleep


class Accelerator(Sleep):
    @classmethod
    def check_host(cls, spec):
        if os.environ.get("REFUSE"):
            raise UserError("slow: this host has no slow accelerator; use another host")

    def start(self, data, begin_ns, compute_ns):
        assert data is not None  # it is handed the batch
        return begin_ns + 2 * compute_ns
'''


def run_own(folder: Path) -> Ended:
    """Make a dataset and train on it with an accelerator of the user's."""
    (folder / "slow_accelerator.py").write_text(OWN)
    own = ("train.compute=slow_accelerator.Accelerator", "train.computation_time=0.01")
    words, path = small_run(folder / "run", folder / "data", *own), os.pathsep.join([str(folder), *sys.path])
    dlemu("datagen", *words, PYTHONPATH=path)
    return dlemu("train", *words, PYTHONPATH=path)


@pytest.mark.slow
def test_an_accelerator_of_the_users_own_is_one_file(tmp_path: Path) -> None:
    run_own(tmp_path).assert_ran()
    run = read_run(str(tmp_path / "run"))
    assert run.facts.workload.train.compute == "slow_accelerator.Accelerator"
    assert set(run.training["compute_ns"].tolist()) == {20_000_000}


@pytest.mark.slow
def test_an_accelerator_may_refuse_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSE", "1")
    run_own(tmp_path).assert_ended(2, "this host has no slow accelerator")

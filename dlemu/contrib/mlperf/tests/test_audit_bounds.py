"""Where not all is known the audit gives bounds, and they hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlemu.contrib.mlperf.audit.audit_answer import audit_row
from dlemu.contrib.mlperf.tests.foreign_runs import C, write_run
from dlemu.contrib.mlperf.tests.test_audit import FORMULAS, audited


@pytest.mark.parametrize("edition", FORMULAS)
@pytest.mark.parametrize("ranks", [1, 2, 7])
@pytest.mark.parametrize(("apart", "closing"), [(1e-4, 0.0), (0.25, 0.0), (0.05, 3.0)])
def test_bounds_from_time_stamps_hold_whatever_the_ranks_did(
    edition: str, ranks: int, apart: float, closing: float, tmp_path: Path
) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        write_run(folder, edition, ranks=ranks, epochs=2, steps=12, seed=seed, kept=0, apart=apart, closing=closing)
        run = audited(folder)
        told = audit_row(run)
        assert run.recomputed.basis == "blocks"
        assert 0 < (told.au_least_percent or 0) <= (told.au_printed_percent or 0) <= 100
        printed = told.samples_per_second_printed or 0
        assert 0 < (told.samples_per_second_least or 0) <= printed <= (told.samples_per_second_most or 0)
        assert not [one for one in run.findings if one.severity == "error"]


@pytest.mark.parametrize("edition", ["v1", "v2"])
@pytest.mark.parametrize("kept", [0, -1])
def test_a_block_that_a_checkpoint_ended_again_is_as_long_as_dlio_took_it(
    edition: str, kept: int, tmp_path: Path
) -> None:
    write_run(tmp_path, edition, ranks=1, kept=kept, closing=3.0)
    told = audit_row(audited(tmp_path))
    if kept or edition == "v1":
        again, printed = getattr(told, f"samples_per_second_{FORMULAS[edition]}"), told.samples_per_second_printed
        assert again == pytest.approx(printed, rel=1e-6)
    if kept:
        assert getattr(told, f"au_{FORMULAS[edition]}_percent") == pytest.approx(told.au_printed_percent, abs=1e-4)


def test_a_block_that_ended_once_stays_so_with_a_checkpoint_behind_it(tmp_path: Path) -> None:
    """The newest DLIO ends a block once; the checkpoint comes later."""
    write_run(tmp_path, "v3", ranks=1)
    path = tmp_path / "0_per_epoch_stats.json"
    stats = json.loads(path.read_text())
    end = stats["2"]["block1"]["end"]
    late = end.replace(end[17:19], "59")
    assert late > end
    stats["2"]["save_ckpt1"] = {"start": late, "end": late}
    path.write_text(json.dumps(stats))
    told = audit_row(audited(tmp_path))
    assert told.au_dlio_v3_percent == pytest.approx(told.au_printed_percent, abs=1e-4)


def test_drawn_step_times_have_no_bounds(tmp_path: Path) -> None:
    """A step may then take less than the mean, which is all that the settings tell."""
    write_run(tmp_path, "v2", ranks=2, kept=0)
    config = tmp_path / "dlio_config" / "config.yaml"
    drawn = f"computation_time: {{mean: {C}, stdev: 0.01}}"
    config.write_text(config.read_text().replace(f"computation_time: {C}", drawn))
    told = audit_row(audited(tmp_path))
    assert told.au_least_percent is told.samples_per_second_least is told.samples_per_second_most is None

"""Folders of results: what is read, and what is said of those that hold none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.report.result import open_run
from tests.report.folders import HOST, write_run


def test_a_run_is_read_with_all_its_parts(tmp_path: Path) -> None:
    run = open_run(str(write_run(tmp_path, ranks=2, epochs=2, steps=12)))
    assert run.training is not None
    assert len(run.training) == 2 * 2 * 12
    assert run.host_start_ns == {HOST: int(run.training["free_ns"].min())}
    assert run.seconds("free_ns", run.training).min() == 0
    assert [one.source for one in run.readings("power", "watts")] == ["nvme0", "package-0"]
    assert np.all(np.diff(run.readings("power", "watts")[0].seconds) > 0)


def test_each_host_has_its_own_clock(tmp_path: Path) -> None:
    run = open_run(str(write_run(tmp_path, ranks=4, rank_nodes=(0, 0, 1, 1), skew_ns=7_000_000_000)))
    assert run.training is not None
    assert run.host_start_ns["node1"] - run.host_start_ns["node0"] == 7_000_000_000
    begins = run.seconds("free_ns", run.training)
    assert [float(begins[run.training["rank"] == rank].max()) for rank in range(4)] == pytest.approx(
        [float(begins.max())] * 4, abs=1e-9
    )


def test_a_run_without_logs_still_has_its_summary(tmp_path: Path) -> None:
    write_run(tmp_path, telemetry=False)
    (tmp_path / "steps.parquet").unlink()
    run = open_run(str(tmp_path))
    assert run.training is None
    assert run.readings("cpu") == []
    assert run.summary["workload"] == "handmade"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file or directory; name the folder of a result"),
        ("{", "is damaged"),
        ("[]", "is damaged: it holds no mapping"),
        ('{"epochs": 5}', "has schema_version None, wanted 1"),
        ('{"schema_version": 99}', "has schema_version 99, wanted 1"),
        ('{"schema_version": 1, "complete": true}', "is damaged: it lacks failure, passed"),
    ],
)
def test_what_is_no_result_is_told_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(UserError, match=r"summary\.json") as error:
        open_run(str(tmp_path))
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["steps.parquet", "telemetry.parquet", "block_trace.parquet"])
def test_a_damaged_log_is_told_by_name(tmp_path: Path, name: str) -> None:
    write_run(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    with pytest.raises(UserError, match=name) as error:
        open_run(str(tmp_path))
    assert "is damaged" in str(error.value)

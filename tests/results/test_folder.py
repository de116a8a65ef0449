"""A run's folder: what is written is read, what can be computed is not believed, what is damaged is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datagen.errors import UserError
from dlemu.emulator.job import Job
from dlemu.results.folder import holds_run, read_run, read_summary, write_run
from dlemu.results.run import Run, make_run
from tests.runs import make_job, make_log, with_blocks, with_evaluation, with_telemetry

DATASET = make_job().workload.dataset


def written(folder: Path, failure: str | None = None, **changes: object) -> Run:
    """A run on two hosts with telemetry, in its folder."""
    job = make_job(folder=str(folder), **changes)  # type: ignore[arg-type]  # sections of a workload, by name
    run = make_run(job, with_telemetry(make_log(job, rank_nodes=(0,) * (job.ranks - 1) + (1,))), failure)
    write_run(run)
    return run


@pytest.mark.parametrize("sections", [{}, with_blocks(5), with_evaluation(40, DATASET)])
@pytest.mark.parametrize("failure", [None, "rank 1 was killed by SIGKILL"])
def test_what_is_written_is_read(tmp_path: Path, sections: dict[str, object], failure: str | None) -> None:
    run = written(tmp_path, failure, **sections)
    again = read_run(str(tmp_path))
    assert again.facts == run.facts
    assert np.array_equal(again.rows, run.ordered)
    assert again.summary == run.summary == read_summary(str(tmp_path))
    assert [host.head for host in again.telemetry] == [host.head for host in run.telemetry]


def test_a_run_of_an_older_version_is_read_from_its_summary_and_configuration(tmp_path: Path) -> None:
    run = written(tmp_path, **with_blocks(5))
    (tmp_path / "facts.json").unlink()
    assert read_run(str(tmp_path)).summary == run.summary


def test_a_run_whose_summary_was_never_written_is_read(tmp_path: Path) -> None:
    run = written(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert holds_run(str(tmp_path))
    assert read_run(str(tmp_path)).summary == run.summary


def test_the_summary_is_computed_again_and_not_believed(tmp_path: Path) -> None:
    run = written(tmp_path)
    values = json.loads((tmp_path / "summary.json").read_text())
    values["metrics"]["au_percent"]["mean"], values["passed"], values["verdict"] = 99.9, True, "PASS"
    (tmp_path / "summary.json").write_text(json.dumps(values))
    assert read_run(str(tmp_path)).summary == run.summary
    forged = read_summary(str(tmp_path))
    assert forged.au is not None
    assert forged.au.mean == 99.9


def test_steps_are_an_arrow_table_with_the_columns_meanings_in_the_file(tmp_path: Path) -> None:
    run = written(tmp_path)
    assert run.steps.num_rows == len(run.rows)
    assert run.steps["wait_ns"].to_pylist() == run.rows["wait_ns"].tolist()
    schema = pq.read_schema(tmp_path / "steps.parquet")
    assert b"waited" in schema.field("wait_ns").metadata[b"meaning"]


def test_each_host_has_its_own_clock() -> None:
    job = make_job(ranks=4)
    run = make_run(job, make_log(job, rank_nodes=(0, 0, 1, 1), skew_ns=7_000_000_000))
    assert run.host_start_ns["node1"] - run.host_start_ns["node0"] == 7_000_000_000
    begins = run.seconds("free_ns", run.training)
    ends = [float(begins[run.training["rank"] == rank].max()) for rank in range(4)]
    assert ends == pytest.approx([float(begins.max())] * 4, abs=1e-9)
    assert begins.min() == 0


def test_readings_are_series_on_the_runs_own_clock(tmp_path: Path) -> None:
    run = written(tmp_path)
    assert [(one.host, one.source) for one in run.series("power", "watts")] == [
        ("node0", "package-0"),
        ("node1", "package-0"),
    ]
    assert all(np.all(np.diff(one.seconds) > 0) for one in run.series("power"))
    assert {one.metric for one in run.device_series("block")} == {"read_mb_per_second"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file or directory; name the folder of a result"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("null", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ('{"epochs": 5}', "has schema_version None, wanted 1"),
        ('{"schema_version": 99}', "has schema_version 99, wanted 1"),
        ('{"schema_version": 1, "complete": true}', "is damaged"),
    ],
)
def test_what_is_no_result_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(UserError, match=r"summary\.json") as error:
        read_run(str(tmp_path))
    assert message in str(error.value)


def replace_column(folder: Path, name: str, column: pa.Array) -> None:
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.set_column(table.column_names.index(name), name, column), folder / "steps.parquet")


def set_rank(folder: Path, rank: int) -> None:
    rows = pq.read_table(folder / "steps.parquet").num_rows
    replace_column(folder, "rank", pa.array([rank] * rows, pa.int64()))


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "steps without a column": lambda folder: pq.write_table(
        pq.read_table(folder / "steps.parquet").drop_columns(["wait_ns"]), folder / "steps.parquet"
    ),
    "steps with text": lambda folder: replace_column(
        folder, "wait_ns", pa.array(["x"] * pq.read_table(folder / "steps.parquet").num_rows)
    ),
    "a rank that can't be": lambda folder: set_rank(folder, 10**12),
    "a negative rank": lambda folder: set_rank(folder, -7),
    "steps cut short": lambda folder: os.truncate(folder / "steps.parquet", 1000),
    "no steps of a complete run": lambda folder: (folder / "steps.parquet").unlink(),
    "telemetry cut short": lambda folder: os.truncate(folder / "telemetry.parquet", 100),
    "facts that are text": lambda folder: (folder / "facts.json").write_text("hello"),
    "facts of a newer version": lambda folder: (folder / "facts.json").write_text(
        (folder / "facts.json").read_text().replace('"facts_version": 1', '"facts_version": 2')
    ),
    "a pipe for a summary": lambda folder: replaced(folder / "summary.json", os.mkfifo),
    "an endless summary": lambda folder: replaced(folder / "summary.json", lambda path: path.symlink_to("/dev/zero")),
    "neither facts nor configuration": lambda folder: remove(folder, "facts.json", "config.yaml"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_named_and_never_a_traceback(tmp_path: Path, name: str) -> None:
    written(tmp_path)
    DAMAGE[name](tmp_path)
    with pytest.raises(UserError, match=str(tmp_path)):
        read_run(str(tmp_path))


def test_a_run_that_failed_before_its_first_step_has_a_summary(tmp_path: Path) -> None:
    job: Job = make_job(folder=str(tmp_path))
    log = make_log(job)
    write_run(make_run(job, type(log)(log.rows[:0], log.journal), "no rank came up"))
    summary = read_run(str(tmp_path)).summary
    assert (summary.complete, summary.passed, summary.failure) == (False, None, "no rank came up")
    assert summary.au is None


def test_only_a_folder_with_a_summary_of_ours_holds_a_run(tmp_path: Path) -> None:
    assert not holds_run(str(tmp_path))
    (tmp_path / "summary.json").write_text('{"num_accelerators": 4}')
    assert not holds_run(str(tmp_path))
    written(tmp_path / "run")
    assert holds_run(str(tmp_path / "run"))

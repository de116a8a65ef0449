"""A run's folder: what is written is read, what can be computed is not believed, what is damaged is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datagen.errors import SpaceError, UserError
from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import ROWS as CHECKPOINT_ROWS
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import Run, read_run
from dlemu.jobs.training.steplog import STEP_COLUMNS
from dlemu.jobs.training.summary import Summary
from dlemu.plan.streams import StreamPlan
from dlemu.results import ADVICE, FACTS
from dlemu.results.answer_files import decode_versioned
from dlemu.results.measured import write_measured, write_summary
from tests.results.handmade import CHECKPOINT_RUNS, saved_checkpoints
from tests.runs import (
    kind_held,
    make_job,
    make_log,
    make_run,
    present,
    whole_run,
    with_blocks,
    with_evaluation,
    with_telemetry,
    write_run,
)

DATASET = make_job().workload.dataset


def written(folder: Path, failure: str | None = None, **changes: object) -> Run:
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
    assert again.summary == run.summary == decode_versioned(str(tmp_path / "summary.json"), Summary)
    assert [host.head for host in again.telemetry] == [host.head for host in run.telemetry]


def test_so_is_a_run_whose_files_were_read_as_streams(tmp_path: Path) -> None:
    job = make_job(folder=str(tmp_path), dataset=replace(DATASET, format="tfrecord", num_files_train=96))
    job = replace(job, workload=replace(job.workload, reader=replace(job.workload.reader, data_loader="tensorflow")))
    assert isinstance(job.train_plan, StreamPlan)
    run = make_run(job, make_log(job))
    assert (run.facts.plan, run.facts.stream_plan, run.facts.train_plan) == (None, job.train_plan, job.train_plan)
    write_run(run)
    again = read_run(str(tmp_path))
    assert again.facts == run.facts
    assert again.summary == run.summary
    picked = make_run(make_job(), make_log(make_job())).facts
    assert (picked.plan, picked.stream_plan, picked.train_plan) == (make_job().train_plan, None, make_job().train_plan)


@contextlib.contextmanager
def in_the_way(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    path.mkdir()
    yield
    path.rmdir()


def test_what_can_not_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    saved = replace(CHECKPOINT_RUNS["checkpoints"](), folder=run.folder)

    def told(name: str) -> contextlib.AbstractContextManager[object]:
        return pytest.raises(SpaceError, match=rf"{run.folder}/{name} could not be written: .*; {re.escape(ADVICE)}$")

    for name in ("config.yaml", "steps.parquet", "telemetry.parquet", "facts.json", "summary.json"):
        with in_the_way(Path(run.folder, name)), told(name):
            write_run(run)
    for name in ("config.yaml", "checkpoints.parquet", "facts.json"):
        with in_the_way(Path(run.folder, name)), told(name):
            write_measured(saved)
    with in_the_way(Path(run.folder, "summary.json")), told("summary.json"):
        write_summary(saved)


def test_the_summary_is_computed_again_and_not_believed(tmp_path: Path) -> None:
    run = written(tmp_path)
    values = json.loads((tmp_path / "summary.json").read_text())
    values["metrics"]["au_percent"]["mean"], values["outcome"], values["verdict"] = 99.9, "pass", "PASS"
    (tmp_path / "summary.json").write_text(json.dumps(values))
    assert read_run(str(tmp_path)).summary == run.summary
    forged = decode_versioned(str(tmp_path / "summary.json"), Summary)
    assert present(forged.au).mean == 99.9
    (tmp_path / "summary.json").unlink()
    assert (kind_held(tmp_path), read_run(str(tmp_path)).summary) == ("training", run.summary)


def test_steps_are_an_arrow_table_with_the_columns_meanings_in_the_file(tmp_path: Path) -> None:
    run = written(tmp_path)
    assert run.steps.num_rows == len(run.rows)
    assert run.steps["wait_ns"].to_pylist() == run.rows["wait_ns"].tolist()
    schema = pq.read_schema(tmp_path / "steps.parquet")
    assert b"waited" in schema.field("wait_ns").metadata[b"meaning"]
    assert {(field.type, field.nullable) for field in schema} == {(pa.int64(), False)}
    group = pq.ParquetFile(tmp_path / "steps.parquet").metadata.row_group(0)
    assert {group.column(number).compression for number in range(group.num_columns)} == {"ZSTD"}


def test_each_host_has_its_own_clock() -> None:
    job = make_job(ranks=4)
    run = make_run(job, make_log(job, rank_nodes=(0, 0, 1, 1), skew_ns=7_000_000_000))
    assert run.host_start_ns["node1"] - run.host_start_ns["node0"] == 7_000_000_000
    starts = [run.rank_start_ns[rank] for rank in range(4)]
    assert np.subtract(starts, starts[0]).tolist() == [0, 0, 7_000_000_000, 7_000_000_000]
    alike = make_run(job, make_log(job, rank_nodes=(0, 0, 1, 1)))
    assert run.span_seconds == alike.span_seconds
    assert run.read_mb_per_second == pytest.approx(alike.read_mb_per_second)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file or directory; name the folder of a result"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ('{"kind": "training"}', "has schema_version None, wanted 1"),
        ('{"schema_version": 1}', "is damaged"),
        ('{"schema_version": 99, "kind": "training"}', "has schema_version 99, wanted 1"),
        ('{"schema_version": 1, "kind": "training", "ranks": 1}', "is damaged"),
    ],
)
def test_what_is_no_result_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "facts.json").write_text(content)
    with pytest.raises(UserError, match=r"facts\.json") as error:
        read_run(str(tmp_path))
    assert message in str(error.value)


def replace_column(folder: Path, name: str, column: pa.Array) -> None:
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.set_column(table.column_names.index(name), name, column), folder / "steps.parquet")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "steps without a column": lambda folder: pq.write_table(
        pq.read_table(folder / "steps.parquet").drop_columns(["wait_ns"]), folder / "steps.parquet"
    ),
    "steps with text": lambda folder: replace_column(
        folder, "wait_ns", pa.array(["x"] * pq.read_table(folder / "steps.parquet").num_rows)
    ),
    "steps cut short": lambda folder: os.truncate(folder / "steps.parquet", 1000),
    "no steps of a complete run": lambda folder: (folder / "steps.parquet").unlink(),
    "telemetry cut short": lambda folder: os.truncate(folder / "telemetry.parquet", 100),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_named_and_never_a_traceback(tmp_path: Path, name: str) -> None:
    written(tmp_path)
    DAMAGE[name](tmp_path)
    with pytest.raises(UserError, match=str(tmp_path)):
        read_run(str(tmp_path))


def test_a_run_that_failed_before_its_first_step_has_a_summary(tmp_path: Path) -> None:
    job: TrainingJob = make_job(folder=str(tmp_path))
    log = make_log(job)
    write_run(make_run(job, type(log)(log.rows[:0], log.journal), "no rank came up"))
    summary = read_run(str(tmp_path)).summary
    assert (summary.complete, summary.passed, summary.failure) == (False, None, "no rank came up")
    assert summary.au is None
    steps = read_run(str(tmp_path)).steps
    assert (steps.num_rows, steps.column_names) == (0, list(STEP_COLUMNS))


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return values | {
        key: merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
        for key, value in changes.items()
    }


EACH_STEP = {"workflow": {"checkpoint": True}, "checkpoint": {"steps_between_checkpoints": 1}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ranks": 0}, "its plan does not fit the 0 ranks"),
        ({"plan": None}, "its plan does not fit the 2 ranks"),
        ({"plan": {"num_files": 0}}, "its plan has no samples"),
        ({"ranks": 10**9, "plan": {"ranks": 10**9}}, "its facts.json plans more steps or samples than any run"),
        ({"workload": {**EACH_STEP, "train": {"epochs": 100_000}}}, "its facts.json plans 1200000 checkpoints"),
        ({"workload": {"reader": {"batch_size": 0}}}, r"is damaged.*reader\.batch_size"),
        ({"journal": {"rank_nodes": [0]}}, "does not say on which host each of its ranks ran"),
        ({"journal": {"hosts": []}}, "does not say on which host each of its ranks ran"),
    ],
)
def test_facts_that_no_run_could_have_are_told(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    written(tmp_path)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(merged(json.loads(path.read_text()), changes)))
    with pytest.raises(UserError, match=said) as caught:
        read_run(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_plan_of_as_many_samples_as_a_shipped_workload_has_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    path, plan = tmp_path / "facts.json", {"num_files": 1024, "num_samples_per_file": 4_718_592, "batch_size": 16_384}
    path.write_text(json.dumps(merged(json.loads(path.read_text()), {"plan": plan})))
    assert read_run(str(tmp_path)).facts.train_plan.num_samples == 4_831_838_208


def set_column(folder: Path, name: str, value: int, first_rows: int) -> None:
    values = pq.read_table(folder / "steps.parquet")[name].to_numpy().copy()
    values[:first_rows] = value
    replace_column(folder, name, pa.array(values))


@pytest.mark.parametrize(
    ("name", "value", "first_rows", "said"),
    [
        ("rank", 2, 48, "ranges from 2 to 2, wanted 0 to 1"),
        ("rank", 10**12, 48, "ranges from 1000000000000 to 1000000000000"),
        ("rank", -7, 48, "ranges from -7 to -7"),
        ("epoch", 3, 48, "ranges from 3 to 3, wanted 1 to 2"),
        ("step", 0, 1, "ranges from 0 to 12, wanted 1 or more"),
        ("free_ns", -1, 1, "ranges from -1 to "),
        ("wait_ns", (1 << 60) + 1, 1, "to 1152921504606846977, wanted 0 to 1152921504606846976"),
    ],
)
def test_values_that_no_step_can_have_are_told_with_what_was_wanted(
    tmp_path: Path, name: str, value: int, first_rows: int, said: str
) -> None:
    assert len(written(tmp_path).rows) == 48
    set_column(tmp_path, name, value, first_rows)
    with pytest.raises(UserError, match=f"its column {name} .*{said}") as caught:
        read_run(str(tmp_path))
    assert str(tmp_path / "steps.parquet") in str(caught.value)


def test_a_result_that_wants_more_memory_than_there_is_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(whole_run(folder=str(tmp_path)))
    memory = SimpleNamespace(available_bytes=48 * 16 * len(STEP_COLUMNS))
    monkeypatch.setattr("dlemu.results.tables.host_memory", lambda: memory)
    assert len(read_run(str(tmp_path)).rows) == 48
    memory.available_bytes -= 1
    with pytest.raises(UserError, match=r"steps\.parquet has 48 rows, which need 0\.0 GiB of memory"):
        read_run(str(tmp_path))


def test_readings_that_are_no_numbers_are_damage(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "telemetry.parquet"
    table = pq.read_table(path)
    values = table["value"].to_numpy()
    bad = [("value", pa.array([number, *values[1:]])) for number in (np.nan, np.inf)]
    bad += [(name, table[name].cast(other)) for name, other in (("time_ns", pa.uint64()), ("value", pa.float32()))]
    for name, column in bad:
        pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
        with pytest.raises(UserError, match=r"telemetry\.parquet is damaged \(it holds readings that are not num"):
            read_run(str(tmp_path))
    path.unlink()
    assert read_run(str(tmp_path)).telemetry == ()


def test_which_folder_holds_what(tmp_path: Path) -> None:
    run, saved, nothing = (tmp_path / name for name in ("run", "saved", "nothing"))
    written(run)
    checkpoints = replace(CHECKPOINT_RUNS["checkpoints"](), folder=str(saved))
    write_measured(checkpoints)
    assert [kind_held(folder) for folder in (run, saved, nothing)] == ["training", "checkpoint", ""]
    write_summary(checkpoints)
    assert kind_held(saved) == "checkpoint"
    (run / "summary.json").write_text("null")
    assert kind_held(run) == "training", "its facts are there"
    (run / "facts.json").unlink()
    assert not kind_held(run)


def test_of_devices_those_whose_bytes_are_the_datasets_are_shown() -> None:
    job = make_job()
    log = with_telemetry(make_log(job))
    (host,) = log.telemetry
    below = replace(host.devices[0], name="dm-0", counted=False)
    series = (host.series[0], host.series[0]._replace(source="dm-0"))
    both = replace(host, devices=(*host.devices, below), series=series)
    run = make_run(job, replace(log, telemetry=(both,)))
    assert [one.source for one in run.series("block")] == ["dm-0", "nvme0n1"]
    assert [one.source for one in run.device_series("block")] == ["nvme0n1"]
    assert run.device_series("block", "busy_percent") == []
    bare = make_run(job, replace(log, telemetry=(replace(both, devices=()),)))
    assert len(bare.device_series("block")) == 2, "nobody says which count"


def test_moments_are_seconds_since_training_began() -> None:
    job = make_job(ranks=1, epochs=1, steps=3)
    log = make_log(job)
    rows = log.rows
    rows["free_ns"] = np.array([7, 9, 12]) * 10**9
    rows["wait_ns"], rows["compute_ns"], rows["sync_ns"] = 10**9, 10**9, np.array([0, 1, 2]) * 10**9
    rows["started_ns"], rows["finished_ns"] = rows["free_ns"], rows["free_ns"] + 10**9
    run = make_run(job, log)
    assert run.span_seconds == (0, 9)
    assert (run.rank_start_ns, run.host_start_ns) == ({0: 7 * 10**9}, {"node0": 7 * 10**9})
    rates = present(run.read_mb_per_second)
    assert rates.sum() * 9 / len(rates) == pytest.approx(rows["app_bytes"].sum() / 1e6)
    assert rates[-1] == pytest.approx(0, abs=1e-6)
    rows["app_bytes"] = 0
    assert make_run(job, log).read_mb_per_second is None


@pytest.fixture
def run(tmp_path: Path) -> CheckpointRun:
    return saved_checkpoints(tmp_path)


LARGE = {"workload": {"model": {"num_layers": 10**4, "transformer": {"num_experts": 10**5}}}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"ranks": 3}, "rows of ranks that the run does not have"), (LARGE, "layers and experts, than a model")],
)
def test_facts_that_no_run_could_have_are_named(run: CheckpointRun, changes: dict[str, Any], said: str) -> None:
    path = Path(run.folder, FACTS)
    path.write_text(json.dumps(merged(json.loads(path.read_text()), changes)))
    with pytest.raises(UserError, match=f"^{run.folder} is damaged: .*{said}"):
        CHECKPOINTS.read(run.folder)


def test_every_column_is_written_with_its_meaning_and_wanted_again(run: CheckpointRun) -> None:
    path = Path(run.folder, CHECKPOINT_ROWS)
    whole = pq.read_table(path)
    assert {field.name: field.metadata[b"meaning"].decode() for field in whole.schema} == IO_COLUMNS
    assert {(field.type, field.nullable) for field in whole.schema} == {(pa.int64(), False)}
    assert CHECKPOINTS.read(run.folder).rows.tolist() == run.rows.tolist()
    at = whole.column_names.index("call_ns")
    holed = pa.array([None, *[1] * (len(run.rows) - 1)], pa.int64())
    for table in (whole.drop_columns(["call_ns"]), whole.set_column(at, "call_ns", holed)):
        pq.write_table(table, path)
        with pytest.raises(UserError, match="is damaged: wanted a column call_ns of whole numbers"):
            CHECKPOINTS.read(run.folder)
    path.unlink()
    with pytest.raises(UserError, match="is missing: the run's metrics can't be computed"):
        CHECKPOINTS.read(run.folder)

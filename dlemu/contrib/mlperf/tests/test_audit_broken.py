"""Whatever stands in a result folder, the audit reports it and goes on."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row, run_report
from dlemu.contrib.mlperf.audit.audited_run import audit_run, audit_trees, shipped_pairs
from dlemu.contrib.mlperf.tests.changes import Change, Edit, gone, put
from dlemu.contrib.mlperf.tests.foreign_runs import write_run
from dlemu.contrib.mlperf.tests.golden import edit

SHIPPED = shipped_pairs()
COLUMNS = [column.name for column in fields(AuditRow)]


def edit_json(name: str, change: Edit) -> Change:
    return lambda folder: edit(folder / name, change)


def says(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def a_folder(at: Path) -> None:
    (at / "0_output.json").unlink()
    (at / "0_output.json").mkdir()


def turn_back(content: Any) -> None:
    block = content["1"]["block1"]
    block["start"], block["end"] = block["end"], block["start"]


def in_block(key: str, value: Any) -> Change:
    return edit_json("1_output.json", put(f"1/{key}/block1", value))


NAN_STEP = edit_json("1_output.json", put("1/load/block1/3", float("nan")))
NAN_SUMMARY = edit_json("summary.json", put("metric/train_au_percentage", [float("nan")]))
NO_VALUES = {
    "start": "yesterday",
    "end": 5,
    "num_hosts": "2",
    "num_files_train": "7000",
    "num_samples_per_file": 0.5,
    "epochs": "5",
    "host_memory_GB": ["much"],
}
BROKEN: dict[str, tuple[Change, str]] = {
    **{key: (edit_json("summary.json", put(key, value)), "summary.foreign") for key, value in NO_VALUES.items()},
    "no samples": (edit_json("summary.json", put("num_samples_per_file", 0)), "summary.foreign"),
    "NaN for memory": (edit_json("summary.json", put("host_memory_GB", [float("nan")])), "summary.foreign"),
    "half a summary": (says("summary.json", '{"start": "2026-0'), "file.broken"),
    "no summary": (lambda at: (at / "summary.json").unlink(), "summary.missing"),
    "a summary that is a list": (says("summary.json", "[1, 2]"), "summary.foreign"),
    "NaN in the summary": (NAN_SUMMARY, "summary.foreign"),
    "bytes that are no text": (lambda at: (at / "1_output.json").write_bytes(b"\xff\xfe\x00"), "file.broken"),
    "a folder for a file": (a_folder, "file.broken"),
    "brackets without end": (says("1_output.json", "[" * 100_000), "file.broken"),
    "NaN in a step": (NAN_STEP, "file.unusable"),
    "lists of unequal length": (edit_json("1_output.json", gone("1/load/block1/0")), "file.unusable"),
    "words for seconds": (in_block("proc", ["x", "y"]), "file.unusable"),
    "a word for an AU": (in_block("au", "95"), "file.unusable"),
    "a word for a rate": (in_block("throughput", "9"), "file.unusable"),
    "a word for the memory": (edit_json("1_output.json", put("host_memory_GB", "64")), "file.unusable"),
    "a block that ends before it starts": (edit_json("per_epoch_stats.json", turn_back), "file.unusable"),
    "no time stamps": (lambda at: (at / "per_epoch_stats.json").unlink(), "unknown.all"),
    "a tab in config.yaml": (says("configs/config.yaml", "a:\n\t- b: {"), "file.broken"),
    "no time of a step": (says("configs/config.yaml", "workload: {train: {computation_time: soon}}"), "config.value"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told_with_its_run_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    harm, rule = BROKEN[name]
    write_run(tmp_path / "good")
    write_run(tmp_path / "harmed")
    harm(tmp_path / "harmed")
    good, harmed = audit_trees([str(tmp_path)])
    assert audit_row(good).errors == 0
    assert rule in {finding.rule for finding in harmed.findings}
    assert all(finding.rule != "audit.failed" for finding in harmed.findings)


def test_one_broken_block_leaves_the_others(tmp_path: Path) -> None:
    write_run(tmp_path, "v2", epochs=3)
    NAN_STEP(tmp_path)
    run = audit_run(str(tmp_path), SHIPPED)
    assert (run.recomputed.basis, run.recomputed.epochs) == ("steps", 2)
    assert {"file.unusable", "epochs.count"} <= {finding.rule for finding in run.findings}


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -1, 0, 1e308, "2024-09-02T13:34:44", "block1", "1", "success", [], {}, [0.1] * 5]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=6,
)


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, its own first."""
    below = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(one for key, value in below for one in places(value, (*path, key)))]


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], value)
    return copy


@settings(max_examples=150)
@given(data=st.data())
def test_no_content_of_any_file_ends_the_audit(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_run(folder, data.draw(st.sampled_from(["v1", "v2"])), ranks=2, steps=3)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for _ in range(data.draw(st.integers(1, 3))):
            harm(data, data.draw(st.sampled_from(files)))
        run = audit_run(str(folder), SHIPPED)
    told = json.loads(json.dumps(run_report(run), allow_nan=False))
    assert set(told) >= set(COLUMNS)
    assert set(asdict(audit_row(run))) == set(COLUMNS)


def harm(data: st.DataObject, path: Path) -> None:
    """Cut a file short, or put anything at any place of it."""
    whole = path.read_bytes()
    if path.suffix != ".json" or data.draw(st.booleans(), label="cut"):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        return
    try:
        content = json.loads(whole)
    except ValueError:
        return  # cut before
    path.write_text(json.dumps(replaced(content, data.draw(st.sampled_from(places(content))), data.draw(ANYTHING))))

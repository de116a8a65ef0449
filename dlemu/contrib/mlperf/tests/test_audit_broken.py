"""Whatever stands in what was received, it is reported, and nothing of it is imported, loaded or opened."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import DlemuError, UserError
from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row, run_report
from dlemu.contrib.mlperf.audit.audited_run import audit_run, audit_trees, shipped_accelerator_settings
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.tests import foreign_runs
from dlemu.contrib.mlperf.tests.changes import Change, Edit, gone, put
from dlemu.contrib.mlperf.tests.foreign_runs import write_run
from dlemu.contrib.mlperf.tests.golden import edit, make_result, make_tree
from tests.cli.test_odd_files import KINDS, ended
from tests.results.test_received_names import PLANTED, imported, read_every_way, read_planted

SHIPPED = shipped_accelerator_settings()
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


imported = imported


def test_results_of_dlio_and_of_mlperf(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    foreign_runs.write_run(tmp_path / "run", steps=12)
    make_tree(tree, "2.0")
    result = make_result(tmp_path / "checkpoints")

    def read_foreign(number: int | None) -> None:
        with contextlib.suppress(DlemuError):
            foreign_run(str(tmp_path / "run"))
        read_every_way(tmp_path / "run", number)

    counts = [read_planted(file, read_foreign) for file in sorted(tmp_path.glob("run/**/*.yaml"))]
    counts += [read_planted(tmp_path / "run" / "summary.json", read_foreign)]
    for folder in (tree, result):
        for name in ("config.yaml", "*_metadata.json"):
            file = next(iter(sorted(folder.rglob(name))))
            counts.append(read_planted(file, lambda _, folder=folder: check_folder(str(folder))))  # type: ignore[misc]
    assert sum(counts) > 40, counts


def test_a_foreign_run_names_no_file_to_load(tmp_path: Path) -> None:
    evil = tmp_path / "evil.yaml"
    evil.write_text(f"hydra:\n  searchpath: [pkg://{PLANTED}]\n")
    foreign_runs.write_run(tmp_path / "run", steps=12)
    for config in (tmp_path / "run").rglob("config.yaml"):
        tree = yaml.safe_load(config.read_text())
        tree["workload"]["model"] = {"name": str(evil)}
        config.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=r"evil.yaml'|lacks"):
        foreign_run(str(tmp_path / "run"))


@pytest.mark.slow
def test_audits_and_checks_name_what_is_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    foreign_runs.write_run(tmp_path / "run", steps=12)
    tree = make_result(tmp_path / "tree")
    config = next(iter(sorted(tree.rglob("config.yaml"))))
    for kind in KINDS:
        for path, command in (
            (tmp_path / "run" / "summary.json", ("audit", str(tmp_path / "run"))),
            (config, ("mlperf", "check", str(tmp_path / "tree"))),
        ):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            kind(path)
            status, said = ended(command, capfd)
            assert status in (0, 1, 2), (kind, command, said)
            assert "Traceback" not in said

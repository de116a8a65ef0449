"""The rules of MLPerf Storage as code, held against figures worked out by hand from the rules' text."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.cli import cli, guarded
from dlemu.config import load
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup, setup_of
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rehearsal.datasize import datasize
from dlemu.contrib.mlperf.rules.core_config import core_config_hash, effective
from dlemu.contrib.mlperf.rules.editions import EDITIONS, newest_edition
from dlemu.contrib.mlperf.rules.known import Finding, known_rules, official_name, rule_groups
from dlemu.contrib.mlperf.rules.training import GIB, smallest_dataset
from dlemu.contrib.mlperf.tests.foreign_runs import workload_of
from dlemu.dlio.config import dlio_workload
from tests.dlio import published_checkpoints as published

V2 = EDITIONS["2.0"]
UNET3D = V2.officials["unet3d", "h100"]
CONFIG = workload_of("v2", 28_000, 5, 0.323)
"""unet3d_h100.yaml of v2.0."""
OVERRIDES = ("dataset.num_files_train", "reader.read_threads", "reader.odirect")
RESNET50 = {"config": None, "workload": "resnet50", "accelerator": "a100", "accelerators": 16, "memory_gib": None}


def changed(**sections: Any) -> dict[str, Any]:
    return {**CONFIG, **{name: {**CONFIG.get(name, {}), **keys} for name, keys in sections.items()}}


def findings_of(
    edition: str = "2.0",
    division: Any = "closed",
    *,
    config: dict[str, Any] | None = CONFIG,
    overrides: tuple[str, ...] = OVERRIDES,
    by_dlemu: bool = False,
    **changes: Any,
) -> list[Finding]:
    """Return what a good run breaks with another configuration, or changes of its settings or of its summary."""
    words = tuple(f"++workload.{key}=0" for key in overrides)
    setup = replace(setup_of(config or {}, []), accelerator="h100", num_files=28_000, config=config, overrides=words)
    run = Printed(accelerators=8, hosts=2, memory_gib=128, au_percent=93.2)
    printed = {key: value for key, value in changes.items() if hasattr(run, key) and not hasattr(setup, key)}
    setup = replace(setup, **{key: value for key, value in changes.items() if key not in printed})
    return check_run(EDITIONS[edition], setup, replace(run, **printed), division, by_dlemu=by_dlemu)


def found(edition: str = "2.0", division: Any = "closed", **changes: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.rule) for finding in findings_of(edition, division, **changes)]


def told(rule: str, division: Any = "closed", **changes: Any) -> list[Finding]:
    return [finding for finding in findings_of(division=division, **changes) if finding.rule == rule]


def test_five_hundred_steps_of_every_accelerator() -> None:
    bound = smallest_dataset(UNET3D, 8, 1)
    assert bound.files == bound.advised_files == 500 * 7 * 8
    resnet50 = V2.officials["resnet50", "a100"]
    # 500 x 400 x 16 samples in files of 1251: 2557.95 files. v1.0's tool took 2557, and such runs have 499.8 steps.
    assert smallest_dataset(resnet50, 16, 1).files == 2558


@given(accelerators=st.integers(1, 10_000), memory_bytes=st.integers(1, 1 << 50))
def test_the_least_dataset_is_enough_and_one_file_less_is_not(accelerators: int, memory_bytes: int) -> None:
    for official in V2.officials.values():
        bound = smallest_dataset(official, accelerators, memory_bytes)
        samples = bound.files * official.samples_per_file
        less = samples - official.samples_per_file

        def enough(count: int, official: Any = official) -> bool:
            steps = count / (official.batch_size * accelerators)
            return bool(steps >= 500 and count * official.record_bytes * (1 + 1e-12) >= 5 * memory_bytes)

        assert enough(samples)
        assert not enough(less)
        assert bound.advised_files >= bound.files


def test_without_the_memory_the_steps_are_counted() -> None:
    # 500 steps of 400 x 16 samples; 2,552 files x 1,251 samples are 498.8 steps, 2,557 are 499.8: DLIO takes 500.
    (steps,) = told("dataset.steps", **RESNET50, num_files=2552)
    assert (steps.severity, steps.seen, steps.wanted) == ("error", "498 steps per epoch", "500 or more")
    assert steps.fix == "at least 2,558 files"
    assert told("dataset.steps", **RESNET50, num_files=2557) == []
    doubled = RESNET50 | {"accelerators": 32}
    assert told("dataset.steps", **doubled, num_files=2557)[0].seen == "249 steps per epoch"
    assert told("dataset.steps", **RESNET50, num_files=2557, samples_per_file=500)[0].seen == "199 steps per epoch"
    unknown: tuple[dict[str, Any], ...] = ({"num_files": None}, {"accelerators": None})
    for lacking in unknown:
        assert told("dataset.steps", **(RESNET50 | {"num_files": 9} | lacking)) == []
    assert told("dataset.steps", **(RESNET50 | {"memory_gib": 1.0}), num_files=2552) == []
    assert found(memory_gib=None, num_files=28000) == [("info", "unapplied")], "exactly 500 steps"


def test_edges_belong_to_those_who_keep_the_rules() -> None:
    assert found(au_percent=90) == []
    assert told("au.low", au_percent=89.996)[0].seen == "AU 89.99 %"
    least = smallest_dataset(UNET3D, 8, 1024 * GIB).files
    assert found(memory_gib=1024, num_files=least - 1) == [("warning", "dataset.size")], "v2.0's tool rounds down"
    assert found(memory_gib=1024, num_files=least - 2) == [("error", "dataset.size")]
    assert found(num_files=27999) == [("error", "dataset.size")], "steps are not measured, as memory is"
    assert found(record_bytes=146600628 * (1 + 7e-6)) == [], "an older DLIO wrote it without its fraction"
    assert found(record_bytes=146600628 * (1 + 2e-5)) == [("error", "settings.changed")]
    stdev = 68341808
    differs = [("error", "workload.differs")]
    for stdev_bytes, expected in ((stdev + 400, []), (stdev + 1000, differs), ("wide", differs)):
        other = changed(dataset={"record_length_bytes_stdev": stdev_bytes})
        assert found(config=other, by_dlemu=True) == expected
    for steps, expected in ((-1, []), (0, []), (1, differs)):
        assert found(config=changed(train={"total_training_steps": steps}), by_dlemu=True) == expected
    assert found(hosts=None) == [("info", "unapplied")]


def test_a_key_that_may_change_hides_no_other_one() -> None:
    assert found(division="open", overrides=("reader.data_loader", "workflow.checkpoint")) == []
    assert found(division="open", overrides=("train.epochs",)) == [("error", "overrides.unknown")]
    allowed_first = ("workflow.checkpoint", "reader.data_loader", "reader.read_threads", "train.epochs")
    assert found(division="open", overrides=allowed_first) == [("error", "overrides.unknown")]
    assert found(overrides=allowed_first) == [("error", "overrides.open"), ("error", "overrides.unknown")]


def test_in_open_the_settings_that_it_frees_may_differ_and_no_other() -> None:
    free = changed(reader={"data_loader": "tensorflow"})
    assert found(division="open", config=free) == []
    assert found(config=free) == [("error", "workload.differs")]
    other = {"reader": {"data_loader": "tensorflow", "file_shuffle": "off"}, "model": {"model_size": 7}}
    differing = told("workload.differs", "open", config=changed(**other))
    assert {finding.seen for finding in differing} == {"reader.file_shuffle=off", "model.model_size=7"}


def test_files_with_other_samples_are_counted_by_their_own() -> None:
    # 28,000 samples: 14,000 files of two; of resnet50's 3,200,000, 2,558 files of 1,251, but 32,000 of 100.
    doubled = changed(dataset={"num_samples_per_file": 2})
    assert found(division="open", config=doubled, num_files=14_000) == []
    assert found(division="open", config=doubled, num_files=13_999) == [("error", "dataset.size")]
    fewer = RESNET50 | {"samples_per_file": 100, "num_files": 2_558}
    (size,) = told("dataset.size", "open", **(fewer | {"memory_gib": 64}))
    assert (size.severity, size.wanted[:12]) == ("error", "32,000 files")
    (steps,) = told("dataset.steps", "open", **fewer)
    assert steps.fix == "at least 32,000 files"
    words = ["workload=unet3d", "accelerator=h100", "ranks=8", "dataset.num_samples_per_file=2"]
    size_told = datasize(load(words), edition=None, hosts=2, memory_gib_per_host=64, files_requested=14_000)
    assert (size_told.files, size_told.steps_per_epoch) == (14_000, 500)
    assert {finding.rule for finding in size_told.findings} == {"workload.differs"}


def test_settings_of_checkpoints_count_where_checkpoints_are_saved() -> None:
    other = {"checkpoint_after_epoch": 9, "epochs_between_checkpoints": 1}
    saved = changed(checkpoint=other)
    assert len(told("workload.differs", config=saved)) == 2
    unsaved = changed(checkpoint=other, workflow={"checkpoint": False}, model={"model_size": 7})
    (size,) = told("workload.differs", config=unsaved)
    assert size.seen == "model.model_size=7", "settings after those of checkpoints are compared, too"


def test_close_to_the_bound_is_a_warning_and_just_below_it_depends_on_the_edition() -> None:
    at_bound = smallest_dataset(UNET3D, 8, 1024 * GIB).files
    assert found(memory_gib=1024, num_files=at_bound) == [("warning", "dataset.near")]
    b200 = {"accelerator": "b200", "computation_seconds": 0.162, "memory_gib": 1024, "by_dlemu": True}
    assert found("3.0", num_files=at_bound - 1, **b200) == [("error", "dataset.size")]


def test_facts_that_are_not_known_break_nothing_and_each_rule_that_needs_them_is_named() -> None:
    findings = check_run(V2, Setup(workload="unet3d", accelerator="h100"), Printed(), "closed")
    assert {(finding.severity, finding.rule) for finding in findings} == {("info", "unapplied")}
    assert {finding.seen.partition(":")[0] for finding in findings} == {
        *("dataset.size", "settings.changed", "workload.differs", "hosts.uneven", "au.low"),
        *("overrides.unknown", "workflow.checkpoint"),
    }


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"reader": {"file_shuffle": "off"}}, "reader.file_shuffle"),
        ({"reader": {"sample_shuffle": False}}, "reader.sample_shuffle"),
        ({"dataset": {"format": "hdf5"}}, "dataset.format"),
        ({"dataset": {"record_length_bytes_stdev": 0}}, "dataset.record_length_bytes_stdev"),
        ({"train": {"total_training_steps": 100}}, "train.total_training_steps"),
        ({"train": {"computation_time_stdev": 0.1}}, "train.computation_time_stdev"),
        ({"checkpoint": {"checkpoint_after_epoch": 9}}, "checkpoint.checkpoint_after_epoch"),
        ({"dataset": {"compression": "gzip", "record_dims": None}}, "dataset.compression"),
        ({"dataset": {"compression": "none", "record_dims": [64, 64]}}, "dataset.record_dims"),
        ({"train": {"seed_change_epoch": False}}, "train.seed_change_epoch"),
        ({"dataset": {"num_files_eval": 5}}, "dataset.num_files_eval"),
        ({"reader": {"preprocess_time": 0.01}}, "reader.preprocess_time"),
        ({"reader": {"preprocess_time": {"mean": 0, "stdev": 0.01}}}, "reader.preprocess_time_stdev"),
        ({"reader": {"file_access": "shared"}}, "reader.file_access"),
        ({"reader": {"read_type": "memory"}}, "reader.read_type"),
        ({"reader": {"shuffle_size": 2}}, "reader.shuffle_size"),
        ({"reader": {"reader_classname": "mine.Cached"}}, "reader.reader_classname"),
        ({"workflow": {"evaluation": True}}, "workflow.evaluation"),
    ],
)
def test_every_setting_of_the_workload_is_compared(sections: dict[str, Any], key: str) -> None:
    findings = findings_of(config=changed(**sections))
    assert [(finding.severity, finding.rule) for finding in findings] == [("error", "workload.differs")]
    assert findings[0].seen.startswith(f"{key}=")


@pytest.mark.parametrize(
    ("sections", "first"),
    [
        ({"checkpoint": {"mode": "subset"}}, [("error", "workload.hash")]),  # no rule knows it, and the hash shows it
        ({"workflow": {"train": True, "evaluation": False}}, [("warning", "workload.hash")]),
        ({"reader": {"read_threads": "64"}, "storage": {"storage_type": "direct_fs"}}, []),
        ({"reader": {"prefetch_size": 16}}, [("error", "overrides.value")]),
        ({"reader": {"prefetch_size": 2}}, []),
        ({"reader": {"odirect": True}}, []),
        ({"metric": {"exclude_start_steps": 50}}, [("error", "settings.changed")]),
    ],
)
def test_settings_are_as_the_text_allows_them(sections: dict[str, Any], first: list[tuple[str, str]]) -> None:
    assert found(config=changed(**sections)) == first


@pytest.mark.parametrize("random", [{"type": "gamma", "shape": 2}, {"mean": 0, "max": 1}])
def test_a_random_time_has_no_other_parameters(random: dict[str, Any]) -> None:
    assert found(config=changed(reader={"preprocess_time": random}))[0] == ("error", "settings.changed")


def test_hashes_are_those_that_mlpstorage_gives() -> None:
    # editions.yaml of mlpstorage: unet3d-h100-A as v2.0 and as v1.0 spelled it, unet3d-b200-A without a checkpoint.
    assert core_config_hash(CONFIG) == "0f3dd7a4bf6433a3"
    old = workload_of("v1", 28_000, 5, 0.323)
    assert core_config_hash(old) == "f4d46006aa421634"
    assert effective(old)["dataset.record_length_bytes_stdev"] == 68341808
    b200 = {
        **CONFIG,
        "workflow": {**CONFIG["workflow"], "checkpoint": False},
        "train": {"epochs": 5, "computation_time": 0.162},
    }
    assert core_config_hash(b200) == "0d3ad0dec188becd"


def test_the_shipped_workloads_are_the_official_ones() -> None:
    for edition in EDITIONS.values():
        for (name, accelerator), official in edition.officials.items():
            workload = load([f"workload={name}", f"accelerator={accelerator}"])
            assert workload.reader.batch_size == official.batch_size
            assert workload.train.computation_time.mean == official.computation_seconds
            assert workload.train.epochs == official.epochs
            assert 100 * workload.metric.au == pytest.approx(official.au_percent)
            assert workload.dataset.record_length_bytes == official.record_bytes
            assert workload.dataset.num_samples_per_file == official.samples_per_file


def test_datasize_advises_files_that_the_rules_accept() -> None:
    words = ["workload=unet3d", "accelerator=h100", "ranks=8"]
    for memory_gib in (1, 64, 128, 1024):
        told = datasize(load(words), edition=None, hosts=2, memory_gib_per_host=memory_gib)
        assert told.edition == "2.0"
        assert told.findings == ()
        assert found(num_files=told.files, memory_gib=2 * memory_gib) == []
        assert told.steps_per_epoch >= 500
        assert (told.subfolders == 0) == (told.files <= 10_000)
        assert told.files <= 10_000 * max(1, told.subfolders)


def test_datasize_of_what_no_edition_has_is_a_mistake() -> None:
    assert newest_edition("bert", "v100") is None
    with pytest.raises(UserError, match=r"v3\.0: unet3d on b200"):
        datasize(load(["workload=bert", "accelerator=v100"]), edition=None, hosts=1, memory_gib_per_host=1)
    with pytest.raises(UserError, match=r"not in the rules of v3\.0"):
        datasize(load(["workload=unet3d", "accelerator=h100"]), edition="3.0", hosts=1, memory_gib_per_host=1)


def test_datasize_says_that_ranks_are_those_of_all_hosts() -> None:
    with pytest.raises(UserError, match="ranks=1 on 2 hosts: ranks are the accelerators of all hosts together"):
        datasize(load(["workload=unet3d", "accelerator=h100"]), edition=None, hosts=2, memory_gib_per_host=64)


@pytest.mark.parametrize("model", published.OFFICIAL)
def test_the_official_files_keep_their_hash_from_reading_to_writing(model: str, tmp_path: Path) -> None:
    *_, whole, copies, subset = published.OFFICIAL[model]
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(published.official_yaml(model)))
    workload = load([f"workload={file}", "++workload.checkpoint.num_checkpoints_read=0"])
    assert (workload.notes, workload.unsupported) == ((), ())
    assert core_config_hash(dlio_workload(workload), checkpointing=True) == whole
    if subset:
        part = load([f"workload={file}", "checkpoint.mode=subset", f"model.parallelism.data={copies}"])
        assert core_config_hash(dlio_workload(part), checkpointing=True) == subset
    ours = load([f"workload={model.replace('-', '_')}"])
    assert replace(ours.model, name=workload.model.name) == workload.model, "the shipped one is the same model"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--model llama3-8b --max-accelerators 8", "workload=..."),
        ("workload=unet3d --accelerator-type b200", "accelerator=..."),
        ("model=unet3d", "model=unet3d only names the results: wanted workload=unet3d"),
    ],
)
def test_mlpstorages_words_get_ours(
    words: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["dlemu", "mlperf", "datasize", *words.split()])
    with pytest.raises(SystemExit) as end:
        guarded(cli, "dlemu")
    assert (end.value.code, f"{meant}\n" in capsys.readouterr().err) == (2, True)


# The table of rules: every rule that the code gives stands in it, and the page is made of it.


ROOT = Path(__file__).parents[4]
GIVEN = re.compile(r'(?:by_rule|by_rule_at|unapplied|unapplied_at|missing|config_files)\([^"()]*"([a-z]+\.[a-z_]+)"')


def test_every_rule_that_the_code_gives_is_described() -> None:
    given = set()
    for path in (ROOT / "dlemu" / "contrib" / "mlperf").glob("[!t]*/*.py"):
        given |= set(GIVEN.findall(path.read_text()))
    assert len(given) > 100
    assert given - known_rules().keys() == set()


def test_no_rule_stands_twice_and_each_says_what_it_means() -> None:
    rules = [rule for group in rule_groups().values() for rule in group]
    lines = (ROOT / "dlemu/contrib/mlperf/rules/known.yaml").read_text().splitlines()
    listed = sum(line.startswith("  ") for line in lines)  # of two with one name YAML takes the last
    assert len(rules) == len(known_rules()) == listed
    assert all(
        rule.meaning and rule.editions and rule.severity.startswith(("error", "warning", "info")) for rule in rules
    )


def test_the_page_of_rules_is_made_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    page = importlib.import_module("documentation.mlperf_rules").page()
    assert (ROOT / "dlemu/contrib/mlperf/docs/mlperf-rules.md").read_text() == page, "scripts/docs makes it anew"
    assert all(f"- `{name}`:" in page for name in known_rules())


def test_rules_of_dlemu_s_own_have_no_name_in_an_editions_checker() -> None:
    assert official_name("runs.copied", "3.0", "closed") == ""
    assert official_name("dataset.size", "2.0", "closed") == "check_num_files_train"
    assert official_name("overrides.unknown", "3.0", "open") == "3.6.3 trainingOpenSubmissionParameters"

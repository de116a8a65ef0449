"""What a data sheet or a probe says of a drive, and what jobs need of a storage that is not there yet."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dlemu
from datagen.errors import UserError
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.probe.result import PROBE, Access, Latency, ProbeAnswer, ProbeCell
from dlemu.jobs.training.prediction.calibration import (
    calibrate_from_drive,
    curve_of,
    max_mb_per_second,
    requests_of,
    throughputs,
    with_rates,
)
from dlemu.jobs.training.prediction.needs import Needs, _nvidia_class, ports
from dlemu.machine.environment import StorageFacts, describe_host
from dlemu.metrics.demand import demand
from dlemu.results.answer_files import to_json
from dlemu.results.drive import Rate, Rates
from dlemu.results.kinds import read_result
from dlemu.results.parts import Environment
from dlemu.runner.prediction_request import PredictionRequest
from tests.prediction.test_run_prediction import WORDS, run

KIB = 1 << 10
SHEET = """
name: EXAMPLE 7450
reads:
  - {size: 128k, depth: 32, mb_per_second: 6800}
  - {size: 4k, depth: 512, iops: 1000000}
  - {size: 4k, latency_us: 80}
"""


def given_to(readers: int, *known: Rate, size_bytes: int = 128 * KIB, in_flight: int = 1) -> float:
    return float(throughputs(curve_of(known, size_bytes, in_flight), readers)[readers]) / 1e6


def rate(size_bytes: int, depth: int, per_second: float) -> Rate:
    return Rate(size_bytes=size_bytes, depth=depth, per_second=per_second)


def test_channels_of_known_latency_give_their_share() -> None:
    """Four channels of 10 ms: 100 requests/s in flight each, 400 at most."""
    known = rate(128 * KIB, 1, 100), rate(128 * KIB, 4, 400)
    each = 128 * KIB * 100 / 1e6
    assert [given_to(readers, *known) / each for readers in (1, 2, 3, 4, 9)] == pytest.approx([1, 2, 3, 4, 4])
    assert given_to(2, *known, in_flight=2) == pytest.approx(4 * each)


def test_a_sheet_of_large_requests_alone_tells_the_rate_of_128_kib() -> None:
    """A drive of 14 GB/s gave 1.75, and not even one H100 of unet3d passed: an eighth of the bytes took as long."""
    large = rate(1 << 20, 32, 14e9 / (1 << 20))
    assert given_to(1, large) == pytest.approx(14e3)
    assert given_to(1, large, size_bytes=4 * KIB) == pytest.approx(14e3 / 32), "below, a request takes as long"
    assert given_to(1, rate(128 * KIB, 32, 14e9 / (128 * KIB)), large) == pytest.approx(14e3)


@given(
    known=st.lists(
        st.builds(rate, st.sampled_from([512, 4096, 1 << 17]), st.integers(1, 64), st.floats(1, 1e6)), min_size=1
    ),
    size_bytes=st.integers(512, 1 << 22),
    in_flight=st.integers(1, 3),
)
def test_no_drive_gives_nothing_or_more_than_its_best(known: list[Rate], size_bytes: int, in_flight: int) -> None:
    best = max(one.per_second * max(one.size_bytes, size_bytes) for one in known) / 1e6
    found = curve_of(known, size_bytes, in_flight)
    assert min(point.mb_per_second for point in found) > 0
    assert max_mb_per_second(found) <= best * (1 + 1e-9)


def workload(**changes: Any) -> Workload:
    made = load(["workload=unet3d", "accelerator=h100"])
    return replace(made, reader=replace(made.reader, **changes))


def test_a_reader_s_requests_are_the_kernel_s_or_its_own() -> None:
    through_cache = replace(workload(), reader=replace(workload().reader, odirect=False))
    assert requests_of(through_cache, 140e6) == (128 * KIB, 2)
    assert requests_of(through_cache, 100e3) == (100_000, 1)
    for size_bytes, asked_for in ((3e6, 3_000_000), (0.0, 1)):
        assert requests_of(workload(odirect=True), size_bytes) == (asked_for, 1)
    assert requests_of(workload(odirect=True, transfer_size=65536), 3e6) == (65536, 1)
    words = ["storage.storage_type=s3", "storage.storage_root=b", "reader.range_bytes=1048576", "reader.io_depth=8"]
    assert requests_of(load(["workload=unet3d", *words]), 64e6) == (1 << 20, 8)
    records = replace(
        workload(sample_shuffle="off", batch_size=48), dataset=replace(workload().dataset, num_samples_per_file=1000)
    )
    assert requests_of(records, 2500) == (120_000, 1), "one batch after the other of the same file"
    assert requests_of(replace(records, reader=replace(records.reader, sample_shuffle="seed")), 2500) == (2500, 1)
    assert requests_of(load(["workload=bert"]), 2500) == (128 * KIB, 2), "tf.data reads on, and shuffles afterwards"


def test_a_sheet_is_a_storage(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(SHEET)
    found = calibrate_from_drive(str(sheet), workload(odirect=False), cores=4)
    assert found.source.startswith("the data sheet of EXAMPLE 7450: each reader has 2 of 131,072 bytes in flight")
    assert max_mb_per_second(found.curve) == pytest.approx(6800)
    assert found.curve[0].mb_per_second == pytest.approx(2 * 0.131072 / (80e-6 + 126_976 / 6.8e9))
    assert found.bytes_factor == 1.0
    dlrm = calibrate_from_drive(str(sheet), load(["workload=dlrm"]), cores=4)
    assert dlrm.bytes_factor == 1.25, "row groups that two batches share are read twice"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reads: []", "has neither reads nor writes, for example reads:"),
        ("reads: [{size: 4k, iops: 5, latency_us: 7}]", "reads[0] has iops: 5, latency_us: 7: wanted one of mb_per_"),
        ("reads: [{size: 4k}]", "reads[0] has no figure: wanted one of mb_per_second, iops, latency_us, above 0"),
        ("reads: [{size: 4k, iops: .inf}]", "iops is inf"),
        ("reads: [{size: large, iops: 5}]", "'large' is not a size: wanted a whole number"),
        ("- 1", "wanted a mapping"),
        ("writes: [{size: 4k, iops: 5}]", "reads of 0 bytes at most"),
        ("reads: [{size: 4k, depth: 32, iops: 7000}]", "reads of 4,096 bytes at most, 32 in flight; unet3d reads"),
        ("reads: [{size: 128k, iops: 7000}]", "reads of 131,072 bytes at most, 1 in flight"),
    ],
)
def test_a_sheet_that_says_nothing_says_why(tmp_path: Path, text: str, words: str) -> None:
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        calibrate_from_drive(str(sheet), workload(), cores=1)


def probed(folder: Path, *cells: tuple[Access, int, int, int, float]) -> str:
    """Leave a probe with cells of access, size, depth, jobs and requests/s."""
    made = (
        ProbeCell(
            access=access, size_bytes=size, depth=depth, jobs=jobs, seconds=1.0, mb_per_second=iops * size / 1e6,
            iops=iops, latency_ms=Latency(mean=1, p50=1, p90=1, p99=1, p999=1, max=1), cpu_seconds_per_gb=0.1,
        )
        for access, size, depth, jobs, iops in cells
    )  # fmt: skip
    answer = ProbeAnswer(
        complete=True,
        target="/mnt/nvme",
        engine="fio",
        environment=Environment(hosts=(describe_host(),), storage=StorageFacts(folder="/mnt/nvme")),
        cells=tuple(made),
    )
    (folder / PROBE).write_text(to_json(answer))
    return str(folder)


def test_a_probe_is_a_storage_by_its_random_reads(tmp_path: Path) -> None:
    cells: list[tuple[Access, int, int, int, float]] = [
        ("read", 128 * KIB, 8, 1, 9e4),
        ("randread", 128 * KIB, 1, 1, 1e3),
        ("randread", 128 * KIB, 4, 2, 6e3),
    ]
    found = calibrate_from_drive(probed(tmp_path, *cells), workload(odirect=False), cores=1)
    assert found.source.startswith("a probe of /mnt/nvme")
    assert max_mb_per_second(found.curve) == pytest.approx(6e3 * 128 * KIB / 1e6)
    only = probed(tmp_path, cells[0])
    assert max_mb_per_second(calibrate_from_drive(only, workload(odirect=False), cores=1).curve) > 9e3


def test_a_folder_without_what_is_needed_says_so(tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(UserError, match=words):
            calibrate_from_drive(str(tmp_path), workload(), cores=1)

    refused("has no rates by size and depth: wanted the folder of `dlemu probe`, or a data sheet")
    probed(tmp_path, ("write", 4096, 1, 1, 5.0))
    refused("a probe of /mnt/nvme: reads of 0 bytes at most")
    os.mkfifo(tmp_path / "sheet")
    pipe = "is not a data sheet: .*it is a pipe, wanted a regular file.*; for example reads:"
    for name, words in (("sheet", pipe), ("none", r"does not exist: wanted a data sheet \(YAML, for example reads:")):
        with pytest.raises(UserError, match=words):
            calibrate_from_drive(str(tmp_path / name), workload(), cores=1)


def test_the_command_answers_from_a_sheet(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(SHEET)
    words = *WORDS, "output.report=false", f"output.folder={tmp_path / 'out'}", "--drive", str(sheet)
    answer = json.loads(run(*words, "--json", status=0))
    assert answer["source"].startswith("the data sheet of EXAMPLE 7450")
    assert answer["max_accelerators"] == 2, "as 6.8 GB/s feed"
    with pytest.raises(UserError, match="--mb-per-second and --drive each describe the storage: give only one"):
        PredictionRequest(mb_per_second=7000, drive=str(sheet))


def test_a_probe_is_no_run_to_predict_from(tmp_path: Path) -> None:
    folder = probed(tmp_path, ("randread", 128 * KIB, 4, 2, 6e3))
    for more in ((), ("--cfg",)):
        ended = CliRunner().invoke(command, [*WORDS, "--from", folder, *more])
        assert "holds a probe, not a run or a prediction: give it as --drive" in str(ended.exception)


def _fio(**changes: object) -> dict[str, object]:
    nothing = {"iops": 0, "bw_bytes": 0, "lat_ns": {"mean": 0.0}}
    return {"jobname": "a", "groupid": 0, "read": nothing, "write": nothing} | changes


FIO: dict[str, Any] = {
    "fio version": "fio-3.33",
    "jobs": [
        *[_fio(read={"iops": 30_000.0, "bw_bytes": 30_000 * 131072, "lat_ns": {"mean": 32e9 / 30_000}})] * 2,
        _fio(groupid=1, write={"iops": 8000.0, "bw_bytes": 8000 * 4096, "lat_ns": {"mean": 125_000.0}}),
    ],
}
ELBENCHO = {
    "phase_type": "READ",
    "config": {"hosts": "2", "threads": "16", "io_depth": "2", "block_size": "1048576"},
    "last_done": {"iops": "6000", "bytes/s": str(6000 << 20)},
}


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        (f"note: a warning\n{json.dumps(FIO)}", [(131072, 64, 60_000.0)], [(4096, 1, 8000.0)]),
        (f'{json.dumps(ELBENCHO)}\n{{"phase_type": "DELFILES", "config": {{}}}}\n', None, None),
        (json.dumps(ELBENCHO), [(1 << 20, 64, 6000.0)], []),
        (json.dumps(ELBENCHO | {"last_done": {"iops": "1", "bytes/s": "inf"}}), None, None),
    ],
)
def test_what_fio_and_elbencho_wrote_is_taken_as_it_is(text: str, reads: Any, writes: Any, tmp_path: Path) -> None:
    (tmp_path / "output").write_text(text)
    request = PredictionRequest(drive=str(tmp_path / "output"))
    if reads is None:
        with pytest.raises(UserError, match="looks like the output of fio or elbencho"):
            with_rates(request)
        return
    found = with_rates(request).drive
    assert isinstance(found, Rates)
    for known, wanted in ((found.rates, reads), (found.writes, writes)):
        assert [(rate.size_bytes, rate.depth, rate.per_second) for rate in known] == wanted


@pytest.mark.parametrize("direct_jobs", [1, 3])
def test_results_of_fio_are_direct_if_all_its_jobs_are(direct_jobs: int, tmp_path: Path) -> None:
    direct = {"job options": {"direct": "1"}}
    jobs = [*(job | direct for job in FIO["jobs"][:direct_jobs]), *FIO["jobs"][direct_jobs:]]
    (tmp_path / "output").write_text(json.dumps(FIO | {"jobs": jobs}))
    found = with_rates(PredictionRequest(drive=str(tmp_path / "output"))).drive
    assert isinstance(found, Rates)
    assert ("made without direct=1" in found.source) == (direct_jobs < 3)


def asked(folder: Path, *words: str, status: int = 0) -> str:
    return run(*words, f"output.folder={folder}", status=status)


def test_a_training_needs_what_its_accelerators_take(tmp_path: Path) -> None:
    words = ["workload=unet3d", "accelerator=h100", "ranks=1024"]
    began = time.monotonic()
    needs = json.loads(asked(tmp_path / "n", *words, "--json"))["total"]
    assert time.monotonic() - began < 2
    one = demand("unet3d", load(words))
    assert one.mb_per_second is not None
    assert needs["read_gb_per_second"] == pytest.approx(0.9 * 1024 * one.mb_per_second / 1e3)
    assert needs["read_gb_per_second"] == pytest.approx(2928, rel=0.001), "as published beside NVIDIA's classes"
    request_bytes, _ = requests_of(load(words), one.sample_bytes)
    assert needs["requests_per_second"] * request_bytes == pytest.approx(needs["read_gb_per_second"] * 1e9)
    assert needs["first_step_gb_per_second"] == pytest.approx(4 * 1024 * one.mb_per_second / 1e3), "4 readers a rank"
    assert needs["first_step_seconds"] == pytest.approx(4 * one.computation_seconds / 0.9)
    assert needs["mlperf_dataset_gb"] == pytest.approx(128 * 5 * 2048 * 2**30 / 1e9)
    assert needs["dataset_gb"] == pytest.approx(one.dataset_gb)
    found = read_result(str(tmp_path / "n"))
    assert (found.nvidia_class, ports(found.total.most_gb_per_second)) == ("above", "235 x 100 Gb/s or 59 x 400 Gb/s")
    assert found.times_class == pytest.approx(5.86, abs=0.01)
    assert str(dlemu.load_result(tmp_path / "n")) == str(found)


def test_checkpoints_are_written_before_the_next_and_read_in_time(tmp_path: Path) -> None:
    words = ["workload=llama3_405b", "ranks=1024", "checkpoint.interval_seconds=600", "--restart-minutes", "10"]
    needs = json.loads(asked(tmp_path / "n", *words, "--json"))["total"]
    gb = needs["checkpoint_gb"]
    assert gb == pytest.approx(5683, rel=0.001)
    assert needs["drain_gb_per_second"] == needs["restart_gb_per_second"] == pytest.approx(gb / 600)
    assert needs["write_gb_per_second"] == pytest.approx(gb / (600 * 5 / 95)), "5 % of the time"
    assert needs["read_gb_per_second"] == needs["mlperf_dataset_gb"] == 0
    rarely = dlemu.predict([*words[:2], "checkpoint.interval_seconds=1e5", f"output.folder={tmp_path / 'r'}"])
    assert rarely.total.write_gb_per_second == pytest.approx(gb / 600), "NCCL's watchdog waits no longer"


def test_several_jobs_need_the_sum(tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("jobs:\n- workload=unet3d accelerator=h100 ranks=64\n- workload=llama3_70b ranks=512\n")
    shown = " ".join(asked(tmp_path / "m", str(mix)).split())
    of_jobs = ("576 accelerators", "72 nodes", "183 GB/s", "22.9 GB/s a node", "1.4 M requests/s", "24.6 GB")
    of_saves = ("813 GB/s", "88 TB", "544 MB/s", "10.3 GB/s", "979 GB", "3.26 GB/s", "15 x 100 Gb/s", "4 x 400 Gb/s")
    for text in (*of_jobs, *of_saves, "each node 2 x 100 Gb/s", "'best'"):  # nodes of unet3d, which reads most
        assert text in shown
    found = read_result(str(tmp_path / "m"))
    assert [job.workload for job in found.jobs] == ["unet3d", "llama3_70b"]
    assert (found.total.accelerators, found.total.nodes) == (576, 72)
    for name in ("read_gb_per_second", "drain_gb_per_second", "checkpoint_gb", "dataset_gb"):
        assert getattr(found.total, name) == pytest.approx(sum(getattr(job, name) for job in found.jobs))
    mix.write_text("jobs: ['workload=unet3d accelerator=h100 ranks=64']")
    alone = dlemu.predict([str(mix), f"dataset.data_folder={tmp_path}", f"output.folder={tmp_path / 'a'}"])
    assert alone.total.read_gb_per_second == found.total.read_gb_per_second, "a file's job has no storage either"
    with pytest.raises(UserError, match="names jobs: for one of them on a storage, give its settings"):
        dlemu.predict([str(mix)], mb_per_second=7000.0)
    saving = "workload=llama3_8b checkpoint.interval_seconds=3600"
    mix.write_text(f"jobs: ['workload=resnet50 accelerator=h100 ranks=64', '{saving}']")
    hourly = dlemu.predict([str(mix), f"output.folder={tmp_path / 'b'}"])
    assert hourly.total.checkpoint_minutes == 60, "not the default of a job that saves none"
    for text in ("jobs: workload=unet3d", "jobs: []"):
        mix.write_text(text)
        with pytest.raises(UserError, match="jobs"):
            dlemu.predict([str(mix)])
    with pytest.raises(UserError, match=r"has several values: .* predict jobs\.yaml"):
        dlemu.predict(["workload=unet3d,llama3_70b", "ranks=8"])


@pytest.mark.parametrize(
    ("accelerators", "read", "write", "name", "times"),
    [
        (8, 4.0, 1.0, "good", 1.0),
        (8, 40.0, 0.0, "best", 1.0),
        (256, 40.0, 1.0, "better", 1.0),
        (256, 1.0, 21.0, "best", 21 / 62.5),
        (1024, 500.0, 250.0, "best", 1.0),
        (1024, 2928.0, 0.0, "above", 5.856),
    ],
)
def test_a_class_is_that_of_a_node_or_of_the_units(
    accelerators: int, read: float, write: float, name: str, times: float
) -> None:
    needs = Needs(workload="x", accelerators=accelerators, read_gb_per_second=read, drain_gb_per_second=write)
    found, share = _nvidia_class(needs)
    assert found == name
    assert share == pytest.approx(times)


def test_what_arithmetic_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no dataset"):
        dlemu.predict(["workload=unet3d", "accelerator=h100", f"dataset.data_folder={tmp_path / 'none'}"])
    with pytest.raises(UserError, match=r"train\.computation_time is 0, so any number of accelerators passes"):
        dlemu.predict(["train.computation_time=0", "ranks=8", f"output.folder={tmp_path / 'n'}"])
    with pytest.raises(UserError, match="--others-mb-per-second are for a storage"):
        dlemu.predict(["workload=unet3d", "ranks=8"], others_mb_per_second=100)

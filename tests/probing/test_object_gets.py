"""A bucket is probed by GET: as asked, by rate and latency that the server has, and what it makes is removed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dlemu
from datagen.errors import DlemuError, UserError
from dlemu.cli.probe import command
from dlemu.jobs.probe.object_gets import objects_to_read, run_gets
from dlemu.jobs.probe.result import Access, CellSpec
from dlemu.jobs.probe.run import probe_target
from dlemu.studies.pages import write_page
from tests.object_stores import BUCKET, KEYS, S3, fault, own_server, storage_of

KIB = 1 << 10
TARGET = f"s3://{BUCKET}"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def word(server: Any) -> str:
    return f"storage.storage_options.endpoint_url={server.endpoint}"


def cell_of(access: Access, depth: int) -> CellSpec:
    return CellSpec(access=access, size_bytes=16 * KIB, depth=depth, jobs=1)


def test_requests_are_always_in_flight_and_wait_for_the_server() -> None:
    """20 ms to the first byte: none comes sooner, and as many are under way as asked."""
    with own_server(latency_seconds=0.02) as server:
        spec = storage_of(server).spec
        with objects_to_read(spec, TARGET, 256 * KIB, 16 * KIB) as objects:
            cell, seconds = cell_of("randread", 4), 0.3
            while len((done := run_gets(cell, spec, objects, seconds)).end_ns) < 8:  # a busy machine gets fewer done
                seconds *= 4
    assert done.first_byte_ns is not None
    assert done.first_byte_ns.min() >= 0.02e9
    assert (done.latency_ns >= done.first_byte_ns).all()
    assert done.failed == 0
    begin = done.end_ns - done.latency_ns
    assert max(np.sum((begin <= moment) & (done.end_ns > moment)) for moment in begin) == 4


def test_credentials_that_end_while_objects_are_made_are_what_is_reported() -> None:
    """The objects made so far can't be removed either, which is not the failure that matters."""

    def refuse(request: Any) -> Any:
        made = request.key.endswith("/0000") and request.method in ("PUT", "POST")
        return fault("error", status=403, code="ExpiredToken") if request.key and not made else None

    with own_server(fault=refuse) as server:
        spec = storage_of(server).spec
        with (
            pytest.raises(
                UserError,
                match=r"^POST .*/0001 .*the credentials have expired.* below s3://bucket/dlemu-probe-.* are left$",
            ),
            objects_to_read(spec, TARGET, 1 << 30, 16 * KIB),
        ):
            pass


def test_sequential_requests_go_through_the_objects_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(request: object) -> None:
        asked.append(request.headers.get("range", ""))  # type: ignore[attr-defined]

    with own_server(fault=note) as server:
        spec = storage_of(server).spec
        with objects_to_read(spec, TARGET, 64 * KIB, 16 * KIB) as objects:
            cell, seconds = cell_of("read", 1), 0.05
            ranges: list[str] = []
            while len(ranges) < 5:  # a busy machine gets fewer done
                asked.clear()
                run_gets(cell, spec, objects, seconds)
                ranges = [text for text in asked if text]
                seconds *= 4
    assert ranges[:5] == [f"bytes={k * 16 * KIB}-{(k + 1) * 16 * KIB - 1}" for k in (0, 1, 2, 3, 0)]


def test_an_answer_that_failed_is_counted_and_asked_again() -> None:
    with own_server() as server:
        spec = storage_of(server).spec
        with objects_to_read(spec, TARGET, 64 * KIB, 16 * KIB) as objects:
            failing = [fault("error"), fault("drop")]
            server.behaviour.fault = lambda request: failing.pop() if failing else None
            assert run_gets(cell_of("randread", 2), spec, objects, 0.3).failed == 2


@pytest.mark.parametrize(("wanted_kib", "made_kib"), [(16, 40), (90, 90)])
def test_an_object_that_is_made_holds_the_largest_request_and_goes_also_after_a_failure(
    wanted_kib: int, made_kib: int
) -> None:
    with own_server() as server:
        spec, stack = storage_of(server).spec, contextlib.ExitStack()
        (made,) = stack.enter_context(objects_to_read(spec, TARGET, wanted_kib * KIB, 40 * KIB))
        assert storage_of(server).size_bytes(made) == made_kib * KIB
        with pytest.raises(DlemuError, match="enough"), stack:
            raise DlemuError("enough")
        assert not server.objects


def test_a_missing_file_while_an_object_is_read_is_what_is_reported() -> None:
    with own_server() as server:
        storage = storage_of(server)
        storage.create(f"{TARGET}/mine").commit()
        with pytest.raises(FileNotFoundError, match="gone"), objects_to_read(storage.spec, f"{TARGET}/mine", 0, 0):
            raise FileNotFoundError("gone")


@pytest.mark.slow
def test_an_object_that_is_there_is_only_read(tmp_path: Path) -> None:
    with own_server() as server:
        writer = storage_of(server).create(f"{TARGET}/mine")
        writer.write(bytes(64 * KIB))
        writer.commit()
        grid: dict[str, Any] = {"sizes": (16 * KIB,), "depths": (2,)}
        answer, _ = probe_target(
            f"{TARGET}/mine", options=[word(server)], **grid, seconds=0.2, folder=str(tmp_path / "r")
        )
        assert answer.cells[0].iops > 0
        assert list(server.objects) == ["mine"]
        with pytest.raises(UserError, match="has 65536 bytes"):
            probe_target(f"{TARGET}/mine", options=[word(server)], folder=str(tmp_path / "s"))


def test_what_cannot_be_asked_of_a_bucket_is_said(tmp_path: Path) -> None:
    folder = str(tmp_path / "r")
    with pytest.raises(UserError, match="probed by GET"):
        probe_target(TARGET, accesses=("write",), folder=folder)
    with pytest.raises(UserError, match="names no bucket"):
        probe_target("s3://", folder=folder)
    with pytest.raises(UserError, match="no other setting"):
        probe_target(TARGET, options=["reader.batch_size=4"], folder=folder)
    with own_server() as server:
        answer = CliRunner().invoke(command, [TARGET, word(server), "--engine", "threads"])
        assert answer.exit_code == 2
        assert "not for a bucket" in answer.output


def test_a_folder_with_an_equals_sign_in_its_name_is_no_setting(tmp_path: Path) -> None:
    (folder := tmp_path / "batch=4").mkdir()
    words = ["--sizes=4k", "--depths=1", "--seconds=0.1", "--file-size=64k", f"--output={tmp_path / 'p'}"]
    assert CliRunner().invoke(command, [str(folder), *words, "--engine", "threads", "--json"]).exit_code == 0
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_bucket_of_a_real_server_is_probed_by_command_and_in_python(s3: S3, tmp_path: Path) -> None:
    words = ["--sizes", "16k,64k", "--depths", "1,4", "--jobs", "2", "--seconds", "0.2", "--file-size", "1m", "--json"]
    told = CliRunner().invoke(command, [TARGET, word(s3), *words, "--output", str(tmp_path / "p")])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer["engine"] == "s3"
    assert [(cell["size_bytes"], cell["depth"], cell["jobs"]) for cell in answer["cells"]] == [
        (size * KIB, depth, 2) for size in (16, 64) for depth in (1, 4)
    ]
    assert all(0 < cell["first_byte_ms"]["p50"] <= cell["latency_ms"]["p50"] for cell in answer["cells"])
    assert not list(s3.folder.glob("dlemu-probe-*/*"))
    assert "first byte" in Path(write_page(str(tmp_path / "p"))).read_text()
    settings: dict[str, Any] = {"storage.storage_options.endpoint_url": s3.endpoint}
    grid: dict[str, Any] = {"sizes": [16 * KIB], "depths": [2], "seconds": 0.2, "file_bytes": 64 * KIB}
    again = dlemu.probe(TARGET, folder=str(tmp_path / "q"), **grid, **settings)
    assert dlemu.load_result(tmp_path / "q") == again

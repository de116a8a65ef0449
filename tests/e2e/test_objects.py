"""The program itself on an object store: made, verified, trained on, and what a bad day there leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Ended, dlemu, small_run, start, wait
from tests.object_stores import KEYS, S3, SECRET_KEY, fault, own_server

SECRET = "another-secret-of-nobody"


def texts_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.slow
def test_a_dataset_is_made_verified_and_trained_on_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    settings = (*s3.settings, "dataset.format=npz", "metric.get_price=0.4")
    small = small_run(tmp_path / "run", Path("data/set"), *settings)
    made = dlemu("datagen", *small)
    assert made.status == 0, made.err
    checked = dlemu("datagen", "verify", *small)
    assert checked.status == 0, checked.err
    assert "every byte is as generated" in checked.out
    given = f"++storage.storage_options.secret_access_key={SECRET}"
    trained = dlemu(
        "train", *small, given, "reader.io_depth=2", "reader.verify=true", "dataset.data_folder=s3://bucket/data/set"
    )
    assert trained.status == 0, trained.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    requests = summary["requests"]
    assert [epoch["each_sample_once"] for epoch in summary["audit"]] == [True, True]
    assert summary["page_cache"]["served_percent"] == 100
    assert summary["page_cache"]["warning"] is None
    assert summary["environment"]["storage"]["file_system"] == "s3"
    assert summary["environment"]["storage"]["device"] == s3.endpoint
    assert (requests["get"], requests["head"], requests["failed"]) == (96, 0, 0)
    assert requests["received_bytes"] == summary["metrics"]["app_bytes"]
    assert requests["cost"] == pytest.approx(0.4 * 96 / 1000)
    assert 0 < requests["first_byte_ms"]["p50"] <= requests["last_byte_ms"]["p99"]
    assert "object_requests" in summary["telemetry"]["probes"]
    left = texts_of(tmp_path) + (trained.out + trained.err + made.out + made.err).encode()
    assert SECRET.encode() not in left
    assert SECRET_KEY.encode() not in left


@pytest.mark.slow
def test_tensorflow_reads_objects_of_several_samples(s3: S3, tmp_path: Path) -> None:
    settings = (*s3.settings, "dataset.format=hdf5", "dataset.num_samples_per_file=2", "reader.data_loader=tensorflow")
    small = small_run(tmp_path / "run", Path("data/tensorflow"), *settings, "ranks=1", "reader.range_bytes=16384")
    for command in ("datagen", "train"):
        ended = dlemu(command, *small)
        assert ended.status == 0, ended.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["requests"]["failed"] == 0


def trained_on(server: Any, folder: Path, *settings: str) -> Ended:
    words = [
        "storage.storage_type=s3",
        "storage.storage_root=bucket",
        f"storage.storage_options.endpoint_url={server.endpoint}",
        "storage.storage_options.s3_max_attempts=2",
        "storage.storage_options.timeout_seconds=1",
    ]
    small = small_run(folder, Path("data/set"), *words, "dataset.format=npz", *settings)
    if not server.objects:
        made = dlemu("datagen", *small, cwd=None, **KEYS)
        assert made.status == 0, made.err
        return made
    return wait(start("train", *small, cwd=None, **KEYS))


@pytest.mark.slow
def test_a_bad_day_ends_with_a_clear_error_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with own_server() as server:
        trained_on(server, tmp_path / "made")
        samples = [0]

        def hang_in_the_second_epoch(request: Any) -> Any:
            samples[0] += request.method == "GET" and "/train/" in request.key
            return fault("hang") if samples[0] > 72 else None

        server.behaviour.fault = hang_in_the_second_epoch
        ended = trained_on(server, tmp_path / "run", "train.epochs=9")
        assert ended.status == 2, ended.err
        assert "failed 2 times, the last time because of: no" in ended.err
        assert "Traceback" not in ended.err
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["complete"] is False
        assert summary["requests"]["failed"] >= 2
        server.behaviour.fault = lambda request: fault("error", status=403, code="InvalidAccessKeyId")
        ended = trained_on(server, tmp_path / "refused")
        assert ended.status == 2
        assert "the server does not take these credentials" in ended.err
        assert not (tmp_path / "refused").exists() or not os.listdir(tmp_path / "refused")

"""The program itself on an object store: made, verified, trained on, and what a bad day there leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import PYTORCH, Ended, dlemu, small_run, summary
from tests.e2e.test_checkpoints import WORKLOAD
from tests.object_stores import KEYS, S3, SECRET_KEY, fault, own_server

SECRET = "another-secret-of-nobody"


def texts_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.slow
def test_a_dataset_is_made_verified_and_trained_on_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    settings = (*s3.settings, "dataset.format=npz", PYTORCH)
    small = small_run(tmp_path / "run", Path("data/set"), *settings)
    made = dlemu("datagen", *small)
    assert made.status == 0, made.err
    checked = dlemu("datagen", "verify", *small)
    assert checked.status == 0, checked.err
    assert "every byte is as generated" in checked.out
    given = f"++storage.storage_options.secret_access_key={SECRET}"
    reader = ("reader.io_depth=2", "reader.verify=true")
    trained = dlemu("train", *small, given, *reader, "dataset.data_folder=s3://bucket/data/set")
    assert trained.ran, trained.err
    found = summary(tmp_path / "run")
    requests, cache, storage = found["requests"], found["page_cache"], found["environment"]["storage"]
    assert found["each_sample_once"] == [True, True]
    assert cache["served_percent"] == 100
    assert not {"page_cache", "no_data_from_storage"} & {finding["code"] for finding in found["findings"]}
    assert (storage["file_system"], storage["device"]) == ("s3", s3.endpoint)
    assert (requests["get"], requests["failed"]) == (96, 0)
    assert requests["received_bytes"] == found["metrics"]["app_bytes"]
    assert 0 < requests["first_byte_ms"]["p50"] <= requests["first_byte_ms"]["p99"]
    left = texts_of(tmp_path) + (trained.out + trained.err + made.out + made.err).encode()
    assert SECRET.encode() not in left
    assert SECRET_KEY.encode() not in left


@pytest.mark.slow
def test_checkpoints_are_uploaded_and_read_back(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "configs" / "workload").mkdir(parents=True)
    folder = {"checkpoint": WORKLOAD["checkpoint"] | {"checkpoint_folder": "saved/llama"}}  # type: ignore[operator]
    (tmp_path / "configs" / "workload" / "small.yaml").write_text(yaml.safe_dump(WORKLOAD | folder))
    words = ["workload=small", "-cd", str(tmp_path / "configs"), "ranks=2", *s3.settings, "output.report=false"]
    counts = ("checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=1", "checkpoint.keep_last=1")
    dlemu("checkpoint", *words, *counts, "checkpoint.verify=true", f"output.folder={tmp_path / 'run'}").assert_ended(0)
    told = (tmp_path / "run" / "log.txt").read_text()
    assert ("Requests" in told, "page cache" in told) == (True, False)
    run = summary(tmp_path / "run")
    requests = run["requests"]
    assert run["complete"]
    assert run["read"]["from_storage_percent"] == 100
    assert requests["received_bytes"] >= run["bytes"]
    assert requests["put"] >= 2 * run["files"]
    assert sorted(path.name for path in (s3.folder / "saved" / "llama").iterdir()) == ["global_epoch1_step2"]
    reads = ("checkpoint.num_checkpoints_write=0", counts[1], f"output.folder={tmp_path / 'r'}")
    dlemu("checkpoint", *words, *reads).assert_ended(0)


def trained_on(server: Any, folder: Path, *settings: str) -> Ended:
    """Make the dataset where there is none; else train on it."""
    patience = [f"storage.storage_options.{one}" for one in ("s3_max_attempts=2", "timeout_seconds=1")]
    words = [*S3(server.endpoint, folder).settings, *patience, "dataset.format=npz", *settings]
    command = "train" if server.objects else "datagen"
    return dlemu(command, *small_run(folder, Path("data/set"), *words), cwd=None, **KEYS)


@pytest.mark.slow
def test_a_bad_day_ends_with_a_clear_error_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with own_server() as server:
        trained_on(server, tmp_path / "made").assert_ended(0)
        samples = [0]

        def hang_in_the_second_epoch(request: Any) -> Any:
            samples[0] += request.method == "GET" and "/train/" in request.key
            return fault("hang") if samples[0] > 72 else None

        server.behaviour.fault = hang_in_the_second_epoch
        ended = trained_on(server, tmp_path / "run", "train.epochs=9")
        ended.assert_ended(2, "failed 2 times, the last time because of: no")
        found = summary(tmp_path / "run")
        assert (found["complete"], found["requests"]["failed"] >= 2) == (False, True)
        server.behaviour.fault = lambda request: fault("error", status=403, code="InvalidAccessKeyId")
        trained_on(server, tmp_path / "refused").assert_ended(2, "the server does not accept these credentials")
        assert not (tmp_path / "refused").exists() or not os.listdir(tmp_path / "refused")

"""Packing in a bucket: what others have there stays, and it goes on after it was interrupted."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_buckets_of_others import Others, interrupted, run, server, settings_of
from tests.object_stores import fault

pytestmark = pytest.mark.slow
server = server


def test_points_of_a_packing_leave_what_others_have(server: Any, tmp_path: Path) -> None:
    words = settings_of(server, tmp_path / "none", "dataset.format=jpeg", "dataset.record_length_bytes=3000")
    data = [word for word in words if word.startswith(("workload", "dataset.", "storage."))]
    data = [word for word in data if not word.startswith("dataset.num_files_train")] + ["dataset.num_files_train=8"]
    packing = ["target=packed", "format=tfrecord", "encode=keep", "images_per_file=4", "--no-report"]
    others = Others(server)
    others.put("packed/", "packed/point-01/", "packed/point-02/")
    assert run("datagen", *data).status == 0
    keys = others.ours[0]
    ended = run("pack", *data, *packing, "processes=1,2", f"output.folder={tmp_path / 'pack'}")
    assert ended.status == 0, ended.err
    assert others.changed() == []
    assert others.ours == (keys, set()), "what points packed is gone"
    kept = [*packing, "processes=1,2", "keep=true"]
    assert run("pack", *data, *kept, f"output.folder={tmp_path / 'kept'}").status == 0
    kept_keys = others.ours[0]
    ended = run("pack", *data, *packing, "processes=1,2", f"output.folder={tmp_path / 'again'}")
    assert ended.status == 2
    assert others.changed() == []
    assert others.ours[0] == kept_keys > keys, "of another command"


def test_packing_in_a_bucket_goes_on_after_it_was_interrupted(server: Any, tmp_path: Path) -> None:
    words = settings_of(server, tmp_path / "none", "dataset.format=jpeg", "dataset.record_length_bytes=3000")
    data = [word for word in words if word.startswith(("workload", "dataset.", "storage."))]
    storage = [word for word in data if word.startswith("storage.")]
    data = [word for word in data if not word.startswith("dataset.num_files_train")] + ["dataset.num_files_train=8"]
    packing = [*data, "format=webdataset", "encode=keep", "images_per_file=2", "--no-report"]
    assert run("datagen", *data).status == 0
    keys = set(server.objects)

    def is_third(request: Any) -> bool:
        return request.method == "PUT" and "img_2_of_4" in request.key

    for how in (signal.SIGKILL, signal.SIGTERM):
        target = [f"target=packed-{how}", f"output.folder={tmp_path / str(how)}"]
        ended = interrupted(server, is_third, how, "pack", *packing, *target)
        assert ended.status == 128 + how if how == signal.SIGTERM else -how
        ended = run("pack", *packing, *target[:1], f"output.folder={tmp_path / f'{how}-again'}")
        assert ended.status == 0, ended.err
        figures = json.loads((tmp_path / f"{how}-again" / "pack.json").read_text())["points"][0]["figures"]
        if how == signal.SIGTERM:
            assert (figures["images"], figures["kept_images"]) == (4, 4)
        assert figures["images"] + figures["kept_images"] == 8
        assert figures["from_storage_percent"] == 100, "no page cache is between"
        assert f"storage.storage_options.endpoint_url='{server.endpoint}'" in shlex.split(figures["train"])
        assert run("pack", "verify", target[0], *storage).status == 0
        left = {key.removeprefix(f"packed-{how}/") for key in server.objects if key.startswith(f"packed-{how}/")}
        assert left == {"packed.json", *(f"train/img_{number}_of_4.tar" for number in range(4))}

    before = set(server.objects)
    words = [*packing, "target=swept", "processes=1,2", f"output.folder={tmp_path / 'sweep'}"]
    assert interrupted(server, is_third, signal.SIGINT, "pack", *words).status == 130
    assert set(server.objects) == before > keys, "files of the point that was interrupted are gone"
    refused = fault("error", status=403, code="AccessDenied")
    server.behaviour.fault = lambda request: refused if request.method == "DELETE" else None
    ended = run("pack", *words)
    assert ended.status == 0, ended.err
    points = json.loads((tmp_path / "sweep" / "pack.json").read_text())["points"]
    assert ["could not all be removed" in point["figures"]["warnings"][-1] for point in points] == [True, True]

"""Packing as a user does it: through what goes wrong, to a set that trains."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from dlemu.results.kinds import read_result
from tests.e2e.harness import assert_gone, dlemu, family, start, until, wait

pytestmark = pytest.mark.slow


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(8):
        Image.effect_noise((50, 40), 50 + number).save(folder / f"{number}.png")
    return folder


def test_packing_goes_on_after_each_kind_of_end_and_trains(images: Path, tmp_path: Path) -> None:
    target, last = tmp_path / "packed", images / "7.png"
    words = [f"pack.source={images}", f"pack.target={target}", "pack.evict=false", "output.report=false"]
    words += ["pack.resize=16x16", "pack.images_per_file=2", "ranks=2"]
    right = last.read_bytes()
    # the last file is the only one that can't be finished; whoever reads the pipe would wait for ever
    for wrong, said in ((lambda path: path.write_bytes(b"no picture"), ""), (os.mkfifo, ": it is a pipe")):
        last.unlink()
        wrong(last)
        refused = dlemu("pack", *words, cwd=tmp_path)
        assert refused.status == 2
        assert f"{last} can't be packed{said}" in refused.err
    last.unlink()
    Image.new("RGB", (9000, 9000)).save(last)  # the seconds that this takes are enough to end who unpacks it
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        run = start("pack", *words, cwd=tmp_path)
        until(lambda: len(list((target / "train").glob("img_*"))) == 3, "the other files")
        children = until(partial(family, run), "its ranks")
        run.send_signal(number)
        ended = wait(run)
        assert ended.status == status, ended.err
        assert_gone(children)
    last.write_bytes(right)
    ended = dlemu("pack", *words, cwd=tmp_path)
    assert ended.status == 0, ended.err
    newest = max(tmp_path.glob("results/default/*/summary.json"), key=os.path.getmtime)
    found = json.loads(newest.read_text())
    assert (found["images"], found["files"]) == (2, 4)
    assert "dataset.record_length_bytes=768" in found["train"], "of the pixels, without what the format adds"
    small = [*found["train"].split()[2:], "reader.data_loader=threads", "train.computation_time=0"]
    small += ["metric.ceiling_seconds=0", "metric.scaling_seconds=0", "metric.cached=true", "output.report=false"]
    trained = dlemu("train", *small, cwd=tmp_path)
    assert trained.ran, trained.err
    said = " ".join(trained.out.split())  # lines are wrapped
    assert "was made by `dlemu pack`" in said
    assert "each once an epoch" in said
    assert "sizes differ" not in said


def test_a_sweep_packs_each_point_and_leaves_only_figures(images: Path, tmp_path: Path) -> None:
    (images / "bad.png").write_bytes(b"no picture")
    target, kept = tmp_path / "swept", tmp_path / "packed"
    words = [f"pack.source={images}", "output.report=false", "pack.format=webdataset", "pack.encode=keep"]
    assert dlemu("pack", *words, f"pack.target={kept}", cwd=tmp_path).status == 0  # nobody looks into the images
    swept = dlemu("sweep", *words, f"pack.target={target}", "ranks=1,3", f"output.folder={tmp_path / 'sweep'}")
    assert swept.status == 0, swept.err
    points = read_result(str(tmp_path / "sweep")).points
    assert all(point.figures.mean("read_mb_per_second") > 0 for point in points)
    assert not target.exists()
    again = dlemu("pack", *words, f"pack.target={kept}")
    assert again.status == 2
    assert f"{kept} holds a packed set already" in again.err

"""Packing as a user does it: through what goes wrong, to a set that trains."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlemu as face
from dlemu.studies.answers import SweepAnswer
from tests.e2e.harness import assert_gone, dlemu, family, start, until, wait

pytestmark = pytest.mark.slow
IMAGES = 8


def image(path: Path, number: int) -> None:
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)).save(path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(IMAGES):
        image(folder / f"{number}.png", number)
    return folder


def test_packing_goes_on_after_each_kind_of_end_and_trains(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    words = [f"pack.source={images}", f"pack.target={target}", "pack.resize=16x16", "pack.images_per_file=2", "ranks=2"]
    words += ["pack.evict=false", "output.report=false"]
    last = images / f"{IMAGES - 1}.png"

    last.write_bytes(b"no picture")  # the last file is the only one that can't be finished
    damaged = dlemu("pack", *words, cwd=tmp_path)
    assert damaged.status == 2
    assert str(last) in damaged.err
    assert "can't be packed" in damaged.err

    last.unlink()
    os.mkfifo(last)  # whoever read it would wait for ever
    refused = dlemu("pack", *words, cwd=tmp_path)
    assert refused.status == 2
    assert f"{last} can't be packed: it is a pipe" in refused.err

    last.unlink()
    Image.new("RGB", (9000, 9000)).save(last)  # the seconds that this takes are enough to end who unpacks it
    for number in (signal.SIGKILL, signal.SIGINT):
        run = start("pack", *words, cwd=tmp_path)
        until(lambda: len(list((target / "train").glob("img_*"))) == 3, "the other files")
        children = until(partial(family, run), "its ranks")
        run.send_signal(number)
        ended = wait(run)
        assert ended.status == (-signal.SIGKILL if number == signal.SIGKILL else 130), ended.err
        assert_gone(children)

    last.unlink()
    image(last, IMAGES - 1)
    ended = dlemu("pack", *words, cwd=tmp_path)
    assert ended.status == 0, ended.err
    newest = max(tmp_path.glob("results/default/*/summary.json"), key=os.path.getmtime)
    found = json.loads(newest.read_text())
    assert (found["images"], found["kept_images"], found["files"]) == (2, IMAGES - 2, 4)
    shares = ("reading", "computing", "wanting_core", "writing")
    assert 0 < sum(found[f"{share}_percent"] for share in shares) < 100.001

    train = found["train"].split()[2:]
    small = ["metric.ceiling_seconds=0", "metric.scaling_seconds=0", "metric.cached=true", "output.report=false"]
    trained = dlemu("train", *train, *small, "reader.data_loader=threads", "train.computation_time=0", cwd=tmp_path)
    assert trained.ran, trained.err
    assert "dataset.record_length_bytes=768" in train, "of the pixels, without what the format adds"
    notes = " ".join(trained.out.split())  # lines are wrapped
    assert "was made by `dlemu pack`" in notes
    assert "sizes differ" not in notes
    assert "each once an epoch" in trained.out


def test_a_sweep_packs_each_point_and_leaves_only_figures(images: Path, tmp_path: Path) -> None:
    (images / "bad.png").write_bytes(b"no picture")
    target, kept = tmp_path / "swept", tmp_path / "packed"
    words = [f"pack.source={images}", "output.report=false", "pack.format=webdataset", "pack.encode=keep"]
    assert dlemu("pack", *words, f"pack.target={kept}", cwd=tmp_path).status == 0  # nobody looks into the images
    swept = dlemu("sweep", *words, f"pack.target={target}", "ranks=1,3", f"output.folder={tmp_path / 'sweep'}")
    assert swept.status == 0, swept.err
    answer = face.load_result(tmp_path / "sweep")
    assert isinstance(answer, SweepAnswer)
    rates = [point.figures and point.figures.metrics["read_mb_per_second"].mean for point in answer.points]
    assert all(rate and rate > 0 for rate in rates)
    assert not target.exists()
    again = dlemu("pack", *words, f"pack.target={kept}")
    assert again.status == 2
    assert f"{kept} holds a packed set already" in again.err

"""Packing as a user does it: through what goes wrong, to a set that trains."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

import dlemu as face
from dlemu.contrib.pack.api import pack
from dlemu.contrib.pack.result import PackAnswer
from tests.e2e.harness import assert_gone, dlemu, family, start, until, wait
from tests.e2e.test_limits import group, inside, named, starve

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


def packers(of: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in of:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.name() == "dlemu-packer" else []
    return found


def workers(run: subprocess.Popen[str]) -> list[psutil.Process]:
    return family(run) if packers(family(run)) else []


def test_packing_goes_on_after_each_kind_of_end_and_trains(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    words = [f"source={images}", f"target={target}", "resize=16x16", "images_per_file=2", "processes=2"]
    words += ["evict=false", "--no-report"]
    last = images / f"{IMAGES - 1}.png"

    last.write_bytes(b"no picture")  # the last file is the only one that can't be finished
    damaged = dlemu("pack", *words, cwd=tmp_path)
    assert damaged.status == 2
    assert str(last) in damaged.err
    assert "can't be packed" in damaged.err
    assert not list(tmp_path.glob("results/pack/*"))

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
        children = until(partial(workers, run), "who packs")
        if number == signal.SIGKILL:
            for process in packers(children):  # one of them waits for the last image, the other has ended
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        else:
            run.send_signal(number)
        ended = wait(run)
        assert ended.status == (3 if number == signal.SIGKILL else 130), ended.err
        assert ("was killed by SIGKILL" if number == signal.SIGKILL else "are kept: continue with") in ended.err
        assert_gone(children)

    last.unlink()
    image(last, IMAGES - 1)
    ended = dlemu("pack", *words, cwd=tmp_path)
    assert ended.status == 0, ended.err
    (answer,) = (tmp_path / "results" / "pack").glob("*/pack.json")
    figures = json.loads(answer.read_text())["points"][0]["figures"]
    assert (figures["images"], figures["kept_images"], figures["files"]) == (2, IMAGES - 2, 4)
    assert sum(figures["shares"].values()) == pytest.approx(100)

    train = figures["train"].split()[2:]
    small = ["metric.ceiling_seconds=0", "metric.scaling_seconds=0", "metric.cached=true", "output.report=false"]
    trained = dlemu("train", *train, *small, "reader.data_loader=threads", "train.computation_time=0", cwd=tmp_path)
    assert trained.ran, trained.err
    assert "dataset.record_length_bytes=768" in train, "of the pixels, without what the format adds"
    notes = " ".join(trained.out.split())  # lines are wrapped
    assert "was made by `dlemu pack`" in notes
    assert "sizes differ" not in notes
    assert "each sample once" in trained.out


def test_a_sweep_packs_each_point_and_leaves_only_figures(images: Path, tmp_path: Path) -> None:
    (images / "bad.png").write_bytes(b"no picture")
    told: list[object] = []
    answer = pack(
        {"output.folder": str(tmp_path / "sweep")},
        source=str(images),
        target=str(tmp_path / "packed"),
        processes=[1, 3],
        format="webdataset",
        encode="keep",
        on_progress=told.append,
    )
    assert [point.figures and point.figures.images for point in answer.points] == [IMAGES + 1] * 2  # nobody looks in
    assert not (tmp_path / "packed").exists()
    assert len(told) >= 5
    opened = face.load_result(tmp_path / "sweep")
    assert isinstance(opened, PackAnswer)
    assert opened == answer
    with pytest.raises(face.UserError, match=r"bad\.png"):
        pack(source=str(images), target=str(tmp_path / "one"), resize="8")
    made = dlemu("report", str(tmp_path / "sweep"))
    assert made.status == 0, made.err
    assert "limited by" in (tmp_path / "sweep" / "report.html").read_text()


def test_a_sweep_leaves_what_another_command_packed_and_removes_what_it_left_when_killed(
    images: Path, tmp_path: Path
) -> None:
    target, words = tmp_path / "packed", [f"source={images}", "resize=16x16", "images_per_file=2", "--no-report"]
    kept = target / "point-01"
    assert dlemu("pack", *words, f"target={kept}").status == 0
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    sweep = [*words, f"target={target}", "processes=1,2", f"output.folder={tmp_path / 'sweep'}"]
    ended = dlemu("pack", *sweep)
    assert ended.status == 3
    assert f"{kept} holds a packed set already" in ended.out
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before

    shutil.rmtree(kept)
    last = images / f"{IMAGES - 1}.png"
    Image.new("RGB", (9000, 9000)).save(last)
    run = start("pack", *sweep, cwd=tmp_path)
    until(lambda: (kept / "packed.json").exists() and workers(run), "a point that packs")
    run.kill()
    wait(run)
    assert kept.exists()
    image(last, IMAGES - 1)
    assert dlemu("pack", *sweep).status == 0
    assert not list(target.iterdir())


@pytest.mark.root
def test_a_process_that_packs_and_lacks_memory_is_named(tmp_path: Path) -> None:
    large, source = tmp_path / "large.png", tmp_path / "images"
    source.mkdir()
    Image.new("RGB", (9000, 9000)).save(large)
    for number in range(400):  # minutes of packing, so that however long the kernel takes somebody still packs
        os.link(large, source / f"{number}.png")
    words = (f"source={source}", f"target={tmp_path / 'packed'}", "resize=16x16", "images_per_file=3", "processes=2")
    with group("memory") as folder:
        process = start("pack", *words, "evict=false", "--no-report", launcher=inside(folder), cwd=tmp_path)
        packers = partial(named, process.pid, "dlemu-packer")
        told = starve(folder, until(packers, "who packs")[-1], spare_mib=512)  # the other wants a quarter of it
        ended = wait(process)
    assert told.search(" ".join(ended.err.splitlines()[-3:])), ended
    assert ended.status == 3

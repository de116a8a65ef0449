"""The interfaces through which foreign bytes come: files of every format, configurations, folders of results.

Something whole is damaged by a seed, and taken in. Only dlemu's own errors may come out of it, in less than
`MOST_SECONDS` and without much memory.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

from datagen.buffers import AlignedBuffer
from datagen.errors import DlemuError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.verify import verify
from dlemu.config import load
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.parts import exported
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.jobs.training.parts import figures
from dlemu.jobs.training.result import read_run
from dlemu.results.answer_files import decode_versioned
from tests.datasets import formats_with_files, make_files
from tests.fuzzing.mutations import damaged_bytes, damaged_json, damaged_words
from tests.fuzzing.schedules import schedule
from tests.parts import of_parts
from tests.results.handmade import CHECKPOINT_RUNS
from tests.runs import make_job, make_log, make_run, with_telemetry, write_run

MOST_SECONDS = 5.0
MOST_BYTES = 1 << 30

Case = Callable[[random.Random], None]


def format_interface(name: str, folder: Path) -> Case:
    """Return what damages a file of a dataset and reads every sample of it, by each way that there is."""
    whole, copy = folder / "whole", folder / "copy"
    spec = DatasetSpec(data_folder=str(whole), format=name, num_files_train=2, record_length_bytes=6560)
    if not replace(spec, num_samples_per_file=3).check():
        spec = replace(spec, num_samples_per_file=3)
    found = inspect(make_files(spec))
    shutil.copytree(whole, copy)
    files = sorted(path for path in whole.rglob("*") if path.is_file() and path.name != "dlemu.json")
    moved = replace(spec, data_folder=str(copy))

    def case(draw: random.Random) -> None:
        victim = draw.choice(files)
        path = copy / victim.relative_to(whole)
        path.write_bytes(damaged_bytes(victim.read_bytes(), draw))
        try:
            layout = replace(found.train, folder=found.train.folder.replace(str(whole), str(copy)))
            for engine, decode in draw.sample([("fast", "none"), ("fast", "full"), ("library", "none")], 2):
                fetch = FetchSpec(found, layout, engine=engine, decode=decode)  # type: ignore[arg-type]
                with contextlib.suppress(DlemuError):
                    out = AlignedBuffer().view(fetch.slot_bytes(spec.num_samples_per_file))
                    Fetcher(fetch).fetch(range(spec.num_samples_per_file), out)
            with contextlib.suppress(DlemuError):
                inspect(moved)
            with contextlib.suppress(DlemuError):
                verify(moved)
        finally:
            shutil.copyfile(victim, path)

    return case


def config_interface(folder: Path) -> Case:
    """Return what damages a workload's file, or an override, and loads it."""
    shipped = [path for path in (resources.files("dlemu.configs") / "workload").iterdir() if path.name.endswith("yaml")]
    texts = sorted(path.read_text() for path in shipped)
    words = [
        "train.epochs=3",
        "reader.batch_size=4",
        "dataset.format=npz",
        "train.computation_time={mean: 1, stdev: 2}",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "damaged.yaml"

    def case(draw: random.Random) -> None:
        path.write_text(damaged_words(draw.choice(texts), draw), errors="replace")
        overrides = [f"workload={path}"] if draw.random() < 0.8 else []
        if not overrides or draw.random() < 0.3:
            overrides.append(damaged_words(draw.choice(words), draw))
        with contextlib.suppress(DlemuError):
            load(overrides)

    return case


def damage(whole: Path, copy: Path, draw: random.Random) -> None:
    """Write a copy of a result's file that is not as it was: of JSON mostly one that still is JSON."""
    if whole.suffix == ".json" and draw.random() < 0.8:
        copy.write_text(damaged_json(whole.read_text(), draw))
    else:
        copy.write_bytes(damaged_bytes(whole.read_bytes(), draw))


def folder_interface(folder: Path) -> Case:
    """Return what damages a file of a run's folder, and reads it in every way."""
    job = make_job(folder=str(folder / "whole"), steps=4)
    write_run(make_run(job, with_telemetry(make_log(job))))
    readers = of_parts("READERS").values()

    def read(copy: str) -> None:
        with contextlib.suppress(DlemuError):
            figures(read_run(copy))
        for read_part in readers:
            read_part(copy)

    return _damaging(folder, read)


def checkpoints_interface(folder: Path) -> Case:
    """Return what damages a file of the folder of a run of checkpoints, and reads and recomputes it."""
    whole = folder / "whole"
    whole.mkdir(parents=True)
    made = CHECKPOINT_RUNS["checkpoints_watched"]()
    write_run(CheckpointRun(str(whole), made.facts, made.rows, made.telemetry))

    def read(copy: str) -> None:
        with contextlib.suppress(DlemuError):
            _ = exported(CHECKPOINTS.read(copy)).rows
        with contextlib.suppress(DlemuError):
            decode_versioned(f"{copy}/summary.json", CheckpointSummary)

    return _damaging(folder, read)


def _damaging(folder: Path, read: Callable[[str], None]) -> Case:
    """Return what damages one of the files of a result, now and then without its facts, and reads it."""
    whole, copy = folder / "whole", folder / "copy"
    shutil.copytree(whole, copy)
    files = sorted(path for path in whole.iterdir() if path.is_file())

    def case(draw: random.Random) -> None:
        victim = draw.choice(files)
        damage(victim, copy / victim.name, draw)
        if draw.random() < 0.1:
            (copy / "facts.json").unlink()
        try:
            read(str(copy))
        finally:
            for name in (victim.name, "facts.json"):
                shutil.copyfile(whole / name, copy / name)

    return case


def interfaces() -> dict[str, Callable[[Path], Case]]:
    by_name: dict[str, Callable[[Path], Case]] = {
        "config": config_interface,
        "folder": folder_interface,
        "checkpoints": checkpoints_interface,
    }
    by_name["schedules"] = lambda folder: schedule
    for name in formats_with_files():
        by_name[f"format-{name}"] = lambda folder, name=name: format_interface(name, folder)  # type: ignore[misc]
    return by_name

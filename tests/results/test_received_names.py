"""What was received names no code that is run: a dotted name planted in any text of it imports nothing.

Each kind of result, dataset and note is made whole, then read with one text after the other replaced by the name of a
module that lies on Python's path and says so when it is imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import dlemu
from datagen.errors import DlemuError, UserError
from datagen.generate import generate, prepare
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.verify import verify
from dlemu.checkpoints.stored import NOTE
from dlemu.config import load_received
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.probe.result import PROBE
from dlemu.jobs.training.prediction.prediction import PREDICT
from dlemu.jobs.training.result import read_run
from dlemu.results.answer_files import save_answer
from dlemu.results.live import write_live_facts
from dlemu.runner.job import prepare as prepare_job
from dlemu.studies.answers import COMPARE, SIZE, SWEEP
from tests.datasets import make_dataset
from tests.goldens.render import RESULTS
from tests.parts import of_parts
from tests.report.folders import write_size, write_sweep
from tests.results.handmade import saved_checkpoints
from tests.run.test_checkpoint_jobs import SmallJob, run
from tests.runs import make_job, make_log, make_run, with_telemetry, write_run

PLANTED = "planted_by_others"
NAMES = (f"{PLANTED}.Format", PLANTED)
MODULES = ("format", "data_loader", "storage_type", "compute")
"""Keys of settings that name a module."""


@pytest.fixture(autouse=True)
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the module on Python's path; afterwards nobody has imported it."""
    record, place = tmp_path / "imported", tmp_path / "path"
    place.mkdir()
    (place / f"{PLANTED}.py").write_text(f"open({str(record)!r}, 'w').close()\nclass Format: pass\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.chdir(tmp_path)
    yield record
    assert not record.exists(), "somebody's module ran"
    assert PLANTED not in sys.modules


def texts(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each text, of several alike in a list that of the first."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from texts(item, (*above, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:1]):
            yield from texts(item, (*above, number))
    elif isinstance(value, str):
        yield above


def planted(value: Any, path: tuple[Any, ...], name: str) -> Any:
    if not path:
        return name
    changed = list(value) if isinstance(value, list) else dict(value)
    changed[path[0]] = planted(value[path[0]], path[1:], name)
    return changed


def read_planted(file: Path, read: Callable[[int | None], object]) -> int:
    """Read with each text of a file of JSON or YAML replaced; return how many there were.

    `read` gets the number of the text, or None for one that names a module of dlemu's where all is well.
    """
    text = file.read_text()
    load, dump = (json.loads, json.dumps) if file.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    whole, count = load(text), 0
    for path in texts(whole):
        is_module = path[-1] in MODULES
        file.write_text(dump(planted(whole, path, NAMES[0] if is_module else NAMES[count % 2])))
        with contextlib.suppress(DlemuError):
            read(None if is_module else count)
        count += 1
    file.write_text(text)
    return count


def read_every_way(folder: Path, number: int | None) -> None:
    """Load a folder of results, and do with it what else there is to be done: all of it, or one after the other."""
    from dlemu.report.page import open_page

    others: list[Callable[[], object]] = [
        lambda: open_page(str(folder)),
        lambda: dlemu.compare(folder, folder),
        lambda: dlemu.predict(ranks=1, from_folder=str(folder)),
        *(partial(read, str(folder)) for read in of_parts("READERS").values()),
    ]
    for read in (lambda: dlemu.load_result(folder), *(others if number is None else [others[number % len(others)]])):
        with contextlib.suppress(DlemuError):
            read()


def written_run(folder: Path) -> Path:
    job = make_job(folder=str(folder), steps=4)
    write_run(make_run(job, with_telemetry(make_log(job))))
    return folder


@pytest.mark.parametrize("file", ["facts.json", "old summary.json", "old config.yaml"])
def test_the_folder_of_a_run(tmp_path: Path, file: str) -> None:
    folder = written_run(tmp_path / "run")
    ways: Callable[[Path, int | None], object] = read_every_way
    if file.startswith("old "):  # written before there was a facts.json
        (folder / "facts.json").unlink()
        ways = lambda folder, _: dlemu.load_result(folder)  # noqa: E731
    assert read_planted(folder / file.removeprefix("old "), lambda number: ways(folder, number)) > 10


@pytest.mark.parametrize("named", [True, False])
def test_the_run_of_a_users_own_format_has_every_number_without_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool, imported: Path
) -> None:
    """The module is there when the run begins, and gone, or another one, when its result is read."""
    own = tmp_path / "path" / "formats_of_mine.py"
    own.write_text("from datagen.formats.npz import *\nfrom datagen.formats.npz import Format\n")
    job = make_job(folder=str(tmp_path / "run"), steps=4)
    data = replace(job.workload.dataset, format="formats_of_mine")
    data = replace(data, format="formats_of_mine.Format")
    job = replace(job, workload=replace(job.workload, dataset=data))
    run = make_run(job, with_telemetry(make_log(job)))
    write_run(run)
    own.write_text(f"open({str(imported)!r}, 'w').close()\n") if named else own.unlink()
    monkeypatch.delitem(sys.modules, "formats_of_mine", raising=False)
    assert read_run(str(tmp_path / "run")).summary == run.summary
    assert "formats_of_mine" not in sys.modules


def test_the_live_part_of_a_run_that_was_killed(tmp_path: Path) -> None:
    run = read_run(str(written_run(tmp_path / "run")))
    folder = tmp_path / "killed"
    write_live_facts(str(folder), run.facts, advice="")
    run.facts.journal.save(str(folder / "live"))
    make_log(make_job(steps=4)).rows.tofile(folder / "live" / "rank_000000")
    live = folder / "live"
    assert read_planted(live / "facts.json", lambda _: read_run(str(folder))) > 10
    assert read_planted(live / "journal.json", lambda _: read_run(str(folder))) > 1


def test_the_folder_of_a_run_of_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    saved_checkpoints(folder)
    assert read_planted(folder / "facts.json", lambda number: read_every_way(folder, number)) > 10
    for read in of_parts("READERS").values():
        assert read_planted(folder / "summary.json", lambda _, read=read: read(str(folder))) > 10  # type: ignore[misc]


def write_answers(folder: Path) -> dict[str, Path]:
    save_answer(str(folder / "probe"), PROBE, dlemu.load_result(RESULTS / "probe"))
    dlemu.predict(
        ["workload=unet3d", "accelerator=h100", "ranks=2", f"output.folder={folder / 'predict'}"], mb_per_second=1000
    )
    sweep = write_sweep(folder / "sweep")
    save_answer(str(folder / "compare"), COMPARE, dlemu.compare(sweep))
    return {
        "size": write_size(folder / "size") / SIZE,
        "sweep": sweep / SWEEP,
        "compare": folder / "compare" / COMPARE,
        "probe": folder / "probe" / PROBE,
        "predict": folder / "predict" / PREDICT,
        **{name: write(folder / name) for name, write in of_parts("ANSWERS").items()},
    }


def test_answers_of_commands(tmp_path: Path) -> None:
    counts = {
        kind: read_planted(file, lambda number, file=file: read_every_way(file.parent, number))  # type: ignore[misc]
        for kind, file in write_answers(tmp_path).items()
    }
    assert min(counts.values()) >= 3, counts


def test_a_received_configuration_draws_in_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra would import the package of a search path, and fill in what the environment of this host holds."""
    config = written_run(tmp_path / "run") / "config.yaml"
    whole = config.read_text()
    config.write_text(f"hydra:\n  searchpath: [pkg://{PLANTED}]\ndefaults: [workload/{PLANTED}, _self_]\n{whole}")
    with contextlib.suppress(UserError):
        load_received(str(config))
    monkeypatch.setenv("MY_SECRET", "of this host")
    config.write_text(whole.replace("name: handmade", "name: ${oc.env:MY_SECRET}"))
    with pytest.raises(UserError, match="has references"):
        load_received(str(config))
    config.write_text(whole.replace("name: handmade", r"name: \${of-ours}"))
    assert load_received(str(config)).model.name == "${of-ours}"


def test_the_manifest_of_a_dataset(tmp_path: Path) -> None:
    spec = make_dataset(tmp_path / "data", num_files_train=2, record_length_bytes=100, record_length_bytes_stdev=0)
    manifest = tmp_path / "data" / "dlemu.json"

    def read_dataset(_: int | None) -> None:
        for read in (inspect, verify, prepare, generate):
            with contextlib.suppress(DlemuError):
                read(spec)

    assert read_planted(manifest, read_dataset) >= 5
    tree = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(planted(tree, ("spec", "format"), NAMES[0])))
    with pytest.raises(DlemuError, match=r"if you trust it, name it yourself with dataset.format=planted_by_others"):
        verify(spec)


def test_the_note_of_a_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, num_checkpoints_read="0")
    note = tmp_path / "saved" / "global_epoch1_step1" / NOTE

    def read_note(_: int | None = None) -> None:
        started = SmallJob(tmp_path, "again", num_checkpoints_write="0")
        prepare_job(CHECKPOINTS, started.workload, 2)[1].drop()

    assert read_planted(note, read_note) > 5
    tree = json.loads(note.read_text())
    note.write_text(json.dumps(planted(tree, ("settings", "format"), NAMES[0])))
    with pytest.raises(UserError, match="with the settings that wrote it, if you trust them"):
        read_note()
    note.write_text(json.dumps(tree))


def test_what_is_looked_for_can_be_found(tmp_path: Path, imported: Path) -> None:
    """A module that the user names himself is imported."""
    with contextlib.suppress(UserError, AttributeError):
        prepare(DatasetSpec(data_folder=str(tmp_path / "data"), format=NAMES[0]))
    assert imported.exists()
    imported.unlink()
    del sys.modules[PLANTED]

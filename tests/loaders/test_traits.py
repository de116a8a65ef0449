"""What loaders say of themselves: without their framework, and without a list of their names anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from datagen.registry import names
from datagen.spec import DatasetSpec
from dlemu.cli.job_command import job_command
from dlemu.cli.size import command as size
from dlemu.config.schema import Reader, Storage, Workload
from dlemu.loaders.tensorflow import samples_ahead
from dlemu.loaders.traits_base import traits_of
from dlemu.results.kinds import kind_named
from tests.runs import make_job

MIB = 1 << 20


@pytest.mark.parametrize(
    ("read_threads", "record_bytes", "samples_per_file", "samples"),
    [
        (1, 2 * MIB, 50, 1),  # the reader's buffer alone
        (2, 2 * MIB, 50, 2 * (2 + 1 + 1)),
        (4, 2 * MIB, 50, 4 * (2 + 1 + 1)),
        (4, 2 * MIB, 1, 12),  # whole files, of which twice as many are begun
        (8, MIB // 8, 1000, 8 * (2 * 16 + 1 + 2)),
    ],
)
def test_read_ahead(read_threads: int, record_bytes: int, samples_per_file: int, samples: int) -> None:
    reader = Reader(data_loader="tensorflow", read_threads=read_threads)
    data = DatasetSpec(format="tfrecord", record_dims=(record_bytes,), num_samples_per_file=samples_per_file)
    spec = make_job(dataset=data, reader=reader).loader_spec(0)
    assert samples_ahead(spec) == samples


def test_traits_come_without_a_framework() -> None:
    program = (
        "import sys\n"
        "from datagen.registry import names\n"
        "from dlemu.loaders.traits_base import traits_of\n"
        "print({name: traits_of(name).extra for name in names('dlemu.loaders')})\n"
        "assert not {'torch', 'tensorflow', 'nvidia'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    extras = {"none": "", "pytorch": "torch", "tensorflow": "tensorflow", "threads": ""}
    assert json.loads(done.stdout.replace("'", '"')).items() >= extras.items()


@pytest.mark.parametrize("name", [name for name in names("dlemu.loaders") if traits_of(name).module])
def test_without_its_framework_it_is_said_what_to_install(name: str) -> None:
    package, extra = traits_of(name).module, traits_of(name).extra
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from datagen.errors import UserError\nfrom datagen.registry import find\n"
        "from dlemu.loaders.traits_base import check_installed\n"
        f"for refuse in (lambda: find('dlemu.loaders', {name!r}, 'Loader'), lambda: check_installed({name!r})):\n"
        "    try:\n        refuse()\n    except UserError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    when_imported, before = done.stdout.splitlines()
    assert f"pip install 'dlemu[{extra}]'" in when_imported
    other = "threads" if name == "pytorch" else "pytorch"
    assert f"pip install 'dlemu[{extra}]', or set reader.data_loader={other}" in before
    assert not done.stderr


@pytest.mark.parametrize("command", [job_command(kind_named("training")), size])
def test_nothing_is_made_for_a_loader_that_is_not_installed(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for tensorflow by name gets no other loader; None in sys.modules is a module that can't be imported."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.chdir(tmp_path)
    words = ["workload=resnet50", "reader.data_loader=tensorflow", "scale=laptop", "dataset.data_folder=data", "--make"]
    done = CliRunner().invoke(command, words)
    assert "needs TensorFlow, which is not installed: pip install 'dlemu[tensorflow]'" in str(done.exception)
    assert "reader.data_loader=pytorch" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in names("dlemu.loaders") if name != "pytorch"])
def test_pinning_is_refused_before_the_run_where_it_can_not_be(name: str) -> None:
    dataset = DatasetSpec(format="tfrecord" if name == "tensorflow" else "npy", num_files_train=8)
    said = traits_of(name).problems(Workload(dataset=dataset, reader=Reader(pin_memory=True)))
    assert [text.partition(":")[0] for text in said] == ["reader.pin_memory is true"]
    assert not list(traits_of(name).problems(Workload(dataset=dataset)))


def test_who_opens_files_itself_needs_a_storage_where_they_have_paths() -> None:
    objects, folders = (
        Workload(dataset=DatasetSpec(format="tfrecord"), storage=Storage(storage_type=name))
        for name in ("own.Storage", "local_fs")
    )
    (problem,) = traits_of("tensorflow").problems(objects)
    assert problem.startswith("storage.storage_type is 'own.Storage': TensorFlow itself opens tfrecord files")
    assert not list(traits_of("tensorflow").problems(folders))
    assert not list(traits_of("pytorch").problems(objects))
    streams = Workload(dataset=DatasetSpec(format="parquet"), reader=Reader(worker_streams=True))
    (problem,) = traits_of("threads").problems(streams)
    assert problem.startswith("reader.worker_streams is true: any reader takes any batch, with its row group")
    assert not list(traits_of("pytorch").problems(streams))

"""What DALI can't do is refused before the run, and DLIO's name of the loader is understood."""

from __future__ import annotations

import re

import pytest
import yaml

from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.validate import check_runnable
from dlemu.dlio.config import dlio_yaml
from tests.config.test_dlio import golden


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["dataset.format=npz"], "'npz', for which DALI has no reader; wanted one of jpeg, npy, png, tfrecord"),
        (["dataset.format=jpeg", "reader.odirect=true"], "reader.odirect is true: DALI itself reads jpeg files"),
        (["dataset.format=npy", "reader.verify=true"], "reader.verify is true: DALI itself reads npy files"),
    ],
)
def test_what_dali_can_not_do_is_refused_before_the_run(settings: list[str], wanted: str) -> None:
    with pytest.raises(UserError, match=re.escape(wanted)):
        check_runnable(load(["reader.data_loader=dali", *settings]))
    check_runnable(load(["reader.data_loader=dali", "dataset.format=npy", "reader.odirect=true"]))


def test_dali_is_called_there_as_the_loader_that_reads_by_itself() -> None:
    text = dlio_yaml(load(["dataset.format=npy", "reader.data_loader=dali"]))
    assert yaml.safe_load(text)["reader"]["data_loader"] == "native_dali"


def test_a_loader_of_dlio_that_is_dali_in_all_but_its_name() -> None:
    workload = golden("tensorflow", "reader.data_loader=native_dali")
    noted = {note.split(" ", 1)[0] for note in workload.notes}
    assert workload.reader.data_loader == "dali"
    assert {"reader.computation_threads", "reader.transfer_size"} <= noted
    assert "reader.shuffle_size" not in noted

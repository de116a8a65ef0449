"""A sweep is every combination."""

from __future__ import annotations

import pytest

from datagen.errors import UserError
from dlemu.config.overrides import DATA_FOLDER, check_points, points


def test_a_sweep_is_every_combination() -> None:
    found = points(["workload=unet3d", "ranks=1,2", "drives=/mnt/a,/mnt/b", "reader.file_shuffle=seed"])
    assert [point.settings for point in found] == [
        {"ranks": ranks, DATA_FOLDER: drive} for ranks in "12" for drive in ("/mnt/a", "/mnt/b")
    ]
    assert found[1].words == ("workload=unet3d", "reader.file_shuffle=seed", "ranks=1", f"{DATA_FOLDER}=/mnt/b")
    assert len(points(["ranks=range(1,5)", "a=[1,2]"])) == 4
    assert points(["drives=/mnt/a"])[0].words == (f"{DATA_FOLDER}=/mnt/a",)
    with pytest.raises(UserError, match="several values"):
        check_points(points(["ranks=4"]))

"""What ranks know of the time limit before the configuration is read."""

from __future__ import annotations

import pytest

from dlemu.cli.launcher import start_seconds


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ([], 600.0),
        (["workload=unet3d", "timeout_seconds=30"], 30.0),
        (["++workload.timeout_seconds=2.5"], 2.5),
        (["timeout_seconds=30", "+timeout_seconds=40"], 40.0),
        (["timeout_seconds=soon"], 600.0),
        (["timeout_seconds=0"], 600.0),
        (["timeout_seconds=1.2.3"], 600.0),
    ],
)
def test_the_command_line_tells_the_time_limit(overrides: list[str], seconds: float) -> None:
    assert start_seconds(overrides) == seconds

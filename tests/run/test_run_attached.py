"""A user's command on this terminal gets every signal to dlemu, those that come while it starts as well."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from dlemu.runner import child_run


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_before_the_command_has_started_reaches_it(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = child_run._start

    def signalled(command: Any, **options: Any) -> subprocess.Popen[bytes]:
        signal.raise_signal(number)
        return start(command, **options)

    monkeypatch.setattr(child_run, "_start", signalled)
    assert child_run.run_attached(["sleep", "20"], {}) == status

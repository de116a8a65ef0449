"""What this part adds to the tests that walk all commands (`tests.parts`)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.e2e.harness import DLEMU

JOB = Path(__file__).with_name("job.py")


def record(sources: Path, folder: Path, *words: str) -> list[str]:
    job = (sys.executable, str(JOB), f"{sources}/arrays", "--epochs", "2", "--step", "0.01", "--workers", "1")
    return [DLEMU, "record", *words, "--skip", "2", "--no-report", "--output", str(folder), "--", *job]


COMMANDS = {"record": lambda sources, folder: record(sources, folder, "--no-replay"), "replay": record}
ENDS = {"record": signal.SIGINT, "replay": None}
READ = {"record": "arrays", "replay": "arrays"}
CHEAPEST = {"record": lambda folder: (["--help"], 0, "")}

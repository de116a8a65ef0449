"""What this part adds to the tests that walk all commands (`tests.parts`)."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.harness import DLEMU


def kvcache(sources: Path, folder: Path) -> list[str]:
    load = ("kv.seconds=2", "kv.users=4", "kv.think_seconds=1", "kv.prefill_tokens_per_second=1000000")
    small = ("workload=llama3_1_8b", "scale=laptop", f"kv.folder={folder}-kv", "kv.threads=2", "kv.system_prompts=1")
    few = ("ranks=2", f"output.folder={folder}", "metric.ceiling_seconds=0.1", "timeout_seconds=30")
    return [DLEMU, "kvcache", *small, *load, *few]


COMMANDS = {"kvcache": kvcache}
ENDS = {"kvcache": signal.SIGKILL}
OWN_PLACES = {"kvcache": "-kv"}
CHEAPEST = {"kvcache": lambda folder: (["--help"], 0, "")}

"""help: `dlemu --help` answers in a blink."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figure import Figure, compare, value_at_most
from benchmarks.processes import run


def measure(bench: Bench) -> Iterator[Figure]:
    """CPU time (user and system) of the command, beside that of an interpreter that does nothing."""
    pairs = bench.interleaved(
        5, lambda: run(bench.dlemu("--help")).cpu_seconds, lambda: bench.python("-c", "pass").cpu_seconds
    )
    yield compare("CPU of dlemu --help", "s", pairs, "python -c pass", value_at_most(0.3))

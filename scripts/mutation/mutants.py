"""mutmut as it is used here: words for people are left as they are, and a seeded sample can stand for all mutants.

Runs in a copy of the tree whose pyproject.toml has a [tool.mutmut]: mutmut works in the current folder.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import libcst as cst
import mutmut.__main__ as mutmut_main
from mutmut.core import MutmutCallStack
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

LEFT = ("survived", "no tests", "suspicious")
"""What mutmut calls a mutant that no test found. One that hangs is found: its test never ends."""


def _keep_words(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """Yield the changes of a string, none of one with a blank in it: tests hold what a message says, not its words."""
    if isinstance(node, cst.SimpleString) and " " in node.value.strip("\"'"):
        return
    yield from mutators.operator_string(node)


_BLANK = cst.SimpleWhitespace(" ")
_OTHER = (
    "(lambda it: not it if type(it) is bool else it + 1 if isinstance(it, (int, float)) and it == it else "
    "'' if isinstance(it, str) and it else 'other' if isinstance(it, str) else "
    "type(it)() if isinstance(it, (bytes, list, tuple, dict, set)) and it else 1 if it is None else None)"
)
"""Another value: the other truth, one more, nothing where there was something, something where there was nothing."""


def _other_result(node: cst.Return) -> Iterable[cst.Return]:
    """Yield a return of another value."""
    if node.value is not None:
        call = cst.ensure_type(cst.parse_expression(f"{_OTHER}(0)"), cst.Call)
        yield node.with_changes(value=call.with_changes(args=[cst.Arg(node.value)]), whitespace_after_return=_BLANK)


def plant(sample: int | None, seed: int, without: tuple[str, ...], returns: bool) -> None:
    """Make the mutants and run each one's tests; with `sample` so many of them, drawn by the seed.

    `returns`: the only bugs are other values where functions return.
    """
    operators: list[Any] = file_mutation.mutation_operators  # the very list that its visitor is given
    at = [operator for _, operator in operators].index(mutators.operator_string)
    operators[at] = (cst.BaseString, _keep_words)
    if returns:
        operators[:] = [(cst.Return, _other_result)]
    collect = mutmut_main.collect_source_file_mutation_data

    def draw(*, mutant_names: tuple[str, ...]) -> Any:
        mutants, by_path = collect(mutant_names=mutant_names)
        mutants = sorted(
            (mutant for mutant in mutants if _owner(mutant[1]) not in without), key=lambda mutant: mutant[1]
        )
        if sample is not None and sample < len(mutants):
            mutants = random.Random(seed).sample(mutants, sample)
        return mutants, by_path

    mutmut_main.collect_source_file_mutation_data = draw
    run_tests = PytestRunner.run_tests

    def fastest_first(self: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        ordered = sorted(tests, key=lambda test: state().duration_by_test.get(test, 0.0))
        return run_tests(self, mutant_name=mutant_name, tests=ordered)

    PytestRunner.run_tests = fastest_first
    _keep_no_callers()
    mutmut_main._run((), 1)


def _keep_no_callers() -> None:
    """Let mutmut not note who calls whom, which is of use only to a second run in the same folder.

    It does so by a context variable. A call of `__del__` that the garbage collector makes while that is set changes it
    meanwhile, and CPython 3.11 then reads memory that is free: LookupError, or a crash.
    """
    stack: Any = MutmutCallStack
    stack.get, stack.set, stack.reset = (lambda: (None, 0)), (lambda value: None), (lambda token: None)


def _owner(name: str) -> str:
    """Return the class or the function that a mutant changes, of `module.xǁClassǁmethod__mutmut_1`."""
    changed = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return changed.split("ǁ")[1] if "ǁ" in changed else changed.removeprefix("x_")


def outcomes() -> dict[str, str]:
    """Return mutmut's word for each mutant that was run."""
    words = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        words |= {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items() if code is not None}
    return words


def change(name: str) -> str:
    """Return the lines that a mutant takes away and puts in their place."""
    lines = get_diff_for_mutant(name).replace(_OTHER, "another").splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++"))

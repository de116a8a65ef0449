"""Runs mutmut with changes: messages to users are not mutated, and a seeded sample can stand for all mutants.

mutmut works in the current folder, which is a copy of the tree whose pyproject.toml has a [tool.mutmut].
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

SURVIVED = ("survived", "no tests", "suspicious")
"""mutmut's statuses of a mutant that no test found. A mutant that hangs counts as found."""


def _mutate_string(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """Yield the mutants of a string. A string with a blank has none: tests hold a message's sense, not its wording."""
    if isinstance(node, cst.SimpleString) and " " in node.value.strip("\"'"):
        return
    yield from mutators.operator_string(node)


_BLANK = cst.SimpleWhitespace(" ")
_OTHER = (
    "(lambda it: not it if type(it) is bool else it + 1 if isinstance(it, (int, float)) and it == it else "
    "'' if isinstance(it, str) and it else 'other' if isinstance(it, str) else "
    "type(it)() if isinstance(it, (bytes, list, tuple, dict, set)) and it else 1 if it is None else None)"
)
"""Replaces a value: True by False, a number by the next, a text, list or other container by an empty one, None by 1."""


def _mutate_return(node: cst.Return) -> Iterable[cst.Return]:
    """Yield a `return` of another value."""
    if node.value is not None:
        call = cst.ensure_type(cst.parse_expression(f"{_OTHER}(0)"), cst.Call)
        yield node.with_changes(value=call.with_changes(args=[cst.Arg(node.value)]), whitespace_after_return=_BLANK)


def run_mutants(sample: int | None, seed: int, without: tuple[str, ...], returns: bool) -> None:
    """Make the mutants and run the tests of each, or of `sample` mutants drawn at random.

    `without` names classes and functions that stay as they are. With `returns`, mutants only return other values.
    """
    operators: list[Any] = file_mutation.mutation_operators  # changed in place, because mutmut's visitor holds it
    string_operator = [operator for _, operator in operators].index(mutators.operator_string)
    operators[string_operator] = (cst.BaseString, _mutate_string)
    if returns:
        operators[:] = [(cst.Return, _mutate_return)]
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
    _record_no_callers()
    mutmut_main._run((), 1)


def _record_no_callers() -> None:
    """Stop mutmut from recording which function calls which; only a second run in the same folder needs that.

    It records in a context variable. If the garbage collector calls a `__del__` while that is being set, CPython 3.11
    reads freed memory: LookupError, or a crash.
    """
    stack: Any = MutmutCallStack
    stack.get, stack.set, stack.reset = (lambda: (None, 0)), (lambda value: None), (lambda token: None)


def _owner(name: str) -> str:
    """Return the class or function that a mutant changes: of `module.xǁClassǁmethod__mutmut_1`, `Class`."""
    changed = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return changed.split("ǁ")[1] if "ǁ" in changed else changed.removeprefix("x_")


def statuses() -> dict[str, str]:
    """Return mutmut's status of each mutant that was run."""
    found = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        found |= {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items() if code is not None}
    return found


def change(name: str) -> str:
    """Return the lines that a mutant removes and adds."""
    lines = get_diff_for_mutant(name).replace(_OTHER, "another").splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++"))

"""What every sentence of a kind of job must do: have words for its code, and name the numbers that were seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dlemu.metrics.findings import Number

Numbers = Mapping[str, Mapping[str, Number]]
"""Code -> the numbers that the analysis gives with it; none for codes that are not there."""


def unnamed(codes: Iterable[str], numbers: Numbers, sentence: Callable[[str, dict[str, Number]], str]) -> list[str]:
    """Return the sentences, of one for each code, that do not name a number below 1000 that they were given."""
    found = []
    for code in codes:
        given = dict(numbers.get(code, {}))
        text = sentence(code, given)
        small = [value for value in given.values() if isinstance(value, int) and value < 1000]
        if not text or any(str(value) not in text for value in small):
            found.append(f"{code}: {text}")
    return found

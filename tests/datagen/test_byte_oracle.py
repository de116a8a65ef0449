"""Files keep their bytes, and the calls by which they are read (`byte_oracle`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.datagen import byte_oracle
from tests.datagen.byte_oracle import Case

KNOWN = json.loads(byte_oracle.ORACLE.read_text())


@pytest.mark.parametrize("case", byte_oracle.cases(), ids=lambda case: case.name)
def test_bytes_and_read_calls_are_as_they_were(case: Case, tmp_path: Path) -> None:
    found, made_with = byte_oracle.record(case, tmp_path), KNOWN["versions"]
    assert byte_oracle.comparable(case, found, made_with) == byte_oracle.comparable(case, KNOWN[case.name], made_with)


def test_nothing_is_left_in_the_oracle_that_is_no_longer_made() -> None:
    assert KNOWN.keys() - {"versions"} == {case.name for case in byte_oracle.cases()}

"""Checkpoints keep their bytes, and the calls by which they are read (`byte_oracle`)."""

from __future__ import annotations

import json

import pytest

from tests.checkpoints import byte_oracle

KNOWN = json.loads(byte_oracle.ORACLE.read_text())


@pytest.mark.parametrize("case", byte_oracle.cases(), ids=", ".join)
def test_bytes_and_read_calls_are_as_they_were(case: tuple[str, str]) -> None:
    assert byte_oracle.record(*case) == KNOWN[", ".join(case)]


def test_nothing_is_left_in_the_oracle_that_is_no_longer_made() -> None:
    assert KNOWN.keys() == set(map(", ".join, byte_oracle.cases()))

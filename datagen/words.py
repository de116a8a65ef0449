"""Numbers in sentences."""

from __future__ import annotations


def count(number_of: int, name: str) -> str:
    """Return a count with its noun: 1 accelerator, 2 accelerators, 2 processes."""
    if number_of == 1:
        return f"1 {name}"
    return f"{number_of:,} {name}{'es' if name.endswith('s') else 's'}"

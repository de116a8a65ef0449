"""Request sizes as storage engineers write them, such as 128k."""

from __future__ import annotations

from datagen.errors import UserError

_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_of(text: str) -> int:
    """Return the bytes of a size as fio reads it: 4k and 1m are binary. Raises UserError."""
    unit = text[-1:].lower() if text[-1:].lower() in _BINARY else ""
    number = text.lower().removesuffix(unit)
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"{text!r} is not a size: wanted a whole number, with k, m or g if you like, such as 128k")
    return int(number) * _BINARY[unit]

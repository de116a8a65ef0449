"""Writing Thrift's compact protocol, as far as Parquet's metadata needs it.

Encoding: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def varint(value: int) -> bytes:
    """Return a number of 7 bits a byte, the low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(value: int) -> bytes:
    """Return a whole number, 0 or more, in zigzag."""
    return varint(value << 1)


def text(value: str) -> bytes:
    """Return a string."""
    data = value.encode()
    return varint(len(data)) + data


def array(kind: int, items: Sequence[bytes]) -> bytes:
    """Return a list of items of one kind."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return head + b"".join(items)


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct of fields (id, kind, value) in the order of ids."""
    return part(0, *fields) + b"\0"


def part(last: int, *fields: tuple[int, int, bytes]) -> bytes:
    """Return some fields of a struct, which come after the one of id `last`."""
    out = bytearray()
    for field, kind, value in fields:
        out.append((field - last) << 4 | kind)
        out += value
        last = field
    return bytes(out)

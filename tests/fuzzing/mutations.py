"""Seeded damage: bytes of a file, values of a JSON tree, words of a configuration."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ANYTHING: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    -7,
    1e308,
    2**31,
    2**62,
    10**12,
    10**400,
    0.5,
    "",
    "x",
    "\x00",
    "[bold]x[/",
    "../../etc/passwd",
    "1e9",
    [],
    {},
    [0] * 50,
    ["x"],
    {"x": 1},
    [[[[[]]]]],
)
"""What a value may be replaced by."""


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four mutations of a kind that parsers meet: flips, cuts, repeats, extreme numbers."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        _BYTE_MUTATIONS[draw.randrange(len(_BYTE_MUTATIONS))](changed, draw)
    return bytes(changed)


def _flip(data: bytearray, draw: random.Random) -> None:
    if data:
        data[_place(data, draw)] ^= 1 << draw.randrange(8)


def _number(data: bytearray, draw: random.Random) -> None:
    size, kind = draw.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
    at = _place(data, draw)
    order = draw.choice("<>")
    data[at : at + size] = struct.pack(order + kind, draw.choice(EXTREMES) % (1 << 8 * size))


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[_place(data, draw) :]


def _remove(data: bytearray, draw: random.Random) -> None:
    at = _place(data, draw)
    del data[at : at + draw.randint(1, 64)]


def _repeat(data: bytearray, draw: random.Random) -> None:
    at, length = _place(data, draw), draw.randint(1, 256)
    data[at:at] = data[at : at + length]


def _noise(data: bytearray, draw: random.Random) -> None:
    at = _place(data, draw)
    data[at : at + 16] = draw.randbytes(16)


def _place(data: bytearray, draw: random.Random) -> int:
    """Return a place, most often near an end: that is where formats keep what is parsed."""
    near = min(len(data), 512)
    low, high = draw.choice([(0, near), (max(0, len(data) - near), len(data)), (0, len(data))])
    return draw.randrange(low, high) if high > low else 0


_BYTE_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _flip,
    _number,
    _number,
    _noise,
    _cut,
    _remove,
    _repeat,
)


def damaged_json(text: str, draw: random.Random) -> str:
    """Return JSON of which one to three values, at any depth, are something else, or gone."""
    tree = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        places = [*_places(tree)]
        if not places:
            break
        holder, key = draw.choice(places)
        if isinstance(holder, dict) and draw.random() < 0.15:
            del holder[key]
        else:
            holder[key] = draw.choice(ANYTHING)
    return json.dumps(tree)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        found.append((tree, key))
        found += _places(value)
    return found


def damaged_words(text: str, draw: random.Random) -> str:
    """Return text of which some lines are doubled, gone, indented otherwise, or have another value."""
    lines = text.splitlines()
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        choice = draw.randrange(6)
        if choice == 0:
            del lines[at]
        elif choice == 1:
            lines.insert(at, lines[draw.randrange(len(lines))])
        elif choice == 2:
            lines[at] = " " * draw.randrange(6) + lines[at]
        elif choice == 3:
            lines[at] = lines[at].partition(":")[0] + ": " + json.dumps(draw.choice(ANYTHING))
        elif choice == 4:
            lines[at] = lines[at].partition(":")[0] + ": " + draw.choice(SNIPPETS)
        else:
            lines[at] = damaged_bytes(lines[at].encode(), draw).decode(errors="replace")
        if not lines:
            return ""
    return "\n".join(lines)


SNIPPETS = (
    "!!python/object/apply:os.system ['touch /tmp/owned']",
    "${oc.env:HOME}",
    "${train}",
    "${hydra:runtime.cwd}",
    "&a [*a]",
    "{mean: -1, stdev: .nan}",
    "{type: gamma, shape: 1e400}",
    ".inf",
    "0x7fffffffffffffff",
    "1_000",
    "2001-01-01",
    "~",
    "[1, 2",
    "'",
)

"""Seeded damage: bytes of a file, values of a JSON tree, words of a configuration."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_NUMBERS = (0, -1, -7, 0.5, 1e308, 2**31, 2**62, 10**12, 10**400)
_TEXTS = ("", "x", "\x00", "[bold]x[/", "../../etc/passwd", "1e9")
_COLLECTIONS: tuple[Any, ...] = ([], {}, [0] * 50, ["x"], {"x": 1}, [[[[[]]]]])
ANYTHING: tuple[Any, ...] = (None, True, *_NUMBERS, *_TEXTS, *_COLLECTIONS)
"""What a value may be replaced by."""
_BYTE_MUTATIONS = ("flip", "flip", "number", "number", "noise", "cut", "remove", "repeat")


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four mutations of a kind that parsers meet: flips, cuts, repeats, extreme numbers."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = _place(changed, draw)
        match draw.choice(_BYTE_MUTATIONS):
            case "flip" if changed:
                changed[at] ^= 1 << draw.randrange(8)
            case "number":
                size, kind = draw.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
                number = draw.choice(EXTREMES) % (1 << 8 * size)
                changed[at : at + size] = struct.pack(draw.choice("<>") + kind, number)
            case "noise":
                changed[at : at + 16] = draw.randbytes(16)
            case "cut":
                del changed[at:]
            case "remove":
                del changed[at : at + draw.randint(1, 64)]
            case "repeat":
                changed[at:at] = changed[at : at + draw.randint(1, 256)]
    return bytes(changed)


def _place(data: bytearray, draw: random.Random) -> int:
    """Return a place, most often near an end: that is where formats keep what is parsed."""
    near = min(len(data), 512)
    low, high = draw.choice([(0, near), (max(0, len(data) - near), len(data)), (0, len(data))])
    return draw.randrange(low, high) if high > low else 0


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
        line, key = lines[at], lines[at].partition(":")[0]
        lines[at : at + 1] = draw.choice(
            (
                [],
                [draw.choice(lines), line],
                [" " * draw.randrange(6) + line],
                [f"{key}: {json.dumps(draw.choice(ANYTHING))}"],
                [f"{key}: {draw.choice(SNIPPETS)}"],
                [damaged_bytes(line.encode(), draw).decode(errors="replace")],
            )
        )
        if not lines:
            break
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

"""docs/settings.md: every setting with its type, default, range, unit and meaning, from the fields themselves."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import yaml

from datagen.ranges import Range, Unit, declared
from dlemu.config.meanings import meanings
from dlemu.config.sections import plain, tree
from documentation.result_types import type_words

_HEAD = """# Settings

Made by `scripts/docs` from the fields of `dlemu/config/schema.py`, `dlemu/config/model.py` and `datagen/spec.py`.
`dlemu train --cfg ...` prints all of them with their values and meanings. On a command line a setting is
`SECTION.KEY=VALUE`; in a workload's file it stands in its section. Names are DLIO's where DLIO has the setting. A time
is a number of seconds, or drawn anew each time: `{mean: M, stdev: S}`,
`{type: normal|uniform|gamma|exponential|poisson, ...}`. `dlemu pack` has settings of its own: [packing.md](packing.md).
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_tables("", tree(), "")])


def _tables(where: str, section: Any, text: str) -> Iterator[str]:
    """Yield the table of a section, and then those of the sections in it."""
    hints, texts = get_type_hints(section), meanings(section)
    inner = {field.name: hints[field.name] for field in fields(section) if _is_section(hints[field.name])}
    rows = [_row(where, field, section, hints, texts) for field in fields(section) if field.name not in inner]
    head = "| setting | type | default | range | unit | meaning |\n|---|---|---|---|---|---|"
    yield "\n".join([f"## {where.rstrip('.') or 'Of the run'}", "", *([text, ""] if text else []), head, *rows, ""])
    for name, kind in inner.items():
        yield from _tables(f"{where}{name}.", kind, _one_line(texts.get(name, kind.__doc__)))
    for name, hint in hints.items():
        for kind in filter(is_dataclass, get_args(hint)):
            title = f"{where}{name}[]." if typing.get_origin(hint) is tuple else f"{where}{name}.NAME."
            yield from _tables(title, kind, _one_line(kind.__doc__))


def _row(where: str, field: Field[Any], section: Any, hints: dict[str, Any], texts: dict[str, str]) -> str:
    said = declared(section)[field.name]
    ranges = [part.words for part in said if isinstance(part, Range)]
    units = [part for part in said if isinstance(part, Unit)]
    words = "time" if hasattr(hints[field.name], "from_value") else _type(hints[field.name])
    cells = (f"`{where}{field.name}`", words, _default(field), *map("".join, (ranges, units)))
    return f"| {' | '.join(cells)} | {_one_line(texts.get(field.name, '')).replace('|', chr(92) + '|')} |"


def _type(hint: Any) -> str:
    if any(is_dataclass(part) or typing.get_origin(part) is dict for part in get_args(hint)):
        return "mapping by name" if typing.get_origin(hint) is dict else "list of mappings"
    return type_words(hint, {})


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "needed"
    text = yaml.safe_dump(plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`"


def _is_section(hint: Any) -> bool:
    return is_dataclass(hint) and not hasattr(hint, "from_value")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())

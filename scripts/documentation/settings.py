"""docs/settings.md: every setting, one line each, from the fields themselves; optional parts have their own pages."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import yaml
from msgspec import Meta

from datagen.settings import Unit, declared
from dlemu.config.dump import meanings
from dlemu.config.schema import plain, sections, settings_class
from documentation.result_types import is_in_meaning, type_words

_HEAD = """# Settings

Made by `scripts/docs` from the fields of `dlemu/config/schema.py` and `datagen/spec.py`. Optional parts
have their settings on their own pages: [kv](../dlemu/contrib/kvcache/docs/kv-settings.md),
[pack](../dlemu/contrib/pack/docs/pack-settings.md).
On a command line a setting is `SECTION.KEY=VALUE`; in a workload's file it stands in its section. `dlemu train --cfg`
prints all with their values. Names are DLIO's where DLIO has the setting. Each line has the default and, in brackets,
what is taken: the type, where the default does not show it, range and unit. A time is a number of seconds, or drawn
anew each time: `{mean: M, stdev: S}`, `{type: normal|uniform|gamma|exponential|poisson, ...}`.
"""
_PART_HEAD = """# Settings of section {section}

Made by `scripts/docs` from the part's settings.py. What they are for: [{guide}]({guide}).
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_lists("", settings_class(), "", {})])


def part_page(section: str, guide: str) -> str:
    """Return the page of the settings of an optional part; `guide` is the page about the part."""
    return "\n".join([_PART_HEAD.format(section=section, guide=guide), *_lines(f"{section}.", sections()[section]), ""])


def _lists(prefix: str, section: Any, text: str, listed: dict[Any, str]) -> Iterator[str]:
    """Yield the settings of a section, then those of its sub-sections; sections of one type are listed once.

    `listed` is filled: type of a section -> the section that has the list.
    """
    yield f"## {prefix.rstrip('.') or 'Of the run'}\n"
    if text:
        yield f"{text}\n"
    if section in listed:
        yield f"Keys as in `{listed[section]}`: {', '.join(f'`{prefix}{field.name}`' for field in fields(section))}.\n"
        return
    listed[section] = prefix.rstrip(".")
    yield "\n".join([*_lines(prefix, section), ""])
    hints, texts = get_type_hints(section), meanings(section)
    for name, kind in hints.items():
        if not _is_section(kind) or kind.__module__.startswith("dlemu.contrib."):
            continue
        yield from _lists(f"{prefix}{name}.", kind, _one_line(texts.get(name, kind.__doc__)), listed)
    for name, hint in hints.items():
        for kind in filter(is_dataclass, get_args(hint)):
            title = f"{prefix}{name}[]." if typing.get_origin(hint) is tuple else f"{prefix}{name}.NAME."
            yield from _lists(title, kind, _one_line(kind.__doc__), listed)


def _lines(prefix: str, section: Any) -> list[str]:
    hints, texts = get_type_hints(section), meanings(section)
    settings = [field for field in fields(section) if not _is_section(hints[field.name])]
    return [_line(prefix, field, section, hints, texts) for field in settings]


def _line(prefix: str, field: Field[Any], section: Any, hints: dict[str, Any], texts: dict[str, str]) -> str:
    declarations = declared(section)[field.name]
    ranges = [_range(part) for part in declarations if isinstance(part, Meta) and (part.ge, part.gt) != (None, None)]
    units = [str(part) for part in declarations if isinstance(part, Unit)]
    default = _default(field)
    shows_type = default not in ("needed", "`[]`", "`{}`", "`null`")
    meaning = _one_line(texts.get(field.name, ""))
    kind = [words for words in _type(hints[field.name], shown=shows_type) if not is_in_meaning(words, meaning)]
    accepted = ", ".join([*kind, *ranges, *units])
    return f"- `{prefix}{field.name}` {default}{f' ({accepted})' if accepted else ''}: {meaning}"


def _range(allowed: Meta) -> str:
    """Return a range in few words, without a maximum that no run comes near."""
    minimum = f"{allowed.ge:g}" if allowed.gt is None else f"> {allowed.gt:g}"
    maximum = allowed.le or allowed.lt
    if maximum is None or maximum >= 1000:
        return f">= {minimum}".replace(">= >", ">")
    return f"{minimum} to {maximum:g}"


def _type(hint: Any, *, shown: bool) -> list[str]:
    """Return a type in words, or nothing if the default value shows it (`shown`)."""
    if hasattr(hint, "from_value"):
        return ["time"]
    if any(is_dataclass(part) or typing.get_origin(part) is dict for part in get_args(hint)):
        return ["mapping by name" if typing.get_origin(hint) is dict else "list of mappings"]
    if hint in (int, float, bool, str) and shown:
        return []
    return [type_words(hint)]


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

"""Shell completion of KEY=VALUE: keys section by section, and known values.

Shells run the command itself to complete a word, so nothing slow is imported: no Hydra, no framework, no results.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import click
from click.shell_completion import BashComplete, CompletionItem, ZshComplete, add_completion_class

from datagen.registry import names

_REGISTRIES = {
    "dataset.format": "datagen.formats",
    "storage.storage_type": "datagen.storage",
    "reader.data_loader": "dlemu.loaders",
    "checkpoint.format": "dlemu.checkpoints.formats",
}
"""Setting -> the package whose modules are its values."""


def complete_setting(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions of a setting that is being typed."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [CompletionItem(text) for text in _keys(key)]
    before, comma, last = value.rpartition(",")  # a sweep has several values
    given = {word.partition("=")[0]: word.partition("=")[2] for word in context.params.get(parameter.name or "") or ()}
    config_dir = context.params.get("config_dir")
    known = [text for text in _values(key, given, config_dir) if text.startswith(last)] or _paths(last)
    return [CompletionItem(f"{key}={before}{comma}{text}") for text in known]


def _keys(begun: str) -> Iterator[str]:
    """Yield the keys that begin with a text, with `=` behind a setting and `.` behind a section."""
    where, dot, _ = begun.rpartition(".")
    own = () if dot else ("workload=", "accelerator=", "scale=")
    for name in dict.fromkeys((*own, *(f"{where}{dot}{field}" for field in _fields(where)))):
        if name.startswith(begun):
            yield name


def _fields(where: str) -> Iterator[str]:
    section = _section(where)
    for name, hint in typing.get_type_hints(section).items() if section is not None else ():
        yield f"{name}." if _is_section(hint) else f"{name}="


def _section(where: str) -> Any:
    """Return the dataclass of a section by its dotted name, None where there is no such section."""
    from dlemu.config.sections import tree

    section: Any = tree()
    for name in filter(None, where.split(".")):
        section = typing.get_type_hints(section).get(name)
        if not _is_section(section):
            return None
    return section


def _is_section(hint: Any) -> bool:
    return hasattr(hint, "__dataclass_fields__") and not hasattr(hint, "from_value")


def _values(key: str, given: dict[str, str], config_dir: str | None) -> Iterable[str]:
    """Return the possible values of a setting; none where it may be any text or number."""
    if key == "workload":
        from dlemu.config.workload_files import workload_names

        return workload_names(config_dir)
    if key in ("accelerator", "scale"):
        return _of_workload(f"{key}s", given.get("workload", ""), config_dir)
    if key in _REGISTRIES:
        return names(_REGISTRIES[key])
    where, _, name = key.rpartition(".")
    section = _section(where)
    hint = typing.get_type_hints(section).get(name) if section is not None else None
    if hint is bool:
        return ("true", "false")
    return [str(value) for value in typing.get_args(hint)] if typing.get_origin(hint) is Literal else ()


def _of_workload(table: str, choice: str, config_dir: str | None) -> Iterable[str]:
    """Return the names in a table of a workload's file, `accelerators` or `scales`."""
    from datagen.errors import UserError
    from dlemu.config.compose import composed

    try:
        found = composed(choice, config_dir).get(table) if choice else None
    except UserError:  # a completion can't show errors; the command will
        return ()
    return [str(name) for name in found] if isinstance(found, dict) else ()


def _paths(begun: str) -> list[str]:
    """Return the files and folders that a path begins, folders with a slash; none for a text without a slash."""
    folder, slash, name = begun.rpartition("/")
    if not slash:
        return []
    try:
        entries = list(os.scandir(os.path.expanduser(folder + slash)))
    except OSError:
        return []
    found = (entry for entry in entries if entry.name.startswith(name) and (name or not entry.name.startswith(".")))
    return sorted(f"{folder}{slash}{entry.name}{'/' * entry.is_dir()}" for entry in found)


class _Bash(BashComplete):
    """Bash splits `KEY=VALUE` into three words and replaces the third; no space is added behind `=`, `.` and `/`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *[=./] ]] && compopt -o nospace"
    )

    _replaced = ""
    """The part of the word (`KEY=`) that bash leaves in place."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and the incomplete one."""
        before, last = super().get_completion_args()
        words: list[str] = []
        open_end = False
        for word in (*before, last):
            if words and (word == "=" or open_end):
                words[-1] += word
            else:
                words.append(word)
            open_end = word == "="
        self._replaced = words[-1][: words[-1].find("=") + 1] if words[-1] != last else ""
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return the part of a completion that bash must insert."""
        return f"{item.type},{item.value.removeprefix(self._replaced)}"


class _Zsh(ZshComplete):
    """No space behind `=`, `.` and `/` here either; completions of one call all end in one of these, or none does."""

    source_template = ZshComplete.source_template.replace(
        "compadd -U -V unsorted -a completions",
        'local -a space; [[ "$completions[1]" == *[=./] ]] && space=(-S "")\n'
        # Quoted with [@], or zsh drops the empty word, and -S takes the next one.
        '        compadd -U "${space[@]}" -V unsorted -a completions',
    )


def register() -> None:
    """Register these classes with click's completion."""
    add_completion_class(_Bash)
    add_completion_class(_Zsh)

"""Writes a Workload as YAML, as overrides, and as the command that generates its dataset."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from datagen.registry import is_built_in
from dlemu.config.duration import Duration
from dlemu.config.loading import DEFAULT_WORKLOAD, load
from dlemu.config.overrides import override, parse
from dlemu.config.published import published, without_secrets
from dlemu.config.schema import Output, Workload
from dlemu.config.sections import OWN, plain, tree
from dlemu.config.workload_files import workload_names, yaml_loader

_COMPLETED = ("model", "dataset", "reader", "train", "metric", "workflow", "checkpoint")
"""Sections that determine what a run reads and writes, and when."""
_NAMES = {
    "dataset.format": "datagen.formats",
    "reader.data_loader": "dlemu.loaders",
    "train.compute": "dlemu.accelerators",
    "checkpoint.format": "dlemu.checkpoints.formats",
}
"""Settings that name a module -> package of the built-in ones, the only ones to take from a workload from elsewhere."""
_SET_BY = {"accelerator": ("reader.batch_size", "train.computation_time"), "scale": ("dataset.",)}
"""Setting -> settings that it determines, which are not taken from the other workload if the user changes it."""


def to_yaml(workload: Workload) -> str:
    settings = plain(published(workload))
    own = settings.pop(OWN)
    return yaml.dump(
        _escaped({**settings, **own}), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )


class _Dumper(yaml.SafeDumper):
    """Quotes texts that OmegaConf would take for a number."""

    def text(self, data: str) -> yaml.ScalarNode:
        try:
            float(data)
        except ValueError:
            return self.represent_str(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'")


_Dumper.add_representer(str, _Dumper.text)


def digest(workloads: Sequence[Workload]) -> str:
    """Return a digest of all settings but those of `output`, credentials left out: equal settings have equal ones."""
    texts = (to_yaml(replace(workload, output=Output())) for workload in workloads)
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def explained(workload: Workload) -> str:
    """Return the YAML of `to_yaml` with the meaning of each setting as a comment above it."""
    text = to_yaml(workload)
    pieces, done = [], 0
    for place, comment in _comments(yaml.compose(text, yaml_loader()), tree()):
        pieces += [text[done:place], comment]
        done = place
    return "".join([*pieces, text[done:]])


def _comments(section: Any, kind: Any) -> Iterator[tuple[int, str]]:
    """Yield, for each key of a section, the position of its line in the YAML, and the comment to insert there."""
    from dlemu.config.meanings import meanings, summary

    hints, texts = get_type_hints(kind), meanings(kind)
    for key, value in section.value:
        name, hint = key.value, hints.get(key.value)
        text = texts.get(name) or (is_dataclass(hint) and hint.__doc__) or ""
        choices = f" One of {', '.join(map(str, get_args(hint)))}." if get_origin(hint) is Literal else ""
        if text or choices:
            begin = key.start_mark
            yield begin.index - begin.column, f"{' ' * begin.column}# {summary(text)}{choices}\n"
        if is_dataclass(hint) and isinstance(value, yaml.MappingNode):
            yield from _comments(value, hint)


def withheld_words(workload: Workload) -> list[str]:
    """Return overrides that restore what `to_yaml` withholds, for dlemu's own child processes."""
    public = published(workload)
    sections = ("storage", "dataset", "checkpoint", "output")
    own = [
        override([name, key], value)
        for name, section in workload.kinds.items()
        for key, value in section.items()
        if value != public.kinds[name][key]
    ]
    shared = [_differences([name], getattr(workload, name), getattr(public, name)) for name in sections]
    return [*chain(*shared), *own]


def datagen_command(workload: Workload) -> str:
    """Return the command that makes a workload's dataset: a shipped workload, and what differs from it, for a shell."""
    name = workload.model.name if workload.model.name in workload_names() else DEFAULT_WORKLOAD
    words = [override(["workload"], name)]
    base = load(words)
    if workload.scale in base.scales:
        words.append(override(["scale"], workload.scale))
        base = load(words)
    for section in ("storage", "dataset"):
        words += _differences([section], getattr(workload, section), getattr(base, section))
    words = words[1:] if name == DEFAULT_WORKLOAD and len(words) > 1 else words
    return shlex.join(["dlemu", "datagen", *without_secrets(words)])


def completed(words: Sequence[str], other: Workload, config_dir: str | None = None) -> list[str]:
    """Return overrides `words` completed by the settings of another workload. Raises UserError.

    Its settings apply unless the words set them, directly or by another accelerator or scale. If the words select a
    different workload, nothing is added.
    """
    choice, settings = parse(words)
    paths = {setting.path for setting in settings}
    if choice and load([override(["workload"], choice)], config_dir).model.name != other.model.name:
        return list(words)
    known = workload_names(config_dir)
    name = choice or (other.model.name if other.model.name in known else DEFAULT_WORKLOAD)
    workload = override(["workload"], name)
    tables, chosen = load([workload], config_dir), load([*words, workload], config_dir)
    same = [override(["accelerator"], other.accelerator)] if other.accelerator in {*tables.accelerators, ""} else []
    same += [override(["scale"], other.scale)] if other.scale in tables.scales else []
    base = load([workload, *same], config_dir)
    foreign = tuple(
        f"{key}="
        for key, package in _NAMES.items()
        if not is_built_in(package, getattr(getattr(other, key.partition(".")[0]), key.partition(".")[2]))
    )
    others = tuple(
        prefix
        for key, prefixes in _SET_BY.items()
        if (key,) in paths and getattr(chosen, key) != getattr(other, key)
        for prefix in prefixes
    )
    differing = [
        word
        for section in _COMPLETED
        for word in _differences([section], getattr(other, section), getattr(base, section))
        if not word.startswith((*others, *foreign))
    ]
    ranks = override(["ranks"], other.ranks)
    return [ranks, *same, *differing, *words, workload]  # of two for the same key, the later one counts


def _escaped(value: Any) -> Any:
    """Escape a literal `${`, else a reference: OmegaConf wants a backslash before it, and preceding ones doubled."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _differences(path: list[str], wanted: Any, given: Any) -> Iterator[str]:
    for field in fields(wanted):
        here, there = getattr(wanted, field.name), getattr(given, field.name)
        if isinstance(here, Duration):
            if here != there:
                yield override([*path, field.name], here.to_value())
        elif is_dataclass(here):
            yield from _differences([*path, field.name], here, there)
        elif isinstance(here, dict):  # key by key, as users write them: of a whole section all would be withheld
            for key, value in here.items():
                if key not in there or there[key] != value:
                    yield override([*path, field.name, key], value)
        elif here != there:
            is_whole = isinstance(here, float) and here.is_integer() and here < 1e15
            yield override([*path, field.name], int(here) if is_whole else here)  # as users write it: not 262000.0

"""Finds plug-ins (formats, storages, loaders, ...) by name, and imports modules that are loaded only when needed.

A plug-in is a module of a package, such as `datagen.formats`, by its plain name, or a user's module by its dotted name.
An installed distribution adds plain names by entry points, in a group with the package's name. For names that the user
chose, use `find` and `companion`, which import the module, and so run its code; for names in files that were received,
`is_built_in` and `built_in`, which import nothing by a dotted name.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from datagen.errors import SpaceError, UserError

_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "cannot create shared object descriptor")
"""Texts of the dynamic linker's errors when a limit on address space is too low for a library."""


def names(package: str) -> list[str]:
    """Return the plain names that a user may give, sorted: public modules of `package`, and what distributions add."""
    return sorted({*_names_in(*importlib.import_module(package).__path__), *installed(package)})


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed distributions in a group, by name, except those whose module is missing."""
    entries = {}
    for entry in sorted(entry_points(group=group)):
        with contextlib.suppress(ModuleNotFoundError):  # a package that the module is in is missing
            if importlib.util.find_spec(entry.module) is not None:
                entries[entry.name] = entry
    return entries


def installed_part(group: str, name: str) -> Any:
    """Return the object that an installed distribution adds to a group by an entry point; None without this entry."""
    entry = installed(group).get(name)
    return entry.load() if entry else None


@cache  # called for every check and every file opened, while the modules of a package don't change
def _names_in(*folders: str) -> tuple[str, ...]:
    modules = [module.name for module in pkgutil.iter_modules(folders)]
    return tuple(sorted(name for name in modules if not name.endswith("_base") and not name.startswith("_")))


def find(package: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the module called `name`.

    A plain name is a module of `package`; a dotted name is the user's own `module`, or `module.Class` (which then
    replaces `attribute`). Raises UserError: nothing has that name, it lacks `attribute` or one of its methods, or a
    library that it imports is not installed.
    """
    module, class_name = _import_module(package, name)
    attribute = class_name or attribute
    where = f"module {module.__name__} ({module.__file__})"
    plug_in = getattr(module, attribute, None)
    if plug_in is None:
        raise UserError(f"{where} has no {attribute!r}: define it there")
    if missing := sorted(getattr(plug_in, "__abstractmethods__", ())):
        raise UserError(f"{attribute!r} of {where} has no {', '.join(missing)}: define what its base class declares")
    return plug_in


def companion(package: str, name: str, attribute: str, default: Any = None) -> Any:
    """Return an optional attribute of a plug-in's module, `default` if it has none. Raises as `find`."""
    return getattr(_import_module(package, name)[0], attribute, default)


def import_by_name(module: str, name: str = "") -> Any:
    """Import a module given as a string, which editors can't follow; return it, or its attribute `name` if given."""
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def is_dotted(name: str) -> bool:
    """Return whether a name has a dot within it, as `package.module` and `module.Class` have, but not `.jpg`."""
    return "." in name.strip(".")


def is_built_in(package: str, name: str) -> bool:
    """Return whether `name` is a plain name that dlemu or an installed distribution provides.

    A dotted name in a received file (a result, a manifest) could make `find` import, and so run, any module.
    """
    return "." not in name and name in names(package)


def built_in(package: str, name: str, attribute: str, default: Any) -> Any:
    """Return `companion` of a name that `is_built_in`; for other names `default`, without importing their module."""
    return companion(package, name, attribute, default) if is_built_in(package, name) else default


def _import_module(package: str, name: str) -> tuple[ModuleType, str]:
    """Return the module of a plug-in, and the class if its name is `module.Class`, else ''. Raises UserError."""
    known = names(package)
    if name in known:
        entry = installed(package).get(name)
        candidates = [(entry.module if entry else f"{package}.{name}", "")]
    elif is_dotted(name):
        parent, _, last = name.rpartition(".")
        candidates = [] if name.startswith(".") else [(name, ""), (parent, last)]
    else:
        wanted = f"{nearest(name, known)}wanted one of {', '.join(known)}, or the dotted name of your own module"
        raise UserError(f"{package} has no {name!r}: {wanted}")
    was_collecting = gc.isenabled()
    gc.disable()  # imports leave hardly any garbage, and looking for it takes a tenth of PyTorch's import
    try:
        for path, class_name in candidates:
            try:
                return importlib.import_module(path), class_name
            except ModuleNotFoundError as error:
                # Python misses the module itself, or a package that it is in, or something that the module imports
                if not f"{path}.".startswith(f"{error.name}."):
                    raise UserError(
                        f"{path} needs the Python package {error.name!r}, which is not installed: install it with pip"
                    ) from error
    finally:
        if was_collecting:
            gc.enable()
    raise UserError(
        f"{name!r} is neither a module that Python can import nor a class in one: put its folder on PYTHONPATH, "
        f"or name one of {package}: {', '.join(known)}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean X? " for the most similar known name; '' if none is similar."""
    known_by_lower = {known_name.lower(): known_name for known_name in known}
    near = difflib.get_close_matches(name.strip(".").lower(), known_by_lower, 1)
    return f"did you mean {known_by_lower[near[0]]}? " if near else ""


def library(name: str, extra: str, needed_by: str = "this format") -> Any:
    """Import a library of one of dlemu's extras. Raises UserError: not installed; SpaceError: no memory to load it."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        problem = f"{needed_by} needs the Python package {name.partition('.')[0]!r}, which can't be imported ({error})"
        if any(words in str(error).lower() for words in _NO_MEMORY):
            raise SpaceError(f"{problem}: raise this process's limit (`ulimit -v`), or free some memory") from error
        raise UserError(f"{problem}: install it with: pip install 'dlemu[{extra}]'") from error

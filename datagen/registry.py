"""Finds plug-ins (formats, storages, loaders, ...) by name, and imports modules only when they are needed.

A plug-in is a module with a plain name (`npz`) in a package such as `datagen.formats`, or the user's own module with a
dotted name (`my.format`). Installed distributions add plain names by entry points, in a group named as the package.

The user's settings are trusted: `find` and `companion` import any module that they name, and so run its code. Received
files, such as results and manifests, are not: for the names in them, use `is_built_in` and `built_in`.
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
"""Parts of the dynamic linker's messages when a limit on address space is too low for a library."""


def names(package: str) -> list[str]:
    """Return the plain names of plug-ins, sorted: the public modules of `package`, and what distributions add."""
    return sorted({*_names_in(*importlib.import_module(package).__path__), *installed(package)})


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points that installed distributions have in a group, by name, unless their module is missing."""
    entries = {}
    for entry in sorted(entry_points(group=group)):
        with contextlib.suppress(ModuleNotFoundError):  # raised if the package of the module is missing, too
            if importlib.util.find_spec(entry.module) is not None:
                entries[entry.name] = entry
    return entries


def installed_part(group: str, name: str) -> Any:
    """Load the object of the entry point with this group and name; return None if no distribution has one."""
    entry = installed(group).get(name)
    return entry.load() if entry else None


@cache  # this is called for every check and for every file opened, and the modules of a package don't change
def _names_in(*folders: str) -> tuple[str, ...]:
    modules = [module.name for module in pkgutil.iter_modules(folders)]
    return tuple(sorted(name for name in modules if not name.endswith("_base") and not name.startswith("_")))


def find(package: str, name: str, attribute: str) -> Any:
    """Return the plug-in called `name`: the object `attribute` of its module.

    A dotted name may also be `module.Class`; then that class is returned. Raises UserError if there is no such module,
    if it lacks `attribute` or one of its methods, or if a library that it imports is not installed.
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
    """Return an optional attribute of a plug-in's module, or `default`. Raises UserError as `find` does."""
    return getattr(_import_module(package, name)[0], attribute, default)


def import_by_name(module: str, name: str = "") -> Any:
    """Import a module that is given as a string; return it, or its attribute `name` if given."""
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def is_dotted(name: str) -> bool:
    """Return whether a name has a dot inside: true for `package.module` and `module.Class`, but not for `.jpg`."""
    return "." in name.strip(".")


def is_built_in(package: str, name: str) -> bool:
    """Return whether `name` is a plain name that dlemu or an installed distribution provides.

    A dotted name in a received file (a result, a manifest) could make `find` import, and so run, any module.
    """
    return "." not in name and name in names(package)


def built_in(package: str, name: str, attribute: str, default: Any) -> Any:
    """Return what `companion` does if `is_built_in`; otherwise return `default` and import nothing."""
    return companion(package, name, attribute, default) if is_built_in(package, name) else default


def _import_module(package: str, name: str) -> tuple[ModuleType, str]:
    """Return the module of a plug-in, and the class if its name is `module.Class`, else ''. Raises UserError.

    npz       -> datagen.formats.npz, or the module of an entry point npz
    my.Format -> my.Format, or if there is no such module: my, and the class Format
    """
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
        for module, class_name in candidates:
            try:
                return importlib.import_module(module), class_name
            except ModuleNotFoundError as error:
                # What is missing is the module itself or a package above it; or else a library that the module imports
                if not f"{module}.".startswith(f"{error.name}."):
                    raise UserError(
                        f"{module} needs the Python package {error.name!r}, which is not installed: install it with pip"
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
    matches = difflib.get_close_matches(name.strip(".").lower(), known_by_lower, 1)
    return f"did you mean {known_by_lower[matches[0]]}? " if matches else ""


def library(name: str, extra: str, needed_by: str = "this format") -> Any:
    """Import a library of one of dlemu's extras. Raises UserError if it is missing, SpaceError if memory is short."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        problem = f"{needed_by} needs the Python package {name.partition('.')[0]!r}, which can't be imported ({error})"
        if any(words in str(error).lower() for words in _NO_MEMORY):
            raise SpaceError(f"{problem}: raise this process's limit (`ulimit -v`), or free some memory") from error
        raise UserError(f"{problem}: install it with: pip install 'dlemu[{extra}]'") from error

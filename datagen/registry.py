"""The folder is the registry: a module in a package is found by its name, anyone else's by its dotted name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from datagen.errors import UserError


def names(package: str) -> list[str]:
    """Return the names a user may write: the modules of `package`, in order, without `_private` and `..._base` ones."""
    return list(_names_in(*importlib.import_module(package).__path__))


@cache  # whatever is checked or opened asks again, and a folder of modules stays as it is while they run
def _names_in(*folders: str) -> tuple[str, ...]:
    modules = [module.name for module in pkgutil.iter_modules(folders)]
    return tuple(sorted(name for name in modules if not name.endswith("_base") and not name.startswith("_")))


def find(package: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the module called `name`.

    A plain name is a module of `package`; a dotted name is the user's own `module`, or `module.Class` (which then
    replaces `attribute`).

    Raises:
        UserError: nothing has that name, it lacks `attribute`, or a library that it imports is not installed.
    """
    module, own = _located(package, name)
    return _attribute(module, own or attribute)


def companion(package: str, name: str, attribute: str, default: Any = None) -> Any:
    """Return what else the module that `name` means has under the name `attribute`, or `default`; errors as of `find`.

    A plug-in says so what is to be known of it before its class, and a library behind that, is imported.
    """
    return getattr(_located(package, name)[0], attribute, default)


def is_dotted(name: str) -> bool:
    """Return whether `name` is that of a module in a package, or of a class in a module: `.jpg` is neither."""
    return "." in name.strip(".")


def is_built_in(package: str, name: str) -> bool:
    """Return whether `name` is a module of `package` itself.

    What was received (a result, a manifest, a note) may name any module: `find` would import it, and so run its code.
    """
    return "." not in name and name in names(package)


def built_in(package: str, name: str, attribute: str, default: Any) -> Any:
    """Return what `companion` does for a module of `package`; `default` for any other name, of which none is imported.

    For names that were received.
    """
    return companion(package, name, attribute, default) if is_built_in(package, name) else default


def _located(package: str, name: str) -> tuple[ModuleType, str]:
    """Return the module that a name means, and the class in it that the name itself ends with, or nothing."""
    if not is_dotted(name):
        known = names(package)
        if name not in known:
            raise UserError(_unknown(package, name, known))
        return _import(f"{package}.{name}"), ""
    parent, _, last = name.rpartition(".")
    if _exists(name):
        return _import(name), ""
    if parent and _exists(parent):
        return _import(parent), last
    raise UserError(
        f"{name!r} is neither a module that Python can import nor a class in one: put its folder on PYTHONPATH, "
        f"or name one of {package}: {', '.join(names(package))}"
    )


def _exists(module: str) -> bool:
    """Return whether a module can be found; its parents are imported, so their own failures are reported as such."""
    parent = module.rpartition(".")[0]
    if parent and not _exists(parent):
        return False
    if parent and not hasattr(_import(parent), "__path__"):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ValueError, ImportError):  # a module without __spec__, such as __main__; dots without names between
        return False


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{module} needs the Python package {error.name!r}, which is not installed: install it with pip"
        ) from error


def _attribute(module: ModuleType, attribute: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"module {module.__name__} ({module.__file__}) has no {attribute!r}: define it there") from None


def _unknown(package: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"{package} has no {name!r}: {hint}wanted one of {', '.join(known)}, or the dotted name of your own module"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the name that was probably meant; empty when none is near."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.strip(".").lower(), by_lower, 1)
    return f"did you mean {by_lower[near[0]]}? " if near else ""

"""The loader's framework can be imported."""

from __future__ import annotations

from datagen.registry import find
from dlemu.doctor.check_base import Check, Facts
from dlemu.doctor.packages import version
from dlemu.loaders.traits_base import LoaderTraits, traits_of

NAME, ORDER = "loader", 40


def check(facts: Facts) -> Check:
    name = facts.workload.reader.data_loader
    traits = LoaderTraits()
    try:
        traits = traits_of(name)
        find("dlemu.loaders", name, "Loader")
    except Exception as error:  # a broken framework may raise anything (OSError for a missing library)
        install = f"pip install 'dlemu[{traits.extra}]', or " if traits.extra else ""
        advice = f"{install}a reader.data_loader other than {name}"
        return Check(name=NAME, level="fail", observed=f"{name}: {error}", wanted="importable", advice=advice)
    installed = [f"{package} {version(package)}" for package in traits.packages if version(package)]
    return Check(name=NAME, level="ok", observed=", ".join([name, *installed]))

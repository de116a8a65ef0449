"""The loader's framework can be imported."""

from __future__ import annotations

from datagen.registry import find
from dlemu.doctor.check_base import Check, Facts
from dlemu.doctor.packages import version

NAME, ORDER = "loader", 40


def check(facts: Facts) -> Check:
    name = facts.workload.reader.data_loader
    framework = {"pytorch": "torch"}.get(name, "")
    try:
        find("dlemu.loaders", name, "Loader")
    except Exception as error:  # a broken framework raises what it likes (OSError for a library that is missing)
        advice = f"pip install 'dlemu[{framework or name}]', or another reader.data_loader than {name}"
        return Check(name=NAME, level="fail", observed=f"{name}: {error}", wanted="importable", advice=advice)
    return Check(name=NAME, level="ok", observed=f"{name}, {framework} {version(framework)}" if framework else name)

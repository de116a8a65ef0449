"""All that dlemu itself needs is installed."""

from __future__ import annotations

import re
from importlib import metadata

from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "packages", 20


def check(facts: Facts) -> Check:
    try:
        requirements = metadata.requires("dlemu") or []
    except metadata.PackageNotFoundError:
        observed, advice = "dlemu runs from its source tree without being installed", "pip install -e ."
        return Check(name=NAME, level="warn", observed=observed, wanted="dlemu installed", advice=advice)
    packages = [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line]
    missing = [package for package in packages if not version(package)]
    if missing:
        observed = f"missing: {', '.join(missing)}"
        return Check(name=NAME, level="fail", observed=observed, wanted="all installed", advice="pip install dlemu")
    return Check(name=NAME, level="ok", observed=", ".join(f"{package} {version(package)}" for package in packages))


def version(package: str) -> str:
    """Return the version of an installed package; empty when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

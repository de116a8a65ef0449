"""What tests of loaders share."""

from __future__ import annotations

from importlib import metadata

import pytest

from dlemu.loaders.traits_base import traits_of


def skip_without_framework(data_loader: str) -> None:
    """Skip a test where the loader's framework is not installed."""
    packages = traits_of(data_loader).packages
    if packages and not any(_is_installed(package) for package in packages):
        pytest.skip(f"{data_loader} needs its framework: pip install 'dlemu[{traits_of(data_loader).extra}]'")


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True

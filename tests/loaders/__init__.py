"""What tests of loaders share."""

from __future__ import annotations

import pytest

from dlemu.loaders.traits_base import traits_of
from dlemu.machine.environment import installed_version


def skip_without_framework(data_loader: str) -> None:
    """Skip a test where the loader's framework is not installed."""
    packages = traits_of(data_loader).packages
    if packages and not any(map(installed_version, packages)):
        pytest.skip(f"{data_loader} needs its framework: pip install 'dlemu[{traits_of(data_loader).extra}]'")

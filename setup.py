"""What is installed: all packages in datagen/ and dlemu/, configs/ as dlemu.configs, and the data files beside them.

The folders are walked, so that a new one is in the wheel by itself; metadata is in pyproject.toml.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["datagen", "datagen.*", "dlemu", "dlemu.*"]),
        "dlemu.configs",
        *(f"dlemu.configs.{name}" for name in find_packages("configs")),
    ],
    package_dir={"dlemu.configs": "configs"},
    package_data={"": ["*.yaml", "*.css", "*.j2", "py.typed"]},
)

"""What is installed: all packages in datagen/ and dlemu/, configs/ as dlemu.configs, and the data files beside them.

The folders are walked, so that a new one is in the wheel by itself; metadata is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup


def readme() -> str:
    """Return README.md for a package index, which has no files beside it: the words of links stay, pictures go."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    picture, caption = r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", r"(?:\*[^\n]+(?:\n[^\n]+)*\*\n+)?"
    text = re.sub(picture + caption, "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    packages=[
        *find_packages(include=["datagen", "datagen.*", "dlemu", "dlemu.*"], exclude=["*.tests", "*.tests.*"]),
        "dlemu.configs",
        *(f"dlemu.configs.{name}" for name in find_packages("configs")),
    ],
    package_dir={"dlemu.configs": "configs"},
    package_data={"": ["*.yaml", "workload/*.yaml", "documents/*.yaml", "*.css", "*.j2", "py.typed"]},
)

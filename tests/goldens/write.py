"""Writes the goldens anew, by the current code: `python -m tests.goldens.write`. Read the diff before you commit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.goldens.render import EXPECTED, RESULTS, goldens, numbers, surroundings
from tests.parts import of_parts


def main() -> None:
    """Write every file in `expected/` anew, and remove others."""
    makers = goldens()
    with tempfile.TemporaryDirectory() as folder, surroundings(shutil.copytree(RESULTS, Path(folder, "results"))):
        texts = {name: make() for name, make in makers.items()}
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (EXPECTED / name).write_text(text)
    print(f"{len(texts)} files in {EXPECTED}")
    for folder in of_parts("RESULTS").values():
        folder.with_suffix(".json").write_text(numbers(str(folder)))


if __name__ == "__main__":
    main()

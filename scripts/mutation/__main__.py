"""Plants small bugs in a package, one at a time, runs its tests and lists the bugs that none of them found."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutation.packages import PACKAGES

ROOT = Path(__file__).parents[2]
RESULT = "mutants.txt"
MOST_BYTES = 8 << 30
"""Of data: a bug that asks for memory without end is found by that, before it takes the machine's. Addresses that are
only reserved do not count: what draws pages reserves more of them than any machine has."""
CONFIG = """
[tool.mutmut]
source_paths = ["dlemu", "datagen"]
only_mutate = {code}
timeout_multiplier = 6.0
also_copy = ["conftest.py", "configs", "docs", "scripts", "setup.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
pytest_add_cli_args = [
  "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "mutation.quick_properties", "--hypothesis-seed=0",
  "--timeout=3000", "-x", "-q", "-m", "not (slow or mpi or root)"{deselected}
]
pytest_add_cli_args_test_selection = {tests}
"""


def main() -> None:
    """Parse and run; one line a package and, below it, each mutant that is left."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"all when none is given: {' '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants of each package, not all of them")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample (default: 0)")
    parser.add_argument("--returns", action="store_true", help="the only bugs: functions return another value")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        count(given.packages[0], given.sample, given.seed, given.returns)
        return
    for package in given.packages or PACKAGES:
        if package not in PACKAGES:
            parser.error(f"no package {package}; wanted one of {', '.join(PACKAGES)}")
    for package in given.packages or PACKAGES:
        in_copy(package, given.sample, given.seed, given.returns)


def in_copy(package: str, sample: int | None, seed: int, returns: bool) -> None:
    """Copy the tree and count there, in a process of its own: mutmut works in the current folder."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        tested = PACKAGES[package]
        with Path(folder, "pyproject.toml").open("a") as config:
            left_out = "".join(f', "--deselect={test}"' for test in tested.without_tests)
            config.write(CONFIG.format(code=list(tested.code), tests=list(tested.tests), deselected=left_out))
        drawn = ["--seed", str(seed), *(["--sample", str(sample)] if sample else [])]
        arguments = [package, "--inside", *drawn, *(["--returns"] if returns else [])]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        log, result = Path(folder, "mutmut.log"), Path(folder, RESULT)
        with log.open("w") as output:  # mutmut draws a line for each mutant
            command = [sys.executable, "-m", "mutation", *arguments]
            ended = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if not result.exists():
            what = f"{package} could not be run (status {ended.returncode})"
            sys.exit(f"scripts/mutate: {what}\n{log.read_text()[-4000:]}")
        print(result.read_text(), end="\n\n", flush=True)


def count(package: str, sample: int | None, seed: int, returns: bool) -> None:
    """Plant the mutants of a package in the current folder and write what became of them."""
    from mutation.mutants import LEFT, change, outcomes, plant

    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    plant(sample, seed, PACKAGES[package].without, returns)
    words = outcomes()
    left = [name for name, word in sorted(words.items()) if word in LEFT]
    found = len(words) - len(left)
    drawn = f" (sample of {sample}, seed {seed})" if sample else ""
    kind = ", other values returned" if returns else ""
    told = [f"{package}{kind}{drawn}: {found} of {len(words)} mutants found, {100 * found / max(1, len(words)):.1f} %"]
    told += [f"{words[name]}: {name}\n{change(name)}" for name in left]
    Path(RESULT).write_text("\n\n".join(told))


if __name__ == "__main__":
    main()

"""Plants small bugs (mutants) in a package, one at a time, runs its tests, and lists the bugs that no test found."""

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
MAX_DATA_BYTES = 8 << 30
"""Limit of a process's data: a mutant that allocates memory without end fails before the machine runs out of it. The
limit is not one of address space, of which the browser that draws pages reserves more than any machine has memory."""
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
    """Print a line for each package and, below it, each mutant that survived."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"default: all of {' '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, metavar="N", help="test only N random mutants of each package")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="random seed of the sample (default: 0)")
    parser.add_argument("--returns", action="store_true", help="only mutants that return another value")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        mutate_package(args.packages[0], args.sample, args.seed, args.returns)
        return
    for package in args.packages or PACKAGES:
        if package not in PACKAGES:
            parser.error(f"no package {package}; wanted one of {', '.join(PACKAGES)}")
    for package in args.packages or PACKAGES:
        run_in_copy(package, args.sample, args.seed, args.returns)


def run_in_copy(package: str, sample: int | None, seed: int, returns: bool) -> None:
    """Test the mutants in a copy of the tree, in a child process, as mutmut needs the current folder; and print."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        git_ls_files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(git_ls_files, cwd=ROOT, text=True).split("\0")):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        paths = PACKAGES[package]
        with Path(folder, "pyproject.toml").open("a") as config:
            deselected = "".join(f', "--deselect={test}"' for test in paths.without_tests)
            config.write(CONFIG.format(code=list(paths.code), tests=list(paths.tests), deselected=deselected))
        options = ["--seed", str(seed), *(["--sample", str(sample)] if sample else [])]
        arguments = [package, "--inside", *options, *(["--returns"] if returns else [])]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        log, result = Path(folder, "mutmut.log"), Path(folder, RESULT)
        with log.open("w") as output:  # mutmut prints a line for each mutant
            command = [sys.executable, "-m", "mutation", *arguments]
            child = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if not result.exists():
            failure = f"{package} could not be run (status {child.returncode})"
            sys.exit(f"scripts/mutate: {failure}\n{log.read_text()[-4000:]}")
        print(result.read_text(), end="\n\n", flush=True)


def mutate_package(package: str, sample: int | None, seed: int, returns: bool) -> None:
    """Test the mutants of a package in the current folder, and write how many were found, and which were not."""
    from mutation.mutants import SURVIVED, change, run_mutants, statuses

    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    run_mutants(sample, seed, PACKAGES[package].without, returns)
    status_by_name = statuses()
    survivors = [name for name, status in sorted(status_by_name.items()) if status in SURVIVED]
    total, found = len(status_by_name), len(status_by_name) - len(survivors)
    drawn = f" (sample of {sample}, seed {seed})" if sample else ""
    kind = ", other values returned" if returns else ""
    paragraphs = [f"{package}{kind}{drawn}: {found} of {total} mutants found, {100 * found / max(1, total):.1f} %"]
    paragraphs += [f"{status_by_name[name]}: {name}\n{change(name)}" for name in survivors]
    Path(RESULT).write_text("\n\n".join(paragraphs))


if __name__ == "__main__":
    main()

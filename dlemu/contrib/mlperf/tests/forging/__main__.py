"""`scripts/forge [--base NAME] [--tree DIR] [--only TEXT]`: forge submission trees and list what no rule tells of."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from dlemu.contrib.mlperf.rules.known import known_rules
from dlemu.contrib.mlperf.tests.forging.forge import BASES, Outcome, forge, make_base


def main() -> int:
    """Forge every tree that is named; returns 1 when a forgery was missed."""
    parser = argparse.ArgumentParser(prog="scripts/forge", description=__doc__)
    parser.add_argument("--base", choices=BASES, action="append", help="honest trees that are made here; default: all")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="a tree of yours, such as a rehearsal's")
    parser.add_argument("--only", default="", help="forgeries whose names contain this")
    asked = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="dlemu-forge-") as folder:
        bases = asked.base or (() if asked.tree else BASES)
        trees = [(name, make_base(name, Path(folder) / name)) for name in bases]
        for name, tree in (*trees, *((str(tree), tree) for tree in asked.tree)):
            own = list(forge(name, tree, asked.only))
            missed = [one for one in own if one.missed]
            print(f"{name}: {len(own)} forgeries, {len(missed)} missed", flush=True)
            for one in missed:
                wanted = f", wanted {' or '.join(sorted(one.wanted))}" if one.wanted else ""
                print(f"  missed: {one.name}{wanted}; said: {', '.join(sorted(one.new)) or 'nothing'}", flush=True)
            outcomes += own
    silent = sorted(known_rules().keys() - {rule for one in outcomes for rule in one.new})
    print(f"{len(outcomes)} forgeries; rules that told of none: {', '.join(silent) or 'none'}")
    return 1 if any(one.missed for one in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())

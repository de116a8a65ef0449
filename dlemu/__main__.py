"""Entry points of the programs: `dlemu`, `dlio_benchmark`, `dlemu-mpirun`, `python -m dlemu`."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run `dlemu`."""
    _run_command_line("main")


def dlio_main() -> None:
    """Run `dlio_benchmark`."""
    _run_command_line("dlio_main")


def mpirun_main() -> None:
    """Run `dlemu-mpirun`."""
    import sys

    from datagen.errors import UserError
    from dlemu.dlio.mpirun import main

    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"dlemu-mpirun: {error}")


def _run_command_line(name: str) -> None:
    """Import the command line, which handles Ctrl-C, and run it, with which this process ends.

    Ctrl-C during the import ends the process without Python's traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import dlemu.cli
    from dlemu.cli.outlets import lasting_outlets

    signal.signal(signal.SIGINT, before)
    try:
        with lasting_outlets():
            getattr(dlemu.cli, name)()
    finally:
        gc.freeze()  # everything goes now: to look for garbage in it took a seventh of a short command's CPU time


if __name__ == "__main__":
    main()
